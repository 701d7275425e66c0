"""What a durable task engine owes, one behaviour per test, each on the plain model in memory and on Postgres (platform A1).

The clock is moved, never waited for. Both engines have a lease of 10 s and a budget of 3 deliveries.
"""

from typing import Any
from uuid import UUID

import pytest

from store.engines import BUDGET, LATE, Delivery, Engine, InMemory, OnPostgres
from store.model_task import LEASE


@pytest.fixture(params=["in_memory", "on_postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each test runs on both."""
    return InMemory() if request.param == "in_memory" else OnPostgres(request.getfixturevalue("scene"))


def accepted(engine: Engine, **wishes: Any) -> UUID:
    """One task that was taken."""
    code, task_id = engine.submit(**wishes)
    assert code is None
    assert task_id is not None
    return task_id


def claimed(engine: Engine, worker: Any) -> Delivery:
    """The one task that there is to have."""
    (delivery,) = engine.claim(worker)
    return delivery


def crashes(engine: Engine, *, checkpoint: Any = None) -> Delivery:
    """A worker takes a task, gets as far as a checkpoint, and is never heard of again."""
    delivery = claimed(engine, engine.worker())
    if checkpoint is not None:
        assert engine.save(delivery, checkpoint) is None
    engine.advance(LATE)
    return delivery


# a lease is crash recovery


def test_a_claimed_task_is_hidden_from_others(engine: Engine) -> None:
    """Q10."""
    accepted(engine)
    claimed(engine, engine.worker())
    assert engine.claim(engine.worker()) == []


def test_silence_alone_brings_a_task_back(engine: Engine) -> None:
    """Q22: the next claimer finds it; no supervisor, no watchdog."""
    task_id = accepted(engine)
    crashes(engine)
    assert claimed(engine, engine.worker()).task_id == task_id


def test_it_comes_back_where_nobody_claims(engine: Engine) -> None:
    """Q22: a sweep is enough, at zero workers."""
    task_id = accepted(engine)
    crashes(engine)
    assert engine.state(task_id) == "running"
    engine.sweep()
    assert engine.state(task_id) == "ready"


def test_a_renewal_keeps_every_lease(engine: Engine) -> None:
    """Q20: one renewal for all tasks of a process."""
    ids = {accepted(engine), accepted(engine)}
    worker = engine.worker()
    assert {d.task_id for d in engine.claim(worker, 2)} == ids
    for _ in range(3):
        engine.advance(LEASE - 1)
        engine.renew(worker)
        engine.sweep()
    assert {engine.state(i) for i in ids} == {"running"}


# fencing


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "rejected", "snoozed", "handed_back"])
def test_a_late_worker_settles_nothing_that_was_given_to_another(engine: Engine, outcome: str) -> None:
    """Q18, Q19."""
    task_id = accepted(engine)
    zombie = crashes(engine)
    second = claimed(engine, engine.worker())
    assert engine.settle(zombie, outcome) == "lease_expired"
    assert engine.state(task_id) == "running"
    assert engine.settle(second, "succeeded") is None


def test_a_late_worker_cannot_turn_back_a_checkpoint(engine: Engine) -> None:
    """Q18, Q30."""
    accepted(engine)
    zombie = crashes(engine)
    second = claimed(engine, engine.worker())
    assert engine.save(second, {"step": 2}) is None
    assert engine.save(zombie, {"step": 1}, sequence=99) == "lease_expired"
    engine.advance(LATE)
    assert claimed(engine, engine.worker()).checkpoint == {"step": 2}


def test_a_late_worker_does_not_undo_what_another_finished(engine: Engine) -> None:
    """Q19, Q39: one terminal state."""
    task_id = accepted(engine)
    zombie = crashes(engine)
    assert engine.settle(claimed(engine, engine.worker()), "succeeded") is None
    assert engine.settle(zombie, "failed") == "lease_expired"
    assert engine.state(task_id) == "succeeded"


def test_late_but_uncontested_is_taken(engine: Engine) -> None:
    """Q19: work that nobody else began is not thrown away; a checkpoint is not taken late."""
    task_id = accepted(engine)
    late = crashes(engine)
    assert engine.save(late, 1) == "lease_expired"
    assert engine.settle(late, "succeeded") is None
    assert engine.state(task_id) == "succeeded"


def test_a_settle_whose_answer_was_lost_may_be_repeated(engine: Engine) -> None:
    """Q19."""
    accepted(engine)
    delivery = claimed(engine, engine.worker())
    assert engine.settle(delivery, "succeeded") is None
    assert engine.settle(delivery, "succeeded") == "already_done"


# submitting once, handling at least once


def test_the_same_key_is_the_same_task(engine: Engine) -> None:
    """Q6."""
    assert accepted(engine, key="order-42") == accepted(engine, key="order-42")
    worker = engine.worker()
    assert len(engine.claim(worker, 5)) == 1


def test_the_same_key_is_the_same_task_after_its_end(engine: Engine) -> None:
    """Q6: a repeated submit starts nothing again."""
    task_id = accepted(engine, key="order-42")
    engine.settle(claimed(engine, engine.worker()), "succeeded")
    assert accepted(engine, key="order-42") == task_id
    assert engine.claim(engine.worker()) == []


def test_the_same_key_for_other_work_is_a_conflict(engine: Engine) -> None:
    """Q6."""
    accepted(engine, payload=1, key="order-42")
    assert engine.submit(payload=2, key="order-42") == ("key_conflict", None)


def test_without_a_key_every_submit_is_a_task(engine: Engine) -> None:
    """Q6."""
    assert accepted(engine) != accepted(engine)


def test_a_key_does_not_keep_a_handler_from_running_twice(engine: Engine) -> None:
    """Q6, Q25: at least once is what can be had; a submit once is something else."""
    task_id = accepted(engine, key="order-42")
    first = crashes(engine)
    second = claimed(engine, engine.worker())
    assert (first.task_id, second.task_id, second.number) == (task_id, task_id, 2)


# the budget counts deliveries


def test_a_delivery_is_spent_when_it_is_handed_out(engine: Engine) -> None:
    """Q25: before anybody can confess a failure."""
    task_id = accepted(engine)
    claimed(engine, engine.worker())
    assert (engine.counters(task_id)["spent"], engine.counters(task_id)["failures"]) == (1, 0)


def test_a_task_that_kills_its_worker_ends_as_a_dead_letter(engine: Engine) -> None:
    """Q27: after exactly as many deliveries as it has, with not one failure reported."""
    task_id = accepted(engine)
    for number in range(1, BUDGET + 1):
        assert crashes(engine).number == number
    assert engine.claim(engine.worker()) == []
    assert engine.dead() == {task_id: "deliveries_exhausted"}
    assert (engine.counters(task_id)["expiries"], engine.counters(task_id)["failures"]) == (BUDGET, 0)


def test_failures_are_bounded_by_the_same_number(engine: Engine) -> None:
    """Q28."""
    task_id = accepted(engine)
    for _ in range(BUDGET):
        assert engine.settle(claimed(engine, engine.worker()), "failed") is None
    assert engine.dead() == {task_id: "deliveries_exhausted"}


def test_crashes_and_failures_share_one_budget(engine: Engine) -> None:
    """Q25."""
    task_id = accepted(engine)
    crashes(engine)
    engine.settle(claimed(engine, engine.worker()), "failed")
    crashes(engine)
    engine.sweep()
    assert engine.dead() == {task_id: "deliveries_exhausted"}
    assert (engine.counters(task_id)["expiries"], engine.counters(task_id)["failures"]) == (BUDGET - 1, 1)


def test_a_failure_waits_before_it_is_tried_again(engine: Engine) -> None:
    """Q28: backing off; then it is claimable by itself."""
    task_id = accepted(engine)
    engine.settle(claimed(engine, engine.worker()), "failed", wait=5)
    assert engine.claim(engine.worker()) == []
    assert engine.state(task_id) == "scheduled"
    engine.advance(5)
    assert claimed(engine, engine.worker()).number == 2


def test_a_final_no_is_not_tried_again(engine: Engine) -> None:
    """Q28: what the handler declares final ends at once, and is no dead letter."""
    task_id = accepted(engine)
    engine.settle(claimed(engine, engine.worker()), "rejected")
    assert engine.state(task_id) == "failed"
    assert engine.dead() == {}


# dead letters are for people


def test_nothing_revives_a_dead_letter_by_itself(engine: Engine) -> None:
    """Q29."""
    task_id = accepted(engine)
    engine.settle(claimed(engine, engine.worker()), "dead")
    engine.advance(1000)
    engine.sweep()
    assert engine.claim(engine.worker()) == []
    assert engine.dead() == {task_id: "permanent_error"}


def test_a_person_gives_a_dead_letter_a_fresh_budget(engine: Engine) -> None:
    """Q29, Q25: as many deliveries again; their numbers go on."""
    task_id = accepted(engine)
    for _ in range(BUDGET):
        engine.settle(claimed(engine, engine.worker()), "failed")
    assert engine.person("requeue", task_id) is None
    assert engine.dead() == {}
    for number in range(BUDGET + 1, 2 * BUDGET + 1):
        delivery = claimed(engine, engine.worker())
        assert delivery.number == number
        engine.settle(delivery, "failed")
    assert engine.state(task_id) == "dead"


def test_a_requeue_makes_old_tokens_no_better(engine: Engine) -> None:
    """Q17, Q29: a new delivery has a new token."""
    accepted(engine)
    old = claimed(engine, engine.worker())
    engine.settle(old, "dead")
    engine.person("requeue", old.task_id)
    new = claimed(engine, engine.worker())
    assert engine.settle(old, "succeeded") == "already_done"
    assert engine.state(new.task_id) == "running"


def test_only_a_dead_letter_can_be_requeued(engine: Engine) -> None:
    """Q29, Q1: of two people one makes it run."""
    task_id = accepted(engine)
    assert engine.person("requeue", task_id) == "not_dead"
    engine.settle(claimed(engine, engine.worker()), "dead")
    assert [engine.person("requeue", task_id), engine.person("requeue", task_id)] == [None, "not_dead"]


# resumption


def test_a_first_delivery_has_no_checkpoint(engine: Engine) -> None:
    """Q30."""
    accepted(engine)
    assert claimed(engine, engine.worker()).checkpoint is None


def test_a_retry_goes_on_at_the_checkpoint(engine: Engine) -> None:
    """Q30: the newest one."""
    accepted(engine)
    delivery = claimed(engine, engine.worker())
    for step in (1, 2):
        assert engine.save(delivery, {"step": step}, sequence=step) is None
    engine.settle(delivery, "failed")
    assert claimed(engine, engine.worker()).checkpoint == {"step": 2}


def test_after_a_crash_it_goes_on_at_the_checkpoint(engine: Engine) -> None:
    """Q30: nobody said goodbye, and what was saved is there."""
    accepted(engine)
    crashes(engine, checkpoint={"step": 7})
    assert claimed(engine, engine.worker()).checkpoint == {"step": 7}


def test_a_requeued_dead_letter_goes_on_at_the_checkpoint(engine: Engine) -> None:
    """Q29, Q30."""
    task_id = accepted(engine)
    delivery = claimed(engine, engine.worker())
    engine.save(delivery, {"step": 7})
    engine.settle(delivery, "dead")
    engine.person("requeue", task_id)
    assert claimed(engine, engine.worker()).checkpoint == {"step": 7}


# bounded, drained, side by side


def test_never_more_than_asked_for(engine: Engine) -> None:
    """Q10: a worker takes what it has slots for."""
    for _ in range(5):
        accepted(engine)
    worker = engine.worker()
    assert [len(engine.claim(worker, 2)), len(engine.claim(worker, 2)), len(engine.claim(worker, 2))] == [2, 2, 1]


def test_a_drained_worker_hands_back_and_it_costs_nothing(engine: Engine) -> None:
    """Q26, Q48: a deploy is no crash: no waiting for the deadline, no suspicion, no delivery spent."""
    task_id = accepted(engine)
    worker = engine.worker()
    engine.save(claimed(engine, worker), {"step": 3})
    engine.drain(worker)
    assert (engine.counters(task_id)["spent"], engine.counters(task_id)["expiries"]) == (0, 0)
    assert claimed(engine, engine.worker()).checkpoint == {"step": 3}


def test_a_drained_worker_gets_nothing_new(engine: Engine) -> None:
    """Q48."""
    accepted(engine)
    worker = engine.worker()
    engine.drain(worker)
    assert engine.claim(worker) == []


def test_a_draining_worker_may_still_end_what_it_holds(engine: Engine) -> None:
    """Q48, Q19: what ended before the drain is settled, and is not handed back."""
    task_id = accepted(engine)
    worker = engine.worker()
    delivery = claimed(engine, worker)
    assert engine.settle(delivery, "succeeded") is None
    engine.drain(worker)
    assert engine.state(task_id) == "succeeded"


def test_contending_workers_step_over_each_other(engine: Engine) -> None:
    """Q10, Q12: neither waits for the other, and no task goes to both."""
    ids = {accepted(engine) for _ in range(6)}
    one, other = engine.claim_at_once(engine.worker(), engine.worker(), 3)
    assert (len(one), len(other)) == (3, 3)
    assert {d.task_id for d in (*one, *other)} == ids
