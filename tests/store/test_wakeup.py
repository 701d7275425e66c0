"""Wake-up is a hint, sent after commit and never in the way (Q15)."""

from collections.abc import Callable

import psycopg
import pytest

from poolkeeper.store import calls, run
from store.scene import Scene, seconds


@pytest.fixture
def heard(scene: Scene) -> Callable[[], list[str]]:
    """What a listener, a worker's login, has heard since the last look."""
    conn = scene.connect("worker")
    run(conn, calls.listen())
    conn.execute("LISTEN probe")

    def look() -> list[str]:
        scene.owner.execute("NOTIFY probe")  # behind all that was sent before
        said: list[str] = []
        for note in conn.notifies(timeout=30):
            if note.channel == "probe":
                return said
            said.append(f"{note.channel}:{note.payload}")
        raise AssertionError("not even our own notification came")

    return look


def test_a_submit_is_heard_once_and_says_nothing(scene: Scene, heard: Callable[[], list[str]]) -> None:
    """Q15: neither queue nor tenant in channel or payload; a batch is one hint."""
    scene.submit()
    assert heard() == ["poolkeeper:"]
    scene.submit_many(50)
    assert heard() == ["poolkeeper:"]


def test_a_shorter_grace_hurries_its_worker_and_is_told_once(scene: Scene, heard: Callable[[], list[str]]) -> None:
    """O20: the next renewal of a long lease may be minutes away, and the pod has seconds."""
    scene.worker(pod_uid="uid-1")
    assert heard() is not None
    scene.ask("operator", calls.tell_grace("local/p", {"uid-1": 7.0}))
    assert heard() == ["poolkeeper:"]
    scene.ask("operator", calls.tell_grace("local/p", {"uid-1": 7.0, "uid-2": 7.0}))
    assert heard() == []


def test_a_batch_is_heard_where_something_of_it_can_run_now(scene: Scene, heard: Callable[[], list[str]]) -> None:
    """Q15, F4: neither refusals nor what is due later, nor both together, wake anybody."""
    later = {"type": "a.b", "payload": 1, "delay": 60}
    refused, now = {**later, "type": "A B", "delay": 0}, {**later, "delay": 0}
    for tasks, told in (
        ([refused, refused], []),
        ([later, later], []),
        ([later, refused], []),
        ([later, refused, now], ["poolkeeper:"]),
    ):
        scene.ask("submitter", calls.submit_many("q", tasks))
        assert heard() == told, tasks
    scene.ask("submitter", calls.submit_many("q", [now, now], notify=False))
    assert heard() == []


def test_only_after_commit_and_once_per_transaction(scene: Scene, heard: Callable[[], list[str]]) -> None:
    """Q4, Q15: workers hear of a task when it exists."""
    conn = scene.connect("submitter", autocommit=False)
    for _ in range(3):
        run(conn, calls.submit("q", "a.b", 1))
    assert heard() == []
    conn.commit()
    assert heard() == ["poolkeeper:"]


def test_nothing_after_a_rollback(scene: Scene, heard: Callable[[], list[str]]) -> None:
    """Q15."""
    conn = scene.connect("submitter", autocommit=False)
    run(conn, calls.submit("q", "a.b", 1))
    conn.rollback()
    assert heard() == []


def test_none_where_it_is_not_wanted(scene: Scene, heard: Callable[[], list[str]]) -> None:
    """Q15: not for what is due later, not with notify=False, not where the policy says poll, not for a refusal."""
    scene.submit(delay=seconds(60))
    scene.submit(notify=False)
    scene.verdict(queue="nowhere")
    scene.queue(wake_up="poll")
    heard()
    scene.submit()
    assert heard() == []


def test_a_queue_that_polls_is_asked_oftener(scene: Scene) -> None:
    """Q15: polling is the truth there."""
    scene.queue(wake_up="poll")
    assert scene.worker().turn(want=1).come_again <= seconds(1)


@pytest.mark.parametrize("what", ["cancel", "requeue", "resume", "set_pool", "end_session"])
def test_what_gives_workers_something_to_do_is_heard(scene: Scene, heard: Callable[[], list[str]], what: str) -> None:
    """Q15, Q39: a cancel of what runs, a requeue, a resumed queue, a raised limit, work that was handed back."""
    worker = scene.worker()
    task_id = scene.submit(max_deliveries=1)
    delivery = worker.take()
    scene.ask("person", calls.pause("q", True, who="ann"))
    if what == "requeue":
        worker.fail(delivery)
    heard()
    if what == "cancel":
        scene.ask("person", calls.cancel(task_id, who="ann", why="x"))
    elif what == "requeue":
        scene.ask("person", calls.requeue(task_id, who="ann", why="x"))
    elif what == "resume":
        scene.ask("person", calls.pause("q", False, who="ann"))
    elif what == "set_pool":
        scene.ask("operator", calls.set_pool("local/p", max_running=3))
    else:
        worker.end()
    assert heard() == ["poolkeeper:"]


def test_a_full_notification_queue_fails_nobodys_commit(scene: Scene, heard: Callable[[], list[str]]) -> None:
    """Q15: above half of the queue the hint is left out. The fill is pretended: filling 8 GB takes minutes."""
    with scene.without("poolkeeper.wake()", "pg_notification_queue_usage()", "(SELECT 0.6)"):
        scene.submit()
        assert heard() == []
    assert len(scene.worker().claim(1)) == 1


def test_a_listener_needs_no_right_beyond_its_login(scene: Scene) -> None:
    """Q15: LISTEN works for a worker, while the tables stay closed to it."""
    conn = scene.connect("worker")
    run(conn, calls.listen())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("SELECT * FROM poolkeeper.task")
