"""Without an operator a worker does the store's upkeep, beside its work (Q52)."""

import pytest

from fixtures.postgres import Database
from fixtures.workers import Stage, eventually

OLD = """
    WITH made AS (
        INSERT INTO poolkeeper.task (id, queue_id, type, tenant, priority, accepted_at, run_at, payload, submitted_by)
        SELECT poolkeeper.id_floor(now() - interval '40 days' + make_interval(secs => n)), 1, 'a.b', 'default', 4, now(), now(), '1', 'test'
        FROM generate_series(1, 500) AS n RETURNING id
    )
    INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version)
    SELECT id, 1, now() - interval '40 days', 'canceled', 2 FROM made
"""


@pytest.mark.wide
def test_a_handler_that_cancels_what_is_not_its_own_ends_no_upkeep(stage: Stage, database: Database) -> None:
    """Q47: it is cancelled within the seconds before its first page, and begins all the same."""
    worker = stage.worker(app="hostile:app").ready()
    stage.ends(stage.submit("h.loop", "cancel_all"))
    with database.connect() as conn:
        conn.execute(OLD)
        eventually(
            lambda: conn.execute("SELECT count(*) FROM poolkeeper.task WHERE submitted_by = 'test'").fetchone() == (0,),
            "old tasks go",
            120.0,
        )
    worker.process.terminate()
    assert worker.wait() == 0, worker.log


@pytest.mark.wide
def test_a_worker_outside_of_a_pod_removes_what_is_old(stage: Stage, database: Database) -> None:
    """Page by page until nothing is left, and it works and drains as ever; in a pod it leaves that to the operator."""
    in_a_pod = stage.worker({"POOLKEEPER_POD_NAME": "agents-1"}).ready()
    with database.connect() as conn:
        conn.execute(OLD)
        worker = stage.worker().ready()
        task = stage.submit("t.noop")
        count = (
            "SELECT count(*) FROM poolkeeper.task WHERE accepted_at < run_at + interval '1 s' AND submitted_by = 'test'"
        )
        eventually(lambda: conn.execute(count).fetchone() == (0,), "500 old tasks go", 60.0)
    stage.ends(task)
    assert ["does the store's upkeep" in one.log for one in (worker, in_a_pod)] == [True, False]
    for one in (worker, in_a_pod):
        one.process.terminate()
        assert one.wait() == 0, one.log
