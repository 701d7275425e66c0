"""One delivery of one task, in this process; see the package."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from uuid import UUID, uuid4

from pydantic import ValidationError

from poolkeeper import jsonsafe
from poolkeeper.app import Handler, Poolkeeper
from poolkeeper.codes import Code
from poolkeeper.context import Context, Stopping
from poolkeeper.errors import LeaseLost, Refused
from poolkeeper.outcome import Ending, EndsDelivery, Outcome, judge, misfit
from poolkeeper.provider import Report

MAX_CHECKPOINT = 64 * 1024
"""Bytes: the default of a queue's checkpoint.maxSize."""


@dataclass(frozen=True)
class TestResult:
    """How the delivery ended. `checkpoints` are the saved values in order; `error` is the text that would be stored.

    `progressed`: how often it called `ctx.progress()`. `reported`: what it told of providers by `report_provider`, in order; a test has no quota, nothing is lowered. `succeeded_in`: what the handler called `succeed_in` with, in order; nothing was done on those connections.
    """

    __test__: ClassVar[bool] = False

    outcome: Ending | Literal["crashed", "lost"]
    result: Any = None
    error: str | None = None
    error_class: str | None = None
    retry_after: float | None = None
    checkpoints: list[Any] = field(default_factory=list)
    succeeded_in: list[Any] = field(default_factory=list)
    progressed: int = 0
    reported: list[Report] = field(default_factory=list)


class Notes:
    """The keeper of a test's context: remembers instead of storing."""

    def __init__(self, *, stopping: bool, max_checkpoint: int) -> None:
        self.saved: list[Any] = []
        self.succeeded_in: list[Any] = []
        self.progressed = 0
        self.reported: list[Report] = []
        self.stopping = Stopping()
        self._max = max_checkpoint
        if stopping:
            self.stopping.set()

    def progress(self) -> None:
        """Count a sign of progress."""
        self.progressed += 1

    def certain(self) -> bool:
        """Return True: there is no lease to lose."""
        return True

    async def succeed(self, ctx: Context, connection: Any, result: Any) -> bool:
        """Remember that the delivery was ended in a transaction of the handler's."""
        return self.succeed_sync(ctx, connection, result)

    def succeed_sync(self, ctx: Context, connection: Any, result: Any) -> bool:
        """Remember that the delivery was ended in a transaction of the handler's."""
        del ctx, connection
        self.succeeded_in.append(through_json(result, "result"))
        return True

    async def report(self, ctx: Context, report: Report) -> bool:
        """Remember what a provider answered."""
        return self.report_sync(ctx, report)

    def report_sync(self, ctx: Context, report: Report) -> bool:
        """Remember what a provider answered."""
        del ctx
        self.reported.append(report)
        return True

    async def save(self, ctx: Context, value: Any) -> bool:
        """Remember a checkpoint; refuses what a worker would refuse."""
        return self.save_sync(ctx, value)

    def save_sync(self, ctx: Context, value: Any) -> bool:
        """Remember a checkpoint; refuses what a worker would refuse."""
        stored = through_json(value, "checkpoint")
        size = size_of(stored)
        if size > self._max:
            raise Refused(
                Code.CHECKPOINT_TOO_LARGE,
                f"checkpoint has {size} bytes, the queue takes {self._max}; make it smaller, the previous one stays",
            )
        self.saved.append(stored)
        ctx.checkpoint = stored
        return True


async def arun_task(
    app: Poolkeeper,
    type: str,  # noqa: A002  (the word of the store)
    payload: Any = None,
    *,
    checkpoint: Any = None,
    delivery: int = 1,
    failures: int = 0,
    tenant: str = "default",
    queue: str = "default/test",
    labels: Mapping[str, str] | None = None,
    task_id: UUID | None = None,
    stopping: bool = False,
    canceled: bool = False,
    max_checkpoint: int = MAX_CHECKPOINT,
) -> TestResult:
    """Run the handler of `type` once and return how the delivery ended; raises KeyError for a type without handler.

    `stopping` starts it in a worker that drains, `canceled` with a task whose cancel was requested.
    """
    handler = app.handlers.get(type)
    if handler is None:
        raise KeyError(
            f"the application has no handler of type {type!r}; it has: {', '.join(sorted(app.handlers)) or 'none'}"
        )
    notes = Notes(stopping=stopping, max_checkpoint=max_checkpoint)
    ctx = Context(
        notes,
        task_id=task_id or uuid4(),
        type=type,
        queue=queue,
        tenant=tenant,
        delivery=delivery,
        failures=failures,
        labels=labels,
        checkpoint=through_json(checkpoint, "checkpoint"),
        version=handler.checkpoint_version,
    )
    if canceled:
        ctx.halt(LeaseLost(Code.CANCELED, f"task {ctx.task_id}: canceled on request"))
    outcome = await invoke(handler, through_json(payload, "payload"), ctx)
    return TestResult(
        outcome.ending,
        outcome.result,
        outcome.error,
        outcome.error_class,
        outcome.retry_after,
        notes.saved,
        notes.succeeded_in,
        notes.progressed,
        notes.reported,
    )


def run_task(app: Poolkeeper, type: str, payload: Any = None, **options: Any) -> TestResult:  # noqa: A002
    """Run `arun_task` from a test that is no coroutine; takes the same arguments."""
    return asyncio.run(arun_task(app, type, payload, **options))


def through_json(value: Any, what: str) -> Any:
    """Return what the store would give back for `value`; raises Refused for what it would not take."""
    return json.loads(json.dumps(jsonsafe.plain(value, what)))


def size_of(stored: Any) -> int:
    """Return the bytes that the store counts for a value."""
    return len(json.dumps(stored, ensure_ascii=False).encode())


async def invoke(handler: Handler, stored: Any, ctx: Context) -> Outcome:
    """Call a handler and judge how it ended, as a worker does; what stops the test run itself is let through."""
    try:
        payload = handler.payload(stored)
    except Exception as error:  # noqa: BLE001  (a validator of the application may raise anything)
        return misfit(error, "payload") if isinstance(error, ValidationError) else judge(error)
    arguments = (payload, ctx) if handler.takes_context else (payload,)
    try:
        if handler.is_async:
            returned = await handler.function(*arguments)
        else:
            returned = await asyncio.to_thread(handler.function, *arguments)
    except BaseException as error:
        if _of_the_test(error):
            raise
        if ctx.halted is None or isinstance(error, EndsDelivery):
            return judge(error)
        return Outcome("canceled" if ctx.halted.code == Code.CANCELED else "handed_back")
    try:
        result = handler.result(returned)
    except (Refused, TypeError) as error:
        return misfit(error, "result") if isinstance(error, Refused) else judge(error)
    return Outcome("succeeded", result)


def _of_the_test(error: BaseException) -> bool:
    """Whether this is no doing of the handler's: Ctrl-C, or the test itself was cancelled."""
    task = asyncio.current_task()
    cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
    return cancelled or isinstance(error, KeyboardInterrupt)
