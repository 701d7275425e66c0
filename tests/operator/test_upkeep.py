"""The operator does the store's upkeep: what is old goes, and what is discarded for its age is told (Q52)."""

import pytest

from fixtures.stage import until
from poolkeeper.policy import QueuePolicy
from poolkeeper.store import calls, run

OLD = """
    WITH made AS (
        INSERT INTO poolkeeper.task (id, queue_id, type, tenant, priority, accepted_at, run_at, payload, submitted_by)
        SELECT poolkeeper.id_floor(now() - age), %(queue)s, 'a.b', 'default', 4, now() - age, now() - age, '1', 'test'
        FROM (VALUES (interval '40 days'), (interval '41 days'), (interval '100 days')) AS x (age) RETURNING id, accepted_at
    ), ended AS (
        INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version)
        SELECT id, %(queue)s, accepted_at, 'canceled', 2 FROM made WHERE accepted_at > now() - interval '90 days'
    )
    INSERT INTO poolkeeper.dead (task_id, queue_id, priority, lane, type_key, ready_at, died_at, reason, delivery, state_version,
                                 spent, failures, expiries, hand_backs, snoozes, waits)
    SELECT id, %(queue)s, 4, 0, 0, accepted_at, accepted_at, 'max_age', 0, 2, 0, 0, 0, 0, 0, 0 FROM made WHERE accepted_at < now() - interval '90 days'
"""


@pytest.mark.wide
def test_what_is_old_goes_and_a_letter_that_goes_is_told(stage, start_operator):
    """Two ended tasks are removed; of a dead letter that nobody looked at there are an event, a metric and a line of the log."""
    with stage.database.connect() as conn:
        policy = QueuePolicy().to_store()
        queue = run(conn, calls.apply_policy("local", "default", "default", "old", policy, who="test")).queue_id
        conn.execute(OLD, {"queue": queue})
        operator = start_operator().wait_ready()
        stage.apply(stage.db(), stage.queue("mail"))
        until(lambda: conn.execute("SELECT count(*) FROM poolkeeper.task").fetchone() == (1,))
        query = "SELECT kind, actor FROM poolkeeper.event"
        assert conn.execute(query).fetchall() == [("discarded", "poolkeeper")]
    told = {"namespace": stage.namespace}
    until(lambda: operator.metric("poolkeeper_retention_removed_total", kind="tasks", **told) == 2)
    until(lambda: operator.metric("poolkeeper_retention_removed_total", kind="dead_letters", **told) == 1)
    assert [line for line in operator.lines() if "1 dead letters were discarded" in line.get("message", "")]


@pytest.mark.wide
def test_a_broken_invariant_is_told_by_a_metric_and_a_line_of_the_log(stage, start_operator):
    """Q61: the operator audits as a part of its upkeep; a database in which nothing is broken shows no series."""
    with stage.database.connect() as conn:
        run(conn, calls.apply_policy("local", "default", "default", "old", QueuePolicy().to_store(), who="test"))
        run(conn, calls.submit("old", "a.b", 1))
        verdict = run(conn, calls.submit("old", "a.b", 2))
        conn.execute("DELETE FROM poolkeeper.ready WHERE task_id = %s", [verdict.task_id])
    operator = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail"))
    told = {"namespace": stage.namespace}
    until(lambda: operator.metric("poolkeeper_audit_tasks_total", **told) == 2)
    invariant = "every task is in exactly one place"
    until(lambda: operator.metric("poolkeeper_audit_violations", invariant=invariant, **told) == 1)
    lines = [line["message"] for line in operator.lines() if "audit.broken" in line.get("message", "")]
    assert [line for line in lines if invariant in line and str(verdict.task_id) in line]
    stage.kubectl("delete", "taskqueue,database", "--all")
    until(lambda: operator.metric("poolkeeper_audit_violations", invariant=invariant, **told) == 0)
