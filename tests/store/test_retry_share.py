"""Retries take at most a share of the claims while first deliveries are ready, and all of them without (Q13)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from poolkeeper.store import Claimed, Settle, calls
from store.scene import Scene, Worker, seconds


def retries(scene: Scene, count: int, kind: str = "a.b", tenants: Sequence[str] = ("default",)) -> set[UUID]:
    """So many tasks of each tenant that have failed once and are ready again; no other of the kind is ready."""
    worker = scene.worker(types=[kind], concurrency=count * len(tenants))
    made = {task_id for tenant in tenants for task_id in scene.submit_many(count, type=kind, tenant=tenant)}
    claimed = worker.claim(len(made))
    assert {c.task_id for c in claimed} == made
    worker.turn([Settle(c.task_id, c.token, "failed", retry_after=seconds(0)) for c in claimed])
    scene.sweep()
    worker.end()
    return made


def kinds(claimed: list[Claimed], again: set[UUID]) -> str:
    """R for each retry, f for each first delivery."""
    return "".join("R" if c.task_id in again else "f" for c in claimed)


@pytest.mark.parametrize(("percent", "every"), [(20, 5), (10, 10), (50, 2), (25, 4)])
def test_one_slot_at_a_time_gives_retries_their_share(scene: Scene, percent: int, every: int) -> None:
    """Q13: counted over the turns of a session, exact in each window."""
    scene.queue(retry_share_percent=percent)
    again = retries(scene, 30)
    scene.submit_many(60)
    worker = scene.worker(concurrency=60)
    got = kinds([worker.take() for _ in range(40)], again)
    for start in range(40 - every + 1):
        assert got[start : start + every].count("R") == 1, got


@pytest.mark.parametrize("want", [2, 5, 7, 20])
def test_a_wide_claim_has_its_share_of_retries(scene: Scene, want: int) -> None:
    """Q13: the share holds over turns of any width."""
    again = retries(scene, 60)
    scene.submit_many(120)
    worker = scene.worker(concurrency=200)
    got = kinds([c for _ in range(100 // want) for c in worker.claim(want)], again)
    assert abs(got.count("R") - len(got) / 5) <= 1, got


def test_many_sessions_that_claim_once_keep_to_the_share(scene: Scene) -> None:
    """Q13: a session that lives for one claim does not always begin with a first delivery, nor with a retry."""
    again = retries(scene, 100)
    scene.submit_many(200)
    got = kinds([scene.worker(concurrency=1).take() for _ in range(200)], again)
    assert 15 <= got.count("R") <= 70, got


def test_without_first_deliveries_retries_take_everything(scene: Scene) -> None:
    """Q13: nothing is kept free; those of a type that this session cannot run do not count."""
    again = retries(scene, 20)
    scene.submit_many(20, type="c.d")
    worker = scene.worker(concurrency=100)
    assert kinds(worker.claim(10), again) == "R" * 10
    first = scene.submit_many(3)
    assert sorted(kinds(worker.claim(10), again)) == ["R"] * 7 + ["f"] * len(first)
    assert kinds(worker.claim(10), again) == "R" * 3


def test_without_retries_first_deliveries_take_everything(scene: Scene) -> None:
    """Q13: the share is theirs when they are there; what they left is not paid back later in one go."""
    again = retries(scene, 2)
    scene.submit_many(100)
    worker = scene.worker(types=["a.b", "c.d"], concurrency=100)
    assert kinds(worker.claim(40), again).count("R") == 2
    again |= retries(scene, 10, "c.d")
    worker.renew()
    assert (
        kinds(worker.claim(5), again).count("R") == 1
    )  # of forty claims six were not used, and no five have more than one
    assert kinds(worker.claim(20), again).count("R") == 4


def test_a_share_of_100_makes_no_difference(scene: Scene) -> None:
    """Q13, contract 22: the order is that of one kind: lanes in turn, what was ready first."""
    scene.queue(retry_share_percent=100)
    again = retries(scene, 5)
    firsts = scene.submit_many(5)
    third = retries(scene, 5, "c.d")
    worker = scene.worker(types=["a.b", "c.d"], concurrency=100)
    got = [c.task_id for _ in range(15) for c in worker.claim(1)]
    assert (set(got[:5]), got[5:10], set(got[10:])) == (again, firsts, third)


def test_a_share_of_100_goes_round_all_lanes(scene: Scene) -> None:
    """Q13: tenants with retries and tenants without take turns, also where there are more than one look finds."""
    scene.queue(retry_share_percent=100)
    retries(scene, 2, tenants=[f"a{n}" for n in range(100)])
    for n in range(100):
        scene.submit_many(2, tenant=f"b{n}")
    worker = scene.worker(concurrency=400)
    got = Counter(c.tenant for _ in range(40) for c in worker.claim(5))
    assert set(got.values()) == {1}
    assert len(got) == 200


def test_lanes_take_turns_among_retries_and_among_first_deliveries(scene: Scene) -> None:
    """Q13: a tenant whose tasks all fail takes nothing away from the first deliveries of the others."""
    again = retries(scene, 30, tenants=["broken", "other"])
    for n in range(4):
        scene.submit_many(20, tenant=f"t{n}")
    worker = scene.worker(concurrency=200)
    got = [c for _ in range(50) for c in worker.claim(1)]
    firsts = Counter(c.tenant for c in got if c.task_id not in again)
    others = Counter(c.tenant for c in got if c.task_id in again)
    assert set(firsts.values()) == {10}
    assert others == {"broken": 5, "other": 5}


@pytest.mark.parametrize("policy", [{}, {"per_tenant_max": 4}, {"concurrency_max": 7}])
def test_bounds_hold_over_both_kinds(scene: Scene, policy: dict[str, Any]) -> None:
    """Q12, Q13: retries and first deliveries of a tenant, and of a queue, count together."""
    retries(scene, 4, tenants=[f"t{n}" for n in range(3)])
    scene.queue(**policy)
    for n in range(3):
        scene.submit_many(20, tenant=f"t{n}")
    got = Counter(c.tenant for c in scene.worker(concurrency=100).claim(50))
    assert sum(got.values()) == {"per_tenant_max": 12, "concurrency_max": 7}.get(next(iter(policy), ""), 50)
    assert max(got.values()) - min(got.values()) <= 2


@pytest.mark.parametrize("policy", [{}, {"per_tenant_max": 1000}])
def test_thousands_of_retries_are_not_in_the_way_of_first_deliveries(scene: Scene, policy: dict[str, Any]) -> None:
    """Q13, Q14: each retry a tenant of its own, which a walk over all lanes would have to pass."""
    scene.queue(**policy)
    again = retries(scene, 1, tenants=[f"t{n}" for n in range(600)])
    scene.submit_many(50, tenant="late")
    one = scene.worker(concurrency=100)
    assert kinds([one.take() for _ in range(10)], again).count("R") == 2


def what_is_no_retry(scene: Scene, worker: Worker) -> None:
    """Ends of a delivery that are nobody's failure."""
    worker.settle(worker.take(), "handed_back")
    worker.settle(worker.take(), "snoozed", retry_after=None)


def test_a_hand_back_a_snooze_and_a_requeue_are_no_retries(scene: Scene) -> None:
    """Q13: nor is a dead letter with a new budget."""
    scene.queue(max_deliveries=1)
    worker = scene.worker()
    scene.submit_many(3)
    what_is_no_retry(scene, worker)
    one = worker.take()
    worker.fail(one)
    assert scene.state(one.task_id) == "dead"
    scene.ask("person", calls.requeue(one.task_id, who="test", why="mended"))
    scene.advance(3600)
    scene.sweep()
    assert scene.rows("SELECT DISTINCT again FROM poolkeeper.ready") == [(False,)]


def test_retries_beyond_the_share_are_counted(scene: Scene) -> None:
    """Q13: RetryStorm: of 30 retries beside 40 first deliveries ten are theirs; alone, nothing holds them."""
    retries(scene, 30)

    def held() -> tuple[int, bool]:
        (stats,) = scene.ask("operator", calls.queues())
        return stats.held_back.retry_share, stats.oldest_retry is not None

    assert held() == (0, True)
    scene.submit_many(40)
    assert held() == (20, True)
    scene.queue(retry_share_percent=100)
    assert held() == (0, True)
    scene.queue(retry_share_percent=50)
    assert held() == (0, True)
    scene.queue(retry_share_percent=10)
    assert held() == (26, True)
    scene.queue(paused=True)
    assert held() == (0, True)
