"""Which of a pool's two database logins is to be made, and which may go (O5). Pure.

Guarantees: the login that the Secret names is never touched while it works; the other one is given a new password, or goes, only when
nobody is connected by it and pods have had time to see that the Secret names it no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

Slot = Literal["a", "b"]
OTHER: dict[Slot, Slot] = {"a": "b", "b": "a"}
SETTLED = timedelta(minutes=5)
"""Until every kubelet has brought a changed Secret to its pods: at most a minute and a half by their defaults."""


@dataclass(frozen=True)
class Issued:
    """What the pool's Secret says: the login, since when, and the wish to rotate that was granted by it."""

    slot: Slot
    since: datetime
    wish: str


@dataclass(frozen=True)
class Seen:
    """A login in the database: whether it may log in, and the connections that it has."""

    open: bool
    connections: int


@dataclass(frozen=True)
class Plan:
    """The login to make or to give another password, and why; the one to let go."""

    make: Slot | None = None
    why: str = ""
    retire: Slot | None = None


def plan(issued: Issued | None, there: Mapping[Slot, Seen], *, now: datetime, every: timedelta, wish: str = "") -> Plan:
    """What to do now. `every`: the age at which a password is replaced; `wish`: what somebody wrote to have it replaced now."""
    if issued is None:
        return Plan("b" if _use(there.get("b")) < _use(there.get("a")) else "a", "the pool has none")
    if issued.slot not in there or not there[issued.slot].open:
        return Plan(issued.slot, "it was not in the database any more")
    other, age = OTHER[issued.slot], now - issued.since
    old = abs(age) >= every  # by a clock that was ahead it would be new for years
    due = "somebody asked for it" if wish and wish != issued.wish else "it had reached its age" if old else ""
    settled = age >= SETTLED or old
    if due and (other not in there or (settled and not there[other].connections)):
        return Plan(other, due)
    return Plan(retire=other) if other in there and settled else Plan()


def _use(seen: Seen | None) -> int:
    """How much a login is in use: one that is not there is used by nobody."""
    return -1 if seen is None else seen.connections
