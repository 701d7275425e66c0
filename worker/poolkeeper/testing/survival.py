"""Proofs that a handler stands what happens in production: the same end and the same effects, whatever was in the way.

An undisturbed delivery says what is right and which points there are; then a new task is disturbed at each of them in turn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from poolkeeper.redact import bounded
from poolkeeper.testing.bench import Bench, Events, Named, resolved
from poolkeeper.testing.place import ENDED, Delivery
from poolkeeper.testing.points import Point

Look = Callable[[], Any]
"""A function of the test's: what the world looks like, or putting it into its first state; may be a coroutine function."""


@dataclass(frozen=True)
class World:
    """How a proof begins anew, and what it compares besides state and result."""

    reset: Look | None
    effects: Look | None

    async def begin(self) -> None:
        """Put the world into its first state."""
        if self.reset is not None:
            await resolved(self.reset())

    async def seen(self) -> Any:
        """Return what the handler has done to it."""
        return None if self.effects is None else await resolved(self.effects())


@dataclass(frozen=True)
class End:
    """How a task ended, and what the world looked like then."""

    state: str
    reason: str | None
    result: Any
    effects: Any

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.state}{why}, result {_told(self.result)}"


async def run_twice(bench: Bench, named: Named, payload: Any, wishes: dict[str, Any], world: World) -> list[Delivery]:
    """Deliver twice, as when the ending of the first delivery got lost; raises AssertionError where the second changes anything."""
    name = bench.handler(named).type
    await world.begin()
    task = bench.submit(named, payload, wishes)
    first = await bench.deliver(task, unheard=True)
    before = await world.seen()
    if bench.ended(task):  # in a transaction of the handler's own: nobody will run it again
        return [first]
    second = await bench.deliver(task)
    if (second.outcome, second.result) != (first.outcome, first.result):
        raise AssertionError(
            f"{name} is not repeatable: its first delivery {first.outcome} with {_told(first.result)}, "
            f"the second one {second.outcome} with {_told(second.result)}{_why(second)}"
        )
    after = await world.seen()
    if after != before:
        raise AssertionError(
            f"{name} is not repeatable: effects() gave {_told(before)} after its first delivery, {_told(after)} after the second one"
        )
    return [first, second]


async def survives_crashes(bench: Bench, named: Named, payload: Any, wishes: dict[str, Any], world: World) -> list[str]:
    """Crash at every point of an undisturbed task; raises AssertionError where the task ends otherwise."""
    return await _survives(bench, named, payload, wishes, world, "a crash", lambda point: Events(crash_at=point))


async def survives_lease(bench: Bench, named: Named, payload: Any, wishes: dict[str, Any], world: World) -> list[str]:
    """Lose the lease at every point at which it can be lost: another delivery ends the task, then the first one goes on."""
    lost = "a lease that was lost"
    return await _survives(bench, named, payload, wishes, world, lost, lambda point: Events(overtaken_at=point))


async def _survives(
    bench: Bench,
    named: Named,
    payload: Any,
    wishes: dict[str, Any],
    world: World,
    what: str,
    events: Callable[[Point], Events],
) -> list[str]:
    name = bench.handler(named).type
    await world.begin()
    task = bench.submit(named, payload, wishes)
    points = []
    while not bench.ended(task):
        delivery = await bench.deliver(task)
        points += [(delivery.number, point) for point in _points(delivery, overtaken=what != "a crash")]
    calm = await _end(bench, task, world)
    stood = []
    for number, point in points:
        trial = f"{point} of delivery {number}"
        await world.begin()
        task = bench.submit(named, payload, wishes)
        for _ in range(1, number):
            await bench.deliver(task)
        last = await bench.deliver(task, events(point))
        if last.state not in ENDED:
            last = await bench.finish(task)
        end = await _end(bench, task, world)
        if (end.state, end.result) != (calm.state, calm.result):
            raise AssertionError(
                f"{name} does not survive {what} {trial}: it ended as {end}; undisturbed as {calm}{_why(last)}"
            )
        if end.effects != calm.effects:
            raise AssertionError(
                f"{name} does not survive {what} {trial}: effects() gives {_told(end.effects)}, undisturbed {_told(calm.effects)}"
            )
        stood.append(trial)
    return stood


def _points(delivery: Delivery, *, overtaken: bool) -> list[Point]:
    """Where it can happen; what the handler's own transaction holds or has ended is nobody's to take over."""
    never = {Point.after_settle}
    if overtaken and Point.in_transaction in delivery.passed:
        never |= {Point.in_transaction, Point.before_settle}
    return [point for point in delivery.passed if point not in never]


async def _end(bench: Bench, task: UUID, world: World) -> End:
    now = bench.place.look(task)
    return End(now.state, now.reason, now.result, await world.seen())


def _why(delivery: Delivery) -> str:
    return f" ({delivery.error})" if delivery.error else ""


def _told(value: Any) -> str:
    return bounded(repr(value), 1000)
