"""The memory of a pool: bounded, and what it forgets never makes a pool smaller."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from poolkeeper_operator.decide.history import MAX_STRETCHES, History

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
KEEP = timedelta(minutes=2)


def remembered(sizes, keep=KEEP):
    history, at = History(), NOW
    for size in sizes:
        history = history.extended(now=at, recommended=size, applied=size, was=size, idle=size == 0, keep=keep)
        at += timedelta(seconds=5)
    return history, at - timedelta(seconds=5)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300))
def test_the_window_knows_its_largest_and_smallest(sizes):
    history, now = remembered(sizes)
    within = sizes[-(KEEP // timedelta(seconds=5)) - 1 :]
    assert history.highest_recommended(now - KEEP, sizes[-1]) >= max(within)
    assert history.lowest_recommended(now - KEEP, sizes[-1]) == min(within)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300))
def test_what_left_the_window_no_longer_counts(sizes):
    history, now = remembered(sizes)
    reach = sizes[-(KEEP // timedelta(seconds=5)) - 2 :]
    assert history.highest_recommended(now - KEEP, sizes[-1]) <= max(reach)


@given(st.lists(st.integers(0, 50), min_size=30, max_size=60))
def test_what_was_enough_for_most_of_the_window_is_its_three_fifths(sizes):
    history, now = remembered(sizes)
    within = sorted(sizes[-(KEEP // timedelta(seconds=5)) - 1 : -1])
    assert history.usual_recommended(now - KEEP, now) == within[-(-len(within) * 3 // 5) - 1]


def test_a_pool_never_seen_has_no_usual_size():
    assert History().usual_recommended(NOW - KEEP, NOW) == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=400))
def test_it_is_bounded_however_long_the_window(sizes):
    history, now = remembered(sizes, keep=timedelta(days=1))
    assert len(history.stretches) <= MAX_STRETCHES
    assert history.highest_recommended(NOW, sizes[-1]) == max(sizes)
    assert history.watched_since == NOW
    assert history.stretches[-1].until == now


def test_what_is_merged_for_want_of_room_errs_towards_the_larger_size():
    history, _ = remembered([9, *[0, 1] * 200], keep=timedelta(days=1))
    assert len(history.stretches) == MAX_STRETCHES
    assert history.highest_recommended(NOW, 1) == 9
    assert history.highest_size(NOW, 1) == 9


def test_it_knows_since_when_it_has_watched():
    history, _ = remembered([5] * 1000)
    assert history.watched_since == NOW
    assert history.blinded(NOW).watched_since is None


def test_idleness_is_an_unbroken_row():
    history, now = remembered([0, 0, 3, 0, 0])
    assert history.idle_since == now - timedelta(seconds=5)
