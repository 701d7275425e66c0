"""Which pods ask node scalers to be left alone.

Guarantees (O17): a pod asks after it has worked for a minute, and until it has had nothing to do for a minute, so that short tasks cause
no writes; one of which the operator has just heard begins to count then. It is a request: nodes go all the same.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

AFTER = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Spell:
    """Since when a pod has been busy, or idle, as far as is known."""

    busy: bool
    since: datetime


def spell(before: Spell | None, *, busy: bool, now: datetime, idle_for: timedelta | None = None) -> Spell:
    """Go on with the spell that it was in, or begin one; of an idle one that was not known yet it counts what its session says."""
    if before is None and not busy and idle_for is not None:
        return Spell(busy, now - idle_for)
    return before if before is not None and before.busy is busy else Spell(busy, now)


def asks(present: Spell, now: datetime, *, asking: bool) -> bool:
    """Whether it should ask; `asking`: it does."""
    long = now - present.since >= AFTER
    return asking or long if present.busy else asking and not long
