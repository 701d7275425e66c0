"""A hung handler does not live for ever: maxRunTime, maxTenure, progressTimeout (Q21), also while its worker renews."""

from typing import Any

import pytest

from poolkeeper.codes import Code
from poolkeeper.store import Claimed, calls, run
from store.scene import Scene, Worker, seconds


def lives(scene: Scene, worker: Worker, delivery: Claimed, until: float, step: float = 3.0, **stats: object) -> float:
    """Time passes while the worker renews; answers after how many seconds it heard that the lease is lost."""
    passed = 0.0
    while passed < until:
        scene.advance(step)
        passed += step
        answer = run(worker.conn, calls.renew(worker.session, worker.received, [delivery.task_id], stats=stats))
        if answer.lost:
            scene.told = answer.codes[delivery.task_id]  # type: ignore[attr-defined]
            return passed
    return passed


def told(scene: Scene) -> Code:
    return scene.told  # type: ignore[attr-defined, no-any-return]


def test_a_run_that_takes_too_long_fails_and_is_tried_again_and_dies_of_it(scene: Scene) -> None:
    """Q21: by database time, in the budget of deliveries, with its reason in history, dead letter and code of the lost lease."""
    scene.queue(max_run_time_seconds=30, max_deliveries=2)
    task_id = scene.submit()
    worker = scene.worker()
    for number in (1, 2):
        delivery = worker.take()
        assert 30 <= lives(scene, worker, delivery, 60) <= 36
        assert told(scene) is Code.MAX_RUN_TIME
        assert worker.succeed(delivery).code == "max_run_time"
        checkpoint = run(worker.conn, calls.checkpoint(task_id, delivery.token, 1, sequence=1))
        assert checkpoint.code == "max_run_time"
        assert scene.counters(task_id)["failures"] == number
        scene.advance(10)
        worker.renew()
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert (letter.reason, letter.error_class, letter.deliveries) == ("max_run_time", "max_run_time", 2)
    assert [r.reason for r in scene.rows("SELECT reason FROM poolkeeper.delivery ORDER BY delivery")] == [
        "max_run_time"
    ] * 2


@pytest.mark.parametrize(
    ("before", "after", "seconds_left"),
    [
        ({}, {"max_run_time_seconds": 30}, (9, 15)),
        ({}, {"max_tenure_seconds": 30}, (9, 15)),
        ({}, {"progress_timeout_seconds": 20}, (27, 33)),  # from now, with half a visibility timeout
        ({"max_run_time_seconds": 500}, {"max_run_time_seconds": 10}, (0, 3)),
        ({"max_run_time_seconds": 30}, {"max_run_time_seconds": 60}, (39, 45)),
        ({"max_run_time_seconds": 30}, {}, (90, 90)),
    ],
)
def test_a_policy_with_other_limits_holds_for_what_runs_already(
    scene: Scene, before: dict[str, Any], after: dict[str, Any], seconds_left: tuple[float, float]
) -> None:
    """Q21, O1: it is made because something hangs, or takes longer than somebody thought."""
    scene.queue(**before)
    scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    assert lives(scene, worker, delivery, 21) == 21
    scene.queue(**after)
    assert seconds_left[0] <= lives(scene, worker, delivery, 90) <= seconds_left[1]


def test_a_policy_waits_for_no_transaction_of_a_handler(scene: Scene) -> None:
    """Q18, Q21: what that is about to end keeps the limits that it had."""
    scene.queue()
    scene.submit()
    delivery = scene.worker().take()
    own = scene.connect("submitter", autocommit=False)
    run(own, calls.succeed(delivery.task_id, delivery.token))
    scene.actor("operator").execute("SET lock_timeout = '1s'")
    scene.queue(max_run_time_seconds=5)
    scene.advance(10)
    scene.sweep()
    own.commit()
    assert scene.state(delivery.task_id) == "succeeded"


def test_all_deliveries_together_have_an_end_that_is_final(scene: Scene) -> None:
    """Q21: what earlier deliveries ran counts, the time between does not; deliveries are left, it dies all the same."""
    scene.queue(max_tenure_seconds=50, max_deliveries=5)
    task_id = scene.submit()
    worker = scene.worker()
    first = worker.take()
    assert lives(scene, worker, first, 30) == 30
    worker.fail(first)
    scene.advance(500)
    worker.renew()
    second = worker.take()
    assert 20 <= lives(scene, worker, second, 60) <= 24
    assert told(scene) is Code.MAX_TENURE
    assert scene.state(task_id) == "dead"
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert letter.reason == "max_tenure"
    assert scene.ask("person", calls.requeue(task_id, who="ann", why="more time")).code is None
    scene.advance(1)
    worker.renew()
    assert 50 <= lives(scene, worker, worker.take(), 80) <= 54


@pytest.mark.parametrize("sign", ["none", "marks", "checkpoints"])
def test_progress_keeps_a_delivery_that_is_slow(scene: Scene, sign: str) -> None:
    """Q21: marks that renewals carry, and checkpoints; without them it ends, half a visibility timeout later at the latest."""
    scene.queue(progress_timeout_seconds=20)
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    if sign == "none":
        assert 20 <= lives(scene, worker, delivery, 60) <= 33
        assert told(scene) is Code.PROGRESS_TIMEOUT
        assert scene.counters(task_id)["failures"] == 1
    elif sign == "marks":
        assert lives(scene, worker, delivery, 90, progress=[str(task_id)]) == 90
    else:
        for number in range(6):
            assert run(worker.conn, calls.checkpoint(task_id, delivery.token, number, sequence=number + 1)).code is None
            assert lives(scene, worker, delivery, 15) == 15
    if sign != "none":
        assert worker.succeed(delivery).code is None


def test_a_mark_of_another_session_is_no_progress(scene: Scene) -> None:
    """Q51: who does not hold the task cannot keep it."""
    scene.queue(progress_timeout_seconds=20)
    task_id = scene.submit()
    worker, other = scene.worker(), scene.worker()
    delivery = worker.take()
    for _ in range(12):
        run(other.conn, calls.renew(other.session, other.received, [], stats={"progress": [str(task_id)]}))
        if lives(scene, worker, delivery, 3) and scene.state(task_id) != "running":
            break
    assert told(scene) is Code.PROGRESS_TIMEOUT


def test_the_next_delivery_waits_until_the_worker_has_heard(scene: Scene) -> None:
    """Q21: half a visibility timeout, in which its worker renews twice: the same process must not run it beside itself."""
    scene.queue(max_run_time_seconds=30, backoff_initial_seconds=0.001, backoff_max_seconds=0.001)
    task_id = scene.submit()
    worker = scene.worker()
    assert lives(scene, worker, worker.take(), 60) >= 30
    due = scene.value("SELECT due_at - poolkeeper.clock() FROM poolkeeper.later WHERE task_id = %s", task_id)
    assert seconds(6) < due <= seconds(7.5)


def test_what_starts_ahead_of_its_slot_has_its_time_from_its_start(scene: Scene) -> None:
    """Q16, Q21: the time as leased does not count."""
    scene.queue(max_run_time_seconds=30)
    scene.submit_many(2)
    worker = scene.worker()
    running, leased = worker.turn(want=2, slots=1).claimed
    scene.advance(10)
    worker.renew(running.task_id, leased.task_id)
    worker.turn(starts=[leased])
    ends = [r.run_by - r.started_at for r in scene.rows("SELECT run_by, started_at FROM poolkeeper.lease")]
    assert ends == [seconds(30)] * 2


def test_a_canceled_task_that_hangs_ends_canceled(scene: Scene) -> None:
    """Q39: one terminal state, and it is the one that was asked for."""
    scene.queue(max_run_time_seconds=30)
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    scene.ask("person", calls.cancel(task_id, who="ann", why="x"))
    lives(scene, worker, delivery, 60)
    assert scene.state(task_id) == "canceled"


def test_an_outage_is_no_run_time(scene: Scene) -> None:
    """Q21, Q23: what nobody could tell of does not count, nor does a clock that was moved."""
    scene.queue(max_run_time_seconds=30)
    scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    assert lives(scene, worker, delivery, 9) == 9
    scene.jump(3600)
    assert worker.renew(delivery.task_id).lost == []
    assert 18 <= lives(scene, worker, delivery, 60) <= 27


def test_nobody_pays_who_has_no_limit(scene: Scene) -> None:
    """Q21: no end is noted, and the index of ends stays empty."""
    scene.submit()
    scene.worker().take()
    assert scene.value("SELECT count(*) FROM poolkeeper.lease WHERE run_by IS NULL AND progress_by IS NULL") == 1
    assert scene.value("SELECT pg_relation_size('poolkeeper.lease_limit') <= 16384")
