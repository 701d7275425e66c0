"""Q18, Q19: a handler ends its task in a transaction of its own: business rows and "done" commit together, or neither."""

import os
import signal
from uuid import UUID

import psycopg
import pytest

from fixtures.workers import LEASE, Stage, eventually


@pytest.fixture(autouse=True)
def business(stage: Stage) -> None:
    """What the handlers of these tests write: nothing keeps a row from being there twice."""
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE business (task uuid, delivery integer)")


def rows(stage: Stage, task: UUID) -> list[int]:
    with psycopg.connect(stage.dsn) as conn:
        found = conn.execute("SELECT delivery FROM business WHERE task = %s ORDER BY 1", [task]).fetchall()
    return [delivery for (delivery,) in found]


@pytest.mark.parametrize("kind", ["t.commits", "t.commits_thread", "t.commits_process"])
def test_rows_and_success_commit_together_and_the_worker_settles_nothing_again(stage: Stage, kind: str) -> None:
    """Q18: the result is the transaction's, not what is returned later; one delivery, one row of history."""
    worker = stage.worker({"POOLKEEPER_LOG_LEVEL": "debug"}).ready()
    task = stage.submit(kind, "return")
    view = stage.ends(task)
    assert view.result == ({"in": "transaction"} if kind == "t.commits" else "thread")
    assert rows(stage, task) == [1]
    eventually(lambda: f"task {task}: settle answered already_done" in worker.log, "the worker's settle was answered")
    assert stage.deliveries(task) == ["succeeded"]
    assert "pkt_" not in worker.log


def test_nothing_is_done_before_the_commit(stage: Stage) -> None:
    """Q4, Q18: until then the task runs for everybody else, for longer than its lease would last without renewals."""
    stage.worker().ready()
    task = stage.submit("t.commits", "wait")
    stage.note("called", task)
    beside = [stage.submit("t.sleeps", LEASE), stage.submit("t.count", 1)]
    for each in beside:
        stage.ends(each)
    assert stage.view(task).state == "running"
    assert rows(stage, task) == []
    stage.release("before")
    stage.ends(task)
    assert (rows(stage, task), stage.deliveries(task)) == ([1], ["succeeded"])


@pytest.mark.parametrize(
    ("how", "state", "result"), [("rollback", "succeeded", "returned"), ("rollback_and_raise", "dead", None)]
)
def test_after_a_rollback_the_delivery_ends_as_its_handler_does(
    stage: Stage, how: str, state: str, result: str | None
) -> None:
    """Q18: what the handler returned or raised counts, as if it had never called."""
    stage.apply(max_deliveries=1)
    stage.worker().ready()
    task = stage.submit("t.commits", how)
    view = stage.ends(task, state)
    assert view.result == result
    assert rows(stage, task) == []


def test_an_error_after_the_commit_changes_nothing(stage: Stage) -> None:
    """Q18: done is done."""
    stage.worker().ready()
    task = stage.submit("t.commits", "raise")
    stage.ends(task)
    assert (rows(stage, task), stage.deliveries(task)) == ([1], ["succeeded"])


@pytest.mark.parametrize(("how", "expected"), [("die_before", [2]), ("die_after", [1])])
def test_a_worker_killed_beside_the_commit_neither_loses_nor_doubles_the_rows(
    stage: Stage, how: str, expected: list[int]
) -> None:
    """P1, Q18: before it the task runs again elsewhere, after it never."""
    workers = {worker.pid: worker for worker in (stage.worker().ready(), stage.worker().ready())}
    task = stage.submit("t.commits", how)
    said = stage.note("called" if how == "die_before" else "committed", task)
    workers[said["pid"]].signal(signal.SIGKILL)
    workers[said["pid"]].wait()
    stage.release("before")
    stage.release("after")
    stage.ends(task)
    beside = stage.submit("t.sleeps", 2 * LEASE)  # whatever could come back would have come by then
    stage.ends(beside)
    assert rows(stage, task) == expected
    assert stage.deliveries(task) == (["expired", "succeeded"] if how == "die_before" else ["succeeded"])


def test_a_child_killed_after_the_commit_has_succeeded(stage: Stage) -> None:
    """Q18, Q47: its death is not the task's failure any more."""
    stage.worker().ready()
    task = stage.submit("t.commits_process", "die")
    os.kill(stage.note("committed", task)["pid"], signal.SIGKILL)
    stage.ends(stage.submit("t.sleeps", LEASE))
    assert (stage.view(task).result, stage.deliveries(task), rows(stage, task)) == ("thread", ["succeeded"], [1])


def test_a_handler_that_goes_on_after_the_commit_is_not_stopped(stage: Stage) -> None:
    """Q20: its lease is gone because it has succeeded, not because it was lost."""
    worker = stage.worker().ready()
    task = stage.submit("t.commits", "go_on")
    stage.note("committed", task)
    stage.ends(stage.submit("t.sleeps", 1.5 * LEASE))
    stage.release("after")
    stage.note("out", task)
    assert "its lease is lost" not in worker.log
    assert stage.deliveries(task) == ["succeeded"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_left_open_holds_up_nobody(stage: Stage, end: str) -> None:
    """P4, Q18: the settles of others go on; its own waits, is told once, and counts if the transaction is rolled back."""
    worker = stage.worker().ready()
    task = stage.submit("t.commits_thread", "open")
    stage.note("called", task)
    for each in stage.submit_many("t.count", list(range(50))):
        stage.ends(each)
    stage.ends(stage.submit("t.sleeps", 1.5 * LEASE))
    assert stage.view(task).state == "running"
    stage.release(end)
    view = stage.ends(task)
    assert view.result == ("thread" if end == "commit" else "returned")
    assert rows(stage, task) == ([1] if end == "commit" else [])
    assert stage.deliveries(task) == ["succeeded"]
    assert worker.log.count("the transaction in which it called succeed_in is still open") == 1


def test_a_checkpoint_inside_it_is_refused_and_holds_up_nobody(stage: Stage) -> None:
    """Q18, Q30: it would wait for the end of the transaction, and that for it; the worker's turns would wait behind it."""
    worker = stage.worker().ready()
    task = stage.submit("t.saves_inside", 1)
    stage.note("called", task)
    for each in stage.submit_many("t.count", list(range(50))):
        stage.ends(each)
    assert "save checkpoints before succeed_in" in stage.note("told", task)["error"]
    stage.ends(task)
    assert stage.deliveries(task) == ["succeeded"]
    assert "the database cannot serve" not in worker.log


def test_a_repeated_transaction_hears_that_it_was_done(stage: Stage) -> None:
    """Q19: so the rows of a commit whose answer was lost are not written twice."""
    stage.worker().ready()
    task = stage.submit("t.repeats", 1)
    assert stage.note("answers", task)["answers"] == [True, True, False, False]
    stage.ends(task)
    assert rows(stage, task) == [1]


def test_a_frozen_workers_transaction_is_refused_once_its_task_is_anothers(stage: Stage) -> None:
    """P2, Q18: its rows go with the rollback."""
    workers = {worker.pid: worker for worker in (stage.worker().ready(), stage.worker().ready())}
    task = stage.submit("t.late_commit", "go")
    first = stage.note("in", task)
    workers[first["pid"]].signal(signal.SIGSTOP)
    second = stage.note("in", task, count=2)
    assert second["pid"] != first["pid"]
    stage.release("go")
    stage.ends(task)
    workers[first["pid"]].signal(signal.SIGCONT)
    assert stage.note("refused", task)["code"] == "lease_expired"
    assert rows(stage, task) == [2]
