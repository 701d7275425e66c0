"""The rules together, in a model world with pods that take eight seconds to start (O13, O14, O17): bounds are generous, seeds fixed."""

import math
import random
from datetime import timedelta

import pytest

from poolkeeper_operator.decide.signals import ScalingPolicy
from poolkeeper_operator.simulation.own import Own
from poolkeeper_operator.simulation.world import World

TARGET = 30.0
POLICY = ScalingPolicy(maximum=200, concurrency=4, target_age=timedelta(seconds=TARGET))
LOADS = {
    "steady, short tasks": lambda _: (20.0, 2.0),
    "steady, a few long tasks": lambda _: (0.2, 60.0),
    "a slow wave": lambda t: (max(0.01, 2 + 2 * math.sin(t / 300)), 10.0),
    "a step up": lambda t: (1.0 if t < 900 else 6.0, 5.0),
}


def world():
    return World(Own(POLICY), concurrency=POLICY.concurrency)


def arrivals(load, until, seed=7):
    """Poisson arrivals with exponential service."""
    rng, at = random.Random(seed), 0.0
    made: list[tuple[float, float]] = []
    while True:
        rate, service = load(at)
        at += rng.expovariate(rate)
        if at > until:
            return made
        made.append((at, rng.expovariate(1 / service)))


@pytest.mark.parametrize("load", LOADS)
def test_work_starts_within_the_target_and_pods_follow_the_load(load):
    outcome = world().run(arrivals(LOADS[load], 1800), 1800)
    assert outcome.late(TARGET) <= 0.01
    assert outcome.pod_seconds * POLICY.concurrency <= 2 * outcome.busy_seconds + 4 * 300
    assert outcome.turns <= 20
    assert outcome.killed_busy == 0


def test_a_burst_from_zero_is_late_for_nobody_and_ends_at_zero():
    burst = [(10 + i / 1000, 5.0) for i in range(400)]
    outcome = world().run(burst, 1200)
    assert outcome.late(TARGET) == 0
    assert outcome.sizes[-1] == 0
    assert outcome.turns == 1, "up once and down once"
    assert outcome.killed_busy == 0


def test_bursts_of_the_same_kind_are_answered_with_what_was_learned():
    """The first burst is sized on an assumption, the second on the measured service time: fewer pods, still nobody late."""
    bursts = [(start + i / 1000, 5.0) for start in (10, 610) for i in range(400)]
    outcome = world().run(bursts, 1200)
    first, second = max(outcome.sizes[:120]), max(outcome.sizes[120:])
    assert second < first / 2
    assert outcome.late(TARGET) <= 0.01


def test_a_lone_task_is_done_by_one_pod_that_goes_again():
    outcome = world().run([(10, 20.0)], 600)
    assert max(outcome.sizes) == 1
    assert outcome.sizes[-1] == 0
    assert outcome.waits[0] <= 15


class Still:
    """Asks for one pod, whatever it is shown."""

    tick = 1.0

    def size(self, _seen):
        return 1

    def first_to_go(self, _seen):
        return set()


def test_a_pod_takes_as_long_as_is_drawn_for_it():
    outcome = World(Still(), concurrency=1, start_up=8.0, takes=lambda: 3.0).run([(0, 1.0)], 20)
    assert outcome.waits == [3.0]
    assert World(Still(), concurrency=1, start_up=8.0).run([(0, 1.0)], 20).waits == [8.0]


@pytest.mark.parametrize(("overtime", "waits", "left"), [(0.0, [0.0], 1), (5.0, [0.0, 3.0], 0), (1.0, [0.0], 1)])
def test_what_waits_at_the_end_may_start_in_overtime_at_no_cost(overtime, waits, left):
    """One slot, two tasks at 8 and 9 s of a run of ten; the first one ends at 12. What comes later is no part of it."""
    outcome = World(Still(), concurrency=1, start_up=0.0).run([(8, 4.0), (9, 1.0), (11, 1.0)], 10, overtime=overtime)
    assert outcome.waits == pytest.approx(waits)
    assert outcome.left == left
    assert outcome.pod_seconds == pytest.approx(10)
    assert len(outcome.sizes) == 10
