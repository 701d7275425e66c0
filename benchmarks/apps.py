"""Handlers that the benchmarks run: one that does nothing, one that tells its wait, one that runs long, one that kills its process."""

import asyncio
import os
import signal
import time
from typing import Any

from poolkeeper import Context, Poolkeeper, RetryAfter

app = Poolkeeper()


@app.task("bench.noop")
async def noop(_payload: dict[str, int]) -> None:
    """Do nothing."""


@app.task("bench.pickup")
async def pickup(payload: dict[str, int]) -> float:
    """How long it waited, in milliseconds."""
    return (time.monotonic_ns() - payload["at"]) / 1e6


@app.task("bench.long")
async def long(payload: dict[str, float], ctx: Context) -> None:
    """Say which process runs it, in the checkpoint, then take its time."""
    await ctx.save_checkpoint({"pid": os.getpid(), "delivery": ctx.delivery})
    await asyncio.sleep(payload["seconds"])


@app.task("bench.short")
async def short(payload: dict[str, float]) -> None:
    """Take some time."""
    await asyncio.sleep(payload.get("seconds", 0.05))


@app.task("bench.trace")
async def from_trace(payload: dict[str, Any], ctx: Context) -> None:
    """A call of a model: the first time some meet a limit or a time-out."""
    if ctx.delivery == 1 and payload["first"] == "429":
        raise RetryAfter(0.2, "429")
    if ctx.delivery == 1 and payload["first"] == "timeout":
        raise TimeoutError
    await asyncio.sleep(payload["seconds"])


@app.task("bench.poison")
async def poison(_payload: dict[str, int]) -> None:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)
