"""Which pods go when a pool shrinks.

Guarantees (O17): idle pods first, longest idle first; a busy pod is only told to claim nothing more, and goes once it is idle; a
pod leaves the count only after it was seen marked, idle *and* with its deletion cost, so the lowering follows by one reading.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One pod of the pool as last seen; terminating pods are not listed."""

    name: str
    created_at: datetime
    busy: int = 0  # busy slots of its session
    marked: bool = False  # its session was told to claim nothing (SessionStats.draining)
    has_session: bool = True  # False: still starting, or it cannot start
    stuck: bool = False  # cannot start
    idle_for: timedelta | None = None  # since when it has had no task; None: busy or unknown
    costed: bool = True  # carries the negative deletion cost, as read back

    @property
    def may_go(self) -> bool:
        """Whether lowering the count now takes this pod, ends no work and can meet none."""
        return self.busy == 0 and self.costed and (self.marked or not self.has_session)


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPlan:
    """What to do with the pods for a goal."""

    mark: tuple[str, ...]  # tell these sessions to claim nothing
    unmark: tuple[str, ...]  # these were marked and are wanted again
    costs: tuple[str, ...]  # the pods that carry the negative deletion cost; all others carry none
    replicas: int  # what may be written to the Deployment now
    missing: int = 0  # replicas without a pod: they go first
    may_go: int = 0  # victims that end no work and can meet none


def plan(pods: Sequence[PodState], *, goal: int, replicas: int, ending: bool = False) -> VictimPlan:
    """Choose the victims for shrinking from `replicas` to `goal`; growing or standing still takes all marks back.

    `ending`: all of them, those beyond `replicas` too (HoldAndDrain).
    """
    # Replicas without a pod (not created yet) go first of all, and nobody has to be marked for them.
    missing = max(0, replicas - len(pods))
    excess = len(pods) if ending else max(0, min(replicas - goal - missing, len(pods)))
    victims = sorted(pods, key=_order)[:excess]
    chosen = {pod.name for pod in victims}
    may_go = sum(pod.may_go for pod in victims)
    return VictimPlan(
        mark=tuple(pod.name for pod in victims if pod.has_session and not pod.marked),
        unmark=tuple(pod.name for pod in pods if pod.marked and pod.name not in chosen),
        costs=tuple(pod.name for pod in victims if pod.busy == 0),
        replicas=max(goal, replicas - missing - may_go),
        missing=missing,
        may_go=may_go,
    )


def _order(pod: PodState) -> tuple[bool, bool, bool, int, timedelta, float, str]:
    """Those that cannot start, then starting ones, then idle ones by idle time, then the least busy; marked before unmarked.

    Marked ones come first among equals, so that a victim once chosen stays one. Newest before oldest last of all: a young pod has the
    coldest caches, and the name makes the order total.
    """
    idle = pod.idle_for if pod.idle_for is not None else timedelta(0)
    return (not pod.stuck, pod.has_session, not pod.marked, pod.busy, -idle, -pod.created_at.timestamp(), pod.name)
