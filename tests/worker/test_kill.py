"""P1, P2, P5: a worker that dies loses nothing, and its task goes on elsewhere from where it was."""

import signal

from fixtures.workers import Stage


def test_a_killed_workers_task_goes_on_in_the_other_worker_from_its_checkpoint(stage: Stage) -> None:
    """P1, Q30: SIGKILL from outside while the handler says that it is in user code; other tasks run beside it."""
    workers = {worker.pid: worker for worker in (stage.worker().ready(), stage.worker().ready())}
    task = stage.submit("t.steps", 4)
    beside = stage.submit_many("t.count", list(range(200)))
    stage.release("step0")
    said = stage.note("saved", task, count=2)  # step 1 is saved, its file is missing: the handler waits in user code
    workers[said["pid"]].signal(signal.SIGKILL)
    assert workers[said["pid"]].wait() == -signal.SIGKILL
    resumed = stage.note("step", task, count=3)
    assert resumed["pid"] != said["pid"]
    assert (resumed["step"], resumed["delivery"]) == (2, 2)
    for name in ("step1", "step2", "step3"):
        stage.release(name)
    assert stage.ends(task).result == 4
    assert [note["step"] for note in stage.notes("step", task)] == [0, 1, 2, 3]
    assert stage.deliveries(task) == ["expired", "succeeded"]
    for each in beside:
        stage.ends(each)


def test_a_frozen_worker_cannot_settle_what_another_one_has_taken_over(stage: Stage) -> None:
    """P2, Q18: SIGSTOP for longer than the lease; the thawed worker's answer is refused and changes nothing."""
    workers = {worker.pid: worker for worker in (stage.worker().ready(), stage.worker().ready())}
    task = stage.submit("t.hold", "go")
    first = stage.note("in", task)
    workers[first["pid"]].signal(signal.SIGSTOP)
    second = stage.note("in", task, count=2)
    assert second["pid"] != first["pid"]
    stage.release("go")
    stage.ends(task)
    workers[first["pid"]].signal(signal.SIGCONT)
    again = stage.submit("t.count", "after")  # the thawed worker is still of use, or the other one is
    stage.ends(again)
    assert stage.view(task).deliveries == 2
    assert stage.deliveries(task) == ["expired", "succeeded"]
