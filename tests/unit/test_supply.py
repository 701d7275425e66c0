"""Slots for what is due: those that there are, those that are starting, and new ones (O13), by hand and with numbers that can be followed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from poolkeeper_operator.decide import supply
from poolkeeper_operator.decide.history import MAX_WAITED, History, Waited
from poolkeeper_operator.decide.scaling import decide
from poolkeeper_operator.decide.signals import ScalingPolicy, Signals, StepPolicy
from poolkeeper_operator.decide.supply import Due, Free

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
POLICY = ScalingPolicy(maximum=100, concurrency=4)
FIVE = {"replicas": 5, "ready_pods": 5, "busy_pods": 5, "service_time": timedelta(seconds=1)}
SLOW = {"start_up": timedelta(seconds=40), "service_time": timedelta(seconds=60)}
NEW = Free(None, timedelta(seconds=17))


def seconds(value):
    return timedelta(seconds=value)


def reading(**what):
    return Signals(**{"read_at": NOW, "runnable": 0, "start_up": seconds(17)} | what)


def asked(*sizes, every=5, start=60):
    """A history of these sizes, a reading each `every` seconds, the last so long ago."""
    history, at = History(), NOW - seconds(start)
    for was, applied in zip(sizes, [*sizes[1:], sizes[-1]], strict=True):
        history = history.extended(now=at, recommended=applied, applied=applied, was=was, idle=False, keep=seconds(600))
        at += seconds(every)
    return history


HERE, NEW_ONLY = [Free(4, seconds(0)), NEW], [NEW]
SOON = [Free(8, seconds(2)), NEW]


@pytest.mark.parametrize(
    ("due", "busy", "free", "slots"),
    [
        ([Due(0, seconds(30))], 3, NEW_ONLY, 3),
        # four busy slots start three each; one that is free starts one at once, then three
        ([Due(12, seconds(30))], 4, NEW_ONLY, 4),
        ([Due(13, seconds(30))], 4, HERE, 5),
        # 3.7 each, and new ones 2 in what is left to them; four each, and one that comes in ten seconds three
        ([Due(17, seconds(27))], 0, HERE, 6),
        ([Due(17, seconds(30))], 0, [Free(4, seconds(0)), Free(8, seconds(10)), NEW], 5),
        # too late for new ones: each starts one as soon as it is there; those that come soon start 2.5 until then
        ([Due(20, seconds(10))], 0, NEW_ONLY, 20),
        ([Due(20, seconds(10))], 0, SOON, 8),
        # what is due first counts, and so does what is due later
        ([Due(30, seconds(10)), Due(30, seconds(30))], 0, SOON, 18),
        ([Due(10, seconds(20)), Due(90, seconds(27))], 0, NEW_ONLY, 45),
    ],
)
def test_the_fewest_slots_that_start_what_is_due(due, busy, free, slots):
    """Tasks of ten seconds."""
    assert supply.slots(due, busy, free, seconds(10)) == slots


def test_who_came_since_a_reading_is_younger_than_it():
    """Of 300 tasks 100 waited ten seconds ago, and 20 five seconds before that: 280 came later, and have more time."""
    history = History(waited=(Waited(NOW - seconds(15), 20), Waited(NOW - seconds(10), 100)))
    found = supply.dues(POLICY, reading(runnable=300, oldest_runnable=seconds(18)), history, NOW)
    assert found == (Due(24, seconds(12)), Due(110, seconds(15)), Due(317, seconds(20)))


def test_no_more_is_due_than_waits_and_the_oldest_is_the_oldest():
    """500 waited 20 seconds ago, all of them have started but 40; the oldest came after it."""
    history = History(waited=(Waited(NOW - seconds(20), 500), Waited(NOW - seconds(5), 90)))
    found = supply.dues(POLICY, reading(runnable=40, oldest_runnable=seconds(8)), history, NOW)
    assert found == (Due(46, seconds(22)), Due(46, seconds(25)))
    late = supply.dues(POLICY, reading(runnable=1, oldest_runnable=seconds(500)), History(), NOW)
    assert late == (Due(2, POLICY.tick),)


def test_who_was_held_back_is_as_old_as_the_oldest():
    """Nothing could run five seconds ago, 30 that came before that can now: a queue that was paused."""
    history = History(waited=(Waited(NOW - seconds(10), 0), Waited(NOW - seconds(5), 0)))
    found = supply.dues(POLICY, reading(runnable=30, oldest_runnable=seconds(20)), history, NOW)
    assert found == (Due(35, seconds(10)),)


def test_what_is_starting_is_expected_a_start_up_after_it_was_asked_for():
    """O13, anti-windup: 2 pods stand; 5 were asked for 20 seconds ago, 6 more 10 seconds ago. Of 8 that start the newest 6 come in 7 s; who is overdue by 3 takes as long again."""
    history = asked(2, 2, 7, 7, 13, start=25)
    found = supply.frees(POLICY, reading(replicas=13, ready_pods=5, starting_pods=8), 20, history, NOW)
    assert found == (Free(0, seconds(0)), Free(0, seconds(0)), Free(8, seconds(3)), Free(24, seconds(7)), NEW)


@pytest.mark.parametrize(
    ("start_up", "counted"), [(17, 0), (40, 1)], ids=["for a minute at most", "or twice the measured start-up"]
)
def test_what_has_been_starting_for_too_long_counts_as_none(start_up, counted):
    history = asked(2, 7, 7, 7, start=70)
    found = supply.frees(
        POLICY, reading(replicas=7, ready_pods=2, starting_pods=5, start_up=seconds(start_up)), 0, history, NOW
    )
    assert len(found) == 3 + counted


@pytest.mark.parametrize(("watched_for", "counted"), [(None, 1), (30, 1), (70, 0)])
def test_who_has_just_come_takes_what_is_starting_for_as_slow_as_new_ones(watched_for, counted):
    """O18, O29: after a fail-over in a burst nobody knows when pods were asked for; they are not asked for once more."""
    history = History() if watched_for is None else asked(7, 7, start=watched_for)
    signals = reading(replicas=7, ready_pods=2, starting_pods=5, runnable=20, oldest_runnable=seconds(25), busy=8)
    found = supply.frees(POLICY, signals, 8, history, NOW)
    assert found[2:-1] == (Free(20, seconds(17)),) * counted
    if watched_for is None:
        assert decide(POLICY, signals, history, NOW).wanted <= 7


def test_a_marked_pod_claims_again_as_soon_as_it_is_wanted_back():
    """Ten pods, of which one is stuck, two start, one is on a node that goes and two are marked."""
    signals = reading(replicas=10, ready_pods=4, starting_pods=2, stuck_pods=1, leaving_pods=1)
    found = supply.frees(POLICY, signals, 3, asked(10, 10, start=70), NOW)
    assert found == (Free(13, seconds(0)), Free(8, seconds(0)), NEW)


def test_what_came_lately_is_not_asked_for_as_if_it_were_old():
    """O13: the same 400 tasks of a second, most of which came in the last five seconds, beside twenty busy slots."""
    history = History()
    for ago, waiting in ((10, 100), (5, 100)):
        at = NOW - seconds(ago)
        signals = reading(read_at=at, runnable=waiting, oldest_runnable=seconds(14 - ago), busy=20, **FIVE)
        history = decide(POLICY, signals, history, at).history
    signals = reading(runnable=400, oldest_runnable=seconds(14), busy=20, **FIVE)
    assert len(history.waited) == 2, "as long as a task of theirs may wait in time"
    forgetful = replace(history, waited=())
    assert decide(POLICY, signals, history, NOW).wanted < decide(POLICY, signals, forgetful, NOW).wanted


def test_a_slow_start_is_remembered_longer_than_any_window():
    """O13: pods that take forty seconds were asked for 70 seconds ago; nothing else asks for a memory of more than 15."""
    at_once = StepPolicy(window=seconds(0))
    policy = replace(POLICY, up=at_once, down=at_once)
    history, starting = History(), 0
    for ago in range(200, 0, -5):
        at = NOW - seconds(ago)
        waiting = {"runnable": 40, "oldest_runnable": seconds(70 - ago)} if ago <= 70 else {"busy": 4}
        signals = reading(read_at=at, replicas=1 + starting, ready_pods=1, starting_pods=starting, **SLOW | waiting)
        decision = decide(policy, signals, history, at)
        history, starting = decision.history, decision.applied - 1
    signals = reading(runnable=40, replicas=1 + starting, ready_pods=1, starting_pods=starting, **SLOW)
    assert [free.slots for free in supply.frees(policy, signals, 4, history, NOW)[2:-1]] == [4 * starting]


def test_what_waited_is_remembered_for_as_long_as_it_may_wait_and_is_bounded():
    history = History()
    for second in range(0, 300, 5):
        at = NOW + seconds(second)
        history = history.extended(
            now=at, recommended=1, applied=1, was=1, idle=False, keep=seconds(60), waiting=second, recall=seconds(30)
        )
    assert [mark.tasks for mark in history.waited] == [270, 275, 280, 285, 290, 295]
    for second in range(300, 500):
        at = NOW + seconds(second)
        history = history.extended(
            now=at, recommended=1, applied=1, was=1, idle=False, keep=seconds(60), waiting=1, recall=seconds(3600)
        )
    assert len(history.waited) == MAX_WAITED
