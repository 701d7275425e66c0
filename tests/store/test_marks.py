"""Q14, F6, ADR 0028: what a held snapshot keeps in the way of claims is passed once in a while, not by each claim."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from poolkeeper.store import Settle
from store.scene import Scene, Worker

DEAD = 3000


@contextmanager
def held(scene: Scene) -> Iterator[None]:
    """A snapshot that somebody keeps open."""
    conn = scene.connect("owner", autocommit=False)
    conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    conn.execute("SELECT FROM poolkeeper.queue")
    yield
    conn.rollback()


def work_off(worker: Worker, count: int, batch: int = 50) -> None:
    """Claim and settle so many."""
    settles: list[Settle] = []
    while count > 0:
        answer = worker.turn(settles, want=batch)
        settles = [Settle(c.task_id, c.token, "succeeded") for c in answer.claimed]
        count -= len(settles)
        assert settles
    worker.turn(settles)


def read(scene: Scene, worker: Worker) -> int:
    """Entries of the index for claims that were read so far."""
    worker.conn.execute("SELECT pg_stat_force_next_flush()")
    scene.owner.execute("SELECT pg_stat_clear_snapshot()")
    return int(scene.value("SELECT pg_stat_get_tuples_returned('poolkeeper.ready_claim'::regclass)"))


def marks(scene: Scene, worker: Worker) -> Any:
    queue_id = scene.value("SELECT id FROM poolkeeper.queue WHERE name = 'q'")
    return worker.session.cursor.get(f"{queue_id}m")


@pytest.fixture
def crowded(scene: Scene) -> Iterator[Worker]:
    """A worker that has worked off many tasks under a snapshot that is held."""
    with held(scene):
        worker = scene.worker(concurrency=100)
        scene.submit_many(DEAD)
        work_off(worker, DEAD)
        yield worker


def test_claims_do_not_read_what_was_claimed_before(scene: Scene, crowded: Worker) -> None:
    """F6: 60 claims read far less than 60 times what lies dead there, whatever is claimed meanwhile."""
    scene.submit_many(600)
    before = read(scene, crowded)
    work_off(crowded, 600, batch=10)
    assert read(scene, crowded) - before < 60 * DEAD / 3


def test_without_anything_dead_nothing_is_marked(scene: Scene) -> None:
    """Q14: a machine that is slow leaves no marks; a worker sees all there is by each turn."""
    worker = scene.worker()
    scene.submit_many(50)
    work_off(worker, 50)
    assert marks(scene, worker) is None


@pytest.mark.parametrize("wishes", [{"tenant": "late"}, {"priority": 1}, {"type": "a.c"}])
def test_what_a_session_does_not_see_its_next_walk_does(scene: Scene, crowded: Worker, wishes: dict[str, Any]) -> None:
    """Q14: work of another kind waits until the marks are over, and is told when that is; another session takes it at once."""
    two = scene.worker(types=("a.b", "a.c"))
    two.session.cursor.update(crowded.session.cursor)
    scene.submit()
    two.take()  # walks, and passes what lies dead
    told = marks(scene, two)
    assert told is not None
    task_id = scene.submit(**wishes)
    told["until"] += 5  # so that a busy machine is not too late
    answer = two.turn(want=1)
    assert answer.claimed == []
    assert answer.come_again.total_seconds() <= 5.2
    assert [c.task_id for c in scene.worker(types=("a.b", "a.c")).claim(1)] == [task_id] or scene.worker().claim(
        1
    ) == []
    scene.advance(6)


def test_what_came_back_is_seen_after_the_marks(scene: Scene, crowded: Worker) -> None:
    """P1, Q14: a hand-back returns below the mark; nothing is lost there."""
    scene.submit_many(3)
    one, two = crowded.claim(2)
    told = marks(scene, crowded)
    assert told is not None
    told["until"] += 5
    crowded.settle(one, "handed_back")
    assert crowded.take().task_id != one.task_id
    crowded.succeed(two)
    scene.advance(11)
    assert crowded.take().task_id == one.task_id


@pytest.mark.parametrize(
    "told",
    [
        7,
        {},
        {"until": "soon"},
        {"until": 1e300, "retries": False, "floors": []},
        {"until": 2e9, "retries": False, "floors": [[1]]},
        {"until": 2e9, "retries": 3, "floors": {}},
        {"until": 2e9, "retries": False, "floors": [[10**30, 1, 1, False, 1]]},
        {"until": None, "retries": False, "floors": []},
    ],
)
def test_marks_that_cannot_be_are_passed_over(scene: Scene, told: Any) -> None:
    """Q54: whatever a worker says of them, it is an answer and no error; a far end counts for nothing."""
    worker = scene.worker()
    queue_id = scene.value("SELECT id FROM poolkeeper.queue WHERE name = 'q'")
    scene.submit()
    worker.session.cursor[f"{queue_id}m"] = told
    assert worker.take()
