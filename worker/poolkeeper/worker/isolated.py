"""Running one delivery in a child process, seen from the parent (Q27, Q46).

Guarantees: whatever the child does to itself, exactly one outcome comes back; its death is a failure of that delivery
alone, with exit code or signal as evidence. The memory bounds of all suspects' children together lie below the
container's, so that the kernel does not kill the container for one of them. Does not bound what a child's own children
use. Checkpoints go through the parent, which holds the token; the child is given it when its handler ends the delivery in a
transaction of its own.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from poolkeeper.codes import Code
from poolkeeper.context import Context, HandedBack
from poolkeeper.errors import LeaseLost, PoolkeeperError
from poolkeeper.outcome import Outcome
from poolkeeper.worker import child

_log = logging.getLogger("poolkeeper.worker")

LOOK = 0.2
"""Seconds between two looks at whether the child must be told something."""

PATIENCE = 2.0
"""Seconds that a child told to stop has before it is killed."""

RESERVE = 16 * 1024 * 1024
"""Bytes of the container's memory kept free beside parent and child."""

LEAST = 32 * 1024 * 1024
"""Bytes that a child gets in any case: an interpreter needs that much to say what is wrong."""


SHARE = 256 * 1024 * 1024
"""Bytes that one of several suspects side by side gets at least; where they do not fit twice, one runs at a time."""

FILES = 4
"""Open files that each child costs this process."""

FILES_KEPT = 100
"""Open files left for everything else."""

PRELOADED = ("pydantic.type_adapter", "pydantic.types")
"""What checking a payload imports: once, in the process that children are forked from; in each it took most of the start."""

STARTING = 4
"""Children that start at once: more would only slow each other down, and this process when it renews its leases."""

LONGEST_START = 10.0
"""Seconds after which the next child starts, although this one has not begun to run its handler."""

LONGEST_FAILURE = 30.0
"""Seconds of failed starts after which the delivery is handed back."""

HOME = Path.cwd()
"""Where this process was started."""

Token = Callable[[], str]
"""Gives the fencing token away, and notes that it has."""

_STARTING = threading.Semaphore(STARTING)
_FORKING = threading.Lock()
"""Held to start a child and to take its exit code: whoever starts one looks at all others, and a code is told once."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """How many suspects may run side by side, the bytes for them together, and for one that runs alone; None: no bound."""

    most: int
    together: int | None
    whole: int | None

    def share(self, beside: int) -> int | None:
        """Return the bytes for one of `beside` suspects."""
        return self.whole if beside == 1 or self.together is None else self.together // beside


def run_suspect(app: str, ctx: Context, payload: Any, given: Rooms, beside: int, token: Token) -> Outcome:
    """Run one of `beside` suspects. One whose share of the memory was too small is handed back: it gets more next time."""
    memory = given.share(beside)
    outcome = run_in_child(app, ctx, payload, memory=memory, token=token)
    if outcome.error_class == MemoryError.__name__ and memory != given.whole:
        return Outcome(
            "handed_back", None, "memory_share", f"it needs more than {memory} bytes, its share beside other suspects"
        )
    return outcome


def run_in_child(app: str, ctx: Context, payload: Any, *, memory: int | None, token: Token) -> Outcome:
    """Run the delivery in a process of its own and return how it ended; called in a slot's thread, which it keeps."""
    processes = get_context("forkserver")
    processes.set_forkserver_preload([child.__name__, *PRELOADED, app.partition(":")[0]])
    ours, theirs = processes.Pipe()
    process = processes.Process(
        target=child.main,
        args=(theirs, app, _facts(ctx, payload), memory),
        name=f"poolkeeper {ctx.task_id}",
        daemon=True,
    )
    while not _STARTING.acquire(timeout=LOOK):
        if ctx.halted is not None:
            return _halted(ctx.halted)
    try:
        why = _start(process, ctx)
        theirs.close()
        if why is not None:
            ours.close()
            return why
        connection.wait([ours, process.sentinel], timeout=LONGEST_START)
    finally:
        _STARTING.release()
    try:
        return _converse(ctx, ours, process, token)
    finally:
        process.kill()
        _exit_code(process)
        ours.close()


def _start(process: Any, ctx: Context) -> Outcome | None:
    """Start the child; how the delivery ends where that cannot be: nothing of it is the task's fault."""
    give_up_at, failures = time.monotonic() + LONGEST_FAILURE, 0
    while True:
        try:
            with _FORKING:
                _stand_somewhere()
                process.start()
        except (OSError, EOFError) as error:  # no memory, no processes, no place for a socket, the forking process gone
            if ctx.halted is not None:
                return _halted(ctx.halted)
            if time.monotonic() >= give_up_at:
                return Outcome("handed_back", None, "no_process", f"no process of its own could be started: {error!r}")
            if not failures:
                _log.warning("task %s: no process of its own could be started, trying again: %r", ctx.task_id, error)
            failures += 1
            time.sleep(min(2.0, 0.1 * 2**failures))
        else:
            return None


def _stand_somewhere() -> None:
    """See to it that there is a working directory: a handler may have changed to one that is gone."""
    try:
        Path.cwd()
    except FileNotFoundError:
        os.chdir(HOME)


def _facts(ctx: Context, payload: Any) -> dict[str, Any]:
    return {
        "task_id": str(ctx.task_id),
        "type": ctx.type,
        "queue": ctx.queue,
        "tenant": ctx.tenant,
        "delivery": ctx.delivery,
        "failures": ctx.failures,
        "labels": dict(ctx.labels),
        "traceparent": ctx.traceparent,
        "submitted_at": ctx.submitted_at.isoformat() if ctx.submitted_at else None,
        "checkpoint": ctx.checkpoint,
        "checkpoint_version": ctx.checkpoint_version,
        "payload": payload,
    }


def _converse(ctx: Context, pipe: "connection.Connection[Any, Any]", process: Any, token: Token) -> Outcome:
    told: set[str] = set()
    killed_at = float("inf")
    while time.monotonic() < killed_at:
        ready = connection.wait([pipe, process.sentinel], timeout=LOOK)
        if pipe in ready:
            message = _receive(pipe)
            if message is None:
                break
            if "end" in message:
                return Outcome(**message["end"])
            _answer(ctx, pipe, message, token)
        elif ready:
            break
        for word, detail in _news(ctx):
            if word not in told:
                told.add(word)
                _send(pipe, {word: detail})
                if word == "halt":
                    killed_at = time.monotonic() + PATIENCE
    if ctx.halted is not None:
        return _halted(ctx.halted)
    return _died(process.pid, _exit_code(process))


def _exit_code(process: Any) -> int:
    connection.wait([process.sentinel])
    with _FORKING:
        process.join()
        return int(process.exitcode)


def _halted(why: LeaseLost) -> Outcome:
    return Outcome("canceled" if why.code == Code.CANCELED else "handed_back")


def _news(ctx: Context) -> list[tuple[str, Any]]:
    news: list[tuple[str, Any]] = []
    if ctx.stopping.is_set():
        news.append(("stopping", True))
    if ctx.halted is not None:
        news.append(("halt", [str(ctx.halted.code), str(ctx.halted), isinstance(ctx.halted, HandedBack)]))
    return news


def _answer(ctx: Context, pipe: "connection.Connection[Any, Any]", message: dict[str, Any], token: Token) -> None:
    if "save" in message:
        _send(pipe, _save(ctx, message))
    elif "report" in message:
        _send(pipe, _report(ctx, message))
    elif "progress" in message:
        with contextlib.suppress(LeaseLost):  # it hears that by itself
            ctx.progress()
    elif "token" in message:  # else it says that it has begun
        _send(pipe, {"saved": message["token"], "token": token()})


def _save(ctx: Context, message: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"saved": message["number"], "durable": ctx.save_checkpoint_sync(message["save"])}
    except PoolkeeperError as error:
        return {"saved": message["number"], "refused": [str(error.code), str(error)]}


def _report(ctx: Context, message: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"saved": message["number"], "taken": ctx.report_provider_sync(**message["report"])}
    except PoolkeeperError as error:
        return {"saved": message["number"], "refused": [str(error.code), str(error)]}


def _send(pipe: "connection.Connection[Any, Any]", message: dict[str, Any]) -> None:
    try:
        pipe.send_bytes(json.dumps(message).encode())
    except OSError:
        return  # it has died; the next look finds out


def _receive(pipe: "connection.Connection[Any, Any]") -> dict[str, Any] | None:
    try:
        message: dict[str, Any] = json.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        return None
    return message


def _died(pid: int, code: int) -> Outcome:
    how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code} without an answer"
    return Outcome("failed", None, "process_died", f"the handler's process {pid} {how}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def rooms(slots: int, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Rooms:
    """Return the rooms for suspects of a process with so many slots: as many as memory and open files allow."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = slots if files == resource.RLIM_INFINITY else min(slots, max(1, (files - FILES_KEPT) // FILES))
    whole = memory_bound(root, own)
    if whole is None:
        return Rooms(most, None, None)
    together = whole - _resident()  # the process that children are forked from has loaded the application as well
    most = max(1, min(most, together // SHARE))
    return Rooms(most, together, whole)


def memory_bound(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the bytes that a suspect's child may use: the container's limit less this process and a reserve."""
    limits = [int(text) for path in _limit_files(root, own) if (text := _read(path)).isdigit()]
    limit = min(limits, default=None)
    if limit is None or limit >= 1 << 60:  # cgroup v1 writes "no limit" as a huge number
        return None
    return max(LEAST, limit - _resident() - RESERVE)


def _limit_files(root: Path, own: Path) -> list[Path]:
    files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    for line in _read(own).splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds:
            files.append(root / path.strip("/") / "memory.max")
        elif "memory" in kinds.split(","):
            files.append(root / "memory" / path.strip("/") / "memory.limit_in_bytes")
    return files


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _resident() -> int:
    fields = _read(Path("/proc/self/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 64 * 1024 * 1024
