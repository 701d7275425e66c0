"""KEDA's postgresql scaler with an HPA, as scaler of the model world: the rules that were measured on a real control plane.

Every `poll` seconds KEDA looks whether there is anything: from zero to one pod, and to zero when nothing was there for `cooldown`. Every
15 seconds the HPA wants metric / target pods, at most doubles (or goes to four), keeps within a tenth, and goes down only to the most
that it wanted within `window`. Which pods go is the ReplicaSet's choice alone: the newest.
"""

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from poolkeeper_operator.simulation.world import Seen

SYNC = 15.0
TOLERANCE = 0.1


@dataclass
class Keda:
    """One setting."""

    target: float  # of the metric, for each pod
    maximum: int
    counts_running: bool = False  # the metric: waiting tasks, or these and the running ones
    poll: float = 30.0
    cooldown: float = 300.0
    window: float = 300.0
    phase: float = 7.0  # of the HPA's syncs
    tick: float = 1.0
    _active_at: float = field(default=-1e9, init=False)
    _wanted: deque[tuple[float, int]] = field(default_factory=deque, init=False)

    @property
    def name(self) -> str:
        """For tables."""
        metric = "waiting + running" if self.counts_running else "waiting"
        return f"{metric}, target {self.target:g}, poll {self.poll:g} s, window {self.window:g} s"

    def size(self, seen: Seen) -> int:
        """See Scaler."""
        metric = seen.waiting + (sum(len(pod.ends) for pod in seen.pods) if self.counts_running else 0)
        replicas = seen.replicas
        if seen.now % self.poll == 0:
            if metric > 0:
                self._active_at = seen.now
                replicas = max(replicas, 1)
            elif seen.now - self._active_at > self.cooldown:
                replicas = 0
        if replicas and (seen.now - self.phase) % SYNC == 0:
            replicas = self._hpa(metric, replicas, seen.now)
        return replicas

    def _hpa(self, metric: int, replicas: int, now: float) -> int:
        ratio = metric / (self.target * replicas)
        wanted = replicas if abs(ratio - 1) <= TOLERANCE else ceil(metric / self.target)
        wanted = min(max(wanted, 1), self.maximum)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - self.window:
            self._wanted.popleft()
        if wanted < replicas:
            return min(replicas, max(size for _, size in self._wanted))
        return min(wanted, max(2 * replicas, 4))

    def first_to_go(self, _seen: Seen) -> set[str]:
        """Nobody: an HPA knows no pods."""
        return set()


def settings(maximum: int, concurrency: int) -> list[Keda]:
    """The settings that are tried: both metrics, targets around the slots of a pod, slow and fast looks, long and short windows."""
    return [
        Keda(target=target, maximum=maximum, counts_running=counts, poll=poll, window=window)
        for counts in (False, True)
        for target in (concurrency / 4, concurrency / 2, 0.8 * concurrency, concurrency, 2 * concurrency)
        for poll, window in ((30.0, 300.0), (1.0, 300.0), (1.0, 60.0))
    ]
