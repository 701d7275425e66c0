"""The inside of a child process that runs one delivery; `isolated` is the parent's side.

Guarantees: the child ends when its parent does; it holds no connection of ours, and no token before its handler ends the
delivery in a transaction of its own; a handler told to stop is
interrupted where it is. Signals meant for the worker (a terminal's Ctrl-C, a group's SIGTERM) do not end it, and a
handler that kills its process group kills nobody but itself and what it started.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from datetime import datetime
from multiprocessing import connection
from types import FrameType
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from poolkeeper import jsonsafe
from poolkeeper.app import Handler
from poolkeeper.codes import Code
from poolkeeper.context import Context, HandedBack, Stopping
from poolkeeper.errors import CLASSES, LeaseLost, PoolkeeperError, Refused
from poolkeeper.outcome import EndsDelivery, Outcome, judge, misfit
from poolkeeper.provider import Report
from poolkeeper.worker import logs
from poolkeeper.worker.copies import Original
from poolkeeper.worker.load import load_app

_log = logging.getLogger("poolkeeper.worker")

Pipe = connection.Connection  # JSON texts, one per message


class Parent:
    """The keeper of the child's context: the parent behind the pipe."""

    def __init__(self, pipe: "Pipe[Any, Any]") -> None:
        self.stopping = Stopping()
        self.ctx: Context | None = None
        self.task: asyncio.Task[Any] | None = None
        self._pipe = pipe
        self._lock = threading.Lock()
        self._number = 0
        self._progress_at = 0.0
        self._answers: dict[int, dict[str, Any]] = {}
        self._answered = threading.Condition()

    def send(self, message: dict[str, Any]) -> None:
        """Tell the parent; when it is gone this process has no reason to live."""
        with self._lock:
            try:
                self._pipe.send_bytes(json.dumps(message).encode())
            except OSError:
                os._exit(1)

    def progress(self) -> None:
        """Tell the parent of progress, at most once a second."""
        now = time.monotonic()
        if now >= self._progress_at:
            self._progress_at = now + 1.0
            self.send({"progress": True})

    def certain(self) -> bool:
        """Return True: the parent knows, and refuses checkpoints while it does not."""
        return True

    async def save(self, ctx: Context, value: Any) -> bool:
        """Have the parent write a checkpoint, without blocking the event loop."""
        kept = jsonsafe.kept(value, "checkpoint", Code.CHECKPOINT_TOO_LARGE)
        return await asyncio.to_thread(self._save, ctx, kept)

    def save_sync(self, ctx: Context, value: Any) -> bool:
        """Have the parent write a checkpoint; raises what the parent was answered."""
        return self._save(ctx, jsonsafe.kept(value, "checkpoint", Code.CHECKPOINT_TOO_LARGE))

    async def succeed(self, ctx: Context, connection: Any, result: Any) -> bool:
        """End the delivery in the handler's own transaction."""
        from poolkeeper.worker import owntransaction

        token = await asyncio.to_thread(self._token)
        return await owntransaction.succeed(ctx, token, connection, result)

    def succeed_sync(self, ctx: Context, connection: Any, result: Any) -> bool:
        """The same in a handler that blocks."""
        from poolkeeper.worker import owntransaction

        return owntransaction.succeed_sync(ctx, self._token(), connection, result)

    async def report(self, ctx: Context, report: Report) -> bool:
        """Have the parent tell what a provider answered, without blocking the event loop."""
        return await asyncio.to_thread(self.report_sync, ctx, report)

    def report_sync(self, ctx: Context, report: Report) -> bool:
        """Have the parent tell what a provider answered."""
        del ctx
        with self._answered:
            self._number += 1
            number = self._number
        status = int(report.status) if report.status.isdigit() else report.status
        answer = self._ask({"report": {**dataclasses.asdict(report), "status": status}, "number": number}, number)
        if "refused" in answer:
            raise _error(*answer["refused"])
        return bool(answer["taken"])

    def _token(self) -> str:
        with self._answered:
            self._number += 1
            number = self._number
        return str(self._ask({"token": number}, number)["token"])

    def _save(self, ctx: Context, value: Any) -> bool:
        with self._answered:
            self._number += 1
            number = self._number
        answer = self._ask({"save": value, "number": number}, number)
        if "refused" in answer:
            raise _error(*answer["refused"])
        ctx.checkpoint = value
        return bool(answer["durable"])

    def _ask(self, message: dict[str, Any], number: int) -> dict[str, Any]:
        self.send(message)
        with self._answered:
            self._answered.wait_for(lambda: number in self._answers)
            return self._answers.pop(number)

    def listen(self) -> None:
        """Hear the parent, in a thread of its own, until it goes away; then end this process."""
        while True:
            try:
                message = json.loads(self._pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(1)
            if "saved" in message:
                with self._answered:
                    self._answers[message["saved"]] = message
                    self._answered.notify_all()
            elif "stopping" in message:
                self.stopping.set()
            elif "halt" in message:
                code, text, handed_back = message["halt"]
                self._halt(HandedBack(Code(code), text) if handed_back else _error(code, text))

    def _halt(self, error: PoolkeeperError) -> None:
        if self.ctx is not None and isinstance(error, LeaseLost):
            self.ctx.halt(error)
        if self.task is not None:
            with contextlib.suppress(RuntimeError):  # its event loop has ended with the handler
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)
        else:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def main(pipe: "Pipe[Any, Any]", app: str, facts: dict[str, Any], memory: int | None) -> None:
    """Run the delivery that `facts` describes and send its outcome; the process ends with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _unheard)
        signal.siginterrupt(number, False)
    original = Original()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # noqa: SLF001  (else a handler could start no process)
    with contextlib.suppress(OSError):  # it leads a group already
        os.setpgid(0, 0)
    if memory is not None:
        _bound_memory(memory)
    logs.set_up(os.environ)
    parent = Parent(pipe)
    payload = facts.pop("payload")
    facts["task_id"] = UUID(facts["task_id"])
    facts["submitted_at"] = datetime.fromisoformat(facts["submitted_at"]) if facts["submitted_at"] else None
    parent.ctx = Context(parent, **facts)
    signal.signal(signal.SIGUSR1, lambda *_: _raise(parent.ctx))
    threading.Thread(target=parent.listen, name="poolkeeper-parent", daemon=True).start()
    handler = load_app(app).handlers[parent.ctx.type]
    parent.send({"begun": True})
    try:
        outcome = _run(handler, payload, parent.ctx, parent)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    except LeaseLost:  # told to stop between its end and here
        outcome = _stopped(parent.ctx)
    original.end_copy()
    parent.send({"end": dataclasses.asdict(outcome)})


def _unheard(number: int, frame: FrameType | None) -> None:
    """Do nothing. To ignore the signal would be inherited by the programs that a handler starts."""


def _run(handler: Handler, stored: Any, ctx: Context, parent: Parent) -> Outcome:
    ctx.version = handler.checkpoint_version
    try:
        try:
            payload = handler.payload(stored)
        except ValidationError as error:
            return misfit(error, "payload")
        arguments = (payload, ctx) if handler.takes_context else (payload,)
        returned = (
            asyncio.run(_in_loop(handler, arguments, parent)) if handler.is_async else handler.function(*arguments)
        )
        return _returned(handler, returned)
    except BaseException as error:  # noqa: BLE001  (even SystemExit of a handler is an outcome, and it may be told to stop anywhere)
        if ctx.halted is not None:
            return _stopped(ctx)
        if not isinstance(error, EndsDelivery):
            _log.warning("task %s (%s): its handler raised", ctx.task_id, ctx.type, exc_info=error)
        return judge(error)


def _returned(handler: Handler, returned: Any) -> Outcome:
    try:
        return Outcome("succeeded", handler.result(returned))
    except Refused as error:
        return misfit(error, "result")


def _stopped(ctx: Context) -> Outcome:
    return Outcome("canceled" if ctx.halted is not None and ctx.halted.code == Code.CANCELED else "handed_back")


async def _in_loop(handler: Handler, arguments: tuple[Any, ...], parent: Parent) -> Any:
    parent.task = asyncio.current_task()
    return await handler.function(*arguments)


def _raise(ctx: Context | None) -> None:
    if ctx is not None and ctx.halted is not None:
        raise ctx.halted


def _error(code: str, text: str) -> PoolkeeperError:
    kind = LeaseLost if CLASSES.get(Code(code)) is LeaseLost else Refused
    return kind(Code(code), text)


def _bound_memory(limit: int) -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):  # a lower hard limit stands already
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
