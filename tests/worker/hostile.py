"""Handlers that do what nobody should do to the process that they run in; run by test_hostile*.py."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, NoReturn

from notes import note, released  # type: ignore[import-not-found]  # beside this file

from poolkeeper import Context, Poolkeeper, Reject

app = Poolkeeper()
SHARED: dict[str, Any] = {}


class Mute(RuntimeError):
    """Has no words."""

    def __str__(self) -> str:
        raise ValueError("no words")


class MuteReject(Reject):
    """The same, of those that say how a delivery ends."""

    def __str__(self) -> str:
        raise ValueError("no words")


def explode(what: str) -> NoReturn:  # noqa: C901  (a table of cases)
    match what:
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "generator_exit":
            raise GeneratorExit
        case "cancelled":
            raise asyncio.CancelledError
        case "recursion":
            explode_deeper()
        case "memory":
            raise MemoryError
        case "mute":
            raise Mute
        case "mute_reject":
            raise MuteReject
        case "long_name":
            raise type("E" * 100_000, (Exception,), {})("long")
        case "long_text":
            raise RuntimeError("E" * 500_000)
        case "base":
            raise BaseException("base")  # noqa: TRY002
        case "group":
            raise BaseExceptionGroup("several", [SystemExit(1), KeyboardInterrupt()])
    raise AssertionError(what)


def explode_deeper() -> NoReturn:
    explode_deeper()
    raise AssertionError


@app.task("h.raises")
async def raises(what: str) -> None:
    explode(what)


@app.task("h.raises_thread")
def raises_thread(what: str) -> None:
    explode(what)


app.task("h.raises_process", isolation="process")(raises)


@app.task("h.subtask")
async def subtask(what: str) -> None:
    """Lets a task of its own raise, as gather and TaskGroup do."""

    async def inner() -> None:
        explode(what)

    await asyncio.gather(asyncio.create_task(inner()))


@app.task("h.loop")
async def loop(what: str) -> str:  # noqa: C901  (a table of cases)
    """Does to the event loop what a program may do to one of its own."""
    running = asyncio.get_running_loop()
    match what:
        case "callback_exit":
            running.call_soon(sys.exit, 3)
        case "stop":
            running.stop()
        case "close":
            running.close()
        case "cancel_all":
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
        case "run":
            asyncio.run(asyncio.sleep(0))
        case "leaves_tasks":
            SHARED["tasks"] = [running.create_task(asyncio.sleep(3600)), running.create_task(_raises_later())]
        case "signals":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        case "loop_signals":
            running.remove_signal_handler(signal.SIGTERM)
        case "wakeup":
            signal.set_wakeup_fd(-1)
    await asyncio.sleep(0.01)
    return what


async def _raises_later() -> None:
    await asyncio.sleep(0.05)
    raise RuntimeError("nobody waits for this")


@app.task("h.forks")
async def forks(how: str, ctx: Context) -> str:
    """Becomes two processes, of which the second comes back too."""
    pid = os.fork()
    if pid == 0:
        if how == "raises":
            raise RuntimeError("in the copy")
        if how == "awaits":
            await asyncio.sleep(0)
        return "copy"
    note(ctx, "forked", child=pid)
    os.waitpid(pid, 0)
    return "parent"


@app.task("h.forks_thread")
def forks_thread(how: str, ctx: Context) -> str:
    pid = os.fork()
    if pid == 0:
        if how == "raises":
            raise RuntimeError("in the copy")
        return "copy"
    note(ctx, "forked", child=pid)
    os.waitpid(pid, 0)
    return "parent"


app.task("h.forks_process", isolation="process")(forks)


def _sleep_long() -> None:
    time.sleep(3600)


@app.task("h.children")
def children(how: str, ctx: Context) -> Any:
    """Starts processes and ends them by SIGTERM, as multiprocessing and subprocess do."""
    if how == "program":
        with subprocess.Popen(["sleep", "3600"]) as started:
            note(ctx, "child", child=started.pid)
            started.terminate()
            return started.wait()
    process = multiprocessing.get_context("fork").Process(target=_sleep_long)
    process.start()
    note(ctx, "child", child=process.pid)
    process.terminate()
    process.join()
    return process.exitcode


app.task("h.children_process", isolation="process")(children)


@app.task("h.files")
async def files(how: str) -> str:
    """Closes what the process was started with."""
    match how:
        case "chdir_gone":
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
        case _:
            os.close(int(how))
    return how


@app.task("h.mutates")
async def mutates(payload: dict[str, Any], ctx: Context) -> Any:
    """Saves faster than the rate, and goes on to change what it saved."""
    if ctx.delivery > 1:
        return ctx.checkpoint
    state: dict[str, Any] = {"done": []}
    for number in range(30):
        state["done"].append(number)
        await ctx.save_checkpoint(state)
    state["done"].append("never saved")
    state["odd"] = object()
    payload.clear()
    raise RuntimeError("again")


app.task("h.mutates_process", isolation="process")(mutates)


@app.task("h.shared_result")
async def shared_result(payload: Any) -> Any:
    """Returns what it changes afterwards."""
    shared = {"number": payload}
    asyncio.get_running_loop().call_soon(shared.__setitem__, "odd", object())
    return shared


@app.task("h.result")
def result(what: str) -> Any:  # noqa: PLR0911  (a table of cases)
    match what:
        case "huge":
            return "x" * (300 << 20)
        case "cycle":
            found: list[Any] = []
            found += [found, found]
            return found
        case "generator":
            return (number for number in range(3))
        case "set":
            return {"a": {1, 2}}
        case "nan":
            return float("nan")
        case "object":
            return object()
        case "surrogate":
            return "\ud800"
        case "keys":
            return {1: 2}
        case "raises":
            return Raising()
    raise AssertionError(what)


class Raising:
    """Raises where anybody looks."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


app.task("h.result_process", isolation="process")(result)


@app.task("h.foreign_loop")
def foreign_loop(until: int, ctx: Context) -> Any:
    """Saves checkpoints from an event loop of its own, as a sync handler with asyncio.run does."""

    async def inner() -> list[bool]:
        return [await ctx.save_checkpoint(number) for number in range(until)]

    return asyncio.run(inner())


class Hangs:
    """Waits where nobody can see it."""

    def __del__(self) -> None:
        with contextlib.suppress(BaseException):
            time.sleep(1)


@app.task("h.leaves_threads")
def leaves_threads(name: str, ctx: Context) -> str:
    """Leaves a thread that is no daemon, and garbage that takes long to collect."""
    cycle = [Hangs()]
    cycle.append(cycle)  # type: ignore[arg-type]
    threading.Thread(target=_until, args=(name,), daemon=False).start()
    threading.Thread(target=sys.exit).start()
    gc.collect()
    note(ctx, "in")
    return name


@app.task("h.to_thread")
async def to_thread(name: str, ctx: Context) -> None:
    """Waits for a thread of the loop's own, which cancelling does not end."""
    note(ctx, "in")
    await asyncio.to_thread(_until, name)


def _until(name: str) -> None:
    while not released(name):
        time.sleep(0.05)


@app.task("h.until")
async def until(name: str, ctx: Context) -> None:
    """Waits for a file."""
    note(ctx, "in")
    while not released(name):
        await asyncio.sleep(0.02)


@app.task("h.pid")
async def pid(payload: Any) -> int:
    del payload
    return os.getpid()


app.task("h.pid_process", isolation="process")(pid)
