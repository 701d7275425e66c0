"""When a schedule's slots are, and which of them to fire: pure, of moments that are given (Q34).

Guarantees: slots are those of Debian's cron, in the zone's own time. A fixed time that summer time leaves out is the moment at
which the clock goes on, one that comes twice is the first. Where minute or hour begin with `*` the clock on the wall is
followed: what it leaves out has no slot, what it shows twice has two. Slots rise, wherever counting begins.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim

CATCH_UP = ("skip", "latest", "all")
"""What becomes of slots that nobody fired in time: none, the latest, or each of them, within a limit."""

LONGEST = 200
"""Characters of a cron expression, or of a zone."""

IN_TIME = timedelta(minutes=1)
"""A slot that is fired so late is in time: deploys, an operator's tick, a worker that took over."""

_ZONE = re.compile(r"(?!posix|right/|localtime)[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_FIRST_LOOK = timedelta(minutes=1)
_LONGEST_CHANGE = timedelta(hours=3)


class ScheduleError(ValueError):
    """What a cron expression or a zone cannot be, with the remedy."""


@dataclass(frozen=True)
class Plan:
    """What to fire now: `slots` in order; `missed`, the last slot that is left out; `next`, the first one in the future."""

    slots: tuple[datetime, ...]
    missed: datetime | None
    next: datetime


def slots(cron: str, zone: str, after: datetime) -> Iterator[datetime]:
    """Yield the slots after a moment, in UTC and rising; raises ScheduleError where there is none.

    The library finds the times on the wall, without a zone; which moments these are is said here, since a clock that goes back by
    half an hour makes the library lose some.
    """
    place = _zone(zone)
    last = after.astimezone(UTC)
    here = after.astimezone(place)
    back = _offset(here) - _offset((last + _LONGEST_CHANGE).astimezone(place))  # what is shown again soon
    walls = _walls(cron, here.replace(tzinfo=None) - max(back, timedelta(0)))
    fixed = not any(field.startswith("*") for field in cron.split()[-5:-3])
    later: deque[datetime] = deque()  # second times, of a clock that goes back
    for wall in walls:
        first, second = _moments(wall, place, fixed)
        while later and (first is None or later[0] < first):
            if later[0] > last:
                last = later[0]
                yield last
            later.popleft()
        if second is not None:
            later.append(second)
        if first is not None and first > last:
            last = first
            yield last
    raise ScheduleError(f'cron expression "{cron}" has no time in the next 50 years; give one that comes')


def _moments(wall: datetime, place: ZoneInfo, fixed: bool) -> tuple[datetime | None, datetime | None]:
    """Return when the wall shows this time: the first moment and, where that counts, the second."""
    first = wall.replace(tzinfo=place).astimezone(UTC)
    while first.astimezone(place).replace(tzinfo=None) != wall:  # left out
        if not fixed:
            return None, None
        wall = wall.replace(second=0) + timedelta(minutes=1)
        first = wall.replace(tzinfo=place).astimezone(UTC)
    second = wall.replace(tzinfo=place, fold=1).astimezone(UTC)
    return first, second if second > first and not fixed else None


def _offset(moment: datetime) -> timedelta:
    return moment.utcoffset() or timedelta(0)


def check(cron: str, zone: str, now: datetime) -> datetime:
    """Return the first slot after `now`; raises ScheduleError where expression or zone cannot be read."""
    return next(slots(cron, zone, now))


def plan(cron: str, zone: str, catch_up: str, limit: int, after: datetime, now: datetime) -> Plan:
    """What to fire of the slots after `after` up to `now`."""
    open_ones = slots(cron, zone, after)
    first = next(open_ones)
    if first > now:
        return Plan((), None, first)
    coming = next(open_ones)
    if coming > now:  # as ever: one is due
        late = catch_up == "skip" and now - first > IN_TIME
        return Plan((), first, coming) if late else Plan((first,), None, coming)
    coming = check(cron, zone, now)
    wanted = limit if catch_up == "all" else 1
    due = _latest(cron, zone, after, now, wanted)
    fired = due[-wanted:]
    if catch_up == "skip" and now - fired[-1] > IN_TIME:
        fired = []
    left_out = due[: len(due) - len(fired)]
    return Plan(tuple(fired), left_out[-1] if left_out else None, coming)


def _latest(cron: str, zone: str, after: datetime, now: datetime, wanted: int) -> list[datetime]:
    """Return the slots of a stretch that ends now: all after `after`, or more than are wanted, at the cost of a few times these."""
    length = _FIRST_LOOK
    while True:
        begin = max(after, now - length)
        due = list(takewhile(lambda slot: slot <= now, slots(cron, zone, begin)))
        if begin == after or len(due) > wanted:
            return due
        length *= 8


def _walls(cron: str, begin: datetime) -> Iterator[datetime]:
    if not cron.isascii() or len(cron) > LONGEST:
        raise ScheduleError(f"cron expression {cron[:80]!a} is no ASCII text of at most {LONGEST} characters")
    try:
        return iter(CronSim(cron, begin))
    except Exception as error:  # noqa: BLE001  (whatever a parser raises of a text that makes no sense)
        raise ScheduleError(
            f'cron expression "{cron}" cannot be read ({error}); give minute, hour, day of month, month and day of week, '
            'such as "30 2 * * MON-FRI", or six fields with seconds first'
        ) from None


def _zone(name: str) -> ZoneInfo:
    if len(name) > LONGEST or _ZONE.fullmatch(name) is None:
        raise ScheduleError(
            f"time zone {name[:80]!a} cannot be; give one of the IANA names, such as Europe/Berlin or UTC"
        )
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise ScheduleError(
            f'time zone "{name}" is not known here; give one of the IANA names, such as Europe/Berlin or UTC'
        ) from error
