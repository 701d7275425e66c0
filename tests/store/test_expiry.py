"""Leases end by silence alone: renewal, expiry, who sweeps (Q20, Q22, Q23)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import pytest

from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, Worker, await_blocked, meanwhile, seconds


def test_one_renewal_keeps_all_leases_of_the_session(scene: Scene) -> None:
    """Q20: long beyond the first deadline, without a write per task."""
    ids = scene.submit_many(5)
    worker = scene.worker()
    worker.claim(5)
    for _ in range(6):
        scene.advance(10)
        answer = worker.renew(*ids)
        assert (answer.lost, answer.canceled) == ([], [])
        scene.sweep()
    assert {scene.state(i) for i in ids} == {"running"}


def test_a_session_is_told_to_renew_often_enough(scene: Scene) -> None:
    """Q20: at least three times per visibility timeout, of its shortest queue."""
    scene.queue("r", visibility_timeout_seconds=4)
    session = scene.worker(queues=["q", "r"]).session
    assert session.visibility_timeout == seconds(4)
    assert session.renew_every * 3 <= seconds(4)


@pytest.mark.parametrize(("after", "state"), [(12, "running"), (15.1, "ready")])  # the clock goes on meanwhile
def test_silence_for_the_visibility_timeout_is_the_end(scene: Scene, after: float, state: str) -> None:
    """Contract 4: not before, and then with the next sweep."""
    task_id = scene.submit()
    scene.worker().take()
    scene.advance(after)
    scene.sweep()
    assert scene.state(task_id) == state


def test_each_queue_has_its_own_timeout(scene: Scene) -> None:
    """Contract 4: the same session, two deadlines."""
    scene.queue("slow", visibility_timeout_seconds=100)
    quick, slow = scene.submit(), scene.submit(queue="slow")
    worker = scene.worker(queues=["q", "slow"])
    assert len(worker.claim(2)) == 2
    scene.advance(50)
    scene.sweep()
    assert (scene.state(quick), scene.state(slow)) == ("ready", "running")


def test_any_claimer_sweeps(scene: Scene) -> None:
    """Q22: a worker of another pool and queue, without an operator, returns what a dead one held."""
    task_id = scene.submit()
    scene.worker().take()
    scene.advance(16)
    scene.queue("other")
    scene.worker(pool="local/other", queues=["other"]).claim(1, sweep=True)
    assert scene.state(task_id) == "ready"


@pytest.mark.parametrize("kind", ["operator", "person", "worker"])
def test_at_zero_pods_others_sweep(scene: Scene, kind: str) -> None:
    """Q22: the operator's tick and people do."""
    task_id = scene.submit()
    scene.worker().take()
    scene.advance(16)
    assert scene.ask(kind, calls.sweep()) == 1
    assert scene.state(task_id) == "ready"


def test_the_sweep_itself_makes_dead_letters_of_exhausted_tasks(scene: Scene) -> None:
    """Q22: with nobody claiming."""
    task_id = scene.submit(max_deliveries=1)
    scene.worker().take()
    scene.advance(16)
    scene.sweep()
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert (letter.task_id, letter.reason, letter.error_class) == (task_id, "deliveries_exhausted", "lease_expired")


def test_a_sweep_is_a_bounded_page_that_advances(scene: Scene) -> None:
    """Q22: more than a page takes more than one sweep, and none is forgotten."""
    ids = scene.submit_many(25)
    scene.worker().claim(25)
    scene.advance(16)
    counts = [scene.ask("operator", calls.sweep(10)) for _ in range(4)]
    assert counts == [10, 10, 5, 0]
    assert all(scene.state(i) == "ready" for i in ids)


def test_two_sweeps_at_once_share_the_work(scene: Scene) -> None:
    """Q22: neither takes what the other has, and nothing is returned twice."""
    scene.submit_many(20)
    scene.worker().claim(20)
    scene.advance(16)
    first = scene.connect("operator", autocommit=False)
    assert run(first, calls.sweep(8)) == 8
    with meanwhile(scene.sweep) as second:
        await_blocked(scene)  # for the counter of the queue alone, until the first one's commit
        first.commit()
        assert second.result(30) == 12
    assert scene.value("SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'expired'") == 20


def test_renewal_says_what_is_lost(scene: Scene) -> None:
    """Q20: swept, of another session, or unknown: all held in vain."""
    mine, swept, other = scene.submit_many(3)
    worker, rival = scene.worker(), scene.worker()
    worker.claim(2)
    rival.take()
    nowhere = uuid4()
    assert worker.renew(mine, swept).lost == []
    assert set(worker.renew(mine, other, nowhere).lost) == {other, nowhere}
    scene.advance(16)
    scene.sweep()
    assert set(worker.renew(mine, swept).lost) == {mine, swept}


def test_a_session_that_was_silent_goes_on_after_its_renewal(scene: Scene) -> None:
    """Q19, Q20: as long as nobody swept, the renewal keeps the lease."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    scene.advance(100)
    assert worker.renew(task_id).lost == []
    scene.sweep()
    assert worker.succeed(delivery).code is None


def test_extend_keeps_one_task_of_a_session_that_does_not_renew(scene: Scene) -> None:
    """Q20: for workers in other languages; the others of the session expire."""
    scene.submit_many(2)
    worker = scene.worker()
    kept, left = worker.claim(2)
    answer = run(worker.conn, calls.extend(kept.task_id, kept.token, seconds(60)))
    assert answer.code is None
    scene.advance(30)
    scene.sweep()
    assert (scene.state(kept.task_id), scene.state(left.task_id)) == ("running", "ready")
    scene.advance(31)
    scene.sweep()
    assert scene.state(kept.task_id) == "ready"


def test_extend_is_bounded(scene: Scene) -> None:
    """Q21, Q22: at most an hour at a time, so that a dead one returns."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    run(worker.conn, calls.extend(task_id, delivery.token, seconds(10**9)))
    scene.advance(3601)
    scene.sweep()
    assert scene.state(task_id) == "ready"


def test_extend_is_not_accepted_late_nor_for_others(scene: Scene) -> None:
    """Q18, Q19: lease_expired after the deadline although the row still stands; stale_token for another's token."""
    scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    assert run(worker.conn, calls.extend(delivery.task_id, "pkt_x", seconds(5))).code == "stale_token"
    assert run(worker.conn, calls.extend(uuid4(), delivery.token, seconds(5))).code == "unknown_task"
    scene.advance(16)
    assert run(worker.conn, calls.extend(delivery.task_id, delivery.token, seconds(5))).code == "lease_expired"
    worker.succeed(delivery)
    assert run(worker.conn, calls.extend(delivery.task_id, delivery.token, seconds(5))).code == "stale_token"


def test_the_end_of_a_session_hands_everything_back(scene: Scene) -> None:
    """Q48: what it still held is claimable at once, with its delivery given back."""
    ids = scene.submit_many(3)
    worker = scene.worker()
    worker.claim(3)
    assert worker.end() == 3
    for task_id in ids:
        assert scene.state(task_id) == "ready"
        counters = scene.counters(task_id)
        assert (counters["spent"], counters["hand_backs"]) == (0, 1)


def test_two_workers_back_from_a_long_silence_do_not_deadlock(scene: Scene) -> None:
    """Q19, Q22: both settle their late work and sweep the other's in one turn, many times; each answer comes."""
    for _ in range(5):
        scene.submit_many(240)
        workers = [scene.worker(conn=scene.connect("worker"), concurrency=120) for _ in range(2)]
        held = [w.claim(120) for w in workers]
        scene.advance(100)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(_settle_and_sweep, workers, held))
        scene.owner.execute("SELECT poolkeeper.sweep(10000)")


def _settle_and_sweep(worker: Worker, held: list[Claimed]) -> None:
    for part in (held[:60], held[60:]):
        worker.turn([Settle(c.task_id, c.token, "succeeded") for c in part], want=1, sweep=True)


def test_an_idle_worker_is_told_to_come_when_the_next_lease_can_expire(scene: Scene) -> None:
    """Q22, F9: nobody has to be lucky in polling; and what a sweep moved is looked at again at once."""
    scene.submit()
    scene.worker().take()
    idle = scene.worker()
    scene.advance(13)
    idle.renew()
    assert timedelta(seconds=1) < idle.turn(want=1).come_again < timedelta(seconds=2.2)
    scene.advance(2.1)
    assert idle.turn(want=1).come_again < timedelta(seconds=0.3), "one that did not sweep is told to come once more"
    assert idle.turn(want=1, sweep=True).come_again < timedelta(seconds=0.1)
    assert idle.turn(want=1).isolate
