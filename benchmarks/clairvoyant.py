"""A plan of somebody who knows all tasks beforehand, how long each will run included: what a pool could cost at the least, or little more.

Each task goes to the lowest pod that has a slot for it in time, and there to the slot that is free first, so that the work gathers in few pods. A pod is asked for a
start-up before it is needed, stays through pauses that are shorter than a start-up, and begins as late as its first task allows, or earlier: the cheapest of
five such plans counts. Every plan is one that could be carried out; whether a cheaper one exists is known for small cases only (tests/unit/test_clairvoyant.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

Load = Iterable[tuple[float, float]]


@dataclass
class _Pod:
    free_at: list[float]  # of each slot
    spans: list[list[float]] = field(default_factory=list)  # [begin, end] of the times in which it works

    def offer(self, at: float, late: float, start_up: float) -> float:
        """When a task that comes at `at` would start here; a pod that is away begins at `late`."""
        if not self.spans or at > self.spans[-1][1] + start_up:
            return late
        return max(at, min(self.free_at))

    def take(self, start: float, service: float, start_up: float) -> None:
        """Have it run here from `start` on."""
        if not self.spans or start > self.spans[-1][1] + start_up:
            self.spans.append([start, start])
            self.free_at = [start] * len(self.free_at)
        slot = self.free_at.index(min(self.free_at))
        self.free_at[slot] = start + service
        self.spans[-1][1] = max(self.spans[-1][1], start + service)


def pod_seconds(load: Load, *, concurrency: int, start_up: float, target: float, until: float) -> float:
    """Seconds of all pods, from when they are asked for, up to `until`; no task starts more than `target` seconds after it came."""
    load = sorted(load)
    return min(_planned(load, concurrency, start_up, target, target * part / 4, until) for part in range(5))


def _planned(
    load: list[tuple[float, float]], concurrency: int, start_up: float, target: float, wait: float, until: float
) -> float:
    """The cost of the plan in which a pod begins `wait` seconds after the first task that it is for."""
    pods: list[_Pod] = []
    for at, service in load:
        for pod in pods:
            if (start := pod.offer(at, at + wait, start_up)) <= at + target:
                break
        else:
            pods.append(pod := _Pod([0.0] * concurrency))
            start = at + wait
        pod.take(start, service, start_up)
    spans = [span for pod in pods for span in pod.spans]
    return sum(max(0.0, min(end, until) - (begin - start_up)) for begin, end in spans)
