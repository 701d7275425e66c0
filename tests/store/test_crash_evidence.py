"""How a worker's process ended is written to the deliveries that it ended, and to no others (O26)."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from poolkeeper.errors import Forbidden
from poolkeeper.store import calls
from store.scene import Scene, Worker

OOM = "OOMKilled (exit 137)"


def now(scene: Scene) -> datetime:
    moment: datetime = scene.value("SELECT poolkeeper.clock()")
    return moment


def holding(scene: Scene, count: int = 1, uid: str = "u-1", **wishes: Any) -> tuple[Worker, list[UUID]]:
    """A worker in a pod that runs so many tasks."""
    scene.submit_many(count, **wishes)
    worker = scene.worker(pod_name=uid, pod_uid=uid)
    return worker, [each.task_id for each in worker.claim(count)]


def report(scene: Scene, at: datetime, cause: str = OOM, uid: str = "u-1", pool: str = "local/p") -> int:
    return scene.ask("operator", calls.report_crashes(pool, [(uid, at, cause)]))


def expire(scene: Scene) -> None:
    scene.advance(16)
    scene.sweep()


def told(scene: Scene, task: UUID) -> list[tuple[str, str | None]]:
    """What its timeline has of errors."""
    return [(row.what, row.error) for row in scene.ask("reader", calls.timeline(task)) if row.error is not None]


def test_evidence_that_is_there_before_the_lease_expires_stands_in_the_delivery(scene: Scene) -> None:
    """O26: in the row that ends it, with a class to filter by; nothing is added later."""
    _, tasks = holding(scene, 2)
    assert report(scene, now(scene)) == 1
    expire(scene)
    assert report(scene, now(scene)) == 1, "told again"
    for task in tasks:
        assert told(scene, task) == [("ended", OOM)]
        (row,) = scene.rows("SELECT * FROM poolkeeper.delivery WHERE task_id = %s", task)
        assert (row.outcome, row.reason, row.error_class, row.error) == ("expired", "lease_expired", "OOMKilled", OOM)


def test_evidence_that_comes_later_stands_behind_it(scene: Scene) -> None:
    """O26, contract 3: what has ended is not written again; the event comes once, at the same version, and names the operator."""
    _, (task,) = holding(scene)
    died = now(scene)
    expire(scene)
    assert told(scene, task) == []
    report(scene, died)
    report(scene, died)
    assert told(scene, task) == [("explained", OOM)]
    last = scene.ask("reader", calls.timeline(task))[-1]
    assert (last.what, last.actor, last.state, last.reason) == ("explained", "operator", None, None)
    view = scene.ask("reader", calls.task(task))
    assert view is not None
    assert last.state_version == view.state_version


@pytest.mark.parametrize("late", [False, True])
def test_a_dead_letter_has_it_as_its_error(scene: Scene, late: bool) -> None:
    """O26, Q29: whoever looks at the letter sees what killed the worker."""
    _, (task,) = holding(scene, max_deliveries=1)
    died = now(scene)
    if not late:
        report(scene, died)
    expire(scene)
    if late:
        report(scene, died)
    (letter,) = scene.ask("person", calls.dead_letters("q"))
    assert (letter.task_id, letter.error_class, letter.error) == (task, "OOMKilled", OOM)


def test_a_letter_that_died_otherwise_keeps_its_own_error(scene: Scene) -> None:
    """O26: only the delivery that the process ended is explained, not one after it."""
    _, (task,) = holding(scene)
    died = now(scene)
    expire(scene)
    other = scene.worker(pod_uid="u-2")
    other.settle(other.alone(), "dead", error_class="ValueError", error="no such user")
    report(scene, died)
    (letter,) = scene.ask("person", calls.dead_letters("q"))
    assert letter.error == "no such user"
    assert told(scene, task) == [("explained", OOM), ("ended", "no such user")]


def test_a_letter_that_died_without_a_word_is_not_given_another_delivery_s(scene: Scene) -> None:
    """O26: its last delivery ended as its handler said; what ended the one before is told of that one."""
    _, (task,) = holding(scene)
    died = now(scene)
    expire(scene)
    other = scene.worker(pod_uid="u-2")
    other.settle(other.alone(), "dead")
    report(scene, died)
    (letter,) = scene.ask("person", calls.dead_letters("q"))
    assert (letter.task_id, letter.error) == (task, None)


def test_the_process_before_a_restart_and_the_one_after_it_are_told_apart(scene: Scene) -> None:
    """O26: one pod, two containers one after the other; each session has how its own process ended."""
    _, (first,) = holding(scene, type="a.b")
    one = now(scene)
    scene.advance(4)
    scene.submit("c.d")
    again = scene.worker(types=("c.d",), pod_name="u-1", pod_uid="u-1")
    second = again.take().task_id
    two = now(scene)
    causes = [("u-1", one, OOM), ("u-1", two, "SIGSEGV (exit 139)")]
    assert scene.ask("operator", calls.report_crashes("local/p", causes)) == 2
    expire(scene)
    assert told(scene, first) == [("ended", OOM)]
    assert told(scene, second) == [("ended", "SIGSEGV (exit 139)")]


def test_who_lives_or_left_well_is_not_said_to_have_crashed(scene: Scene) -> None:
    """O26: a session that renewed after that moment, one that ended by itself, one of another pod or pool."""
    alive, (task,) = holding(scene)
    died = now(scene) - timedelta(seconds=30)
    alive.renew(task)
    assert report(scene, died) == 0
    scene.advance(10)
    alive.renew(task)
    assert report(scene, now(scene) - timedelta(seconds=6)) == 0, "it was heard of after that moment"
    gone, _ = holding(scene, uid="u-2")
    gone.end()
    assert report(scene, now(scene), uid="u-2") == 0
    assert report(scene, now(scene), uid="u-9") == 0
    assert report(scene, now(scene), pool="other/p") == 0
    assert scene.value("SELECT count(crash) FROM poolkeeper.session") == 0


def test_the_commonest_cause_is_told_with_the_expiries(scene: Scene) -> None:
    """O25, O26: so that the queue's condition can name it."""
    holding(scene, 3)
    report(scene, now(scene))
    holding(scene, 1, uid="u-2", type="a.b")
    expire(scene)
    (queue,) = scene.ask("operator", calls.stats(cluster="local")).queues
    assert (queue.expired.dead, queue.expired.cause) == (4, OOM)


def test_nonsense_and_strangers_are_refused(scene: Scene) -> None:
    """Q51: by no pool's login; bounded in length and number."""
    for causes in ([("u", now(scene), "")], [("u", now(scene), "x" * 501)], [("u", now(scene), "x")] * 1001):
        with pytest.raises(psycopg.Error, match="these crashes cannot be"):
            scene.ask("operator", calls.report_crashes("local/p", causes))
    scene.allow(scene.database.login("operator"), pool="local/p")
    with pytest.raises(Forbidden):
        report(scene, now(scene))
