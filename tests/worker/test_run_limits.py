"""What hangs is ended in real workers: coroutines cancelled, child processes killed, threads told (Q21)."""

import pytest

from fixtures.workers import Stage, eventually

pytestmark = pytest.mark.wide


@pytest.mark.parametrize("kind", ["t.hold", "t.hold_thread", "t.hold_process"])
def test_a_handler_that_hangs_is_ended_although_its_worker_lives(stage: Stage, kind: str) -> None:
    """Q21: a lone worker with one slot, no operator; the task dies of it, and the slot runs the next one."""
    stage.apply(
        max_run_time="10s" if kind == "t.hold_process" else "1s", max_deliveries=1
    )  # a child takes its time to start
    worker = stage.worker(concurrency=1).ready()
    task = stage.submit(kind, "never")
    stage.note("in", task)
    stage.ends(task, "dead")
    (letter,) = stage.dead_letters()
    assert letter.reason == "max_run_time"
    if kind != "t.hold_process":
        told = stage.note("cancelled" if kind == "t.hold" else "told", task)
        assert told["code"] == "max_run_time"
    stage.ends(stage.submit("t.count"))
    assert worker.process.poll() is None


@pytest.mark.parametrize(("kind", "timeout"), [("t.progresses", 2), ("t.progresses_in_child", 10)])
def test_marks_of_progress_keep_a_handler(stage: Stage, kind: str, timeout: int) -> None:
    """Q21: far longer than progressTimeout, by marks alone; then it falls silent and is ended."""
    stage.apply(progress_timeout=f"{timeout}s", max_deliveries=1)
    stage.worker(concurrency=1, app="progressing:app").ready()
    task = stage.submit(kind, 2.0 * timeout)
    stage.note("silent", task)
    stage.ends(task, "dead")
    (letter,) = stage.dead_letters()
    assert letter.reason == "progress_timeout"
    eventually(lambda: stage.states() == {"dead": 1}, "it stays dead")
