"""The calls about schedules of recurring tasks (Q34): people and programs set them, workers and the operator fire them.

A schedule is named within a queue and tenant. What its cron expression means is for ``poolkeeper.recurrence``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Json

from poolkeeper.codes import Code
from poolkeeper.store.call import Call, many, one
from poolkeeper.store.rows import Verdict
from poolkeeper.store.wire import wire


@dataclass(frozen=True)
class Schedule:
    """A schedule as it is now; moments are aware.

    ``due_at``: its next slot, None while it is paused or nobody has counted it yet; ``fired_at``: the last slot that got its task,
    ``fired_task``; ``missed_at``: the last slot that was left out; ``refused``: why nothing could be fired the last time.
    """

    queue: str
    tenant: str
    name: str
    cron: str
    zone: str
    catch_up: str
    catch_up_limit: int
    task: dict[str, Any]
    paused: bool
    due_at: datetime | None
    fired_at: datetime | None
    fired_task: Any
    missed_at: datetime | None
    refused: str | None
    set_by: str
    set_at: datetime


@dataclass(frozen=True)
class ScheduleSet:
    """Answer to ``set_schedule``; ``changed`` False: it was like that already."""

    code: Code | None
    created: bool
    changed: bool


@dataclass(frozen=True)
class ScheduleChanged:
    """Answer to pausing, resuming and removing."""

    code: Code | None
    changed: bool = True


@dataclass(frozen=True)
class DueSchedule:
    """A schedule to be looked at; ``now`` is the store's clock, to which slots are counted from ``counted_to``."""

    id: int
    version: int
    queue: str
    tenant: str
    name: str
    cron: str
    zone: str
    catch_up: str
    catch_up_limit: int
    counted_to: datetime
    refused: str | None
    now: datetime


@dataclass(frozen=True)
class Due:
    """What is to be looked at now, and when the next one is after that (None: none is set)."""

    schedules: list[DueSchedule]
    next_in: timedelta | None


@dataclass(frozen=True)
class Fired:
    """What became of one plan: how many slots have their task; why the next one could not be fired."""

    id: int
    fired: int
    refused: str | None


def set_schedule(
    queue: str,
    name: str,
    *,
    cron: str,
    zone: str,
    catch_up: str,
    catch_up_limit: int,
    task: Mapping[str, Any],
    who: str,
) -> Call[ScheduleSet]:
    """Set a schedule; the same again changes nothing. ``task``: fields of ``submit``, without key, run_at and delay."""
    schedule = {"cron": cron, "zone": zone, "catch_up": catch_up, "catch_up_limit": catch_up_limit}
    params = {
        "queue": queue,
        "name": name,
        "schedule": Json(schedule),
        "task": Json({word: wish for word, wish in task.items() if wish is not None or word == "payload"}, dumps=wire),
        "who": who,
    }
    return Call("set_schedule", params, one(ScheduleSet))


def remove_schedule(queue: str, name: str, *, tenant: str = "default") -> Call[ScheduleChanged]:
    """Remove a schedule; its tasks stay."""
    return Call("remove_schedule", {"queue": queue, "tenant": tenant, "name": name}, one(ScheduleChanged))


def pause_schedule(queue: str, name: str, paused: bool, *, tenant: str = "default") -> Call[ScheduleChanged]:
    """Pause a schedule or resume it; slots of the pause are left out."""
    params = {"queue": queue, "tenant": tenant, "name": name, "paused": paused}
    return Call("pause_schedule", params, one(ScheduleChanged))


def run_schedule(queue: str, name: str, *, tenant: str = "default") -> Call[Verdict]:
    """Submit the schedule's task now, outside of its slots."""
    return Call("run_schedule", {"queue": queue, "tenant": tenant, "name": name}, one(Verdict))


def schedules(queue: str | None = None, limit: int = 1000) -> Call[list[Schedule]]:
    """The schedules of a queue (None: of all) that this login may see."""
    return Call("schedules", {"queue": queue, "limit": limit}, many(Schedule))


def due_schedules(queues: Sequence[str] | None, most: int = 100) -> Call[Due]:
    """What is to be looked at in these queues (None: in all that this login may see). Reads only."""

    def read(rows: list[Any]) -> Due:
        last = rows[-1]
        after = None if last.next_in is None else timedelta(seconds=last.next_in)
        return Due(many(DueSchedule)(rows[:-1]), after)

    return Call("due_schedules", {"queues": None if queues is None else list(queues), "most": most}, read)


def fire_schedules(plans: Sequence[Mapping[str, Any]]) -> Call[list[Fired]]:
    """Fire slots as planned; no answer for a schedule that somebody else has fired or changed meanwhile."""
    return Call("fire_schedules", {"plans": Json([dict(plan) for plan in plans], dumps=wire)}, many(Fired))
