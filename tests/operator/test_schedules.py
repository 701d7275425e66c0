"""At zero pods the operator fires the slots of schedules, and their tasks start the first pod (Q34, O12)."""

import time
from typing import Any

import psycopg
import pytest

from fixtures.stage import until
from poolkeeper.store import calls


def test_a_slot_starts_the_first_pod_of_a_pool_at_zero(stage, operator):
    """The reading comes with the slot. Those of a queue that is paused wait. Metrics tell what was fired, and what waits."""
    stage.apply(stage.db(), stage.queue("mail"), stage.queue("still", paused=True), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    until(lambda: stage.condition("taskqueue", "still", "Ready"), what="both queues")
    assert stage.replicas("mail") == 0
    how: dict[str, Any] = {
        "cron": "*/5 * * * * *",
        "zone": "UTC",
        "catch_up": "latest",
        "catch_up_limit": 1,
        "who": "test",
    }
    for queue in ("still", "mail"):
        name = f"{stage.namespace}/{queue}"
        assert stage.run(calls.set_schedule(name, "tick", task={"type": "mail.send"}, **how)).code is None
    until(lambda: stage.pods("mail"), timeout=120, what="a pod")
    by_name = {one.queue: one for one in stage.run(calls.schedules())}
    assert by_name[f"{stage.namespace}/mail"].fired_at is not None
    assert by_name[f"{stage.namespace}/still"].fired_at is None
    assert stage.run(calls.task(by_name[f"{stage.namespace}/mail"].fired_task)).state == "ready"
    assert not [line for line in operator.lines() if "schedules.failed" in line.get("message", "")]
    told = {"namespace": stage.namespace, "database": "main"}
    until(lambda: operator.metric("poolkeeper_schedule_slots_fired_total", **told) >= 1)
    assert operator.metric("poolkeeper_schedule_late_seconds", **told) < 60
    stage.kubectl("delete", "workerpool,taskqueue,database", "--all")
    until(lambda: "poolkeeper_schedule_late_seconds{" not in operator.fetch("/metrics")[1])


@pytest.mark.wide
def test_a_schedule_that_waits_causes_no_write(stage, operator, audit):
    """Q34, F22: its next slot comes nearer with every reading, which is no reason to look at its queue."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    how: dict[str, Any] = {"cron": "0 0 1 1 *", "zone": "UTC", "catch_up": "latest", "catch_up_limit": 1, "who": "test"}
    name = f"{stage.namespace}/mail"
    assert stage.run(calls.set_schedule(name, "yearly", task={"type": "mail.send"}, **how)).code is None
    until(lambda: stage.run(calls.schedules())[0].due_at, what="it is counted")
    until(lambda: not stage.quiet(audit), timeout=120, what="ticks without a write")
    assert operator.metric("poolkeeper_schedule_late_seconds", namespace=stage.namespace, database="main") == 0


def test_a_database_that_goes_while_it_is_read_leaves_nothing_behind(stage, operator):
    """A10: the reading that was under way tells its figures before they are forgotten, not after."""
    stage.apply(stage.db(tickInterval="1s"), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    told = {"namespace": stage.namespace, "database": "main"}
    until(lambda: operator.metric("poolkeeper_schedule_late_seconds", **told) == 0, what="a reading told of it")
    with psycopg.connect(stage.database.dsn) as conn:
        conn.execute("LOCK TABLE poolkeeper.pool IN ACCESS EXCLUSIVE MODE")
        waiting = "SELECT count(*) FROM pg_locks AS l WHERE NOT l.granted AND l.relation = 'poolkeeper.pool'::regclass"
        until(lambda: conn.execute(waiting).fetchone() != (0,), what="a reading waits")
        stage.kubectl("delete", "database", "main", "--wait=false")
        time.sleep(1)  # it is being let go; nothing tells of that
    time.sleep(2)  # the reading that waited has ended, or was ended
    assert "poolkeeper_schedule_late_seconds{" not in operator.fetch("/metrics")[1]
