"""The core of a kit: one delivery at a time, with what the test lets happen to it. `kit` gives it its two faces."""

import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from poolkeeper.app import Handler, Poolkeeper
from poolkeeper.codes import Code
from poolkeeper.context import Context
from poolkeeper.errors import LeaseLost
from poolkeeper.outcome import Outcome
from poolkeeper.testing.desk import Crashed, Desk, Event
from poolkeeper.testing.place import ENDED, Delivery, Held, Place
from poolkeeper.testing.points import Point
from poolkeeper.testing.runner import invoke

Named = str | Callable[..., Any]
"""A handler: the decorated function, or its task type."""


@dataclass(frozen=True)
class Events:
    """What happens to a delivery, and at which point of it."""

    crash_at: Point | None = None
    cancel_at: Point | None = None
    drain_at: Point | None = None
    overtaken_at: Point | None = None

    def __post_init__(self) -> None:
        for name, point in vars(self).items():
            if point is not None and not isinstance(point, Point):
                raise TypeError(
                    f"{name} is a Point, such as Point.before_settle or Point.after_checkpoint(1), not {point!r}"
                )
        for name in ("cancel_at", "overtaken_at"):
            if getattr(self, name) is Point.in_transaction:
                raise ValueError(
                    f"{name}: whoever wants the task waits while the handler's transaction holds it; take another point"
                )
        points = [point for point in vars(self).values() if point is not None]
        if len(set(points)) < len(points):
            raise ValueError(f"one thing can happen at a point, not several at: {points[0]}")


class Bench:
    """Delivers the tasks of one application at one place."""

    def __init__(self, app: Poolkeeper, place: Place) -> None:
        self.app = app
        self.place = place
        self._held: dict[UUID, Held] = {}

    def handler(self, named: Named) -> Handler:
        """Return the handler that is meant; raises KeyError with those that there are."""
        handlers = self.app.handlers
        if isinstance(named, str):
            found = [handlers[named]] if named in handlers else []
        else:
            found = [one for one in handlers.values() if inspect.unwrap(one.function) is inspect.unwrap(named)]
        if len(found) == 1:
            return found[0]
        what = f"type {named!r}" if isinstance(named, str) else f"{getattr(named, '__qualname__', named)!r}"
        if found:
            raise KeyError(f"{what} handles {', '.join(sorted(one.type for one in found))}; name one of these types")
        raise KeyError(f"the application has no handler of {what}; it has: {', '.join(sorted(handlers)) or 'none'}")

    def submit(self, named: Named, payload: Any, wishes: dict[str, Any]) -> UUID:
        """Accept a task."""
        delay = wishes.get("delay")
        if isinstance(delay, int | float) and math.isfinite(delay):
            wishes = {**wishes, "delay": timedelta(seconds=delay)}
        return self.place.submit(
            self.handler(named), payload, {name: one for name, one in wishes.items() if one is not None}
        )

    def ended(self, task: UUID) -> bool:
        """Return whether nothing more is delivered of a task."""
        return self.place.look(task).state in ENDED

    async def deliver(self, task: UUID, events: Events = Events(), *, unheard: bool = False) -> Delivery:
        """Make the next delivery of a task, whatever time has to pass before. `unheard`: its ending never arrives."""
        held = self._claim(task)
        claimed = held.claimed
        handler = self.handler(claimed.type)
        desk = Desk(self.place, held, self._planned(task, events))
        ctx = Context(
            desk,
            task_id=task,
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
        outcome, code = Outcome("failed"), None
        self._held[task] = held
        try:
            await desk.reach(Point.start, ctx)
            outcome = await invoke(handler, claimed.payload, ctx)
            if desk.crashed:
                outcome = Outcome("failed")
            desk.alive()
            await desk.reach(Point.before_settle, ctx)
            if not unheard:
                code = self.place.settle(held, outcome)
                await desk.reach(Point.after_settle, ctx)
        except Crashed:
            pass
        finally:
            if self._held.get(task) is held:
                del self._held[task]
            if desk.crashed or unheard:
                self.place.silence(held)
        if (desk.crashed or unheard) and desk.passed[-1] is Point.before_settle and outcome.ending == "succeeded":
            self.place.died(held)
        self._came_by(events, desk, handler)
        return Delivery(
            "crashed" if desk.crashed else "lost" if code is not None else outcome.ending,
            outcome.result,
            outcome.error,
            outcome.error_class,
            outcome.retry_after,
            desk.saved,
            desk.succeeded_in,
            desk.progressed,
            desk.reported,
            task_id=task,
            number=claimed.delivery,
            state=self.place.look(task).state,
            passed=tuple(desk.passed),
        )

    async def finish(self, task: UUID) -> Delivery:
        """Deliver until the task has ended; return its last delivery."""
        while True:
            last = await self.deliver(task)
            if last.state in ENDED:
                return last

    def _claim(self, task: UUID) -> Held:
        if task in self._held:
            raise RuntimeError(f"task {task} is being delivered just now; overtaken_at lets another delivery begin")
        now = self.place.look(task)
        if now.state in ENDED:
            raise RuntimeError(f"task {task} has ended as {now.state}: there is nothing to deliver any more")
        wait = (self.place.due(task) - self.place.now()).total_seconds()
        if wait > 0:
            self.place.move(wait)
        held = self.place.claim(task)
        if held is None:
            now = self.place.look(task)
            raise RuntimeError(
                f"task {task} cannot be delivered, its state is {now.state}; if its last delivery called succeed_in, "
                "its handler has left that transaction open: write `with` around the connection"
                if now.state not in ENDED
                else f"task {task} has ended as {now.state}: there is nothing to deliver any more"
            )
        return held

    def _planned(self, task: UUID, events: Events) -> dict[Point, Event]:
        async def crash(desk: Desk, ctx: Context) -> None:
            del ctx
            desk.die()

        async def cancel(desk: Desk, ctx: Context) -> None:
            self.place.cancel(task)
            if desk.passed[-1] is not Point.before_settle:
                ctx.halt(LeaseLost(Code.CANCELED, f"task {task}: canceled on request"))

        async def drain(desk: Desk, ctx: Context) -> None:
            del ctx
            desk.stopping.set()

        async def overtake(desk: Desk, ctx: Context) -> None:
            if desk.passed[-1] is Point.before_settle and desk.succeeded_in:
                raise RuntimeError(
                    f"task {task} ends by its own transaction: before settle there is no lease to lose any more"
                )
            self.place.silence(desk.held)
            self._held.pop(task, None)
            await self.finish(task)
            if desk.passed[-1].name != "before checkpoint":  # there the store itself says so
                ctx.halt(LeaseLost(Code.LEASE_EXPIRED, f"task {task}: its lease is lost (lease_expired)"))

        does: dict[str, Event] = {"crash_at": crash, "cancel_at": cancel, "drain_at": drain, "overtaken_at": overtake}
        return {point: does[name] for name, point in vars(events).items() if point is not None}

    @staticmethod
    def _came_by(events: Events, desk: Desk, handler: Handler) -> None:
        """A crash that never came proves nothing."""
        for name, point in vars(events).items():
            if point is not None and point not in desk.passed:
                raise AssertionError(
                    f"{name}: this delivery of {handler.type} never came to: {point}; it came to: {', '.join(map(str, desk.passed))}"
                )


async def resolved(made: Any) -> Any:
    """Return what a function of the test's gave, awaited if need be."""
    return await made if isinstance(made, Awaitable) else made
