"""What the builds of a pool can run, and what nobody can (Q11, O12)."""

from datetime import timedelta

import pytest

from poolkeeper.store.rows import PoolStats, QueueStats, TypeStats
from poolkeeper.store.signs import BuildStats
from poolkeeper_operator.decide.tenants import EVERYBODY, Tenants
from poolkeeper_operator.observe.capability import can_run, tasks, unable
from poolkeeper_operator.observe.signals import _of_queue
from unit.test_runnable import QUEUE

SEEN = [BuildStats("old", ["a", "b"]), BuildStats("new", ["c", "a"]), BuildStats("new", ["d"])]


def pool(builds: list[BuildStats]) -> PoolStats:
    return PoolStats(pool="a/p", running=0, max_running=None, sessions=[], drains=[], builds=builds)


@pytest.mark.parametrize(
    ("permitted", "build", "stats", "expected"),
    [
        ((), "new", pool(SEEN), ["a", "c", "d"]),
        ((), "old", pool(SEEN), ["a", "b"]),
        ((), "newest", pool(SEEN), None),  # its first pod has to start
        ((), "new", pool([]), None),
        ((), "new", None, None),
        ((), None, pool([BuildStats(None, ["a"])]), None),
        (("a",), "newest", pool(SEEN), ["a"]),
        (("a",), "new", pool(SEEN), ["a"]),
    ],
)
def test_a_build_can_run_what_its_sessions_told_and_one_that_was_never_seen_all_that_it_may(
    permitted, build, stats, expected
):
    """Q11: that of the present build, not of the one before."""
    assert can_run(permitted, build, stats) == expected


KINDS = [
    TypeStats("live", 1, timedelta(0), live=True, known=True),
    TypeStats("known", 2, timedelta(0), live=False, known=True),
    TypeStats("nobody", 3, timedelta(0), suspects=4, live=False, known=False),
]


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([], ["known", "nobody"]),  # a pool that is gone starts no pod, whatever is remembered of it
        ([["known"]], ["nobody"]),
        ([["live"]], ["known", "nobody"]),
        ([["known"], ["nobody", "x"]], []),
        ([["known"], None], []),
        ([None, ["known"]], []),
    ],
)
def test_nobody_can_run_what_neither_a_session_nor_a_pool_of_the_queue_can(pools, expected):
    """Q11, C06."""
    found = unable(QueueStats(**{**QUEUE, "types": KINDS}), ((types, EVERYBODY) for types in pools))
    assert [each.type for each in found] == expected


def test_suspects_count_as_well():
    assert tasks(KINDS[2:]) == 7


OF_TENANTS = [
    TypeStats("a.b", 5, timedelta(seconds=9), live=False, known=False, tenant="acme"),
    TypeStats("a.b", 7, timedelta(seconds=3), live=False, known=False),
]


@pytest.mark.parametrize(
    ("tenants", "named", "pulls", "left"),
    [
        (EVERYBODY, ["acme"], 50, []),
        (Tenants(only=["acme"]), ["acme"], 5, [None]),
        (Tenants(but=["acme"]), ["acme"], 7, ["acme"]),
        (Tenants(only=["beta"]), ["acme"], 7, ["acme"]),  # it may be among the others: its first pod has to start
        (Tenants(only=["acme", "beta"]), ["acme", "beta"], 5, [None]),
    ],
)
def test_a_pool_is_pulled_by_its_own_tenants_tasks(tenants, named, pulls, left):
    """Q11, O12: whoever else waits asks for none of its pods, and may have nobody."""
    stats = QueueStats(**{**QUEUE, "types": OF_TENANTS, "named": named})
    assert _of_queue(stats, None, tenants).runnable == pulls
    assert [each.tenant for each in unable(stats, [(None, tenants)])] == left
