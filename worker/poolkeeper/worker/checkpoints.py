"""Checkpoints of running deliveries: ordered by (delivery, sequence), bounded in rate, patient in an outage (Q30, Q20).

Guarantees: a True answer means durable; beyond the rate the newest is kept and written when allowed, and before the
delivery is settled for another one. While the lease is uncertain nothing is written: it waits. The size is bounded by
the store, whose refusal reaches the handler and leaves the previous checkpoint in place.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any

import psycopg

from poolkeeper import jsonsafe
from poolkeeper.codes import IN_TRANSACTION, Code
from poolkeeper.context import Context, HandedBack, Stopping
from poolkeeper.errors import CLASSES, LeaseLost, PoolkeeperError, Refused
from poolkeeper.provider import Report
from poolkeeper.store import calls
from poolkeeper.store.rows import CheckpointVerdict
from poolkeeper.worker import owntransaction
from poolkeeper.worker.link import pause
from poolkeeper.worker.reports import Reports, Send

_log = logging.getLogger("poolkeeper.worker")

PER_SECOND = 10.0
"""Checkpoints of one delivery per second, and as many in a burst, until the store has told the queue's own rate."""

IN_VAIN = 5
"""Times that a checkpoint is tried while the handler's own transaction holds the lease, which may wait for it itself."""

_LOST = {code for code, kind in CLASSES.items() if kind is LeaseLost} | {Code.UNKNOWN_TASK}


class Desk:
    """The checkpoints of one delivery; the keeper that its context knows. The fencing token lies here."""

    __slots__ = (
        "_writer",
        "_writing",
        "allowance",
        "counted_at",
        "ended_itself",
        "has_kept",
        "kept",
        "progressed",
        "sequence",
        "timer",
        "token",
    )

    def __init__(self, writer: "Writer", token: str) -> None:
        self._writer = writer
        self.token = token
        self.sequence = 0
        self.progressed = False
        self.allowance = math.inf  # a whole burst of whatever the rate is
        self.counted_at = 0.0
        self.kept: Any = None
        self.has_kept = False
        self.timer: asyncio.TimerHandle | None = None
        self.ended_itself = False  # in a transaction of the handler's own, which may be open, committed or rolled back
        self._writing: asyncio.Task[None] | None = None

    @property
    def stopping(self) -> Stopping:
        """Set when the worker drains."""
        return self._writer.stopping

    def progress(self) -> None:
        """Note a sign of progress, for the next renewal to tell; from any thread."""
        self.progressed = True

    def certain(self) -> bool:
        """Return whether the lease is held for certain."""
        return self._writer.certain()

    async def save(self, ctx: Context, value: Any) -> bool:
        """Write `value`, or keep it for when the rate allows; see Context.save_checkpoint."""
        value, loop = _kept(value), self._writer.loop
        if asyncio.get_running_loop() is not loop:  # a handler's own, in a thread
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._save(ctx, value), loop))
        return await self._save(ctx, value)

    async def _save(self, ctx: Context, value: Any) -> bool:
        rate = self._writer.rates.get(ctx.queue, PER_SECOND)
        wait = 0.1 if self.timer is not None else self._allowed_in(rate, time.monotonic())
        if not wait:
            await self._writer.write(self, ctx, value)
            ctx.checkpoint = value
            return True
        self.kept, self.has_kept = value, True
        ctx.checkpoint = value
        if self.timer is None:
            self.timer = self._writer.loop.call_later(wait, self._due, ctx)
        return False

    def save_sync(self, ctx: Context, value: Any) -> bool:
        """Write from a thread: the event loop does it, the thread waits."""
        return asyncio.run_coroutine_threadsafe(self._save(ctx, _kept(value)), self._writer.loop).result()

    async def succeed(self, ctx: Context, connection: Any, result: Any) -> bool:
        """End the delivery in the handler's own transaction."""
        self.ended_itself = True
        return await owntransaction.succeed(ctx, self.token, connection, result)

    def succeed_sync(self, ctx: Context, connection: Any, result: Any) -> bool:
        """The same from a thread."""
        self.ended_itself = True
        return owntransaction.succeed_sync(ctx, self.token, connection, result)

    async def report(self, ctx: Context, report: Report) -> bool:
        """Tell the store what a provider answered."""
        loop = self._writer.loop
        if asyncio.get_running_loop() is not loop:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._report(ctx, report), loop))
        return await self._report(ctx, report)

    def report_sync(self, ctx: Context, report: Report) -> bool:
        """The same from a thread."""
        return asyncio.run_coroutine_threadsafe(self._report(ctx, report), self._writer.loop).result()

    async def _report(self, ctx: Context, report: Report) -> bool:
        return await self._writer.reports.tell(ctx, self.token, report)

    def token_for_child(self) -> str:
        """Return the token to a child process whose handler ends the delivery in a transaction of its own."""
        self.ended_itself = True
        return self.token

    @property
    def unwritten(self) -> bool:
        """Whether something is kept back, or being written just now."""
        return self.has_kept or self._writing is not None

    def close(self) -> None:
        """Forget what is kept back: the delivery has ended."""
        if self.timer is not None:
            self.timer.cancel()

    async def flush(self, ctx: Context) -> None:
        """Write what is kept back, before the delivery ends for another one."""
        self.close()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._write_kept(ctx)

    def _due(self, ctx: Context) -> None:
        """Write what is kept back, as the rate allows it now."""
        self.timer = None
        self._writing = self._writer.loop.create_task(self._write_kept(ctx))
        self._writing.add_done_callback(self._written)

    def _written(self, _writing: asyncio.Task[None]) -> None:
        self._writing = None

    async def _write_kept(self, ctx: Context) -> None:
        if not self.has_kept:
            return
        self.allowance -= 1.0
        value, self.kept, self.has_kept = self.kept, None, False
        try:
            await self._writer.write(self, ctx, value)
        except Refused as error:
            _log.warning(
                "task %s: a checkpoint kept back by the rate was refused, the previous one stays: %s",
                ctx.task_id,
                error,
            )
        except (PoolkeeperError, RuntimeError) as error:
            _log.info("task %s: a checkpoint kept back by the rate was not written: %s", ctx.task_id, error)

    def _allowed_in(self, rate: float, now: float) -> float:
        """Return the seconds until the rate allows the next write; spends it when that is 0."""
        self.allowance = min(rate, self.allowance + (now - self.counted_at) * rate)
        self.counted_at = now
        if self.allowance >= 1.0:
            self.allowance -= 1.0
            return 0.0
        return (1.0 - self.allowance) / rate


class Writer:
    """Writes the checkpoints of all desks of one worker."""

    def __init__(
        self,
        send: Send,
        *,
        certain: Callable[[], bool],
        stopping: Stopping,
    ) -> None:
        self._send = send
        self.certain = certain
        self.stopping = stopping
        self.loop = asyncio.get_running_loop()
        self.reports = Reports(send)
        self.rates: dict[str, float] = {}  # queue -> checkpoints per second and delivery, as the store last said
        self._rng = random.Random()  # noqa: S311  (jitter)

    async def write(self, desk: Desk, ctx: Context, value: Any) -> None:
        """Write one checkpoint; waits while the database is away. Raises Refused, LeaseLost, and RuntimeError (IN_VAIN)."""
        desk.sequence += 1
        call = calls.checkpoint(ctx.task_id, desk.token, value, sequence=desk.sequence, version=ctx.version)
        failures = 0
        while True:
            if ctx.halted is not None and not isinstance(ctx.halted, HandedBack):
                raise ctx.halted
            try:
                # shielded: a cancelled handler must not cut off the statement that others wait behind
                verdict: CheckpointVerdict | None = await asyncio.shield(self._send(call)) if self.certain() else None
            except psycopg.DataError as error:
                raise Refused(Code.PAYLOAD_INVALID, f"task {ctx.task_id}: checkpoint refused: {error}") from error
            except (PoolkeeperError, psycopg.Error, OSError):  # a login refused for a while, a Secret being rotated
                failures += 1
                verdict = None
            if verdict is not None and verdict.code == IN_TRANSACTION:
                failures += 1
                if failures == IN_VAIN:
                    raise RuntimeError(
                        f"task {ctx.task_id}: the transaction in which it called succeed_in is still open; "
                        "save checkpoints before succeed_in, or after a rollback"
                    )
                verdict = None
            if verdict is not None:
                if verdict.per_second is not None:
                    self.rates[ctx.queue] = verdict.per_second
                return _heed(ctx, verdict)
            await asyncio.sleep(pause(failures, self._rng))


def _kept(value: Any) -> Any:
    """Return what is to be saved, as it is now: the handler may go on to change its own."""
    return jsonsafe.kept(value, "checkpoint", Code.CHECKPOINT_TOO_LARGE)


def _heed(ctx: Context, verdict: CheckpointVerdict) -> None:
    if verdict.canceled or verdict.code in _LOST:
        code = Code.CANCELED if verdict.canceled else Code(verdict.code or Code.LEASE_EXPIRED)
        lost = LeaseLost(code, f"task {ctx.task_id}: {code}")
        ctx.halt(lost)
        raise lost
    if verdict.code is not None:
        raise Refused(
            Code(verdict.code),
            f"task {ctx.task_id}: checkpoint refused ({verdict.code}); make it smaller, the previous one stays",
        )
