"""Q28, Q30, Q54: what a handler raises, and what becomes of its checkpoints."""

import psycopg
import pytest

from fixtures.workers import Stage, eventually


@pytest.mark.parametrize(
    ("what", "state", "deliveries"),
    [
        ("reject", "failed", ["rejected"]),
        ("dead", "dead", ["dead"]),
        ("retry", "dead", ["failed", "failed"]),
        ("error", "dead", ["failed", "failed"]),
        ("exit", "dead", ["failed", "failed"]),
    ],
)
def test_what_a_handler_raises_decides_how_its_task_goes_on(
    stage: Stage, what: str, state: str, deliveries: list[str]
) -> None:
    """Q28: even SystemExit ends only its delivery."""
    stage.apply(max_deliveries=2)
    worker = stage.worker().ready()
    task = stage.submit("t.raises", what)
    stage.ends(task, state)
    assert stage.deliveries(task) == deliveries
    assert worker.process.poll() is None


def test_a_snooze_spends_no_delivery(stage: Stage) -> None:
    """Q25, Q26: snoozes have a bound of their own."""
    stage.apply(max_deliveries=1, max_snoozes=2)
    stage.worker().ready()
    task = stage.submit("t.raises", "snooze")
    assert stage.ends(task, "dead").reason == "snoozes_exhausted"
    assert stage.deliveries(task) == ["snoozed", "snoozed", "snoozed"]


def test_an_error_is_stored_without_the_password_in_it(stage: Stage) -> None:
    """Q54, Q17: neither in the dead letter nor in the log, which holds no fencing token either."""
    stage.apply(max_deliveries=1)
    worker = stage.worker({"POOLKEEPER_LOG_LEVEL": "debug"}).ready()
    stage.ends(stage.submit("t.raises", "error"), "dead")
    letter = stage.dead_letters()[0]
    assert letter.error_class == "RuntimeError"
    assert "postgresql://joe:***@db/x" in letter.error
    assert "hunter2" not in letter.error + worker.log
    assert "its handler raised" in worker.log
    assert "pkt_" not in worker.log


def test_a_payload_that_does_not_fit_its_model_is_a_dead_letter_that_names_the_field(stage: Stage) -> None:
    """Q46: no retry of the same build could mend it."""
    stage.worker().ready()
    stage.ends(stage.submit("t.steps", "many"), "dead")
    letter = stage.dead_letters()[0]
    assert letter.error_class == "payload_invalid"
    assert "integer" in letter.error


def test_an_oversized_checkpoint_is_refused_and_the_previous_one_stays(stage: Stage) -> None:
    """Q30: the task lives; the next delivery gets the last good one."""
    stage.apply(checkpoint={"max_size": "1Ki"})
    stage.worker().ready()
    task = stage.submit("t.saves", ["small", "x" * 2000])
    view = stage.ends(task)
    assert view.result == ["small", True, "checkpoint_too_large"]


def test_beyond_the_rate_the_newest_checkpoint_is_kept_and_written_before_the_next_delivery(stage: Stage) -> None:
    """Q30: some are skipped, the last one never."""
    stage.worker().ready()
    task = stage.submit("t.saves", list(range(100)))
    view = stage.ends(task)
    assert view.result[0] == 99
    first = [True] * 10
    assert view.result[1:11] == first
    assert False in view.result[11:]


def test_payloads_go_through_the_model_of_the_signature(stage: Stage) -> None:
    """Q46: and a type without a handler here is not claimed, burns no delivery (Q11)."""
    stage.worker().ready()
    foreign = stage.submit("someone.elses")
    stage.ends(stage.submit("t.count", {"a": [1, 2.5, "ü", None]}))
    assert stage.view(foreign).deliveries == 0
    assert eventually(lambda: stage.view(foreign).state == "ready", "the foreign task waits")


def test_an_ending_that_the_store_cannot_take_does_not_hold_up_the_others(stage: Stage) -> None:
    """P4: found among its neighbours, it becomes a dead letter that says so; they are settled as they ended."""
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        conn.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.error LIKE '%refuse me%' THEN RAISE EXCEPTION 'cannot' USING ERRCODE = '22P05'; END IF; RETURN NEW; END $$"
        )
        conn.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON poolkeeper.delivery FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    worker = stage.worker().ready()
    bad = stage.submit("t.steals", "error")
    good = stage.submit_many("t.count", list(range(50)))
    for task in good:
        stage.ends(task)
    stage.ends(bad, "dead")
    assert stage.dead_letters()[0].error_class == "result_invalid"
    assert "the store refused how it ended" in worker.log


def test_a_passing_trouble_of_the_database_condemns_nothing(stage: Stage) -> None:
    """P1, Q10: a settle that fails for a reason that passes is repeated until it is taken."""
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE trouble ()")
        conn.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF to_regclass('public.trouble') IS NOT NULL THEN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$"
        )
        conn.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON poolkeeper.delivery FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        worker = stage.worker().ready()
        tasks = stage.submit_many("t.count", list(range(20)))
        eventually(lambda: worker.log.count("claim loop: failed"), "the worker says that it tries again")
        stage.note("done", count=4)
        conn.execute("DROP TABLE trouble")
    for task in tasks:
        assert stage.ends(task).deliveries == 1
