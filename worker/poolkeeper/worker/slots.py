"""The slots of a worker: deliveries being run, those waiting for a free slot, and the settles they leave behind.

Guarantees: every delivery put in comes out as exactly one settle, unless its lease was lost; the failure of one handler
touches no other (Q47). A delivery starts only while the lease is certain. Coroutines run as tasks, sync handlers in
daemon threads, isolated ones in child processes. Does not talk to the database.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

from pydantic import ValidationError

from poolkeeper.app import Handler
from poolkeeper.codes import Code
from poolkeeper.context import Context
from poolkeeper.errors import LeaseLost, Refused
from poolkeeper.outcome import EndsDelivery, Outcome, judge, misfit
from poolkeeper.store.rows import Claimed, Settle
from poolkeeper.worker.checkpoints import Desk, Writer
from poolkeeper.worker.logs import Traces
from poolkeeper.worker.threads import Threads

_log = logging.getLogger("poolkeeper.worker")

Why = Literal["canceled", "lost", "handed_back"]


class Running:
    """One delivery in a slot."""

    __slots__ = ("begun", "claimed", "ctx", "desk", "halted_at", "handler", "key", "started", "task", "why")

    def __init__(self, claimed: Claimed, handler: Handler, ctx: Context, desk: Desk) -> None:
        self.claimed = claimed
        self.key = claimed.task_id  # of `Slots.running`
        self.handler = handler
        self.ctx = ctx
        self.desk = desk
        self.started = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.why: Why | None = None
        self.halted_at: float | None = None
        self.begun = False

    def halt(self, why: Why, lost: LeaseLost) -> None:
        """Tell the handler from any thread that it must stop: its context raises, the parent of a child process sees it."""
        if self.why is None or why == "lost":
            self.why = why
        if self.halted_at is None:
            self.halted_at = time.monotonic()
        self.ctx.halt(lost)


class Slots:
    """See the module. All methods but `held` and `halt` belong to the event loop's thread."""

    def __init__(
        self,
        handlers: dict[str, Handler],
        *,
        capacity: int,
        writer: Writer,
        in_child: Callable[[Context, Claimed, Callable[[], str]], Outcome],
        changed: Callable[[], None],
        came_back: Callable[[], None],
    ) -> None:
        self.capacity = capacity
        self.leased: deque[Claimed] = deque()  # claimed ahead, to be started by a later turn
        self.waiting: deque[Claimed] = deque()  # started, with a slot soon
        self.running: dict[UUID, Running] = {}
        self.settles: deque[Settle] = deque()
        self.put_off: deque[Settle] = deque()  # their handlers' own transactions are open still
        self.finished = 0
        self.busy_seconds = 0.0
        self.typical = 0.0  # seconds of a delivery, a moving mean
        self.endings: dict[str, int] = {}
        self.abandoned = 0
        self._filling = False
        self._handlers = handlers
        self._writer = writer
        self._in_child = in_child
        self._changed = changed
        self._came_back = came_back  # does not return in a copy of this process that a handler forked
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(capacity)
        self._traces = Traces()

    def held(self) -> dict[UUID, int]:
        """Return the tasks of all deliveries whose settle was not answered yet, with their numbers; from any thread.

        Complete: a delivery goes from leased to waiting to running to settles, is put into the next before it is taken
        out of the last, and they are read in that order; what is put off may go to and fro. (0: its end is told already, news of it come too late.)
        """
        while True:
            try:
                held = {claimed.task_id: claimed.delivery for claimed in self.leased}
                held.update((claimed.task_id, claimed.delivery) for claimed in self.waiting)
                held.update(
                    (task_id, run.claimed.delivery) for task_id, run in self.running.items() if run.why != "lost"
                )
                for settle in (*self.settles, *self.put_off, *self.settles):
                    held.setdefault(settle.task_id, 0)
            except RuntimeError:  # changed while it was copied
                continue
            return held

    def progressed(self) -> set[UUID]:
        """Return the tasks whose handlers gave a sign of progress since this was called last; from any thread."""
        while True:
            try:
                runs = [run for run in self.running.values() if run.desk.progressed]
            except RuntimeError:  # changed meanwhile
                continue
            for run in runs:
                run.desk.progressed = False
            return {run.claimed.task_id for run in runs}

    def take(
        self, started: list[Claimed], refused: Mapping[UUID, str], claimed: list[Claimed], *, start: bool = True
    ) -> None:
        """Take what a turn brought: leased deliveries that it started or refused, and new ones; a drain starts none."""
        for one in started:
            if self.leased and self.leased[0] is one:  # else it was handed back while the turn was under way
                if one.task_id not in refused:
                    self.waiting.append(one)
                self.leased.popleft()
        for one in claimed:
            (self.leased if one.state == "leased" else self.waiting).append(one)
        if start:
            self.fill()
        else:
            self.return_waiting()

    def fill(self) -> None:
        """Start what waits, as far as slots are free and the lease is certain."""
        if self._filling:
            return  # a delivery that ended while it was started called us: the loop below goes on
        self._filling = True
        try:
            while self.waiting and len(self.running) < self.capacity and self._writer.certain():
                self._start(self.waiting[0])
                self.waiting.popleft()
        finally:
            self._filling = False

    def ask_again(self, settle: Settle) -> None:
        """Put a settle off: the handler left the transaction open in which it ended the delivery."""
        self.put_off.append(settle)

    def bring_back(self) -> None:
        """Settle what was put off."""
        while self.put_off:
            self.settles.append(self.put_off[0])
            self.put_off.popleft()

    def return_waiting(self) -> int:
        """Hand back what has not started; return how many."""
        back = [*self.waiting, *self.leased]
        for claimed in back:
            self.settles.append(
                Settle(task_id=claimed.task_id, token=claimed.token, outcome="handed_back", started=False)
            )
        self.waiting.clear()
        self.leased.clear()
        return len(back)

    def halt(self, task_id: UUID, delivery: int, why: Why, lost: LeaseLost) -> bool:
        """Stop one delivery, from any thread: threads and children are told at once, a coroutine by its loop.

        False: it is not here, or was told before. The number keeps old news from a later delivery of the same task.
        """
        run = self.running.get(task_id)
        if run is None or run.why == why or run.claimed.delivery != delivery:
            return False
        run.halt(why, lost)
        if run.task is not None:
            self._loop.call_soon_threadsafe(self._cancel, run)
        return True

    def _cancel(self, run: Running) -> None:
        if run.task is None:
            return
        if run.begun:
            run.task.cancel()
        else:  # cancelled before its first step, it would never come to tell how it ended
            self._loop.call_soon(self._cancel, run)

    def drop_waiting(self, lost: Mapping[UUID, int]) -> None:
        """Forget deliveries that waited for a slot and whose lease is lost."""
        if lost:
            self.waiting = deque(one for one in self.waiting if lost.get(one.task_id) != one.delivery)
            self.leased = deque(one for one in self.leased if lost.get(one.task_id) != one.delivery)

    def stuck(self, since: float) -> int:
        """Return how many deliveries go on although they were told before `since` that their lease is lost."""
        runs = self.running.values()
        return sum(run.why == "lost" and run.halted_at is not None and run.halted_at < since for run in runs)

    def abandon(self) -> int:
        """Hand back what still runs although it was told to stop, before the process exits; return how many."""
        left = list(self.running.values())
        self.abandoned += len(left)
        for run in left:
            self._leave(run, Outcome("handed_back"))
        return len(left)

    def _start(self, claimed: Claimed) -> None:
        handler = self._handlers.get(claimed.type)
        if handler is None:
            self._settle(
                claimed,
                Outcome("handed_back", None, "unknown_type", f'this worker has no handler for "{claimed.type}"'),
            )
            return
        desk = Desk(self._writer, claimed.token)
        run = Running(claimed, handler, _context(claimed, handler, desk), desk)
        before = self.running.pop(claimed.task_id, None)
        if before is not None:  # its lease was lost and it does not end: it goes on costing its slot
            before.key = uuid4()
            before.halt("lost", LeaseLost(Code.LEASE_EXPIRED, f"task {claimed.task_id}: another delivery has begun"))
            self.running[before.key] = before
        self.running[claimed.task_id] = run
        if handler.isolation == "process" or claimed.suspect:
            self._threads.do(
                lambda: self._in_thread(run, lambda: self._in_child(run.ctx, claimed, desk.token_for_child))
            )
            return
        try:
            payload = handler.payload(claimed.payload)
        except ValidationError as error:
            self._leave(run, misfit(error, "payload"))
            return
        except BaseException as error:  # noqa: BLE001  (a validator of the application may raise anything)
            self._leave(run, judge(error))
            return
        if handler.is_async:
            run.task = self._loop.create_task(self._in_loop(run, payload))
        else:
            self._threads.do(lambda: self._in_thread(run, lambda: _returned(handler, _invoke(run, payload))))

    async def _in_loop(self, run: Running, payload: Any) -> None:
        run.begun = True
        try:
            returned = await _invoke(run, payload)
            self._came_back()
            outcome = Outcome("succeeded") if returned is None else _returned(run.handler, returned)
        except BaseException as error:
            self._came_back()
            if isinstance(error, GeneratorExit) and not self._loop.is_running():
                raise  # nobody's but the interpreter's, which ends
            outcome = self._judge(run, error)
        if run.desk.unwritten:
            await self._finish(run, outcome)
        else:
            self._leave(run, outcome)

    def _in_thread(self, run: Running, work: Callable[[], Outcome]) -> None:
        try:
            outcome = work()
            self._came_back()
        except BaseException as error:  # noqa: BLE001  (as above)
            self._came_back()
            outcome = self._judge(run, error)
        self._loop.call_soon_threadsafe(lambda: self._end(run, outcome))

    def _judge(self, run: Running, error: BaseException) -> Outcome:
        if run.why is None or isinstance(error, EndsDelivery):
            outcome = judge(error)
            if outcome.ending == "failed" and not isinstance(error, EndsDelivery):
                self._traces.tell(run.claimed, error)
            return outcome
        return Outcome("canceled" if run.why == "canceled" else "handed_back")

    def _end(self, run: Running, outcome: Outcome) -> None:
        if run.desk.unwritten:
            run.task = self._loop.create_task(self._finish(run, outcome))
        else:
            self._leave(run, outcome)

    async def _finish(self, run: Running, outcome: Outcome) -> None:
        run.begun = True
        with contextlib.suppress(asyncio.CancelledError):  # told to stop while it ends: it ends
            if outcome.ending != "succeeded":
                await run.desk.flush(run.ctx)
        self._leave(run, outcome)

    def _leave(self, run: Running, outcome: Outcome) -> None:
        if self.running.get(run.key) is not run:
            return  # abandoned before
        run.desk.close()
        took = time.monotonic() - run.started
        self.finished += 1
        self.busy_seconds += took
        self.typical += (took - self.typical) * 0.05
        if run.why != "lost":
            self._settle(run.claimed, outcome, own_transaction=run.desk.ended_itself)
        del self.running[run.key]
        self.fill()
        self._changed()

    def _settle(self, claimed: Claimed, outcome: Outcome, *, own_transaction: bool = False) -> None:
        ending = outcome.ending
        self.endings[ending] = self.endings.get(ending, 0) + 1
        if outcome.error is not None:
            _log.warning(
                "task %s (%s, delivery %d) %s: %s",
                claimed.task_id,
                claimed.type,
                claimed.delivery,
                ending,
                outcome.error,
            )
        self.settles.append(
            Settle(
                task_id=claimed.task_id,
                token=claimed.token,
                outcome=ending,
                result=outcome.result,
                error_class=outcome.error_class,
                error=outcome.error,
                retry_after=None if outcome.retry_after is None else timedelta(seconds=outcome.retry_after),
                own_transaction=own_transaction,
            )
        )


def _context(claimed: Claimed, handler: Handler, desk: Desk) -> Context:
    return Context(
        desk,
        task_id=claimed.task_id,
        type=claimed.type,
        queue=claimed.queue,
        tenant=claimed.tenant,
        delivery=claimed.delivery,
        failures=claimed.failures,
        labels=claimed.labels,
        traceparent=claimed.traceparent,
        submitted_at=claimed.submitted_at,
        checkpoint=claimed.checkpoint,
        checkpoint_version=claimed.checkpoint_version,
        version=handler.checkpoint_version,
    )


def _invoke(run: Running, payload: Any) -> Any:
    if run.handler.takes_context:
        return run.handler.function(payload, run.ctx)
    return run.handler.function(payload)


def _returned(handler: Handler, returned: Any) -> Outcome:
    try:
        return Outcome("succeeded", handler.result(returned))
    except Refused as error:
        return misfit(error, "result")
