"""What a handler sees of its task: facts, the last checkpoint, whether to stop; never the fencing token.

Guarantees: once the delivery is canceled, lost or handed back, every call here raises LeaseLost (Q18, Q39).
One class for both kinds of handler: `await ctx.save_checkpoint(…)` in coroutines, `ctx.save_checkpoint_sync(…)` in
threads and child processes; `succeed_in` and `report_provider` likewise. Does not talk to the database itself: a `Keeper` does.
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine, Generator, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from poolkeeper.codes import Code
from poolkeeper.errors import LeaseLost
from poolkeeper.provider import Report, reported

_log = logging.getLogger("poolkeeper.task")


class Stopping:
    """Set when the worker drains: finish soon, or save a checkpoint and return. Awaitable, testable, thread-safe."""

    __slots__ = ("_event", "_lock", "_waiters")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def is_set(self) -> bool:
        """Return whether the worker is about to stop."""
        return self._event.is_set()

    __bool__ = is_set

    async def wait(self) -> None:
        """Return once the worker is about to stop."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.append((loop, waiter))
        await waiter

    def wait_sync(self, timeout: float | None = None) -> bool:
        """Wait in a sync handler, for at most `timeout` seconds; return whether the worker is about to stop."""
        return self._event.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()

    def set(self) -> None:
        """Tell all handlers; the worker calls this, handlers do not."""
        with self._lock:
            self._event.set()
            waiters, self._waiters = self._waiters, []
        for loop, waiter in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class HandedBack(LeaseLost):
    """The worker stops before the handler does: its lease goes back. A last checkpoint is still taken."""


class Keeper(Protocol):
    """Who stores checkpoints for a context: the worker, the parent of a child process, or the testing kit."""

    @property
    def stopping(self) -> Stopping:
        """Set when the worker drains."""
        ...

    async def save(self, ctx: "Context", value: Any) -> bool:
        """Store `value`, in the event loop of the handler."""
        ...

    def save_sync(self, ctx: "Context", value: Any) -> bool:
        """Store `value`, from a thread."""
        ...

    def progress(self) -> None:
        """Note a sign of progress, from any thread."""
        ...

    def certain(self) -> bool:
        """Return whether the lease is known to be held: a renewal was answered within its length."""
        ...

    async def succeed(self, ctx: "Context", connection: Any, result: Any) -> bool:
        """End the delivery well in the transaction of a connection."""
        ...

    def succeed_sync(self, ctx: "Context", connection: Any, result: Any) -> bool:
        """End the delivery well in the transaction of a connection, from a thread."""
        ...

    async def report(self, ctx: "Context", report: Report) -> bool:
        """Tell the store of a provider's answer, in the event loop of the handler."""
        ...

    def report_sync(self, ctx: "Context", report: Report) -> bool:
        """Tell the store of a provider's answer, from a thread."""
        ...


class Context:
    """One delivery of one task, as its handler sees it.

    `checkpoint` is the value last saved, by this delivery or an earlier one, None before the first.
    `delivery` counts from 1 for the life of the task; `failures` are the deliveries that ended in an error.
    """

    __slots__ = (
        "_halt", "_keeper", "checkpoint", "checkpoint_version", "delivery", "failures", "labels", "queue",
        "submitted_at", "task_id", "tenant", "traceparent", "type", "version",
    )  # fmt: skip

    def __init__(
        self,
        keeper: Keeper,
        *,
        task_id: UUID,
        type: str,  # noqa: A002  (the word of the store)
        queue: str = "default",
        tenant: str = "default",
        delivery: int = 1,
        failures: int = 0,
        labels: Mapping[str, str] | None = None,
        traceparent: str | None = None,
        submitted_at: datetime | None = None,
        checkpoint: Any = None,
        checkpoint_version: int | None = None,
        version: int = 1,
    ) -> None:
        self.task_id = task_id
        self.type = type
        self.queue = queue
        self.tenant = tenant
        self.delivery = delivery
        self.failures = failures
        self.labels = labels or {}
        self.traceparent = traceparent
        self.submitted_at = submitted_at
        self.checkpoint = checkpoint
        self.checkpoint_version = checkpoint_version
        self.version = version
        self._keeper = keeper
        self._halt: LeaseLost | None = None

    @property
    def stopping(self) -> Stopping:
        """Set when the worker drains; `if ctx.stopping:` and `await ctx.stopping.wait()` both work."""
        return self._keeper.stopping

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the ids of this delivery as fields."""
        facts = {
            "task_id": str(self.task_id),
            "type": self.type,
            "queue": self.queue,
            "tenant": self.tenant,
            "delivery": self.delivery,
        }
        return logging.LoggerAdapter(_log, facts)

    def save_checkpoint(self, value: Any) -> Coroutine[Any, Any, bool]:
        """Store a small resumption cursor, handed back on the next delivery if this one does not finish; to be awaited.

        Returns True when it is durable; False when it came faster than the queue's rate, then the newest is kept and
        written when allowed. Raises Refused `checkpoint_too_large` (the previous one stays, the task lives) and LeaseLost.
        While the database is out of reach it waits. A sync handler that calls it is told so: it would save nothing.
        """
        if not _in_event_loop():
            raise RuntimeError(
                "save_checkpoint saves nothing in a sync handler; write: ctx.save_checkpoint_sync(value)"
            )
        return self._save(value)

    async def _save(self, value: Any) -> bool:
        self._raise_if_halted(saving=True)
        return await self._keeper.save(self, value)

    def save_checkpoint_sync(self, value: Any) -> bool:
        """Store a checkpoint from a sync handler; as `save_checkpoint`, but raises LeaseLost when the lease is uncertain."""
        if _in_event_loop():
            raise RuntimeError(
                "save_checkpoint_sync would block the event loop; write: await ctx.save_checkpoint(value)"
            )
        self._raise_if_halted(saving=True)
        self._raise_if_uncertain()
        return self._keeper.save_sync(self, value)

    def succeed_in(self, connection: Any, result: Any = None) -> Coroutine[Any, Any, bool]:
        """End the task well in the transaction of `connection`, to the store's database, as `AsyncClient` takes one; to be awaited.

        What else that transaction wrote and "succeeded" commit together, or neither does (Q18). True: the task ends when it
        commits. False: this delivery had committed its success before (the answer of that commit was lost): roll back, the
        rows are there. If it is rolled back, the delivery ends as the handler does. Raises LeaseLost when the task is
        another's by now or was canceled: let it pass, so that the transaction is rolled back. Commit before returning.
        """
        if not _in_event_loop():
            raise RuntimeError("succeed_in ends nothing in a sync handler; write: ctx.succeed_in_sync(conn, result)")
        return self._succeed(connection, result)

    async def _succeed(self, connection: Any, result: Any) -> bool:
        self._raise_if_halted(saving=True)
        return await self._keeper.succeed(self, connection, result)

    def succeed_in_sync(self, connection: Any, result: Any = None) -> bool:
        """End the task well from a sync handler; as `succeed_in`, on a connection as `Client` takes one."""
        if _in_event_loop():
            raise RuntimeError(
                "succeed_in_sync would block the event loop; write: await ctx.succeed_in(conn, result), with an AsyncConnection"
            )
        self._raise_if_halted(saving=True)
        return self._keeper.succeed_sync(self, connection, result)

    def report_provider(
        self,
        name: str,
        status: int | str,
        retry_after: float | timedelta | str | None = None,
        used: Mapping[str, int] | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Tell what a provider answered, so that all pools that use its quota keep to it; to be awaited (Q40).

        `name` is one of the pool's `spec.providers`. `status` is HTTP's, or "ok", "failed", "throttled". After a 429 they start
        fewer tasks at once, and none before `retry_after` seconds have gone by (the header's text will do). `used` is what
        this call used: {"requests": 1, "tokens": 1200}. True: the store took it. False: it did not, and the log says why (it is out of
        reach, the pool has no such provider); the handler goes on. Raises ValueError for what cannot be, and LeaseLost.
        """
        if not _in_event_loop():
            raise RuntimeError(
                "report_provider tells nothing in a sync handler; write: ctx.report_provider_sync(name, status)"
            )
        return self._report(reported(name, status, retry_after, used))

    async def _report(self, report: Report) -> bool:
        self._raise_if_halted(saving=True)
        return await self._keeper.report(self, report)

    def report_provider_sync(
        self,
        name: str,
        status: int | str,
        retry_after: float | timedelta | str | None = None,
        used: Mapping[str, int] | None = None,
    ) -> bool:
        """Tell what a provider answered, from a sync handler; as `report_provider`."""
        if _in_event_loop():
            raise RuntimeError(
                "report_provider_sync would block the event loop; write: await ctx.report_provider(name, status)"
            )
        self._raise_if_halted(saving=True)
        return self._keeper.report_sync(self, reported(name, status, retry_after, used))

    def progress(self) -> None:
        """Say that the handler is getting on, for queues with a progressTimeout; costs nothing, as often as you like.

        Told with the worker's next renewal. A checkpoint is a sign of progress as well. Raises LeaseLost as all calls do.
        """
        self._raise_if_halted()
        self._keeper.progress()

    def raise_if_canceled(self) -> None:
        """Raise LeaseLost if the task was canceled, its lease lost, or (in threads) no longer certain."""
        self._raise_if_halted()
        self._raise_if_uncertain()

    def _raise_if_uncertain(self) -> None:
        if not self._keeper.certain() and not _in_event_loop():
            raise LeaseLost(
                Code.LEASE_EXPIRED,
                f"task {self.task_id}: no renewal was answered for the length of its lease; stop now",
            )

    def halt(self, lost: LeaseLost) -> None:
        """Make every later call raise `lost`; the worker calls this, handlers do not."""
        self._halt = lost

    @property
    def halted(self) -> LeaseLost | None:
        """Why this delivery must stop, None while it may go on."""
        return self._halt

    def _raise_if_halted(self, *, saving: bool = False) -> None:
        if self._halt is not None and not (saving and isinstance(self._halt, HandedBack)):
            raise self._halt


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
