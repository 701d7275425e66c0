"""What people do: cancel, requeue, discard, each with who and why (Q1, Q29, Q39)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest

from poolkeeper.codes import Code
from poolkeeper.errors import Conflict
from poolkeeper.store import calls, run
from store.scene import Scene, await_blocked, meanwhile, seconds

VERBS = {"cancel": calls.cancel, "requeue": calls.requeue, "discard": calls.discard}


def do(scene: Scene, verb: str, task_id: UUID, **more: Any) -> Any:
    return scene.ask("person", VERBS[verb](task_id, who="ann", why="because", **more))


def dead_task(scene: Scene, **wishes: Any) -> UUID:
    task_id = scene.submit(max_deliveries=1, **wishes)
    worker = scene.worker()
    worker.fail(worker.take())
    assert scene.state(task_id) == "dead"
    return task_id


@pytest.mark.parametrize("place", ["ready", "scheduled", "waiting", "suspect"])
def test_what_does_not_run_is_canceled_at_once(scene: Scene, place: str) -> None:
    """Q39: and recorded with who and why; nobody gets it any more."""
    task_id = scene.submit(delay=seconds(60) if place == "scheduled" else None)
    worker = scene.worker()
    if place == "waiting":
        worker.settle(worker.take(), "snoozed", retry_after=seconds(60))
    if place == "suspect":
        worker.take()
        scene.advance(16)
        scene.sweep()
    changed = do(scene, "cancel", task_id)
    assert (changed.code, changed.state) == (None, "canceled")
    assert scene.state(task_id) == "canceled"
    last = scene.ask("reader", calls.timeline(task_id))[-1]
    assert (last.what, last.actor, last.reason, last.state_version) == (
        "canceled",
        "ann",
        "because",
        changed.state_version,
    )
    scene.advance(100)
    worker.renew()
    assert worker.claim(5, sweep=True) == []


def test_a_running_task_hears_it_at_its_renewal_and_ends_as_canceled(scene: Scene) -> None:
    """Q39: stored first, signalled second."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    assert worker.renew(task_id).canceled == []
    changed = do(scene, "cancel", task_id)
    assert (changed.code, changed.state) == (None, "running")
    view = scene.ask("reader", calls.task(task_id))
    assert view is not None
    assert view.cancel_requested
    assert worker.renew(task_id).canceled == [task_id]
    verdict = worker.settle(delivery, "canceled")
    assert (verdict.code, verdict.state) == (None, "canceled")
    assert worker.succeed(delivery).code == "canceled"


def test_a_running_task_hears_it_at_its_checkpoint(scene: Scene) -> None:
    """Q39: a checkpoint of a canceled task is refused, as is an extension."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    do(scene, "cancel", task_id)
    assert run(worker.conn, calls.checkpoint(task_id, delivery.token, 1, sequence=1)).canceled
    assert run(worker.conn, calls.extend(task_id, delivery.token, seconds(5))).code is Code.CANCELED


def test_a_success_that_arrives_first_wins_and_the_request_stays_on_record(scene: Scene) -> None:
    """Q39: one terminal state; the timeline says that cancel was requested, in its place."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    do(scene, "cancel", task_id)
    assert worker.succeed(delivery, "done").code is None
    assert scene.state(task_id) == "succeeded"
    timeline = scene.ask("reader", calls.timeline(task_id))
    assert [row.what for row in timeline] == ["accepted", "started", "cancel_requested", "ended"]
    assert do(scene, "cancel", task_id).code is Code.ALREADY_ENDED


@pytest.mark.parametrize("outcome", ["failed", "snoozed", "handed_back", "expiry"])
def test_a_canceled_task_does_not_run_again(scene: Scene, outcome: str) -> None:
    """Q39: whatever else would have given it another delivery."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    do(scene, "cancel", task_id)
    if outcome == "expiry":
        scene.advance(16)
        scene.sweep()
    else:
        worker.settle(delivery, outcome)
    assert scene.state(task_id) == "canceled"


@pytest.mark.parametrize(("outcome", "state"), [("rejected", "failed"), ("dead", "dead")])
def test_a_final_outcome_stands_against_a_cancel(scene: Scene, outcome: str, state: str) -> None:
    """Q39: it arrived; the request stays on record."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    do(scene, "cancel", task_id)
    worker.settle(delivery, outcome)
    assert scene.state(task_id) == state


def test_asking_twice_is_recorded_once(scene: Scene) -> None:
    """Q2: exactly once."""
    task_id = scene.submit()
    scene.worker().take()
    do(scene, "cancel", task_id)
    do(scene, "cancel", task_id)
    assert scene.value("SELECT count(*) FROM poolkeeper.event WHERE kind = 'cancel_requested'") == 1


def test_a_cancel_that_meets_a_claim_in_progress_finds_the_lease(scene: Scene) -> None:
    """Q39: the task moved while we waited for its row; it is not reported as gone."""
    task_id = scene.submit()
    worker = scene.worker(conn=scene.connect("worker", autocommit=False))
    worker.conn.commit()
    worker.take()
    with meanwhile(lambda: do(scene, "cancel", task_id)) as canceling:
        await_blocked(scene)
        worker.conn.commit()
        changed = canceling.result(30)
    assert (changed.code, changed.state) == (None, "running")


def test_requeue_gives_a_fresh_budget_and_keeps_the_rest(scene: Scene) -> None:
    """Q29: new token, delivery numbers go on, the checkpoint stays, with who and why."""
    task_id = scene.submit(max_deliveries=1, payload={"k": 1})
    worker = scene.worker()
    first = worker.take()
    run(worker.conn, calls.checkpoint(task_id, first.token, {"page": 3}, sequence=1, version=2))
    worker.fail(first)
    changed = do(scene, "requeue", task_id)
    assert (changed.code, changed.state) == (None, "ready")
    again = worker.take()
    assert (again.delivery, again.deliveries_spent, again.failures) == (2, 1, 0)
    assert (again.checkpoint, again.checkpoint_version, again.payload) == ({"page": 3}, 2, {"k": 1})
    assert again.token != first.token
    row = next(r for r in scene.ask("reader", calls.timeline(task_id)) if r.what == "requeued")
    assert (row.actor, row.reason) == ("ann", "because")


def test_requeue_begins_a_new_budget_of_time(scene: Scene) -> None:
    """Q29: a task requeued after its elapsed time was over is retried as a fresh one, and its age starts anew."""
    scene.queue(backoff_max_elapsed_seconds=100, max_age_seconds=100)
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    scene.advance(500)
    worker.renew()
    worker.fail(delivery)
    assert scene.state(task_id) == "dead"
    do(scene, "requeue", task_id)
    worker.fail(worker.take())
    assert scene.state(task_id) == "scheduled"


def test_two_requeues_at_once_make_one_run(scene: Scene) -> None:
    """Q29: the others hear not_dead."""
    task_id = dead_task(scene)
    conns = [scene.connect("person") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        call = calls.requeue(task_id, who="ann", why="x")
        codes = sorted(str(run_code) for run_code in pool.map(lambda c: run(c, call).code, conns))
    assert codes == ["None", "not_dead", "not_dead", "not_dead"]
    assert scene.value("SELECT count(*) FROM poolkeeper.event WHERE kind = 'requeued'") == 1


def test_requeue_and_discard_at_once_do_one_of_both(scene: Scene) -> None:
    """Q29: whichever came first."""
    task_id = dead_task(scene)
    first = scene.connect("person", autocommit=False)
    assert run(first, calls.requeue(task_id, who="a", why="x")).code is None
    with meanwhile(lambda: do(scene, "discard", task_id)) as discarding:
        await_blocked(scene)
        first.commit()
        changed = discarding.result(30)
    assert (changed.code, changed.state) == (Code.NOT_DEAD, "ready")


def test_a_discarded_letter_is_gone_for_good(scene: Scene) -> None:
    """Q29: canceled, recorded, its cursor with it."""
    task_id = dead_task(scene)
    changed = do(scene, "discard", task_id)
    assert (changed.code, changed.state) == (None, "canceled")
    assert scene.ask("reader", calls.dead_letters()) == []
    assert do(scene, "requeue", task_id).code is Code.NOT_DEAD
    assert scene.ask("reader", calls.timeline(task_id))[-1].what == "discarded"


@pytest.mark.parametrize("verb", ["requeue", "discard"])
def test_only_dead_letters_are_requeued_and_discarded(scene: Scene, verb: str) -> None:
    """Q1: one rule per arrow; the present state comes with the refusal."""
    task_id = scene.submit()
    changed = do(scene, verb, task_id)
    assert (changed.code, changed.state, changed.state_version) == (Code.NOT_DEAD, "ready", 1)
    worker = scene.worker()
    delivery = worker.take()
    assert do(scene, verb, task_id).state == "running"
    worker.succeed(delivery)
    assert do(scene, verb, task_id).state == "succeeded"


@pytest.mark.parametrize("verb", list(VERBS))
def test_an_unknown_task_is_not_found(scene: Scene, verb: str) -> None:
    changed = do(scene, verb, uuid4())
    assert (changed.code, changed.state) == (Code.UNKNOWN_TASK, None)


@pytest.mark.parametrize("verb", list(VERBS))
def test_a_stale_version_is_refused_with_the_present_state(scene: Scene, verb: str) -> None:
    """Q1: people act on what they saw."""
    task_id = scene.submit() if verb == "cancel" else dead_task(scene)
    version = scene.counters(task_id)["state_version"]
    changed = do(scene, verb, task_id, seen_version=version - 1)
    assert (changed.code, changed.state, changed.state_version) == (
        Code.STALE_VERSION,
        "ready" if verb == "cancel" else "dead",
        version,
    )
    changed = do(scene, verb, task_id, seen_version=version)
    assert (changed.code, changed.state_version) == (None, version + 1)


def test_a_stale_version_of_a_running_task_is_refused(scene: Scene) -> None:
    """Q1: it was ready when it was looked at."""
    task_id = scene.submit()
    scene.worker().take()
    assert do(scene, "cancel", task_id, seen_version=1).code is Code.STALE_VERSION
    assert do(scene, "cancel", task_id, seen_version=2).code is None


@pytest.mark.parametrize("outcome", ["succeeded", "rejected", "canceled"])
def test_what_has_ended_cannot_be_canceled(scene: Scene, outcome: str) -> None:
    """Q39: one terminal state."""
    task_id = scene.submit()
    worker = scene.worker()
    worker.settle(worker.take(), outcome)
    state = scene.state(task_id)
    changed = do(scene, "cancel", task_id)
    assert (changed.code, changed.state) == (Code.ALREADY_ENDED, state)


def test_a_dead_letter_tells_all_that_a_person_needs(scene: Scene) -> None:
    """Q29: payload, checkpoint, counters, error, build, owner, runbook, what to do."""
    scene.queue(dead_letter_owner="team-a", dead_letter_runbook="https://runbooks.example.com/a")
    task_id = scene.submit(payload={"n": 1}, tenant="acme")
    worker = scene.worker()
    delivery = worker.take()
    run(worker.conn, calls.checkpoint(task_id, delivery.token, 5, sequence=1))
    worker.settle(delivery, "dead", error_class="Broken", error="no such account")
    (letter,) = scene.ask("reader", calls.dead_letters("q"))
    assert (letter.task_id, letter.tenant, letter.payload, letter.checkpoint) == (task_id, "acme", {"n": 1}, 5)
    assert (letter.reason, letter.error_class, letter.error, letter.build) == (
        "permanent_error",
        "Broken",
        "no such account",
        "b1",
    )
    assert (letter.owner, letter.runbook) == ("team-a", "https://runbooks.example.com/a")
    assert scene.ask("reader", calls.dead_letters("other")) == []


def test_pausing_an_unknown_queue_is_not_found(scene: Scene) -> None:
    from poolkeeper.errors import NotFound

    with pytest.raises(NotFound, match="nowhere"):
        scene.ask("person", calls.pause("nowhere", True, who="ann"))


def test_a_pause_is_a_version_of_the_policy(scene: Scene) -> None:
    """O1: who paused is on record, and nothing else of the policy changes."""
    scene.queue(max_deliveries=7)
    before = scene.value("SELECT max(version) FROM poolkeeper.policy")
    assert scene.ask("person", calls.pause("q", True, who="ann")) == before + 1
    row = scene.rows("SELECT spec, applied_by FROM poolkeeper.policy WHERE version = %s", before + 1)[0]
    assert row.spec == {"max_deliveries": 7, "paused": True}
    assert row.applied_by == "ann"


def test_a_queue_that_a_task_queue_keeps_is_not_paused_behind_its_back(scene: Scene) -> None:
    """O1: its operator would apply the resource again; the refusal says where to pause it instead."""
    scene.ask("operator", calls.apply_policy("a-cluster", "a-uid", "team", "kept", {}, who="operator"))
    with pytest.raises(Conflict, match=r"spec\.paused: true") as refused:
        scene.ask("person", calls.pause("team/kept", True, who="ann"))
    assert refused.value.code == "queue_owned"


def test_who_and_why_are_bounded(scene: Scene) -> None:
    """Q39: whatever a person pastes there."""
    task_id = scene.submit()
    scene.ask("person", calls.cancel(task_id, who="w" * 5000, why="y" * 5000))
    (row,) = scene.rows("SELECT actor, reason FROM poolkeeper.event WHERE task_id = %s", task_id)
    assert (row.actor, row.reason) == ("w" * 200, "y" * 2000)
