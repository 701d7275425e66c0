"""Contract 4, Q15, F11: which connections a worker has, and that a rotated secret reaches them."""

from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from fixtures.workers import Stage, eventually
from poolkeeper import Client


def _names(stage: Stage) -> list[str]:
    with psycopg.connect(stage.dsn, application_name="observer") as conn:
        rows = conn.execute(
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND application_name NOT IN ('observer', 'poolkeeper') ORDER BY 1"
        ).fetchall()
    return [row[0] for row in rows]


def test_a_worker_has_two_connections(stage: Stage) -> None:
    """F11: one for turns and checkpoints, one for renewals and notifications; also with a child process at work."""
    stage.worker().ready()
    task = stage.submit("t.hold_process", "go")
    stage.note("in", task)
    assert _names(stage) == ["poolkeeper renewal", "poolkeeper worker"]
    stage.release("go")


def test_a_rotated_dsn_file_reaches_a_running_worker(stage: Stage, tmp_path: Path) -> None:
    """Contract 4: read at each new connection; a file that is gone for a moment is waited for."""
    file = tmp_path / "dsn"
    file.write_text(make_conninfo(stage.dsn, application_name="first"))
    worker = stage.worker({"POOLKEEPER_DSN_FILE": str(file), "POOLKEEPER_DSN": "postgresql://127.0.0.1:1/none"}).ready()
    task = stage.submit("t.hold", "go")
    stage.note("in", task)
    assert _names(stage) == ["first", "first"]
    file.unlink()
    _end_connections(stage)
    eventually(lambda: "dsn" in worker.log and "cannot be read" in worker.log, "the worker says what it misses")
    file.write_text(make_conninfo(stage.dsn, application_name="second"))
    eventually(lambda: _names(stage) == ["second", "second"], "both connections are new")
    stage.release("go")
    assert stage.ends(task).deliveries == 1


def test_behind_a_transaction_pooler_it_polls_and_listens_on_the_direct_way_if_there_is_one(stage: Stage) -> None:
    """Q15: the wire is the same here; what is checked is which connection is used, and that work goes on without LISTEN."""
    worker = stage.worker({"POOLKEEPER_POOLER": "transaction"}).ready()
    stage.ends(stage.submit("t.count"))
    assert worker.process.poll() is None
    worker.process.terminate()
    assert worker.wait() == 0
    direct = make_conninfo(stage.dsn, application_name="direct")
    stage.worker({"POOLKEEPER_POOLER": "transaction", "POOLKEEPER_DIRECT_DSN": direct}).ready()
    eventually(lambda: _names(stage) == ["direct", "poolkeeper worker"], "renewals go the direct way")
    stage.ends(stage.submit("t.count"))


def test_a_client_prepares_its_submit_where_the_backend_is_its_own(stage: Stage) -> None:
    """F2: once, however many it submits; what it is through a pooler is told by test_pooler."""
    with Client(dsn=stage.dsn) as client:
        for n in range(20):
            client.submit("default/q", "t.count", n)
        assert client._own is not None
        assert client._own.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (1,)


def _end_connections(stage: Stage) -> None:
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
