"""Which pods go when a pool shrinks.

Guarantees (O17): idle pods first, longest idle first; a busy pod is only told to claim nothing more, and goes once it is idle; a
pod leaves the count only after it was seen marked, idle *and* with its deletion cost, so the lowering follows by one reading. The count
is lowered only as far as the controller, by the order that it documents, takes none but such pods: it puts readiness above cost, so a
busy pod that is not ready keeps the size up; and nobody gets a cost in the pass that lowers, for who gets one may claim meanwhile.
Pods on nodes that are about to go claim nothing either, whoever the victims are (O23).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

PHASES = ("Pending", "Unknown", "Running")
STEERED = (True, PHASES.index("Running"), True)  # among such pods the costs decide


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
    costed: bool = False  # carries the negative deletion cost, as read back
    scheduled: bool = True  # has a node
    phase: str = "Running"
    ready: bool = True  # as the controller sees it: the pod's condition, not its session
    leaving: bool = False  # its node is about to go

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
    going: tuple[str, ...] = ()  # the victims that end no work and can meet none, and that the controller takes first

    @property
    def may_go(self) -> int:
        """How many pods may go now."""
        return len(self.going)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """Who was to go when the count was lowered, and who was to stay; by uid."""

    going: frozenset[str]
    staying: frozenset[str]

    def wrong(self, living: Collection[str]) -> int | None:
        """How many went in place of others that are still there; None: the controller has not taken as many yet."""
        present = frozenset(living)
        if len((self.going | self.staying) - present) < len(self.going):
            return None
        return min(len(self.going & present), len(self.staying - present))


def plan(pods: Sequence[PodState], *, goal: int, replicas: int, ending: bool = False) -> VictimPlan:
    """Choose the victims for shrinking from `replicas` to `goal`; growing or standing still takes all marks back.

    `ending`: all of them, those beyond `replicas` too (HoldAndDrain).
    """
    # Replicas without a pod (not created yet) go first of all, and nobody has to be marked for them.
    missing = max(0, replicas - len(pods))
    excess = len(pods) if ending else max(0, min(replicas - goal - missing, len(pods)))
    victims = sorted(pods, key=_order)[:excess]
    chosen = {pod.name for pod in victims}
    going = _taken_in_order(pods, chosen)
    return VictimPlan(
        mark=tuple(
            pod.name for pod in pods if pod.has_session and not pod.marked and (pod.leaving or pod.name in chosen)
        ),
        unmark=tuple(pod.name for pod in pods if pod.marked and not pod.leaving and pod.name not in chosen),
        costs=tuple(pod.name for pod in victims if pod.busy == 0 and (pod.costed or not going)),
        replicas=max(goal, replicas - missing - len(going)),
        missing=missing,
        going=going,
    )


def _taken_in_order(pods: Sequence[PodState], victims: Collection[str]) -> tuple[str, ...]:
    """The pods that the controller would take one after the other as long as all are victims which may go."""
    taken: list[str] = []
    for _, alike in groupby(sorted(pods, key=_controllers), key=_controllers):
        group = list(alike)  # among these it goes by what is not known here: nodes, restarts, age
        if not all(pod.may_go and pod.name in victims for pod in group):
            break
        taken += [pod.name for pod in group]
    return tuple(taken)


def _controllers(pod: PodState) -> tuple[bool, int, bool, bool]:
    """The order of the ReplicaSet controller: without a node, by phase, not ready, by deletion cost; the first go first.

    https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#scaling-down, `ActivePodsWithRanks` in its source.
    """
    return (pod.scheduled, PHASES.index(pod.phase) if pod.phase in PHASES else 0, pod.ready, not pod.costed)


def _order(pod: PodState) -> tuple[bool, tuple[bool, int, bool], bool, bool, int, bool, timedelta, float, str]:
    """Those without a session, then idle ones by idle time, then the least busy; marked before unmarked.

    Before all of that what the controller puts above costs, or it would take another one. Marked ones come first among equals, so
    that a victim once chosen stays one (a mark because of its node chose nobody that works), those on nodes that are about to go before
    others, and those that cannot start before those that may yet. Newest before oldest last of all: a
    young pod has the coldest caches, and the name makes the order total.
    """
    idle = pod.idle_for if pod.idle_for is not None else timedelta(0)
    rank = STEERED if pod.busy else _controllers(pod)[:3]
    newest = -pod.created_at.timestamp()
    chosen = pod.marked and not (pod.leaving and pod.busy)
    return (pod.has_session, rank, not pod.stuck, not chosen, pod.busy, not pod.leaving, -idle, newest, pod.name)
