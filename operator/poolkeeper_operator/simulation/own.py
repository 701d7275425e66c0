"""The operator in a model world: its decision, its choice of pods and its estimate of the service time, unchanged."""

from datetime import UTC, datetime, timedelta

from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.scaling import decide
from poolkeeper_operator.decide.service import ServiceMeter, SessionCount
from poolkeeper_operator.decide.signals import ScalingPolicy, Signals
from poolkeeper_operator.decide.victims import PodState, plan
from poolkeeper_operator.simulation.world import Pod, Seen

BEGIN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MOST = 10_000
"""Runnable tasks that the store counts."""


class Own:
    """Decides by a pool's policy, as the operator does."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self.policy = policy
        self.tick = policy.tick.total_seconds()
        self.sentences: list[tuple[float, int, str]] = []  # of each change: when, to how many, why
        self._history, self._meter = History(), ServiceMeter()
        self._first: set[str] = set()

    def size(self, seen: Seen) -> int:
        """See Scaler."""
        decision = decide(self.policy, self._signals(seen), self._history, _at(seen.now))
        self._history = decision.history
        chosen = plan(
            [_state(pod, seen.now, self._first) for pod in seen.pods], goal=decision.goal, replicas=seen.replicas
        )
        for pod in seen.pods:
            pod.marked = (pod.marked or pod.name in chosen.mark) and pod.name not in chosen.unmark
        self._first = set(chosen.costs)
        if chosen.replicas != seen.replicas:
            self.sentences.append((seen.now, chosen.replicas, decision.sentence))
        return chosen.replicas

    def first_to_go(self, _seen: Seen) -> set[str]:
        """See Scaler."""
        return self._first

    def _signals(self, seen: Seen) -> Signals:
        up = [pod for pod in seen.pods if pod.works_at <= seen.now]
        counts = [SessionCount(pod.name, pod.finished, pod.busy_seconds) for pod in up]
        self._meter = self._meter.observe(counts, _at(seen.now))
        busy = sum(len(pod.ends) for pod in up)
        return Signals(
            read_at=_at(seen.now),
            runnable=min(seen.waiting, MOST),
            runnable_capped=seen.waiting >= MOST,
            oldest_runnable=None if seen.oldest is None else timedelta(seconds=seen.oldest),
            running=busy,
            busy=busy,
            busy_pods=sum(bool(pod.ends) for pod in up),
            replicas=seen.replicas,
            ready_pods=sum(not pod.marked for pod in up),
            starting_pods=len(seen.pods) - len(up),
            service_time=self._meter.service_time,
            start_up=timedelta(seconds=seen.start_up),
        )


def _at(now: float) -> datetime:
    return BEGIN + timedelta(seconds=now)


def _state(pod: Pod, now: float, costed: set[str]) -> PodState:
    up = pod.works_at <= now
    return PodState(
        name=pod.name,
        created_at=_at(pod.asked_at),
        busy=len(pod.ends),
        marked=pod.marked,
        has_session=up,
        ready=up,
        costed=pod.name in costed,
        idle_for=timedelta(seconds=now - pod.idle_since) if up and not pod.ends else None,
    )
