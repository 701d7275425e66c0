"""Q27, Q46, F10: child processes; poison ends alone."""

import os
import signal
from pathlib import Path

import pytest

from fixtures.workers import Stage, eventually


def test_an_isolated_handler_runs_in_a_process_of_its_own(stage: Stage) -> None:
    """Q46: another pid than the worker's; checkpoints reach the store through the parent."""
    worker = stage.worker().ready()
    view = stage.ends(stage.submit("t.process", 5))
    assert view.result["pid"] != worker.pid
    assert view.result["checkpoint"] == {"seen": 5}
    assert view.result["durable"] is True


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_poison_is_dead_lettered_after_exactly_max_deliveries_and_innocents_live(stage: Stage, how: str) -> None:
    """F10, Q27: first it takes a whole worker with it, then only child processes; each innocent loses at most one delivery."""
    stage.apply(max_deliveries=3)
    first, second = stage.worker().ready(), stage.worker().ready()
    innocents = [stage.submit("t.hold", "go") for _ in range(3)]
    for innocent in innocents:
        stage.note("in", innocent)
    poison = stage.submit("t.poison", how)
    at = stage.note("in", poison)["pid"]
    assert at in {first.pid, second.pid}
    stage.release("go")
    view = stage.ends(poison, "dead")
    assert view.reason == "deliveries_exhausted"
    assert stage.deliveries(poison) == ["expired", "failed", "failed"]
    pids = [note["pid"] for note in stage.notes("in", poison)]
    assert len(set(pids)) == 3
    assert not {first.pid, second.pid} & set(pids[1:])
    for innocent in innocents:
        assert stage.ends(innocent).deliveries <= 2
    survivor = second if at == first.pid else first
    assert survivor.process.poll() is None
    letter = stage.dead_letters()[0]
    assert letter.error_class == "process_died"
    assert ("exit code 7" if how == "exit" else "SIGKILL") in letter.error


def test_a_child_killed_from_outside_fails_its_delivery_alone(stage: Stage) -> None:
    """Q47: a crash of one handler process ends no other; the next delivery succeeds."""
    worker = stage.worker().ready()
    task = stage.submit("t.hold_process", "go")
    beside = stage.submit("t.hold", "go")
    stage.note("in", beside)
    child = stage.note("in", task)["pid"]
    assert child != worker.pid
    os.kill(child, signal.SIGKILL)
    eventually(lambda: stage.deliveries(task) == ["failed"], "the delivery has failed")
    stage.release("go")
    stage.ends(task)
    assert stage.ends(beside).deliveries == 1
    assert worker.process.poll() is None


def test_children_end_with_their_worker(stage: Stage) -> None:
    """Q27: SIGKILL of the worker leaves no handler process behind."""
    worker = stage.worker().ready()
    child = stage.note("in", stage.submit("t.hold_process", "never"))["pid"]
    worker.signal(signal.SIGKILL)
    worker.wait()
    eventually(lambda: not _alive(child), "the child process has ended")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_several_poisons_among_many_short_tasks_end_alone(stage: Stage) -> None:
    """F10: workers that die are begun anew, as a pool does; short tasks are claimed ahead and must not be blamed twice."""
    stage.apply(max_deliveries=3)
    poisons = [stage.submit("t.poison", "kill") for _ in range(2)]
    innocents = stage.submit_many("t.count", list(range(300)))
    poisons.append(stage.submit("t.poison", "exit"))
    alive = [stage.worker(), stage.worker()]

    def ended() -> bool:
        for worker in [each for each in alive if each.process.poll() is not None]:
            alive.remove(worker)
            alive.append(stage.worker())
        return set(stage.states()) == {"dead", "succeeded"}

    eventually(ended, "all have ended", timeout=120)
    assert stage.states() == {"dead": 3, "succeeded": 300}
    for poison in poisons:
        assert len(stage.deliveries(poison)) == 3
        assert stage.view(poison).state == "dead"
    assert max(stage.view(innocent).deliveries for innocent in innocents) <= 2
