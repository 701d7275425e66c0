"""Q48, P5: planned death costs nothing."""

import signal
import time
from typing import Any

import psycopg
import pytest

from fixtures.workers import Stage, eventually

SHORT = {"POOLKEEPER_GRACE_PERIOD": "4", "POOLKEEPER_HAND_BACK_MARGIN": "3"}


def test_a_drain_lets_handlers_finish_claims_nothing_more_and_exits_with_0(stage: Stage) -> None:
    """Q48: what runs at SIGTERM ends well; what is submitted then waits for another worker; the report is in the store."""
    worker = stage.worker().ready()
    task, asked = stage.submit("t.hold", "go"), stage.submit("t.drains", "x")
    stage.note("in", task)
    stage.note("in", asked)
    worker.signal(signal.SIGTERM)
    stage.ends(asked)  # it heard ctx.stopping
    late = stage.submit("t.count")
    worker.signal(signal.SIGTERM)  # a second one changes nothing
    assert worker.process.poll() is None
    stage.release("go")
    assert worker.wait() == 0, worker.log
    assert stage.ends(task).deliveries == 1
    assert stage.view(late).state == "ready"
    assert stage.view(late).deliveries == 0
    report = _report(stage)
    assert (report["started"], report["finished"], report["handed_back"], report["abandoned"]) == (2, 2, 0, 0)
    assert report["truncated"] is False


def test_no_moment_of_the_exit_is_deaf_to_a_second_signal(stage: Stage) -> None:
    """Q48: told to stop again and again until it is gone, it still exits with 0."""
    worker = stage.worker().ready()
    worker.signal(signal.SIGTERM)
    while "drained:" not in worker.log:
        time.sleep(0.001)
    while worker.process.poll() is None:
        worker.signal(signal.SIGTERM)
        time.sleep(0.00005)
    assert worker.wait() == 0, worker.log


def test_what_does_not_finish_in_time_is_handed_back_at_its_last_checkpoint(stage: Stage) -> None:
    """Q48, Q26: coroutine, thread and child process; nothing is spent; another worker goes on from the checkpoint."""
    worker = stage.worker(SHORT).ready()
    steps = stage.submit("t.steps", 3)
    thread, child, coroutine = (stage.submit(kind, "go") for kind in ("t.hold_thread", "t.hold_process", "t.hold"))
    stage.note("saved", steps)
    for task in (thread, child, coroutine):
        stage.note("in", task)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    report = _report(stage)
    assert (report["started"], report["handed_back"], report["abandoned"], report["truncated"]) == (4, 4, 0, True)
    assert report["duration_seconds"] < 4
    for task in (steps, thread, child, coroutine):
        assert stage.view(task).state == "ready", stage.view(task)
        assert stage.deliveries(task) == ["handed_back"]
    for name in ("go", "step0", "step1", "step2"):
        stage.release(name)
    stage.worker().ready()
    for task in (steps, thread, child, coroutine):
        stage.ends(task)
    assert [note["step"] for note in stage.notes("step", steps)] == [0, 1, 2]


def test_the_operators_mark_stops_claims_until_it_is_taken_back(stage: Stage) -> None:
    """Q48: a marked worker finishes what it has, claims nothing, stays; unmarked it claims again."""
    worker = stage.worker({"POOLKEEPER_POD_NAME": "pod-1"}).ready()
    task = stage.submit("t.hold", "go")
    stage.note("in", task)
    assert stage.mark(["pod-1"], draining=True) == {"pod-1": 1}
    eventually(lambda: "marked this worker" in worker.log, "the worker heard of the mark")
    late = stage.submit("t.count")
    stage.release("go")
    stage.ends(task)
    assert stage.view(late).state == "ready"
    stage.mark(["pod-1"], draining=False)
    stage.ends(late)
    assert worker.process.poll() is None


def test_a_worker_told_to_stop_before_it_ever_reached_a_database_exits_with_0(stage: Stage) -> None:
    """Q48, Q49: it waits for the database, and SIGTERM ends the waiting."""
    worker = stage.worker({"POOLKEEPER_DSN": "postgresql://nobody@127.0.0.1:1/none"})
    eventually(lambda: "trying again for ever" in worker.log, "the worker says that it waits")
    assert worker.get("/livez")[0] == 200
    assert worker.get("/readyz")[0] == 503
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def _report(stage: Stage) -> dict[str, Any]:
    with psycopg.connect(stage.dsn) as conn:
        rows = conn.execute("SELECT report FROM poolkeeper.drain_report ORDER BY no").fetchall()
    assert len(rows) == 1
    report: dict[str, Any] = rows[0][0]
    return report


def test_a_claim_in_flight_when_the_drain_begins_is_handed_back_unstarted(stage: Stage) -> None:
    """Q48: the claim waits for a lock meanwhile; no user code starts, no delivery is spent."""
    worker = stage.worker().ready()
    with psycopg.connect(stage.dsn) as blocker, psycopg.connect(stage.dsn, autocommit=True) as observer:
        blocker.execute("LOCK TABLE poolkeeper.lease IN SHARE MODE")
        task = stage.submit("t.count")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'poolkeeper worker' AND wait_event_type = 'Lock'"
        eventually(lambda: observer.execute(waiting).fetchone() == (1,), "the claim waits")
        worker.signal(signal.SIGTERM)
        eventually(lambda: "draining" in worker.log, "the drain has begun")
        assert worker.process.poll() is None
        blocker.commit()
    assert worker.wait() == 0, worker.log
    assert stage.notes() == []
    assert stage.deliveries(task) == ["returned"]
    stage.worker().ready()
    assert stage.ends(task).state == "succeeded"


@pytest.mark.parametrize("say", [False, True])
def test_the_last_checkpoint_before_a_hand_back_is_the_newest_one(stage: Stage, say: bool) -> None:
    """Q30, Q48: what the rate kept back is written, and a handler that is cancelled may save once more."""
    worker = stage.worker({"POOLKEEPER_GRACE_PERIOD": "12", "POOLKEEPER_HAND_BACK_MARGIN": "11"}).ready()
    tasks = [stage.submit(kind, say) for kind in ("t.last_words", "t.last_words_thread", "t.last_words_process")]
    for task in tasks:
        stage.note("in", task)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    stage.worker().ready()
    for task in tasks:
        assert stage.ends(task).result == ("last words" if say else 29)
        assert stage.deliveries(task) == ["handed_back", "succeeded"]
