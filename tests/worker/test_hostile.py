"""Q47: what a handler does to its process costs its own task at most, and never the worker: no slot, no neighbour, no drain."""

import signal
from pathlib import Path

import pytest

from fixtures.workers import Stage, Worker, eventually

RAISED = {
    "exit": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "generator_exit": "GeneratorExit",
    "cancelled": "CancelledError",
    "recursion": "RecursionError",
    "memory": "MemoryError",
    "mute": "Mute",
    "long_name": "E" * 197 + "…",
    "long_text": "RuntimeError",
    "base": "BaseException",
    "group": "BaseExceptionGroup",
}
SHORT = {"POOLKEEPER_GRACE_PERIOD": "4", "POOLKEEPER_HAND_BACK_MARGIN": "3"}


def hostile(stage: Stage, env: dict[str, str] | None = None) -> Worker:
    stage.apply(max_deliveries=1)
    return stage.worker(env, app="hostile:app", concurrency=2).ready()


def unharmed(stage: Stage, worker: Worker) -> None:
    """Every slot of the same process still works."""
    for task in stage.submit_many("h.pid", [1, 2, 3]):
        assert stage.ends(task).result == worker.pid
    assert worker.process.poll() is None


@pytest.mark.parametrize("kind", ["h.raises", "h.raises_thread"])
def test_whatever_a_handler_raises_is_one_failure_and_frees_its_slot(stage: Stage, kind: str) -> None:
    """Q28, Q47: also what no `except Exception` sees, what has no words, and what has too many."""
    worker = hostile(stage)
    tasks = {what: stage.submit(kind, what) for what in RAISED}
    tasks["mute_reject"] = stage.submit(kind, "mute_reject")
    unharmed(stage, worker)
    stage.ends(tasks.pop("mute_reject"), "failed")
    for task in tasks.values():
        stage.ends(task, "dead")
    letters = {letter.task_id: letter for letter in stage.dead_letters()}
    assert {what: letters[task].error_class for what, task in tasks.items()} == RAISED
    assert "its text cannot be had: ValueError" in letters[tasks["mute"]].error


def test_what_runs_beside_a_handler_may_stop_the_loop_and_stops_no_worker(stage: Stage) -> None:
    """Q47: SystemExit in a task or callback of a handler's own, loop.stop(), every task of the loop cancelled."""
    worker = hostile(stage)
    beside = stage.submit("h.until", "go")
    stage.note("in", beside)
    for what in ("exit", "interrupt", "generator_exit"):
        stage.ends(stage.submit("h.subtask", what), "dead")
    for what in ("callback_exit", "stop", "leaves_tasks"):
        stage.ends(stage.submit("h.loop", what))
    stage.release("go")
    assert stage.ends(beside).deliveries == 1
    stage.ends(stage.submit("h.loop", "cancel_all"))
    unharmed(stage, worker)


@pytest.mark.wide
@pytest.mark.parametrize("what", ["signals", "loop_signals", "wakeup"])
def test_a_handler_that_takes_the_signals_takes_no_drain(stage: Stage, what: str) -> None:
    """Q48: libraries set signals as they like; a second later SIGTERM is heard again."""
    worker = hostile(stage)
    task = stage.submit("h.until", "go")
    stage.note("in", task)
    stage.ends(stage.submit("h.loop", what))
    if what == "signals":
        eventually(lambda: "changed back" in worker.log, "the worker hears SIGTERM again")
    eventually(lambda: _drains(worker), "the worker drains")
    stage.release("go")
    assert worker.wait() == 0, worker.log
    assert stage.ends(task).deliveries == 1


def _drains(worker: Worker) -> bool:
    if _hears(worker, signal.SIGTERM):
        worker.signal(signal.SIGTERM)
    return "draining" in worker.log


def _hears(worker: Worker, number: int) -> bool:
    """Whether it does not just die of a signal."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_worker_that_hears_its_terminal_hang_up_drains(stage: Stage) -> None:
    """Q48: nothing is left to run out, no task becomes a suspect; under nohup, as these tests may be, it hears nothing of it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        worker = hostile(stage)
    finally:
        signal.signal(signal.SIGHUP, before)
    task = stage.submit("h.until", "go")
    stage.note("in", task)
    worker.signal(signal.SIGHUP)
    eventually(lambda: "draining" in worker.log, "the worker drains")
    stage.release("go")
    assert worker.wait() == 0, worker.log
    assert stage.deliveries(task) == ["succeeded"]


@pytest.mark.wide
def test_a_copy_that_comes_back_is_no_second_worker(stage: Stage) -> None:
    """P2, Q47: os.fork() in a handler; only the original settles, and the copies end."""
    worker = hostile(stage)
    kinds = ("h.forks", "h.forks_thread", "h.forks_process")
    tasks = [stage.submit(kind, how) for kind in kinds for how in ("", "raises", "awaits")]
    for task in tasks:
        assert stage.ends(task).result == "parent"
        assert stage.deliveries(task) == ["succeeded"]
    unharmed(stage, worker)
    assert "came back to the worker" in worker.log


@pytest.mark.wide
def test_processes_that_a_handler_starts_end_by_sigterm_and_the_worker_does_not_hear_it(stage: Stage) -> None:
    """Q47, Q48: multiprocessing and subprocess end their children by SIGTERM and wait for them."""
    worker = hostile(stage)
    for kind in ("h.children", "h.children_process"):
        for how in ("program", "fork"):
            assert stage.ends(stage.submit(kind, how)).result == -signal.SIGTERM
    unharmed(stage, worker)
    assert "draining" not in worker.log


@pytest.mark.wide
def test_a_working_directory_that_is_gone_and_closed_files_condemn_no_other_task(stage: Stage) -> None:
    """Q27, Q47: children are started all the same."""
    worker = hostile(stage)
    for what in ("chdir_gone", "0", "1"):
        stage.ends(stage.submit("h.files", what))
        assert stage.ends(stage.submit("h.pid_process", what)).result != worker.pid
    unharmed(stage, worker)


def test_what_was_saved_or_returned_is_what_it_was_then(stage: Stage) -> None:
    """Q30: a handler goes on to change its own; what the rate kept back is the value that was saved."""
    worker = hostile(stage)
    stage.apply(max_deliveries=2)
    for kind in ("h.mutates", "h.mutates_process"):
        task = stage.submit(kind, {"a": 1})
        assert stage.ends(task).result == {"done": list(range(30))}
    assert stage.ends(stage.submit("h.shared_result", 5)).result == {"number": 5}
    assert stage.ends(stage.submit("h.foreign_loop", 30)).result[:10] == [True] * 10
    unharmed(stage, worker)


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["h.result", "h.result_process"])
def test_a_result_that_nothing_could_hold_is_told_before_it_is_sent(stage: Stage, kind: str) -> None:
    """Q8, Q20: it would take longer than any answer is waited for, and hold up the settles of all others."""
    worker = hostile(stage)
    tasks = {what: stage.submit(kind, what) for what in ("huge", "cycle")}
    unharmed(stage, worker)
    for task in tasks.values():
        stage.ends(task, "dead")
    told = {letter.task_id: letter.error_class for letter in stage.dead_letters()}
    assert [told[task] for task in tasks.values()] == ["result_too_large", "result_invalid"]


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["h.leaves_threads", "h.to_thread"])
def test_threads_that_a_handler_left_do_not_keep_a_drained_process(stage: Stage, kind: str) -> None:
    """Q48: they may go on for as long as the grace lasts; then the exit code is still 0."""
    worker = hostile(stage, SHORT)
    task = stage.submit(kind, "never")
    stage.note("in", task)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    assert "the process ends without it" in worker.log
