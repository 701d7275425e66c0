"""From a reading, the pods and the Deployment of a pool to the values that decisions are made from. Pure.

Guarantees (O12): only tasks that this pool could run now count as runnable; a paused queue has none, nor one at its own
limit. A pod works if the store knows a live session of it, whatever its readiness says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from poolkeeper.store.rows import PoolStats, QueueStats, SessionStats
from poolkeeper_operator.decide.service import SessionCount
from poolkeeper_operator.decide.signals import Cap, Signals
from poolkeeper_operator.decide.tenants import EVERYBODY, Tenants
from poolkeeper_operator.decide.victims import PodState
from poolkeeper_operator.observe.link import Reading
from poolkeeper_operator.observe.pods import PodSeen, refused, replacing, rolling, told

CAPPED = 10_000  # where the store stops counting
START_UP = timedelta(seconds=10)


@dataclass(frozen=True)
class Backlog:
    """What waits for a pool."""

    runnable: int = 0
    capped: bool = False
    oldest: timedelta | None = None
    suspects: int = 0
    dead: int = 0
    missing: tuple[str, ...] = ()  # queues that the store does not know (yet)
    held: tuple[str, ...] = ()  # what keeps queues from giving what is ready, in words


@dataclass(frozen=True)
class PoolView:
    """One pool as of one reading."""

    backlog: Backlog
    stats: PoolStats | None
    pods: Sequence[PodSeen]
    replicas: int
    deployment: Mapping[str, Any] | None
    read_at: datetime
    sessions: Mapping[str, SessionStats] = field(default_factory=dict)  # by the name of a living pod

    @property
    def running(self) -> int:
        """Leases of the pool, those of draining pods included."""
        return self.stats.running if self.stats else 0

    @property
    def closed(self) -> bool:
        """Whether the store starts no task for it."""
        return self.stats is not None and self.stats.max_running == 0

    @property
    def busy(self) -> int:
        """Slots that its sessions say are in use."""
        return sum(session.busy for session in self.stats.sessions) if self.stats else 0


def backlog(
    reading: Reading, namespace: str, queues: Iterable[str], types: Sequence[str] | None, tenants: Tenants = EVERYBODY
) -> Backlog:
    """What waits in these queues for workers of these task types (None: of all) and tenants."""
    found = Backlog()
    for name in queues:
        stats = reading.queues.get((namespace, name))
        found = (
            _plus(found, Backlog(missing=(name,))) if stats is None else _plus(found, _of_queue(stats, types, tenants))
        )
    return found


def _of_queue(stats: QueueStats, types: Sequence[str] | None, tenants: Tenants = EVERYBODY) -> Backlog:
    """What of a queue could run now: nothing while it is paused, no more than its own concurrency has room for."""
    if stats.paused:
        return Backlog(dead=stats.dead, held=(f'queue "{stats.name}" is paused',) if stats.ready else ())
    found = _waiting(stats, types, tenants)
    if stats.concurrency_max is None:
        return found
    room = max(0, stats.concurrency_max - stats.running - stats.leased)
    if room >= found.runnable:
        return found
    if room:
        return replace(found, runnable=room, capped=False, suspects=min(room, found.suspects))
    full = f'queue "{stats.name}" runs as many tasks as its concurrency.max allows ({stats.concurrency_max})'
    return Backlog(dead=found.dead, held=(full,))


def _waiting(stats: QueueStats, types: Sequence[str] | None, tenants: Tenants) -> Backlog:
    mine = [
        each
        for each in stats.types
        if (types is None or each.type in types) and tenants.takes(each.tenant, stats.named)
    ]
    ages = [each.oldest for each in mine if each.oldest is not None]
    if types is None and tenants.everybody:  # what is due and not swept yet has no type here
        ages += [] if stats.oldest_runnable is None else [stats.oldest_runnable]
        ready = max(0, stats.ready - stats.held_back.total)
        return Backlog(ready, ready >= CAPPED, max(ages, default=None), stats.suspects, stats.dead)
    ready = sum(each.ready for each in mine)
    suspects = sum(each.suspects for each in mine)
    return Backlog(ready, ready >= CAPPED, max(ages, default=None), suspects, stats.dead)


def _plus(a: Backlog, b: Backlog) -> Backlog:
    ages = [age for age in (a.oldest, b.oldest) if age is not None]
    return Backlog(
        a.runnable + b.runnable,
        a.capped or b.capped,
        max(ages, default=None),
        a.suspects + b.suspects,
        a.dead + b.dead,
        a.missing + b.missing,
        a.held + b.held,
    )


def view(
    reading: Reading, pool: str, waiting: Backlog, pods: Sequence[PodSeen], deployment: Mapping[str, Any] | None
) -> PoolView:
    """Put together what is known of a pool; `pods` are the living ones."""
    stats = reading.pools.get(pool)
    uids = {pod.uid: pod.name for pod in pods}
    sessions = {uids[s.pod_uid]: s for s in (stats.sessions if stats else ()) if s.pod_uid in uids}
    replicas = int(((deployment or {}).get("spec") or {}).get("replicas") or 0)
    return PoolView(waiting, stats, pods, replicas, deployment, reading.at, sessions)


def signals(
    seen: PoolView, *, service_time: timedelta | None, start_up: timedelta | None, caps: tuple[Cap, ...]
) -> Signals:
    """The reading as the scaling decision takes it."""
    working = [pod for pod in seen.pods if pod.name in seen.sessions]
    stuck = [pod for pod in seen.pods if pod.stuck and pod.name not in seen.sessions]
    starting = [pod for pod in seen.pods if not pod.stuck and pod.name not in seen.sessions]
    leaving = [seen.sessions[pod.name] for pod in working if pod.leaving]
    absent = max(0, seen.replicas - len(seen.pods))  # asked for, and not created yet
    refusal = refused(seen.deployment) if absent else ""
    return Signals(
        read_at=seen.read_at,
        runnable=seen.backlog.runnable,
        runnable_capped=seen.backlog.capped,
        oldest_runnable=seen.backlog.oldest if seen.backlog.runnable else None,
        suspects=seen.backlog.suspects,
        running=seen.running,
        busy=seen.busy,
        busy_pods=sum(1 for pod in working if seen.sessions[pod.name].busy),
        replicas=seen.replicas,
        ready_pods=sum(1 for pod in working if not (pod.leaving or seen.sessions[pod.name].draining)),
        starting_pods=len(starting) + (0 if refusal else absent),
        stuck_pods=len(stuck) + (absent if refusal else 0),
        stuck_cause=refusal or told(stuck),
        closed=seen.closed,
        rolling=rolling(seen.deployment),
        replacing=replacing(seen.deployment or {}),
        living=len(seen.pods),
        leaving_pods=len(leaving),
        leaving_busy_pods=sum(1 for session in leaving if session.busy),
        leaving_busy=sum(session.busy for session in leaving),
        service_time=service_time,
        start_up=start_up or START_UP,
        caps=caps,
    )


def pod_states(seen: PoolView) -> list[PodState]:
    """The living pods as the choice of victims takes them."""
    return [_pod_state(pod, seen.sessions.get(pod.name)) for pod in seen.pods]


def _pod_state(pod: PodSeen, session: SessionStats | None) -> PodState:
    state = PodState(
        name=pod.name,
        created_at=pod.created_at,
        has_session=session is not None,
        stuck=bool(pod.stuck) and session is None,
        costed=costed(pod),
        scheduled=pod.node is not None,
        phase=pod.phase,
        ready=pod.ready,
        leaving=bool(pod.leaving),
    )
    if session is None:
        return state
    idle_for = session.idle_for if not session.busy else None
    return replace(state, busy=session.busy, marked=session.draining, idle_for=idle_for)


def costed(pod: PodSeen) -> bool:
    """Whether the controller takes it before pods that carry no cost."""
    return pod.cost is not None and pod.cost.startswith("-")


def counts(stats: PoolStats | None) -> list[SessionCount]:
    """The counters of a pool's sessions, for the estimate of the service time."""
    return [SessionCount(str(s.session_id), s.finished, s.busy_seconds) for s in (stats.sessions if stats else ())]


def start_ups(seen: PoolView) -> dict[str, timedelta]:
    """How long each working pod took from its creation to its session, by the pod's uid."""
    return {
        pod.uid: max(timedelta(0), seen.read_at - seen.sessions[pod.name].registered_ago - pod.created_at)
        for pod in seen.pods
        if pod.name in seen.sessions
    }
