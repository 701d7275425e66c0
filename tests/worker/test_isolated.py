"""Q27, Q46, F10, C10: child processes; poison ends alone, its neighbours side by side."""

import os
import signal
from pathlib import Path
from uuid import UUID

import pytest

from fixtures.workers import Stage, eventually


def test_an_isolated_handler_runs_in_a_process_of_its_own(stage: Stage) -> None:
    """Q46: another pid than the worker's; checkpoints reach the store through the parent."""
    worker = stage.worker().ready()
    view = stage.ends(stage.submit("t.process", 5))
    assert view.result["pid"] != worker.pid
    assert view.result["checkpoint"] == {"seen": 5}
    assert view.result["durable"] is True


@pytest.mark.parametrize("how", ["exit", "kill", "group"])
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


def test_a_payload_check_that_raises_anything_is_a_failure_of_the_handler_not_of_its_process(stage: Stage) -> None:
    """Q27, Q47: as in the worker's own process; to be a suspect for it would be wrong. What stops a child may come in there too."""
    stage.apply(max_deliveries=1)
    stage.worker(app="picky:app").ready()
    task = stage.submit("t.picky", {"how": "raise"})
    stage.ends(task, "dead")
    letter = stage.dead_letters()[0]
    assert (letter.error_class, "broken" in letter.error) == ("RuntimeError", True)


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


def suspects(stage: Stage, count: int, how: str | None = None) -> tuple[list[UUID], UUID | None]:
    """Long tasks that were in a worker which died, by one of them or from outside; they run again until "go"."""
    victim = stage.worker(concurrency=count + 1).ready()
    innocents = stage.submit_many("t.hangs_then_waits", ["go"] * count)
    stage.note("in", count=count)
    poison = stage.submit("t.poison", how) if how else None
    if poison is None:
        victim.signal(signal.SIGKILL)
    victim.wait()
    return innocents, poison


def test_a_poison_ends_while_its_neighbours_run_beside_it(stage: Stage) -> None:
    """C10, F10: none waits for another, none dies with it: each runs once more, undisturbed."""
    stage.apply(max_deliveries=3)
    innocents, poison = suspects(stage, 12, "kill")
    assert poison is not None
    worker = stage.worker(concurrency=13).ready()
    assert stage.ends(poison, "dead").reason == "deliveries_exhausted"
    eventually(lambda: len(stage.notes("in")) == 2 * 12 + 3, "all innocents run again")
    assert stage.deliveries(poison) == ["expired", "failed", "failed"]
    beside = stage.submit("t.noop")
    stage.release("go")
    for innocent in innocents:
        stage.ends(innocent)
        assert stage.deliveries(innocent) == ["expired", "succeeded"]
    stage.ends(beside)
    assert worker.process.poll() is None


@pytest.mark.wide
def test_a_poison_that_breaks_out_of_its_process_costs_no_neighbour_its_budget(stage: Stage) -> None:
    """F10, Q27: it kills the worker from its child; beside others that counts for none of them, alone it is known."""
    stage.apply(max_deliveries=2)
    innocents, poison = suspects(stage, 4, "worker")
    assert poison is not None
    stage.release("go")
    alive = [stage.worker(concurrency=5).ready()]

    def dead() -> bool:
        if alive[-1].process.poll() is not None:
            alive.append(stage.worker(concurrency=5))
        return stage.view(poison).state == "dead" and set(stage.states()) == {"dead", "succeeded"}

    eventually(dead, "the poison alone is dead", 120)
    assert set(stage.deliveries(poison)) == {"expired"}
    (letter,) = stage.dead_letters()
    assert (letter.task_id, letter.spent) == (poison, 2)
    for innocent in innocents:
        assert stage.deliveries(innocent)[-1] == "succeeded"


def test_suspects_beside_others_are_canceled_and_handed_back_one_by_one(stage: Stage) -> None:
    """Q39, Q48: a cancel ends one of them, a drain hands the others back, and they are suspects as before."""
    innocents, _ = suspects(stage, 3)
    worker = stage.worker({"POOLKEEPER_GRACE_PERIOD": "2", "POOLKEEPER_HAND_BACK_MARGIN": "1.5"}).ready()
    stage.note("in", count=6)
    stage.cancel(innocents[0])
    stage.ends(innocents[0], "canceled")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    stage.worker().ready()
    again = stage.notes("in")[6:] or [stage.note("in", count=7)]
    assert again[0]["pid"] != stage.workers[-1].pid
    stage.release("go")
    for innocent in innocents[1:]:
        stage.ends(innocent)
        assert stage.deliveries(innocent) == ["expired", "handed_back", "succeeded"]
