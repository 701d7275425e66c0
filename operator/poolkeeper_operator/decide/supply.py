"""How many slots let the tasks that wait start in time: those that there are, those that are starting, and new ones.

Guarantees: whole numbers throughout; more work, or older work, never asks for less. Assumes memoryless service times: a slot that becomes free
in `t` starts `1 + (T - t) / s` tasks until T, a busy one `T / s`. What is late whatever is done is to start as soon as a slot can.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import isqrt

from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.signals import ScalingPolicy, Signals

START_ALLOWANCE = timedelta(seconds=60)
"""For so long pods that were asked for count as to come, whatever was measured; see allowance."""

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Due:
    """So many tasks, those of the dues before included, are to start within `left`."""

    tasks: int
    left: timedelta


@dataclass(frozen=True, slots=True)
class Free:
    """So many slots, None for any number, are free in `after`."""

    slots: int | None
    after: timedelta


def dues(policy: ScalingPolicy, signals: Signals, history: History, now: datetime) -> tuple[Due, ...]:
    """By when how many of the waiting tasks are to start: no more of them were there at an earlier reading than waited then.

    A task is taken for as old as it can be: it came just after the reading before the first that may have counted it. A reading of none says nothing of
    older tasks that can run by now: something held them back then, a pause or a limit. To each count comes its
    square root: how far the starts of so many may lag behind their mean, by chance.
    """
    soonest = min(policy.tick, policy.target_age)
    oldest = now - (signals.oldest_runnable or timedelta(0))
    found = []
    for mark in history.waited:
        if mark.tasks and mark.at > oldest:
            found.append((mark.tasks, oldest))
            oldest = mark.at
    found.append((signals.runnable, oldest))
    return tuple(
        Due(count + isqrt(count), max(policy.target_age - (now - since), soonest))
        for count, since in ((min(tasks, signals.runnable), since) for tasks, since in found)
    )


def frees(policy: ScalingPolicy, signals: Signals, busy: int, history: History, now: datetime) -> tuple[Free, ...]:
    """The slots that are free or will be beside the busy ones, the soonest first; the last are those of new pods."""
    ready = max(0, signals.ready_pods * policy.concurrency - busy)
    marked = signals.replicas - signals.ready_pods - signals.starting_pods - signals.stuck_pods - signals.leaving_pods
    coming = sorted(_starting(signals, history, now), key=lambda free: free[1])
    return (
        Free(ready, timedelta(0)),
        Free(max(0, marked) * policy.concurrency, timedelta(0)),  # they claim again as soon as they are wanted back
        *(Free(pods * policy.concurrency, after) for pods, after in coming if after <= signals.start_up),
        Free(None, signals.start_up),
    )


def allowance(signals: Signals) -> timedelta:
    """For how long pods that were asked for count as to come."""
    return max(START_ALLOWANCE, 2 * signals.start_up)


def slots(due: Iterable[Due], busy: int, free: Sequence[Free], service: timedelta) -> int:
    """The fewest slots, those that are free soonest first, that start what is due, beside the busy ones."""
    due = tuple(due)
    taken: list[tuple[int, int]] = []
    total, service_us = busy, service // _MICROSECOND
    for each in free:
        after = each.after // _MICROSECOND
        more = max(_short(d, busy, taken, after, service_us) for d in due)
        taken_now = more if each.slots is None else min(more, each.slots)
        taken.append((taken_now, after))
        total += taken_now
    return total


def _short(due: Due, busy: int, taken: Iterable[tuple[int, int]], after: int, service: int) -> int:
    """How many slots, free in `after`, start what those that are taken do not; where that is too late, as soon as these can."""
    until = max(due.left // _MICROSECOND, after)
    started = busy * until  # in tasks * service, so that nothing is rounded
    started += sum(slots * (until - at + service) for slots, at in taken if at <= until)
    return max(0, -((started - due.tasks * service) // (until - after + service)))


def _starting(signals: Signals, history: History, now: datetime) -> Iterable[tuple[int, timedelta]]:
    """The pods that are starting, by when each is expected: one that is overdue takes as long again.

    Who has watched the pool for a short time only does not know since when they are: they may take as long as new ones, and are no fewer.
    """
    left = signals.starting_pods
    for at, pods in _raises(history, signals.replicas):
        if left <= 0 or now - at > allowance(signals):
            return
        count = min(left, pods)
        yield count, abs(at + signals.start_up - now)
        left -= count
    if left > 0 and (history.watched_since is None or now - history.watched_since <= allowance(signals)):
        yield left, signals.start_up


def _raises(history: History, present: int) -> Iterable[tuple[datetime, int]]:
    """When the size was raised, and by how many pods, the newest first."""
    sizes = [(stretch.until, stretch.size) for stretch in history.stretches]
    ends = [*sizes, (None, present)]
    for (at, before), (_, after) in reversed(list(pairwise(ends))):
        if at is not None and after > before:
            yield at, after - before
