"""How many pods the work asks for, before any limit.

Guarantees: whole numbers throughout; never fewer slots than are busy; more, or as many, for older work; never more slots than there are
tasks, as far as tasks were counted.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from poolkeeper_operator.decide import supply
from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.reasons import Want
from poolkeeper_operator.decide.signals import ScalingPolicy, Signals

SHORTEST_SERVICE = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Size:
    """Pods that the work asks for, and why."""

    pods: int
    reason: Want
    sentence: str


def size(policy: ScalingPolicy, signals: Signals, history: History, now: datetime) -> Size:
    """The size for one reading; 0 only if nothing is runnable, suspect or running."""
    busy = busy_slots(signals)
    if busy == 0 and signals.runnable == 0 and signals.suspects == 0:
        return Size(0, Want.NOTHING_TO_DO, "no task is runnable and none runs")
    slots, reason, sentence = _slots(policy, signals, history, now)
    pods = _ceil(slots, policy.concurrency)
    if signals.suspects:
        return Size(
            pods + 1,
            Want.SUSPECTS,
            f"{_tasks(signals.suspects)} must run apart from others, after a worker died; {sentence}",
        )
    return Size(pods, reason, sentence)


def busy_slots(signals: Signals) -> int:
    """Slots in use: what the leases say, or what the sessions say, whichever is more."""
    return max(signals.running, signals.busy)


def is_idle(signals: Signals) -> bool:
    """A successful reading of zero: the only thing that may take a pool to zero."""
    return busy_slots(signals) == 0 and signals.runnable == 0 and signals.suspects == 0


def _slots(policy: ScalingPolicy, signals: Signals, history: History, now: datetime) -> tuple[int, Want, str]:
    """Busy slots, and as many free ones as let the backlog start within the time that is left."""
    busy, backlog = busy_slots(signals), signals.runnable
    if backlog == 0:
        return busy, Want.BUSY_SLOTS, f"{busy} slots are busy and nothing waits"
    age = signals.oldest_runnable or timedelta(0)
    service = max(signals.service_time or policy.target_age, SHORTEST_SERVICE)
    due, free = supply.dues(policy, signals, history, now), supply.frees(policy, signals, busy, history, now)
    slots = supply.slots(due, busy, free, service)
    left = max(policy.target_age - age, min(policy.tick, policy.target_age))
    late = age > policy.target_age and not _waits_for_pods(signals, history, now)
    if late:
        slots = max(slots, _corrected(policy, signals, age))
    if not signals.runnable_capped:
        slots = min(slots, busy + backlog)
    return slots, Want.AGE if late else Want.BACKLOG, _sentence(policy, signals, age, left, service, slots)


def _waits_for_pods(signals: Signals, history: History, now: datetime) -> bool:
    """Whether pods that were asked for a moment ago are still starting: their capacity is to come (no wind-up)."""
    return (
        signals.starting_pods > 0
        and history.raised_at is not None
        and now - history.raised_at <= supply.allowance(signals)
    )


def _corrected(policy: ScalingPolicy, signals: Signals, age: timedelta) -> int:
    """Late although no pod is starting: the estimate was too small, so grow by the overshoot, at most twofold."""
    present = max(1, signals.replicas) * policy.concurrency
    one_more = (signals.replicas + 1) * policy.concurrency
    return max(
        one_more,
        min(
            2 * present,
            _ceil(present * (age // timedelta(milliseconds=1)), policy.target_age // timedelta(milliseconds=1)),
        ),
    )


def _sentence(
    policy: ScalingPolicy, signals: Signals, age: timedelta, left: timedelta, service: timedelta, slots: int
) -> str:
    at_least = "at least " if signals.runnable_capped else ""
    measured = f"{_seconds(service)} each" if signals.service_time else f"an assumed {_seconds(service)} each"
    clock = f"in the {_seconds(left)} left of targetAge {_seconds(policy.target_age)}"
    if age > policy.target_age:
        clock = f"late: targetAge is {_seconds(policy.target_age)}"
    busy = busy_slots(signals)
    return (
        f"{at_least}{_tasks(signals.runnable)} can run, the oldest for {_seconds(age)} ({clock}), {measured}, "
        f"beside {busy} busy slots: {slots} slots"
    )


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _seconds(value: timedelta) -> str:
    seconds = value.total_seconds()
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.2g} s"  # noqa: PLR2004


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
