"""The clairvoyant reference (F26): the least cost, worked out by hand, of small loads; pods of two slots that start in 10 s, tasks that start within 30 s."""

import pytest
from benchmarks import clairvoyant


def cost(load, until=10_000.0):
    return clairvoyant.pod_seconds(load, concurrency=2, start_up=10.0, target=30.0, until=until)


@pytest.mark.parametrize(
    ("load", "least"),
    [
        # One task: a start-up, and its time.
        ([(100, 20)], 30),
        # Two tasks 25 s apart: nobody is late if both begin when the first one must, and a pod does both at once.
        ([(100, 4), (125, 4)], 14),
        # 35 s apart: the first must have begun before the second comes. It begins at 130 and ends at 140, the second runs until 145: one pod, no pause.
        ([(100, 10), (135, 10)], 25),
        # A pause longer than a start-up: two pods, or the same one twice, each a start-up and its task.
        ([(100, 20), (500, 20)], 60),
        # Twelve at once, of 10 s: one pod begins two each 10 s until 30 s have passed, eight in all; the others need another pod, or half of them and all:
        # the work is 60 pod-seconds however it is divided, and two start-ups are needed.
        ([(100, 10)] * 12, 80),
        # Two long ones fill a pod, a third that comes meanwhile cannot wait for them.
        ([(100, 100), (100, 100), (110, 5)], 110 + 15),
    ],
)
def test_the_cost_is_the_least_that_a_hand_finds(load, least):
    assert cost(load) == pytest.approx(least)


def test_it_costs_the_work_and_a_start_up_at_the_least():
    load = [(i * 0.7, 3.0 + i % 5) for i in range(400)]
    assert cost(load) >= sum(service for _, service in load) / 2 + 10


def test_what_comes_after_the_end_costs_nothing():
    """It need not begin before 80, is asked for at 70, and of its hundred seconds thirty count."""
    assert cost([(50, 100)], until=110) == 10 + 30
