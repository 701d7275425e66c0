"""The application that the workers of these tests run; handlers tell what they do by lines in the file of NOTES."""

import asyncio
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import committing  # type: ignore[import-not-found]  # beside this file
from notes import note, released  # type: ignore[import-not-found]  # beside this file

from poolkeeper import Context, Dead, LeaseLost, Poolkeeper, Reject, RetryAfter, Snooze

app = Poolkeeper()
committing.add_to(app)


@app.task("t.noop")
async def noop(payload: Any) -> None:
    del payload


@app.task("t.count")
async def count(payload: Any, ctx: Context) -> Any:
    note(ctx, "done")
    return payload


@app.task("t.steps")
async def steps(until: int, ctx: Context) -> int:
    """Does numbered steps with a checkpoint after each, waits after every one until its file exists."""
    for step in range(ctx.checkpoint or 0, until):
        note(ctx, "step", step=step)
        await ctx.save_checkpoint(step + 1)
        note(ctx, "saved", step=step)
        while not released(f"step{step}"):
            await asyncio.sleep(0.02)
    return until


@app.task("t.hold")
async def hold(name: str, ctx: Context) -> str:
    """Waits for a file."""
    note(ctx, "in")
    try:
        while not released(name):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note(ctx, "cancelled", code=str(ctx.halted.code) if ctx.halted else None)
        raise
    note(ctx, "out")
    return name


@app.task("t.hold_thread")
def hold_thread(name: str, ctx: Context) -> str:
    """Waits for a file, in a thread."""
    note(ctx, "in")
    while not released(name):
        try:
            ctx.raise_if_canceled()
        except LeaseLost as lost:
            note(ctx, "told", code=str(lost.code))
            raise
        time.sleep(0.02)
    note(ctx, "out")
    return name


@app.task("t.hold_process", isolation="process")
def hold_process(name: str, ctx: Context) -> str:
    """Waits for a file, in a process of its own, without ever asking whether it should stop."""
    note(ctx, "in")
    while not released(name):
        time.sleep(0.02)
    note(ctx, "out")
    return name


@app.task("t.block")
async def block(seconds: float, ctx: Context) -> None:
    """Blocks the event loop, as handlers should not."""
    note(ctx, "in")
    time.sleep(seconds)
    note(ctx, "out")


@app.task("t.poison")
async def poison(how: str, ctx: Context) -> None:
    """Ends its process."""
    note(ctx, "in")
    if how == "exit":
        os._exit(7)
    if how == "group" and os.getpgrp() == os.getpid():  # else it would be that of the tests as well
        os.killpg(0, signal.SIGKILL)
    if how == "worker" and ctx.delivery > 1:
        between = Path(f"/proc/{os.getppid()}/stat").read_text()  # the process that children are forked from
        os.kill(int(between.rpartition(")")[2].split()[1]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task("t.process", isolation="process")
async def process(payload: Any, ctx: Context) -> dict[str, Any]:
    note(ctx, "in", parent=os.getppid())
    first = await ctx.save_checkpoint({"seen": payload})
    return {"pid": os.getpid(), "checkpoint": ctx.checkpoint, "durable": first}


@app.task("t.memory", isolation="process")
def memory(size: int, ctx: Context) -> int:
    note(ctx, "in")
    return len(bytearray(size))


@app.task("t.drains")
async def drains(name: str, ctx: Context) -> str:
    """Ends as soon as the worker says that it stops."""
    note(ctx, "in")
    await ctx.stopping
    await ctx.save_checkpoint({"stopped": True})
    note(ctx, "out")
    return name


@app.task("t.raises")
async def raises(what: str, ctx: Context) -> None:
    note(ctx, "in")
    match what:
        case "reject":
            raise Reject("no such order")
        case "dead":
            raise Dead("the invoice was deleted")
        case "retry":
            raise RetryAfter(0.05, "busy")
        case "snooze":
            raise Snooze(0.05)
        case "exit":
            sys.exit(3)
        case _:
            raise RuntimeError("connect to postgresql://joe:hunter2@db/x failed")


@app.task("t.saves")
async def saves(values: list[Any], ctx: Context) -> list[Any]:
    """Saves checkpoints one after the other as fast as it can and says what each answered."""
    answers: list[Any] = []
    for value in values:
        try:
            answers.append(await ctx.save_checkpoint(value))
        except Exception as error:  # noqa: BLE001
            answers.append(str(getattr(error, "code", error)))
    note(ctx, "saved")
    if ctx.delivery == 1:
        raise RetryAfter(0.0)
    return [ctx.checkpoint, *answers]


@app.task("t.stubborn")
def stubborn(name: str, ctx: Context) -> None:
    """Waits for a file, in a thread, and never asks its context anything."""
    note(ctx, "in")
    while not released(name):
        time.sleep(0.02)


@app.task("t.steals")
async def steals(how: str, ctx: Context) -> None:
    """Lets the test's trigger refuse how this delivery ends."""
    note(ctx, "in")
    if how == "error":
        raise RuntimeError("refuse me")


@app.task("t.last_words")
async def last_words(say: bool, ctx: Context) -> Any:
    """Saves faster than the rate, waits, and, if it shall, saves once more when it is cancelled."""
    if ctx.delivery > 1:
        return ctx.checkpoint
    for number in range(30):
        await ctx.save_checkpoint(number)
    note(ctx, "in")
    try:
        await asyncio.Event().wait()
    finally:
        if say:
            await ctx.save_checkpoint("last words")


@app.task("t.last_words_thread")
def last_words_thread(say: bool, ctx: Context) -> Any:
    """The same in a thread."""
    if ctx.delivery > 1:
        return ctx.checkpoint
    for number in range(30):
        ctx.save_checkpoint_sync(number)
    note(ctx, "in")
    try:
        while True:
            ctx.raise_if_canceled()
            time.sleep(0.02)
    finally:
        if say:
            ctx.save_checkpoint_sync("last words")


app.task("t.last_words_process", isolation="process")(last_words)


@app.task("t.sleeps")
async def sleeps(seconds: float, ctx: Context) -> None:
    """Waits as handlers should."""
    note(ctx, "in")
    await asyncio.sleep(seconds)
    note(ctx, "out")


@app.task("t.burns")
async def burns(seconds: float, ctx: Context) -> None:
    """Computes on the event loop, as handlers should not."""
    note(ctx, "in")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    note(ctx, "out")


@app.task("t.stops_all")
async def stops_all(seconds: float, ctx: Context) -> None:
    """Keeps every thread of its process from running, as native code can that does not give the interpreter lock back."""
    note(ctx, "in")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    note(ctx, "out")


app.task("t.stops_all_process", isolation="process")(stops_all)


@app.task("t.walks")
async def walks(payload: tuple[int, float], ctx: Context) -> int:
    """Does numbered steps of some seconds each, with a checkpoint after each."""
    until, seconds = payload
    for step in range(ctx.checkpoint or 0, until):
        note(ctx, "step", step=step)
        await asyncio.sleep(seconds)
        await ctx.save_checkpoint(step + 1)
    return until


@app.task("t.deaf")
async def deaf(name: str, ctx: Context) -> None:
    """Waits for a file, and takes no notice of being cancelled."""
    note(ctx, "in")
    while not released(name):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            note(ctx, "cancelled")


@app.task("t.until")
async def until(name: str, ctx: Context) -> None:
    """Fails until a file is there; has made one step before."""
    if ctx.checkpoint is None:
        note(ctx, "step")
        await ctx.save_checkpoint(1)
    note(ctx, "in")
    if not released(name):
        raise RuntimeError("not yet")


@app.task("t.busy")
async def busy(name: str, ctx: Context) -> None:
    """Is told by its provider to come later, every other time."""
    note(ctx, "in")
    await asyncio.sleep(0.05)
    note(ctx, "out")
    if ctx.delivery % 2 and not released(name):
        raise Snooze(0.3)


@app.task("t.hangs_once")
async def hangs_once(payload: Any, ctx: Context) -> Any:
    """Does not end in its first delivery."""
    note(ctx, "in")
    if ctx.delivery == 1:
        await asyncio.Event().wait()
    return payload


@app.task("t.hangs_then_waits")
async def hangs_then_waits(name: str, ctx: Context) -> str:
    """Does not end in its first delivery, and in later ones as soon as a file is there."""
    note(ctx, "in")
    if ctx.delivery == 1:
        await asyncio.Event().wait()
    while not released(name):
        await asyncio.sleep(0.5)
    note(ctx, "out")
    return name
