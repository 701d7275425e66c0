"""Q39: cancel is stored first, then heard."""

import pytest

from fixtures.workers import Stage


@pytest.mark.parametrize("kind", ["t.hold", "t.hold_thread", "t.hold_process"])
def test_a_running_task_hears_that_it_is_canceled(stage: Stage, kind: str) -> None:
    """Q39: a coroutine is cancelled, a thread's context raises, a child process is interrupted; the task ends as canceled."""
    worker = stage.worker().ready()
    task = stage.submit(kind, "never")
    stage.note("in", task)
    assert stage.cancel(task).state == "running"
    stage.ends(task, "canceled")
    assert stage.view(task).deliveries == 1
    assert worker.process.poll() is None
    stage.ends(stage.submit("t.count"))


def test_a_success_that_arrives_first_wins(stage: Stage) -> None:
    """Q39: a handler that ends before it hears of the cancel has succeeded; one terminal state."""
    stage.worker(concurrency=1).ready()
    task = stage.submit("t.block", 1.0)
    stage.note("in", task)
    stage.cancel(task)
    stage.note("out", task)
    assert stage.ends(task).state == "succeeded"


def test_a_checkpoint_tells_of_a_cancel_and_a_canceled_task_leaves_none(stage: Stage) -> None:
    """Q39, Q30: whichever comes first, the renewal or the checkpoint, the handler stops."""
    stage.worker().ready()
    task = stage.submit("t.steps", 3)
    stage.note("saved", task)
    stage.cancel(task)
    stage.release("step0")
    stage.ends(task, "canceled")
