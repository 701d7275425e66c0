"""One round of firing what is due of schedules: ask, count the slots, say which to fire (Q34). Of workers and the operator.

Guarantees: whoever does this, however many at once, wherever they are killed: of a slot there is one task, and none is lost. What
cannot be counted or fired is told once, when it begins, and looked at again by the store's measure.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from poolkeeper.recurrence import ScheduleError, plan
from poolkeeper.redact import bounded, redact
from poolkeeper.store import Call, calls
from poolkeeper.store.recurring import DueSchedule, Fired

T = TypeVar("T")

_log = logging.getLogger("poolkeeper.schedules")

PAGE = 100
"""Schedules of one round."""

SLOTS = 1000
"""Slots of one transaction."""

AGAIN = timedelta(seconds=1)
"""When to look again where something was due and somebody else fires it, or nobody can."""


@dataclass(frozen=True)
class Round:
    """What a round did: `fired` slots; where there are none, when to look again (None: no schedule is known)."""

    fired: int
    next_in: timedelta | None


async def fire_due(
    call: Callable[[Call[Any]], Coroutine[Any, Any, Any]], queues: Sequence[str] | None, page: int = PAGE
) -> Round:
    """Fire what is due in these queues (None: in all that this login may see), a page of it; raises what the store raises."""
    due = await call(calls.due_schedules(queues, page))
    if not due.schedules:
        return Round(0, due.next_in)
    plans = await asyncio.to_thread(lambda: [planned(schedule) for schedule in due.schedules])
    fired: list[Fired] = []
    for some in _in_parts(plans):
        fired += await call(calls.fire_schedules(some))
    _tell(due.schedules, plans, fired)
    return Round(sum(one.fired for one in fired), AGAIN)


def planned(schedule: DueSchedule) -> dict[str, Any]:
    """Return the plan of one schedule as `fire_schedules` takes it."""
    which: dict[str, Any] = {"id": schedule.id, "version": schedule.version}
    try:
        found = plan(
            schedule.cron, schedule.zone, schedule.catch_up, schedule.catch_up_limit, schedule.counted_to, schedule.now
        )
    except ScheduleError as error:
        return {**which, "problem": str(error)}
    except Exception as error:  # noqa: BLE001  (what the library raises of one schedule must not keep the others from their slots)
        said = f"{type(error).__name__}: {bounded(redact(str(error)), 200)}"
        return {**which, "problem": f"its slots cannot be counted: {said}; write the expression otherwise"}
    return {**which, "slots": list(found.slots), "upto": schedule.now, "next": found.next, "missed": found.missed}


def _in_parts(plans: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield plans together as far as they have no more than SLOTS slots, and each at least alone."""
    part: list[dict[str, Any]] = []
    count = 0
    for one in plans:
        its = len(one.get("slots", ()))
        if part and count + its > SLOTS:
            yield part
            part, count = [], 0
        part.append(one)
        count += its
    yield part


def _tell(due: Sequence[DueSchedule], plans: Sequence[dict[str, Any]], fired: Sequence[Fired]) -> None:
    answers = {one.id: one for one in fired}
    for schedule, its in zip(due, plans, strict=True):
        answer = answers.get(schedule.id)
        if answer is None:  # somebody else was faster
            continue
        name = f'schedule "{schedule.name}" of queue "{schedule.queue}" (tenant {schedule.tenant})'
        if answer.refused is not None and answer.refused != schedule.refused:
            _log.warning("schedule.refused: %s: %s; it is looked at again", name, answer.refused)
        elif answer.refused is None and its["missed"] is not None:
            _log.warning(
                "schedule.missed: %s: slots up to %s were left out (catch-up %s)",
                name, its["missed"].isoformat(), schedule.catch_up,
            )  # fmt: skip
