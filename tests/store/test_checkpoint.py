"""Checkpoints: small, ordered, guarded by the token (Q30)."""

from typing import Any
from uuid import uuid4

import pytest

from poolkeeper.codes import Code
from poolkeeper.store import Claimed, calls, run
from store.scene import Scene, Worker


def save(worker: Worker, delivery: Claimed, value: Any, sequence: int, version: int = 1) -> Any:
    return run(
        worker.conn, calls.checkpoint(delivery.task_id, delivery.token, value, sequence=sequence, version=version)
    )


def kept(scene: Scene, delivery: Claimed) -> Any:
    view = scene.ask("reader", calls.task(delivery.task_id))
    assert view is not None
    return view.checkpoint


@pytest.fixture
def worker(scene: Scene) -> Worker:
    scene.submit()
    return scene.worker()


@pytest.mark.parametrize("value", [{"page": 7, "é": [None, 1.5]}, 0, False, "", [], None])
def test_the_next_delivery_gets_the_last_checkpoint(scene: Scene, worker: Worker, value: Any) -> None:
    """Q30: with its schema version; the first one has none."""
    delivery = worker.take()
    assert (delivery.checkpoint, delivery.checkpoint_version) == (None, None)
    assert save(worker, delivery, value, 1, version=3).code is None
    worker.settle(delivery, "handed_back")
    again = worker.take()
    assert (again.checkpoint, again.checkpoint_version) == (value, 3)


def test_it_survives_the_death_of_its_process(scene: Scene, worker: Worker) -> None:
    """P5, Q30: handed to the isolated re-run."""
    save(worker, worker.take(), {"page": 7}, 1)
    scene.advance(16)
    scene.sweep()
    other = scene.worker()
    other.turn(want=1)
    assert other.alone().checkpoint == {"page": 7}


def test_newest_by_delivery_then_sequence(scene: Scene, worker: Worker) -> None:
    """Q30: one that was overtaken on its way does not overwrite; a new delivery's first does."""
    delivery = worker.take()
    save(worker, delivery, "b", 2)
    assert save(worker, delivery, "a", 1).code is None
    assert save(worker, delivery, "b again", 2).code is None
    assert kept(scene, delivery) == "b"
    worker.settle(delivery, "handed_back")
    delivery = worker.take()
    save(worker, delivery, "c", 1)
    assert kept(scene, delivery) == "c"


def test_an_oversized_one_is_refused_and_the_previous_one_stays(scene: Scene, worker: Worker) -> None:
    """Q30: with both sizes; the task lives."""
    scene.queue(checkpoint_max_bytes=20)
    delivery = worker.take()
    save(worker, delivery, "small", 1)
    verdict = save(worker, delivery, "x" * 30, 2)
    assert (verdict.code, verdict.limit, verdict.current) == (Code.CHECKPOINT_TOO_LARGE, 20, 32)
    assert kept(scene, delivery) == "small"
    assert save(worker, delivery, "x" * 18, 3).code is None
    assert worker.succeed(delivery).code is None


def test_not_late(scene: Scene, worker: Worker) -> None:
    """Q19: not after the deadline although the lease row stands, nor after the sweep."""
    delivery = worker.take()
    save(worker, delivery, 1, 1)
    scene.advance(16)
    assert save(worker, delivery, 2, 2).code is Code.LEASE_EXPIRED
    scene.sweep()
    assert save(worker, delivery, 3, 3).code is Code.LEASE_EXPIRED
    assert kept(scene, delivery) == 1


def test_not_by_an_old_delivery(scene: Scene, worker: Worker) -> None:
    """Q18: a process that lost its task cannot move the cursor of its successor."""
    old = worker.take()
    worker.settle(old, "handed_back")
    new = worker.take()
    save(worker, new, "new", 1)
    assert save(worker, old, "old", 99).code is Code.STALE_TOKEN
    assert kept(scene, new) == "new"


def test_not_of_a_task_that_is_not_there(worker: Worker) -> None:
    """Q18: exact refusals."""
    verdict = run(worker.conn, calls.checkpoint(uuid4(), "pkt_x", 1, sequence=1))
    assert verdict.code is Code.UNKNOWN_TASK


@pytest.mark.parametrize("outcome", ["succeeded", "rejected", "canceled"])
def test_it_goes_with_the_end_of_the_task(scene: Scene, worker: Worker, outcome: str) -> None:
    """P4: also when it was saved by an earlier delivery."""
    delivery = worker.take()
    save(worker, delivery, 1, 1)
    worker.settle(delivery, "handed_back")
    worker.settle(worker.take(), outcome)
    assert scene.value("SELECT count(*) FROM poolkeeper.checkpoint") == 0


def test_a_dead_letter_keeps_it(scene: Scene, worker: Worker) -> None:
    """Q29: for the requeue."""
    delivery = worker.take()
    save(worker, delivery, 1, 1)
    worker.settle(delivery, "dead")
    assert kept(scene, delivery) == 1
