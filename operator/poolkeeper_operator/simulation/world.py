"""A pool in a model world: tasks arrive, slots work, pods take their time to start and to drain, a scaler decides every tick.

Guarantees: the same arrivals and scaler give the same outcome. A pod that is to go takes no more tasks and stays, and costs, until
those that it has are done. It knows no failures and no work done twice; those are tested against the real parts.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Protocol

STEPS = 10
"""Steps in a second: how finely time passes."""


@dataclass
class Pod:
    """One pod and its slots; times in seconds from the beginning."""

    name: str
    asked_at: float
    works_at: float
    ends: list[float] = field(default_factory=list)  # of the tasks in its slots
    idle_since: float = 0.0
    marked: bool = False  # takes no more tasks, and may be wanted back
    finished: int = 0
    busy_seconds: float = 0.0


@dataclass(frozen=True)
class Seen:
    """What a scaler is shown."""

    now: float  # seconds from the beginning
    waiting: int  # tasks that could start
    oldest: float | None  # seconds that the oldest of them has waited
    pods: list[Pod]  # those that are not going
    replicas: int  # as it was set last
    start_up: float  # seconds from raising replicas to a pod's first task


class Scaler(Protocol):
    """Whoever sets replicas."""

    tick: float  # seconds between two looks

    def size(self, seen: Seen) -> int:
        """Return the replicas from now on; may mark pods, and take marks away."""

    def first_to_go(self, seen: Seen) -> set[str]:
        """Return the names of the pods that go before others, among those that have started."""


@dataclass
class Outcome:
    """What a run came to."""

    waits: list[float] = field(default_factory=list)  # seconds, of tasks that have started
    left: int = 0  # tasks that have not
    pod_seconds: float = 0.0
    busy_seconds: float = 0.0  # of slots
    sizes: list[int] = field(default_factory=list)  # replicas after each tick
    killed_busy: int = 0  # pods told to go with work in hand while another one was idle

    def late(self, target: float) -> float:
        """Share of tasks that waited beyond the target."""
        return (sum(wait > target for wait in self.waits) + self.left) / max(1, len(self.waits) + self.left)

    @property
    def turns(self) -> int:
        """Changes of direction of the size."""
        steps = [b - a for a, b in pairwise(self.sizes) if a != b]
        return sum((a > 0) != (b > 0) for a, b in pairwise(steps))


class World:
    """One pool of `concurrency` slots a pod; `run` plays arrivals of (time, service seconds).

    The scaler is told `start_up`; a pod takes what `takes` answers, or just as long.
    """

    def __init__(
        self, scaler: Scaler, *, concurrency: int, start_up: float = 8.0, takes: Callable[[], float] | None = None
    ) -> None:
        self.scaler, self.concurrency, self.start_up = scaler, concurrency, start_up
        self.takes = takes or (lambda: start_up)
        self.pods: list[Pod] = []
        self.going: list[Pod] = []
        self.replicas = self.made = 0
        self.queue: deque[tuple[float, float]] = deque()
        self.outcome = Outcome()

    def run(self, arrivals: Iterable[tuple[float, float]], until: float, *, overtime: float = 0.0) -> Outcome:
        """Play everything in small steps up to `until`, deciding every tick.

        What still waits then may start within `overtime` seconds, so that it is judged by its wait; they cost nothing, and no size is told of them.
        """
        coming, every, last = deque(sorted(arrivals)), round(self.scaler.tick * STEPS), int(until * STEPS)
        for step in range(last + int(overtime * STEPS)):
            if step >= last and not self.queue:
                break
            now = step / STEPS
            while coming and coming[0][0] <= now and step < last:
                self.queue.append(coming.popleft())
            self._work(now)
            if step % every == 0:
                self._decide(now)
            if step < last:
                self.outcome.pod_seconds += (len(self.pods) + len(self.going)) / STEPS
                if step % every == 0:
                    self.outcome.sizes.append(self.replicas)
        self.outcome.left = len(self.queue)
        return self.outcome

    def _work(self, now: float) -> None:
        for pod in self.going:
            while pod.ends and pod.ends[0] <= now:
                heappop(pod.ends)
        self.going = [pod for pod in self.going if pod.ends]
        for pod in self.pods:
            while pod.ends and pod.ends[0] <= now:
                heappop(pod.ends)
                pod.finished += 1
                pod.idle_since = now
            if pod.works_at > now or pod.marked:
                continue
            while self.queue and len(pod.ends) < self.concurrency:
                arrived, service = self.queue.popleft()
                self.outcome.waits.append(now - arrived)
                self.outcome.busy_seconds += service
                pod.busy_seconds += service
                heappush(pod.ends, now + service)

    def _decide(self, now: float) -> None:
        oldest = now - self.queue[0][0] if self.queue else None
        seen = Seen(now, len(self.queue), oldest, self.pods, self.replicas, self.start_up)
        self.replicas = self.scaler.size(seen)
        first = self.scaler.first_to_go(seen)
        # As the ReplicaSet controller: not ready first, then by deletion cost, then the newest.
        order = sorted(self.pods, key=lambda p: (p.works_at <= now, p.name not in first, -p.asked_at))
        gone = order[: max(0, len(self.pods) - self.replicas)]
        kept = [pod for pod in self.pods if pod not in gone]
        idle = any(pod.works_at <= now and not pod.ends for pod in kept)
        self.outcome.killed_busy += sum(bool(pod.ends) for pod in gone) if idle else 0
        self.pods, self.going = kept, self.going + [pod for pod in gone if pod.ends]
        while len(self.pods) < self.replicas:
            self.made += 1
            works_at = now + self.takes()
            self.pods.append(Pod(f"p{self.made}", now, works_at, idle_since=works_at))
