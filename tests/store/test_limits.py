"""Slots of queues and pools are never overshot, whatever happens at once (Q12, P7)."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from uuid import UUID

import pytest

from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, Worker, await_blocked, meanwhile


def limit(scene: Scene, kind: str, most: int | None) -> None:
    """Set the limit of the queue `q` or of the pool `local/p`."""
    if kind == "queue":
        scene.queue(concurrency_max=most)
    else:
        scene.ask("operator", calls.set_pool("local/p", max_running=most))


def open_worker(scene: Scene) -> Worker:
    """A worker whose next turn stays in an open transaction until its connection commits."""
    worker = scene.worker(conn=scene.connect("worker", autocommit=False))
    worker.conn.commit()
    return worker


@pytest.mark.parametrize("kind", ["queue", "pool"])
def test_a_limit_is_honoured_and_slots_come_back_with_the_settle(scene: Scene, kind: str) -> None:
    """Q12: slots belong to the delivery and end with it; one turn both gives back and takes."""
    limit(scene, kind, 3)
    scene.submit_many(10)
    worker = scene.worker()
    held = worker.claim(10)
    assert len(held) == 3
    assert worker.claim(10) == []
    answer = worker.turn([Settle(c.task_id, c.token, "succeeded") for c in held[:2]], want=10)
    assert len(answer.claimed) == 2


@pytest.mark.parametrize("kind", ["queue", "pool"])
def test_a_claim_in_progress_makes_another_pass_over_not_wait(scene: Scene, kind: str) -> None:
    """Q12: while one turn holds the limiter another gets nothing, at once, and is told to come again soon."""
    limit(scene, kind, 5)
    scene.submit_many(10)
    first, second = open_worker(scene), scene.worker()
    assert len(first.claim(2)) == 2
    answer = second.turn(want=5)
    assert answer.claimed == []
    assert answer.come_again.total_seconds() <= 0.1
    first.conn.commit()
    assert len(second.claim(5)) == 3


@pytest.mark.parametrize("kind", ["queue", "pool"])
def test_a_slot_that_is_given_back_counts_only_once_that_is_committed(scene: Scene, kind: str) -> None:
    """Q12: a settle may still be rolled back, and its slot with it."""
    limit(scene, kind, 1)
    scene.submit_many(2)
    first, second = open_worker(scene), scene.worker()
    held = first.take()
    first.conn.commit()
    first.turn([Settle(held.task_id, held.token, "succeeded")])
    assert second.claim(1) == []
    first.conn.rollback()
    assert second.claim(1) == []
    first.received = first.turn_no
    assert first.succeed(held).code is None
    first.conn.commit()
    assert len(second.claim(1)) == 1


@pytest.mark.parametrize("kind", ["queue", "pool"])
def test_a_limit_of_nothing_lets_nothing_start(scene: Scene, kind: str) -> None:
    """Contract 13: 0 is never unlimited; absent is."""
    limit(scene, kind, 0)
    scene.submit_many(3)
    worker = scene.worker()
    assert worker.claim(3) == []
    limit(scene, kind, None)
    assert len(worker.claim(3)) == 3


def test_a_limit_lowered_below_what_runs_lets_nothing_new_start(scene: Scene) -> None:
    """Q12: what runs goes on; new ones wait until enough have ended."""
    scene.submit_many(8)
    worker = scene.worker()
    held = worker.claim(4)
    scene.ask("operator", calls.set_pool("local/p", max_running=2))
    for delivery in held[:2]:
        worker.succeed(delivery)
        assert worker.claim(4) == []
    worker.succeed(held[2])
    assert len(worker.claim(4)) == 1


def test_limits_of_two_pools_on_one_queue_add_up_to_the_queues(scene: Scene) -> None:
    """Q12: the smaller of all limits counts, each over everything that shares it."""
    scene.queue(concurrency_max=5)
    scene.ask("operator", calls.set_pool("local/p", max_running=3))
    scene.submit_many(20)
    assert len(scene.worker(pool="local/p").claim(10)) == 3
    assert len(scene.worker(pool="local/other").claim(10)) == 2


def test_a_full_queue_does_not_hold_up_another(scene: Scene) -> None:
    """P6: the worker goes on with its other queue."""
    scene.queue(concurrency_max=1)
    scene.queue("r")
    scene.submit_many(3)
    scene.submit_many(3, queue="r")
    worker = scene.worker(queues=["q", "r"])
    assert sorted(c.queue for c in worker.claim(10)) == ["default/q", "default/r", "default/r", "default/r"]


def test_leases_of_a_dead_session_hold_their_slots_until_they_expire(scene: Scene) -> None:
    """Q12: a slot cannot leak: the sweep that ends the delivery frees it."""
    scene.queue(concurrency_max=1)
    scene.submit_many(2)
    scene.worker().take()
    scene.advance(16)
    other = scene.worker()
    assert other.claim(1) == []
    assert len(other.claim(1, sweep=True)) == 1


def test_a_paused_queue_gives_nothing_and_what_runs_may_end(scene: Scene) -> None:
    """Q12: a pause stops claims, not work."""
    scene.submit_many(2)
    worker = scene.worker()
    held = worker.take()
    scene.ask("person", calls.pause("q", True, who="ann"))
    assert worker.claim(1) == []
    assert worker.succeed(held).code is None
    scene.ask("person", calls.pause("q", False, who="ann"))
    assert len(worker.claim(1)) == 1


def test_setting_a_pools_limit_waits_for_claims_in_progress(scene: Scene) -> None:
    """P7: once set_pool has answered, no claim under the old limit is still on its way."""
    limit(scene, "pool", 5)
    scene.submit_many(4)
    first = open_worker(scene)
    first.claim(2)
    operator = scene.connect("operator")
    with meanwhile(lambda: run(operator, calls.set_pool("local/p", max_running=1))) as setting:
        await_blocked(scene)
        assert not setting.done()
        first.conn.commit()


@pytest.mark.parametrize(("queue_limit", "pool_limit"), [(5, None), (None, 4), (7, 5)])
def test_many_workers_at_once_never_pass_a_limit(scene: Scene, queue_limit: int | None, pool_limit: int | None) -> None:
    """Q12, P7: six sessions hammer turns with want > 1 while every committed moment is counted; all the work gets done."""
    scene.queue(concurrency_max=queue_limit)
    scene.ask("operator", calls.set_pool("local/p", max_running=pool_limit))
    most = min(x for x in (queue_limit, pool_limit) if x)
    tasks = 200
    scene.submit_many(tasks)
    stop, seen, finished = Event(), list[int](), list[UUID]()

    def watch() -> None:
        with scene.database.connect() as conn:
            while not stop.is_set():
                row = conn.execute("SELECT count(*) FROM poolkeeper.lease").fetchone()
                assert row is not None
                seen.append(row[0])

    def work(worker: Worker) -> None:
        held: list[Claimed] = []
        while len(finished) < tasks:
            settles = [Settle(c.task_id, c.token, "succeeded") for c in held]
            answer = worker.turn(settles, want=1 + worker.turn_no % 4)
            finished.extend(v.task_id for v in answer.verdicts if v.code is None)
            held = answer.claimed

    workers = [scene.worker(conn=scene.connect("worker")) for _ in range(6)]
    with ThreadPoolExecutor(7) as pool:
        watching = pool.submit(watch)
        try:
            list(pool.map(work, workers))
        finally:
            stop.set()
        watching.result()
    assert len(set(finished)) == len(finished) == tasks
    assert 1 < max(seen) <= most
