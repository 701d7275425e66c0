"""More handlers of the tests' application: those that tell how they get on."""

import asyncio
import time

from application import app, note  # type: ignore[import-not-found]  # beside this file

from poolkeeper import Context


@app.task("t.progresses")
async def progresses(seconds: float, ctx: Context) -> None:
    """Gives signs of progress for so long, then hangs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ctx.progress()
        await asyncio.sleep(0.05)
    note(ctx, "silent")
    await asyncio.sleep(3600)


@app.task("t.progresses_in_child", isolation="process")
async def progresses_in_child(seconds: float, ctx: Context) -> None:
    await progresses(seconds, ctx)
