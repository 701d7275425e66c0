"""The protocol of the Lease: who may act, until when, and what a process does next (O29).

Guarantees, for clocks that run equally fast, whatever they show: no two processes trust themselves at once. A holder trusts
itself from the *start* of the renewal that succeeded for less than the time that others wait from the *end* of the look at which
they saw a changed record, on their own clocks. Moments are those of one process's clock; records of others are never dated.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

HOLD = 15.0  # seconds for which a renewal keeps others out
RENEW = 5.0
MARGIN = 3.0  # of the hold that the holder itself does not use: for requests under way, and clocks that run unequally
LOOK = 1.0  # how often a standby looks, and how soon it repeats what failed
HASTE = 0.25  # how soon a holder does, whose time runs out
NEVER = float("-inf")


@dataclass(frozen=True)
class Record:
    """What the Lease says; `holder` is empty once it was released, `stamp` differs with each renewal and is never read as a time."""

    holder: str
    transitions: int
    stamp: str
    hold: float = HOLD


@dataclass(frozen=True)
class Candidate:
    """What one process knows. `seen` is None while there is no Lease, or none was looked for yet (`seen_at` NEVER)."""

    me: str
    seen: Record | None = None
    seen_at: float = NEVER
    looked_at: float = NEVER  # when the last look was answered
    transitions: int = 0  # the most ever seen: a Lease that was deleted goes on from there
    led: bool = False
    renewed: float = NEVER  # when the renewal that succeeded last was begun
    failed: float = NEVER  # when a request failed last

    @property
    def trusted_until(self) -> float:
        """The moment from which this process must not write any more."""
        return self.renewed + HOLD - MARGIN if self.led else NEVER


class Wish(StrEnum):
    """What a process wants to do next."""

    LOOK = "look"
    WRITE = "write"
    END = "end"


@dataclass(frozen=True)
class Step:
    """`at`: when; for WRITE the holder and the transitions to write; for END why."""

    wish: Wish
    at: float
    transitions: int = 0
    why: str = ""


def trusts(candidate: Candidate, now: float) -> bool:
    """Whether this process may write at this moment: not after it has seen the Lease in other hands, however early that is."""
    record = candidate.seen
    return now < candidate.trusted_until and (record is None or record.holder == candidate.me)


def next_step(candidate: Candidate, now: float) -> Step:
    """What to do next, and when."""
    return _of_holder(candidate, now) if candidate.led else _of_standby(candidate, now)


def looked(candidate: Candidate, record: Record | None, now: float) -> Candidate:
    """A look at the Lease was answered at `now`; a record that is as before keeps the moment at which it was seen first."""
    transitions = max(candidate.transitions, record.transitions if record else 0)
    same = record == candidate.seen and candidate.seen_at != NEVER
    since = candidate.seen_at if same else now
    return replace(candidate, seen=record, seen_at=since, looked_at=now, transitions=transitions)


def wrote(candidate: Candidate, record: Record, begun: float, now: float) -> Candidate:
    """The write that was begun at `begun` succeeded: this process holds the Lease."""
    transitions = max(candidate.transitions, record.transitions)
    return replace(candidate, seen=record, seen_at=now, transitions=transitions, led=True, renewed=begun)


def failed(candidate: Candidate, now: float) -> Candidate:
    """A request was refused, or not answered: whether it took effect is not known, and nothing is taken from it."""
    return replace(candidate, failed=now)


def _of_holder(candidate: Candidate, now: float) -> Step:
    record = candidate.seen
    if record is not None and record.holder != candidate.me:
        return Step(Wish.END, now, why=f'the Lease is held by "{record.holder}"')
    if not trusts(candidate, now):
        return Step(Wish.END, now, why="the Lease could not be renewed in time")
    due = max(candidate.renewed + RENEW, candidate.failed + HASTE)
    if record is None:  # deleted by somebody: made again, with what it said
        due = candidate.failed + HASTE
    return Step(Wish.WRITE, min(max(due, now), candidate.trusted_until), transitions=candidate.transitions)


def _of_standby(candidate: Candidate, now: float) -> Step:
    free = _free_at(candidate)
    if free is None:
        return Step(Wish.LOOK, max(now, candidate.failed + LOOK))
    if now >= free:
        return Step(Wish.WRITE, max(now, candidate.failed + LOOK), transitions=candidate.transitions + 1)
    again = max(candidate.looked_at, candidate.failed) + LOOK
    return Step(Wish.LOOK, max(now, min(again, free)))


def _free_at(candidate: Candidate) -> float | None:
    """From when on this process may take the Lease; None if it has not looked yet."""
    record = candidate.seen
    if candidate.seen_at == NEVER:
        return None
    if record is None:  # never there: at once; deleted: its holder may not know it yet
        return candidate.seen_at + (HOLD if candidate.transitions else 0.0)
    if record.holder in {"", candidate.me}:  # released; or ours, by a write whose answer was lost
        return candidate.seen_at
    return candidate.seen_at + max(record.hold, HOLD)
