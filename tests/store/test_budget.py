"""The retry budget: what is spent, what is given back, and where it ends (Q25, Q26, Q28, P4)."""

import math

import pytest

from poolkeeper.store import Claimed, calls
from store.scene import Scene, Worker, seconds


def next_delivery(scene: Scene, worker: Worker) -> Claimed:
    """The next delivery of the only task, after whatever it waits for."""
    scene.advance(700)
    worker.renew()
    return worker.take()


def reason(scene: Scene) -> str:
    """Why the only dead letter is one."""
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert letter.sentence
    assert letter.action
    return letter.reason


def test_a_failing_task_is_dead_after_exactly_max_deliveries(scene: Scene) -> None:
    """Q25, Q28: five by default; the last error stands in the dead letter."""
    task_id = scene.submit(payload={"n": 1})
    worker = scene.worker()
    states = []
    for n in range(1, 6):
        delivery = worker.take() if n == 1 else next_delivery(scene, worker)
        assert (delivery.delivery, delivery.deliveries_spent, delivery.failures) == (n, n, n - 1)
        worker.fail(delivery, f"boom {n}")
        states.append(scene.state(task_id))
    assert states == ["scheduled"] * 4 + ["dead"]
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert (letter.reason, letter.error, letter.error_class) == ("deliveries_exhausted", "boom 5", "ValueError")
    assert (letter.deliveries, letter.spent, letter.failures, letter.payload) == (5, 5, 5, {"n": 1})
    assert letter.build == "b1"


def test_a_dead_letter_is_claimed_by_nobody(scene: Scene) -> None:
    """P4: only a person moves it."""
    scene.submit(max_deliveries=1)
    worker = scene.worker()
    worker.fail(worker.take())
    scene.advance(100_000)
    worker.renew()
    assert worker.claim(5, sweep=True) == []


@pytest.mark.parametrize(("outcome", "state"), [("rejected", "failed"), ("dead", "dead"), ("succeeded", "succeeded")])
def test_final_outcomes_are_final(scene: Scene, outcome: str, state: str) -> None:
    """Q28: Reject is a business outcome that pages nobody, Dead a dead letter; neither is retried."""
    task_id = scene.submit()
    worker = scene.worker()
    worker.settle(worker.take(), outcome)
    assert scene.state(task_id) == state
    scene.advance(100_000)
    worker.renew()
    assert worker.claim(5, sweep=True) == []
    if outcome == "dead":
        assert reason(scene) == "permanent_error"


def test_a_retry_at_a_given_time_waits_for_it(scene: Scene) -> None:
    """Q28: RetryAfter; it costs its delivery all the same."""
    task_id = scene.submit()
    worker = scene.worker()
    worker.fail(worker.take(), retry_after=seconds(100))
    worker.renew()
    scene.advance(99)
    worker.renew()
    assert worker.claim(1) == []
    scene.advance(1.5)
    assert worker.take().deliveries_spent == 2
    assert scene.counters(task_id)["failures"] == 1


def test_hand_backs_return_the_delivery_up_to_their_own_bound(scene: Scene) -> None:
    """Q26: beyond it each one spends; so a task that every drain meets ends where people see it."""
    scene.queue(max_hand_backs=3, max_deliveries=2)
    task_id = scene.submit()
    worker = scene.worker()
    spent = []
    while scene.state(task_id) != "dead":
        delivery = worker.take()
        spent.append(delivery.deliveries_spent)
        worker.settle(delivery, "handed_back")
    assert spent == [1, 1, 1, 1, 2]
    assert reason(scene) == "deliveries_exhausted"
    assert scene.counters(task_id)["hand_backs"] == 5


def test_a_hand_back_before_the_start_is_a_return_with_the_same_bound(scene: Scene) -> None:
    """Q16, Q26: user code never began; still nothing loops for ever."""
    scene.queue(max_hand_backs=2, max_deliveries=1)
    task_id = scene.submit()
    worker = scene.worker()
    count = 0
    while scene.state(task_id) == "ready":
        worker.settle(worker.take(), "handed_back", started=False)
        count += 1
    assert count == 3
    assert reason(scene) == "deliveries_exhausted"


def test_snoozes_return_the_delivery_up_to_their_own_bound(scene: Scene) -> None:
    """Q26: waiting for a timer; then snoozes_exhausted."""
    scene.queue(max_snoozes=3)
    task_id = scene.submit()
    worker = scene.worker()
    for n in range(4):
        delivery = worker.take()
        assert delivery.deliveries_spent == 1
        worker.settle(delivery, "snoozed", retry_after=seconds(5))
        view = scene.ask("reader", calls.task(task_id))
        assert view is not None
        if n < 3:
            assert (view.state, view.reason) == ("waiting", "timer")
            assert worker.claim(1) == []
            scene.advance(5.1)
            worker.renew()
    assert reason(scene) == "snoozes_exhausted"


def test_the_highest_bound_is_reached_before_its_counter_overflows(scene: Scene) -> None:
    """Q26: the counter holds 32,767; the task ends as a dead letter before it would be passed."""
    scene.queue(max_snoozes=32_766)
    scene.submit()
    scene.worker().take()
    row = scene.rows(
        "SELECT f.* FROM poolkeeper.lease AS l, poolkeeper.queue AS q, LATERAL poolkeeper.what_follows("
        "'snoozed', jsonb_populate_record(l, '{\"snoozes\": 32766}'), q, 5, l.ready_at, l.ready_at) AS f"
    )[0]
    assert (row.state, row.reason) == ("dead", "snoozes_exhausted")


def test_counters_are_separate_and_visible(scene: Scene) -> None:
    """Q25: one of each, told apart."""
    task_id = scene.submit(max_deliveries=5)
    worker = scene.worker()
    worker.settle(worker.take(), "snoozed", retry_after=seconds(0))
    worker.settle(worker.take(), "handed_back")
    worker.fail(worker.take(), retry_after=seconds(0))
    worker.take()
    scene.advance(16)
    scene.sweep()
    assert scene.counters(task_id) == {
        "delivery": 4,
        "state_version": scene.counters(task_id)["state_version"],
        "spent": 2,
        "failures": 1,
        "expiries": 1,
        "hand_backs": 1,
        "snoozes": 1,
        "waits": 0,
    }


def test_failing_for_too_long_is_the_end_although_deliveries_are_left(scene: Scene) -> None:
    """Q28: the bound of elapsed time."""
    scene.queue(backoff_max_elapsed_seconds=1000)
    scene.submit()
    worker = scene.worker()
    worker.fail(worker.take())
    worker.fail(next_delivery(scene, worker))
    worker.fail(next_delivery(scene, worker))
    assert reason(scene) == "failures_exhausted"


def test_no_retry_beyond_the_tasks_age(scene: Scene) -> None:
    """Q9, Q28: a failure after max_age is the last; one that waits past it is buried by the sweep."""
    first = scene.submit(max_age=seconds(10))
    worker = scene.worker()
    delivery = worker.take()
    scene.advance(11)
    worker.renew()
    worker.fail(delivery)
    assert scene.state(first) == "dead"
    second = scene.submit(max_age=seconds(10))
    worker.fail(worker.take(), retry_after=seconds(3600))
    scene.advance(11)
    scene.sweep()
    assert scene.state(second) == "dead"
    assert {d.reason for d in scene.ask("reader", calls.dead_letters())} == {"max_age"}


def test_backoff_grows_has_full_jitter_and_a_cap(scene: Scene) -> None:
    """Q28: uniform below initial * factor^n, never above the cap."""
    query = (
        "SELECT min(b), max(b) FROM (SELECT extract(epoch FROM poolkeeper.backoff('1 s', '10 min', 2, %s))::float8 AS b"
        " FROM generate_series(1, 400)) AS x"
    )
    for failures in (1, 2, 5, 20):
        low, high = scene.rows(query, failures)[0]
        top = min(600.0, 2.0 ** (failures - 1))
        assert 0 <= low < 0.05 * top
        assert 0.95 * top < high <= top


@pytest.mark.parametrize("failures", [0, 1, 100, 32767, 2**31 - 1])
@pytest.mark.parametrize("factor", [1.0, 2.0, 10.0])
def test_backoff_cannot_overflow(scene: Scene, failures: int, factor: float) -> None:
    """Q28: at any count of failures it is a time between nothing and the cap."""
    got = scene.value(
        "SELECT extract(epoch FROM poolkeeper.backoff('24 h', '168 h', %s, %s))::float8", factor, failures
    )
    assert math.isfinite(got)
    assert 0 <= got <= 168 * 3600


@pytest.mark.parametrize("asked", [-5.0, 0.0, 1e12])
def test_a_wait_that_makes_no_sense_is_brought_into_range(scene: Scene, asked: float) -> None:
    """Q28: negative is now, endless is a year."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    scene.rows(
        "SELECT * FROM poolkeeper.end_deliveries(ARRAY[ROW(%s, %s::bytea, 'failed', 'retry_after', NULL, NULL, NULL, %s::float8)::poolkeeper.ending], poolkeeper.clock())",
        task_id,
        scene.value("SELECT token_hash FROM poolkeeper.lease"),
        asked,
    )
    assert delivery.task_id == task_id
    wait = scene.value("SELECT extract(epoch FROM due_at - poolkeeper.clock())::float8 FROM poolkeeper.later")
    assert -5 < wait <= 366 * 86400


def test_a_retry_keeps_its_place_by_when_it_became_due(scene: Scene) -> None:
    """Contract 22: it comes behind what was ready before it was due, where retries have no share of their own (Q13)."""
    scene.queue(retry_share_percent=100)
    early = scene.submit()
    worker = scene.worker()
    worker.fail(worker.take(), retry_after=seconds(60))
    between = scene.submit()
    scene.advance(61)
    worker = scene.worker()
    assert [worker.take().task_id for _ in range(2)] == [between, early]
