"""`poolkeeper doctor` on real databases: what is broken is found, named and given a remedy (Q61, Q17, Q51, contract 2)."""

import json
import os
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fixtures.poolers import pooled
from fixtures.postgres import ROLE_KINDS, Database
from fixtures.workers import eventually
from lab.postgres import Server
from poolkeeper.cli import run as command
from poolkeeper.doctor import CHECKS, Finding, Verdict, examine, sessions
from poolkeeper.store import calls, connect, migrate, run

UNSEEN = {
    "functions",
    "access",
    "store clock",
    "vacuum",
    "idle in transaction",
    "months",
    "upkeep",
    "schedules",
    "worker versions",
}
"""What a login of workers or submitters may not look at."""


@pytest.fixture
def database(database: Database) -> Database:
    """One that was tended just now, not when its template was made, which may be long ago in this run."""
    with database.connect() as conn:
        conn.execute("SELECT poolkeeper.maintain()")
    return database


def found(dsn: str) -> dict[str, Finding]:
    """The findings by name."""
    with connect(dsn) as conn:
        return {one.check: one for one in examine(conn)}


def bad(findings: dict[str, Finding]) -> dict[str, Verdict]:
    """Those that are not well; the test server's own lack of durability apart."""
    return {
        name: one.verdict for name, one in findings.items() if one.verdict is not Verdict.OK and name != "durability"
    }


def allow(database: Database, kind: str) -> str:
    """The DSN of a login with its row in poolkeeper.access."""
    dsn = database.dsn_as(kind)
    with database.connect() as conn:
        conn.execute("INSERT INTO poolkeeper.access (role) VALUES (%s) ON CONFLICT DO NOTHING", [database.login(kind)])
    return dsn


def test_a_store_that_is_well_exits_with_0(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 2: each check says so in a sentence, for people and for programs."""
    assert command(["doctor", "--dsn", server.dsn(), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["check"], one["verdict"]) for one in told] == [(name, "ok") for name, _, _ in CHECKS]
    assert all(one["sentence"] and not one["remedy"] for one in told)
    assert command(["doctor", "--dsn", server.dsn()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS)
    assert all(line.startswith("ok ") for line in lines)


@pytest.mark.parametrize("kind", ROLE_KINDS)
def test_every_login_may_ask_and_is_told_what_it_may_not_see(database: Database, kind: str) -> None:
    """Q61: with the right that is missing; readers, people and the operator see everything, unless they are limited."""
    dsn = allow(database, kind)
    findings = found(dsn)
    hidden = set() if kind in {"reader", "person", "operator"} else UNSEEN
    assert bad(findings) == dict.fromkeys(hidden, Verdict.UNSEEN)
    assert all("poolkeeper_reader" in findings[name].remedy for name in hidden)
    with database.connect() as conn:
        conn.execute("UPDATE poolkeeper.access SET tenants = '{a}'")
    assert bad(found(dsn)) == dict.fromkeys(UNSEEN, Verdict.UNSEEN)
    with database.connect() as conn:
        conn.execute("DELETE FROM poolkeeper.access")
    assert bad(found(dsn))["login"] is Verdict.FAULT


def test_a_login_without_any_right_and_a_database_without_the_schema(empty_database: Database) -> None:
    """Contract 2: faults with the command that mends them, not errors."""
    findings = found(empty_database.dsn)
    assert findings["schema"].verdict is Verdict.FAULT
    assert "poolkeeper migrate --apply" in findings["schema"].remedy
    nobody = found(empty_database.dsn_as("nobody"))
    assert nobody["schema"].verdict is Verdict.FAULT
    assert nobody["server version"].verdict is Verdict.OK


def test_an_owner_who_sees_no_other_session_is_told_so(empty_database: Database) -> None:
    """Q51: what cannot be seen is no clean bill of health; with the right it is."""
    login = empty_database.login("nobody")
    with empty_database.connect() as conn:
        for statement in ("GRANT CREATE ON DATABASE {} TO {}", "ALTER DATABASE {} OWNER TO {}"):
            conn.execute(sql.SQL(statement).format(sql.Identifier(empty_database.name), sql.Identifier(login)))
        conn.execute(sql.SQL("ALTER ROLE {} CREATEROLE").format(sql.Identifier(login)))
    dsn = empty_database.dsn_as("nobody")
    with connect(dsn) as conn:
        migrate.apply(conn, say=lambda _line: None)
    findings = found(dsn)
    assert bad(findings) == {"vacuum": Verdict.UNSEEN, "idle in transaction": Verdict.UNSEEN}
    assert "GRANT pg_read_all_stats" in findings["vacuum"].remedy
    with empty_database.connect() as conn:
        conn.execute(sql.SQL("GRANT pg_read_all_stats TO {}").format(sql.Identifier(login)))
    assert bad(found(dsn)) == {}


QUICK = {"a right that is gone", "slow statements", "a month that is missing", "a clock of tests"}
FUTURE = "ffffffff-ffff-7000-8000-000000000000"
SCHEDULE = """
    SELECT FROM poolkeeper.apply_policy('local', 'default', 'default', 'q', '{{}}', 'test');
    INSERT INTO poolkeeper.schedule (queue_id, tenant, name, cron, zone, catch_up, catch_up_limit, task, set_by, set_at, counted_to, look_at, refused)
    SELECT q.id, 'default', 'tick', '* * * * *', 'UTC', 'all', 1, '{{}}', 'test', now(), now(), """
BREAKS: dict[str, tuple[str, str, Verdict, str]] = {
    "functions of another release": ("UPDATE poolkeeper.functions SET checksum = 'x'", "functions", Verdict.WARNING, "another release"),
    "another text": ("UPDATE poolkeeper.migration SET checksum = 'x' WHERE version = 1", "functions", Verdict.FAULT, "migration 1"),
    "a newer schema": ("INSERT INTO poolkeeper.migration VALUES (99, 'x', 'x')", "schema", Verdict.FAULT, "99"),
    "a right that is gone": ("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA poolkeeper FROM poolkeeper_worker", "rights", Verdict.FAULT, "poolkeeper_worker: register_session"),
    "an open table": ("GRANT SELECT ON poolkeeper.task TO poolkeeper_reader", "rights", Verdict.FAULT, "task"),
    "an open function": ("GRANT EXECUTE ON FUNCTION poolkeeper.payload_digest(jsonb) TO PUBLIC", "rights", Verdict.FAULT, "payload_digest"),
    "a foreign owner": ("ALTER FUNCTION poolkeeper.payload_digest(jsonb) OWNER TO poolkeeper_reader", "owner", Verdict.FAULT, "payload_digest"),
    "a login that is gone": ("INSERT INTO poolkeeper.access (role) VALUES ('gone')", "access", Verdict.WARNING, "1 rows"),
    "isolation": ("ALTER DATABASE {db} SET default_transaction_isolation = 'repeatable read'", "primary", Verdict.FAULT, "repeatable read"),
    "read-only": ("ALTER DATABASE {db} SET default_transaction_read_only = on", "primary", Verdict.FAULT, "read-only"),
    "slow statements": ("ALTER DATABASE {db} SET log_min_duration_statement = 100", "recorded parameters", Verdict.WARNING, "log_min_duration_statement = 100"),
    "all statements": ("ALTER DATABASE {db} SET log_statement = 'all'", "recorded parameters", Verdict.WARNING, "log_statement = all"),
    "errors": ("ALTER DATABASE {db} SET log_parameter_max_length_on_error = 80", "recorded parameters", Verdict.WARNING, "on_error = 80"),
    "statements of one login": ("ALTER ROLE {worker} SET log_min_duration_statement = '1s'", "recorded parameters", Verdict.WARNING, '_worker")'),
    "no autovacuum": ("ALTER TABLE poolkeeper.ready SET (autovacuum_enabled = false)", "autovacuum", Verdict.FAULT, "ready"),
    "an invalid index": ("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'poolkeeper.dead_queue'::regclass", "indexes", Verdict.FAULT, "dead_queue"),
    "a month that is missing": ("DROP TABLE poolkeeper.event_standard_{month}", "months", Verdict.WARNING, "event_standard_"),
    "rows outside of months": (f"INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version) VALUES ('{FUTURE}', 1, now(), 'woke', 1)", "months", Verdict.WARNING, "1 rows of event"),
    "no upkeep": ("DELETE FROM poolkeeper.retention_walk", "upkeep", Verdict.FAULT, "never"),
    "old upkeep": ("UPDATE poolkeeper.retention_walk SET began_at = now() - interval '1 hour'", "upkeep", Verdict.WARNING, "60 min"),
    "no upkeep for days": ("UPDATE poolkeeper.retention_walk SET began_at = now() - interval '3 days'", "upkeep", Verdict.FAULT, "72 h"),
    "a slot that nobody fires": (f"{SCHEDULE} now() - interval '3 minutes', NULL FROM poolkeeper.queue AS q", "schedules", Verdict.FAULT, "default/q tick"),
    "a slot that is refused": (f"{SCHEDULE} now() + interval '1 minute', 'queue_limit' FROM poolkeeper.queue AS q", "schedules", Verdict.WARNING, "1 could not"),
    "a clock of tests": ("CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() + interval ''1 hour'''", "store clock", Verdict.FAULT, "3600 s"),
    "a full login": ("ALTER ROLE {reader} CONNECTION LIMIT 1", "connections", Verdict.FAULT, "1 of 1"),
    "a nearly full database": ("ALTER DATABASE {db} CONNECTION LIMIT 2", "connections", Verdict.FAULT, "2 of 2"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.wide) for name in BREAKS]
)
def test_what_is_broken_is_found_and_nothing_else(database: Database, name: str) -> None:
    """Q61: nothing before; after it this check, with a sentence that names it and a remedy. Q17: settings that record parameters."""
    statement, check, verdict, words = BREAKS[name]
    dsn = allow(database, "reader")
    allow(database, "worker")
    assert bad(found(dsn)) == {}
    with database.connect() as conn:
        month = conn.execute("SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 month', 'YYYYMM')").fetchone()
        assert month is not None
        filled = statement.format(
            db=f'"{database.name}"',
            worker=f'"{database.login("worker")}"',
            reader=f'"{database.login("reader")}"',
            month=month[0],
        )
        conn.execute(filled.encode())
        one = found(dsn)[check]
        if "ROLE" in statement:
            conn.execute(sql.SQL("ALTER ROLE {} RESET ALL").format(sql.Identifier(database.login("worker"))))
    assert one.verdict is verdict
    assert words in one.sentence
    assert one.remedy


def test_workers_of_another_release_are_counted(database: Database) -> None:
    """Contract 18."""
    dsn = allow(database, "reader")
    with connect(allow(database, "worker")) as conn:
        run(conn, calls.register_session("local/p", ["q"], ["a.b"], concurrency=1, info={"version": "0.0.1"}))
    assert "1 of 0.0.1" in found(dsn)["worker versions"].sentence
    assert bad(found(dsn)) == {"worker versions": Verdict.WARNING}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds anything back does so for too long."""
    monkeypatch.setattr(sessions, "HOLDS_WARNS", 0.0)
    monkeypatch.setattr(sessions, "IDLE_WARNS", 0.0)
    monkeypatch.setattr(sessions, "XIDS_WARN", 0)


@pytest.mark.usefixtures("impatient")
def test_who_keeps_vacuum_back_and_who_holds_rows_is_named(database: Database) -> None:
    """Q51: process, login and application, and the statement that ends it; a session that only reads holds no rows."""
    dsn, worker = allow(database, "reader"), allow(database, "worker")
    with connect(worker, name="a reader of ours", autocommit=False) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT 1")
        findings = found(dsn)
        assert bad(findings) == {"vacuum": Verdict.WARNING}
        assert str(conn.info.backend_pid) in findings["vacuum"].sentence
        assert f"pg_terminate_backend({conn.info.backend_pid})" in findings["vacuum"].remedy
    with connect(worker, name="a worker of ours", autocommit=False) as conn:
        run(conn, calls.register_session("local/p", ["q"], ["a.b"], concurrency=1, info={}))
        one = found(dsn)["idle in transaction"]
        assert one.verdict is Verdict.WARNING
        for words in (str(conn.info.backend_pid), database.login("worker"), "a worker of ours", "session"):
            assert words in one.sentence
        assert f"pg_terminate_backend({conn.info.backend_pid})" in one.remedy


@pytest.mark.wide
@pytest.mark.usefixtures("impatient")
def test_a_prepared_transaction_and_a_standby_that_hold_vacuum_back_are_named() -> None:
    """Q61: whatever holds it back, also what is no session; and a standby is told apart from a primary."""
    with Server(settings={"max_prepared_transactions": "5"}) as primary, connect(primary.dsn()) as conn:
        migrate.apply(conn, say=lambda _line: None)
        conn.execute("BEGIN; DELETE FROM poolkeeper.session; PREPARE TRANSACTION 'left behind'")
        one = found(primary.dsn())["vacuum"]
        assert 'prepared transaction "left behind"' in one.sentence
        assert "ROLLBACK PREPARED 'left behind'" in one.remedy
        conn.execute("ROLLBACK PREPARED 'left behind'")
        with Server(
            standby_of=primary,
            settings={
                "max_prepared_transactions": "5",
                "hot_standby_feedback": "on",
                "wal_receiver_status_interval": "1s",
            },
        ) as standby:
            findings = found(standby.dsn())
            assert findings["primary"].verdict is Verdict.FAULT
            assert findings["schema"].verdict is Verdict.OK
            query = "SELECT count(*) FROM pg_stat_replication WHERE backend_xmin IS NOT NULL"
            eventually(lambda: conn.execute(query.encode()).fetchone() == (1,), "the standby sends feedback")
            one = found(primary.dsn())["vacuum"]
            assert "standby pid" in one.sentence
            assert "hot_standby_feedback" in one.remedy
            assert "1 standbys" in found(primary.dsn())["replication"].sentence
            conn.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            conn.execute("SELECT pg_reload_conf()")
            eventually(
                lambda: "nothing is accepted" in found(primary.dsn())["replication"].sentence,
                "the setting is in force",
            )


@pytest.mark.wide
def test_behind_a_pooler_everything_is_asked_as_well(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """C20: in transaction mode; doctor, audit, and the word about the pooler."""
    dsn = allow(database, "person")
    with pooled(dsn) as (way, _):
        findings = found(way)
        assert bad(findings) == {}
        assert "connection pooler" in findings["connection"].sentence
        assert command(["doctor", "--audit", "--dsn", way]) == 0
        assert "no invariants broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dsn", "code", "status"), [(None, "dsn_missing", 2), ("postgresql://x@127.0.0.1:1/x", "database_unreachable", 5)]
)
@pytest.mark.parametrize("audit", [[], ["--audit"]])
def test_without_a_database_it_is_the_error_of_every_command(
    dsn: str | None,
    code: str,
    status: int,
    audit: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Contract 2."""
    for name in [name for name in os.environ if name.startswith("POOLKEEPER_DSN")]:
        monkeypatch.delenv(name)
    assert command(["doctor", *audit, *(["--dsn", dsn] if dsn else [])]) == status
    assert capsys.readouterr().err.startswith(f"error: {code}: ")


def stocked(database: Database) -> list[Any]:
    """Tasks, every third without its body."""
    with database.connect() as conn:
        run(conn, calls.apply_policy("local", "default", "default", "q", {}, who="test"))
        verdicts = run(conn, calls.submit_many("q", [{"type": "a.b", "payload": n, "key": f"k{n}"} for n in range(30)]))
        gone = [v.task_id for v in verdicts][::3]
        conn.execute("DELETE FROM poolkeeper.task WHERE id = ANY (%s)", [gone])
    return gone


def test_an_audit_names_what_is_broken_and_goes_on_where_it_stopped(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Q61, contract 2: exit code 1, ids only; limited and resumed it sees everything once, and says where to go on."""
    gone = stocked(database)
    argv = ["doctor", "--audit", "--dsn", allow(database, "person")]
    assert command(argv) == 1
    out = capsys.readouterr().out
    assert f"broken: nothing is placed without its body: {2 * len(gone)} times" in out
    assert all(f"  {task_id}" in out for task_id in gone)
    assert "30 tasks and 30 keys: 1 invariants broken" in out
    assert "k0" not in out
    place: list[str] = []
    tasks = keys = violations = 0
    while True:
        assert command([*argv, "--limit", "7", "--output", "json", *place]) in {0, 1}
        told = json.loads(capsys.readouterr().out)
        tasks, keys = tasks + told["tasks"], keys + told["keys"]
        violations += sum(row["violations"] for row in told["broken"])
        if told["done"]:
            break
        place = ["--after", told["after"]]
    assert (tasks, keys, violations) == (30, 30, 2 * len(gone))
    assert command([*argv, "--limit", "7"]) == 1
    assert "go on with: poolkeeper doctor --audit --after 'tasks:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [["--after", "tasks:x", "--audit"], ["--limit", "5"], ["--after", "keys:0"], ["--audit", "--limit", "0"]]
)
def test_what_makes_no_sense_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Contract 2."""
    assert command(["doctor", *argv]) == 2
    assert "Error: " in capsys.readouterr().err


def test_a_login_that_may_not_audit_is_refused(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Q51: workers, and who is limited to tenants."""
    assert command(["doctor", "--audit", "--dsn", allow(database, "worker")]) == 4
    assert capsys.readouterr().err.startswith("error: role_not_allowed: ")
    with psycopg.connect(database.dsn, autocommit=True) as conn:
        dsn = allow(database, "reader")
        conn.execute("UPDATE poolkeeper.access SET tenants = '{a}'")
    assert command(["doctor", "--audit", "--dsn", dsn]) == 4
