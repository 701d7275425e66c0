"""Trouble of a queue or a database stands in its conditions, in `kubectl get` and in the metrics, until it is over (O25)."""

import psycopg
import pytest

from fixtures.alerts import case, judge, served
from fixtures.letters import kill_tasks
from fixtures.stage import until
from poolkeeper.store import calls


def shown(stage, kind="taskqueue", name="mail"):
    """What `kubectl get` has under TROUBLE."""
    head, row = stage.kubectl("get", kind, name).splitlines()[:2]
    begin = head.index("TROUBLE")
    return row[begin:].split(" ")[0]


def metric(operator, trouble):
    return operator.metric("poolkeeper_queue_trouble", queue="mail", trouble=trouble)


def test_growing_dead_letters_are_trouble_until_it_is_calm(stage, operator, tmp_path):
    """O25: by the queue's own thresholds, in condition, column and metric; five minutes later growth is over, the number is not.

    A11: what the operator serves makes the alerts about dead letters fire, and no other; none before.
    """
    letter = {"owner": "on-call", "runbookURL": "https://runbooks.example.com/agents"}
    stage.apply(
        stage.db(),
        stage.queue("mail", deadLetter={**letter, "alert": {"growthPerMinute": 3, "count": 3, "age": "10m"}}),
    )
    calm = stage.wait_condition("taskqueue", "mail", "DeadLettersGrowing", "False", "BelowThreshold")
    assert calm["message"] == "fewer than 3 new ones a minute"
    mail = {"namespace": stage.namespace, "queue": "mail"}
    until(lambda: 'queue="mail"' in operator.fetch("/metrics")[1], what="it serves figures of the queue")
    healthy = case("calm", served(operator.fetch("/metrics")[1]), [])
    kill_tasks(stage, "mail", 3)
    told = stage.wait_condition("taskqueue", "mail", "DeadLettersGrowing", "True", "FasterThanThreshold")
    assert "pause the queue" in told["message"]
    stage.wait_condition("taskqueue", "mail", "DeadLetters", "True", "TooMany")
    assert shown(stage) == "DeadLettersGrowing,DeadLettersTooMany"
    assert [metric(operator, kind) for kind in ("DeadLettersGrowing", "DeadLettersTooMany", "DeadLettersTooOld")] == [
        1,
        1,
        0,
    ]

    fires = [(f"PoolkeeperDeadLetters{word}", mail) for word in ("", "Growing", "Left")]
    judge(tmp_path, healthy, case("growing", served(operator.fetch("/metrics")[1]), fires))

    stage.move_clock(330)
    stage.wait_condition("taskqueue", "mail", "DeadLettersGrowing", "False")
    until(lambda: stage.status("taskqueue", "mail")["trouble"] == "DeadLettersTooMany")
    stage.apply(stage.queue("mail", deadLetter={**letter, "alert": {"count": 4, "age": "2m"}}))
    stage.wait_condition("taskqueue", "mail", "DeadLetters", "True", "TooOld")
    until(lambda: metric(operator, "DeadLettersTooOld") == 1)
    assert metric(operator, "DeadLettersTooMany") == 0


@pytest.mark.wide
def test_leases_of_living_workers_are_told_apart_from_dying_ones(stage, operator):
    """O25: three deliveries expire with a silent worker; it comes back, so their lease was too short; ten minutes later all is well."""
    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="5s"))
    stage.submit("mail", 3)
    pool, queue = f"{stage.namespace}/p", f"{stage.namespace}/mail"
    frozen = stage.run(calls.register_session(pool, [queue], ["demo.echo"], concurrency=3, info={}))
    held = stage.run(calls.turn(frozen, 1, 0, [], 3)).claimed
    assert len(held) == 3
    dying = stage.wait_condition("taskqueue", "mail", "WorkersDying", "True", "ExpiredWithWorker")
    assert "OOMKilled" in dying["message"]
    assert stage.condition("taskqueue", "mail", "LeaseTooShort")["status"] == "False"
    assert operator.metric("poolkeeper_queue_expired_of_dead_workers", queue="mail") == 3

    stage.run(calls.renew(frozen, 1, [each.task_id for each in held]))
    told = stage.wait_condition("taskqueue", "mail", "LeaseTooShort", "True", "ExpiredWhileAlive")
    assert "visibilityTimeout (5s)" in told["message"]
    stage.wait_condition("taskqueue", "mail", "WorkersDying", "False")
    assert shown(stage) == "LeaseTooShort"
    stage.move_clock(700)
    stage.wait_condition("taskqueue", "mail", "LeaseTooShort", "False", "LeasesKept")
    until(lambda: "LeaseTooShort" not in stage.status("taskqueue", "mail")["trouble"])


@pytest.mark.wide
def test_tasks_that_nobody_can_run_and_slots_that_are_refused(stage, operator):
    """O25, Q34: both have a condition with cause and remedy, and both go with their cause."""
    stage.apply(stage.db(), stage.queue("mail", admission={"maxWaiting": 1}))
    stage.submit("mail", 1, type="demo.new")
    task = {"type": "demo.echo"}
    call = calls.set_schedule(
        f"{stage.namespace}/mail",
        "often",
        cron="* * * * *",
        zone="UTC",
        catch_up="latest",
        catch_up_limit=1,
        task=task,
        who="x",
    )
    assert stage.run(call).code is None
    stage.move_clock(70)
    nobody = stage.wait_condition("taskqueue", "mail", "NoCapableWorker", "True", "NobodyCanRun")
    assert "tasks of type demo.new wait" in nobody["message"]
    slots = stage.wait_condition("taskqueue", "mail", "SchedulesLate", "True", "SlotsRefused")
    assert '"often" are refused: queue_limit' in slots["message"]
    until(lambda: shown(stage) == "NoCapableWorker,SchedulesLate")
    assert operator.metric("poolkeeper_queue_refused_schedules", queue="mail") == 1

    stage.apply(stage.queue("mail"), stage.pool("mail"))
    stage.move_clock(200)  # it is looked at again
    stage.wait_condition("taskqueue", "mail", "SchedulesLate", "False")
    stage.wait_condition("taskqueue", "mail", "NoCapableWorker", "False", "AllCovered")


@pytest.mark.wide
def test_who_keeps_vacuum_back_stands_in_the_databases_condition(stage, operator):
    """O25: after ten minutes, by kind, pid and application, with the statement that ends it; over as soon as it has gone."""
    stage.apply(stage.db())
    stage.wait_condition("database", "main", "VacuumHeld", "False", "Free")
    with psycopg.connect(stage.database.dsn, application_name="forgotten") as holder:
        holder.execute("SELECT pg_current_xact_id()")
        stage.move_clock(660)
        told = stage.wait_condition("database", "main", "VacuumHeld", "True", "HeldBack")
        pid = holder.info.backend_pid
        for part in (f"pid {pid}", 'application "forgotten"', "10m", f"pg_terminate_backend({pid})"):
            assert part in told["message"]
        assert shown(stage, "database", "main") == "VacuumHeld"
        assert stage.condition("database", "main", "Ready")["status"] == "True"
        assert operator.metric("poolkeeper_database_vacuum_held_seconds", database="main") >= 660
    stage.wait_condition("database", "main", "VacuumHeld", "False", timeout=30)
    assert operator.metric("poolkeeper_database_trouble", database="main") == 0
