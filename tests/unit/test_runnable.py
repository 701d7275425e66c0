"""What of a queue counts as runnable for a pool (O12): what is held back does not pull."""

from datetime import timedelta
from typing import Any

import pytest

from poolkeeper.store.rows import HeldBack, QueueStats, TypeStats
from poolkeeper_operator.observe.signals import Backlog, _of_queue
from poolkeeper_operator.runtime.queues import _figures

OLD = timedelta(seconds=40)
QUEUE: dict[str, Any] = {
    "queue_id": 1, "namespace": "a", "name": "q", "policy_version": 1, "paused": False, "concurrency_max": None, "ready": 50,
    "scheduled": 0, "leased": 0, "running": 6, "waiting": 0, "dead": 2, "dead_recent": 0, "dead_unannounced": False, "oldest_runnable": OLD,
    "next_due": None, "lease_expiries": 0, "suspects": 3, "ordering": 0, "no_capable_worker": 0,
    "types": [TypeStats(type="a.b", ready=20, oldest=timedelta(seconds=5), suspects=1), TypeStats(type="c", ready=27, oldest=OLD, suspects=2)],
}  # fmt: skip


def waiting(types: list[str] | None = None, **changes: Any) -> Backlog:
    return _of_queue(QueueStats(**QUEUE | changes), types)


def test_all_that_could_run_now_pulls():
    assert waiting() == Backlog(50, capped=False, oldest=OLD, suspects=3, dead=2)


def test_only_the_pools_own_task_types_pull():
    assert waiting(["a.b"]) == Backlog(20, capped=False, oldest=timedelta(seconds=5), suspects=1, dead=2)


def test_suspects_of_other_types_ask_for_no_pod():
    """C06: one that a build cannot run any more would keep a pod for ever."""
    other = TypeStats(type="c", ready=0, oldest=None, suspects=2)
    assert _of_queue(QueueStats(**QUEUE | {"types": [other]}), ["a.b"]) == Backlog(dead=2)


def test_a_pool_that_was_never_seen_takes_the_age_of_what_the_store_calls_unable():
    """Q11, O12: for it, it could run now."""
    assert waiting(oldest_runnable=None).oldest == OLD


def test_what_its_tenants_bound_or_a_pause_holds_back_does_not_pull():
    """Q12, O12: types come without it, the total with it."""
    assert waiting(held_back=HeldBack(tenant_limit=10, tenant_suspended=5, type_paused=5)).runnable == 30


def test_a_paused_queue_does_not_pull_and_says_so():
    assert waiting(paused=True) == Backlog(dead=2, held=('queue "q" is paused',))
    assert waiting(paused=True, ready=0) == Backlog(dead=2)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (100, Backlog(50, capped=False, oldest=OLD, suspects=3, dead=2)),
        (10, Backlog(4, capped=False, oldest=OLD, suspects=3, dead=2)),
        (7, Backlog(1, capped=False, oldest=OLD, suspects=1, dead=2)),
        (6, Backlog(dead=2, held=('queue "q" runs as many tasks as its concurrency.max allows (6)',))),
        (3, Backlog(dead=2, held=('queue "q" runs as many tasks as its concurrency.max allows (3)',))),
    ],
)
def test_a_queue_pulls_no_more_than_its_own_concurrency_has_room_for(bound, expected):
    """More pods could not run more of them."""
    assert waiting(concurrency_max=bound) == expected


def test_leased_tasks_take_room_too():
    assert waiting(concurrency_max=10, leased=3).runnable == 1


def test_a_capped_count_says_so_unless_the_queues_own_limit_is_below_it():
    assert waiting(ready=10_000).capped
    assert not waiting(ready=10_000, concurrency_max=50).capped


def test_what_waits_behind_an_ordering_key_is_told_and_does_not_pull():
    """Q9, O12: it is not among the ready ones."""
    assert waiting(ordering=7) == waiting()
    depth = _figures(QueueStats(**QUEUE | {"ordering": 7}), [])["depth"]
    assert (depth["ready"], depth["heldBack"]["ordering"]) == (50, 7)
