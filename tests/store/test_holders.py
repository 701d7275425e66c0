"""Who is in the way: the upkeep ends who keeps a limit from others, `doctor` names who keeps vacuum from its work; nobody else (Q51, Q61)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from fixtures.postgres import Database
from poolkeeper.store import calls, connect, run
from store.scene import Scene, await_blocked, meanwhile

LIMITS = ("queue", "pool", "lane", "gate")
ENDER = "CREATE OR REPLACE FUNCTION public.ender(_longer interval) RETURNS integer LANGUAGE sql SECURITY DEFINER AS 'SELECT poolkeeper.end_holders(_longer)'"


def rows_of(database: Database, owner: psycopg.Connection[Any]) -> str:
    """The DSN of a login that may lock rows, of another name than the owner's."""
    login = sql.Identifier(database.login("nobody"))
    owner.execute(
        sql.SQL("GRANT USAGE ON SCHEMA poolkeeper TO {0}; GRANT ALL ON ALL TABLES IN SCHEMA poolkeeper TO {0}").format(
            login
        )
    )
    return database.dsn_as("nobody")


@pytest.fixture
def twin(pg_template: Callable[[], Database]) -> Iterator[Database]:
    """Another installation on the same server; its tables have the same numbers as ours, since both are clones."""
    made = pg_template()
    yield made
    made.drop()


@pytest.fixture
def powers(scene: Scene) -> Iterator[str]:
    """Such a login, for as long as a test lasts."""
    yield rows_of(scene.database, scene.owner)
    scene.owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(scene.database.login("nobody"))))


@pytest.fixture
def opened() -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """Opens a transaction and leaves it so."""
    with ExitStack() as stack:

        def open_(dsn: str, *statements: str, name: str = "") -> psycopg.Connection[Any]:
            conn = connect(dsn, autocommit=False)
            stack.callback(conn.close)
            conn.execute("SET application_name = '" + name + "'")
            conn.commit()
            for statement in statements:
                conn.execute(statement)
            return conn

        yield open_


def alive(conn: psycopg.Connection[Any]) -> bool:
    try:
        conn.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def lock(table: str) -> str:
    return f"SELECT 1 FROM poolkeeper.{table} FOR NO KEY UPDATE"


@pytest.mark.parametrize("how", ["FOR KEY SHARE", "update"])
@pytest.mark.parametrize("table", LIMITS)
def test_who_holds_a_limit_for_long_is_ended(
    scene: Scene, powers: str, opened: Callable[..., psycopg.Connection[Any]], table: str, how: str
) -> None:
    """Q51: by a lock, or by a change of its row; once it has lasted."""
    column = {"pool": "max_running = 1"}.get(table, f"{'id' if table == 'queue' else 'queue_id'} = DEFAULT")
    deed = (
        f"UPDATE poolkeeper.{table} SET {column} WHERE false"
        if how == "update"
        else f"SELECT 1 FROM poolkeeper.{table} {how}"
    )
    held = opened(powers, deed)
    assert scene.value("SELECT poolkeeper.end_holders('1 hour')") == 0
    assert alive(held)
    assert scene.value("SELECT poolkeeper.end_holders('0')") == 1
    assert not alive(held)


def test_nobody_else_is_ended(
    scene: Scene, powers: str, opened: Callable[..., psycopg.Connection[Any]], twin: Database
) -> None:
    """Q51: who looks, holds tasks, waits, holds what is another installation's, owns this one, or is the upkeep itself."""
    with twin.connect() as conn:
        theirs = rows_of(twin, conn)
    innocent = [
        opened(powers, "SELECT 1 FROM poolkeeper.queue"),
        opened(powers, lock("task"), lock("lease"), "SELECT 1 FROM poolkeeper.pool"),
        opened(theirs, *(lock(table) for table in LIMITS)),
        opened(scene.database.dsn, *(lock(table) for table in LIMITS)),
        opened(powers, "SELECT pg_advisory_xact_lock('poolkeeper.queue'::regclass::oid::bigint)"),
    ]
    assert scene.value("SELECT poolkeeper.end_holders('0')") == 0
    assert all(alive(conn) for conn in innocent)
    for conn in innocent:
        conn.rollback()
    scene.owner.execute(ENDER)
    upkeep = opened(powers, lock("queue"))
    assert upkeep.execute("SELECT public.ender('0')").fetchone() == (0,)
    upkeep.rollback()
    waits = opened(powers)
    with scene.connect("owner", autocommit=False) as holds:
        holds.execute("LOCK TABLE poolkeeper.gate IN ACCESS EXCLUSIVE MODE")
        with meanwhile(lambda: waits.execute(lock("gate"))):
            try:
                await_blocked(scene)
                ended = scene.value("SELECT poolkeeper.end_holders('0')")
            finally:
                holds.rollback()
    assert ended == 0
    assert alive(waits)
    scene.owner.execute("DROP FUNCTION public.ender(interval)")


def doctor(scene: Scene) -> dict[str, Any]:
    told: dict[str, Any] = scene.value("SELECT poolkeeper.doctor()")
    return told


def test_who_does_nothing_with_rows_in_hand_is_named(
    scene: Scene, powers: str, opened: Callable[..., psycopg.Connection[Any]], twin: Database
) -> None:
    """Q61: with the tables; not who looks, who works, who holds others' tables, or another installation's of the same numbers."""
    scene.owner.execute(
        "CREATE TABLE IF NOT EXISTS public.other (n integer); GRANT ALL ON public.other TO PUBLIC; INSERT INTO public.other VALUES (1)"
    )
    assert doctor(scene)["idle"] == []
    idle = opened(
        powers,
        lock("queue"),
        "UPDATE poolkeeper.task SET priority = 1 WHERE false",
        "SELECT 1 FROM poolkeeper.pool",
        "SELECT 1 FROM public.other FOR UPDATE",
        name="mine",
    )
    opened(powers, "SELECT 1 FROM poolkeeper.queue")
    opened(powers, "SELECT 1 FROM public.other FOR KEY SHARE SKIP LOCKED")
    opened(twin.dsn, lock("queue"))
    works = opened(powers, lock("pool"))
    scene.owner.execute("SELECT pg_advisory_lock(77)")
    with meanwhile(lambda: works.execute("SELECT pg_advisory_xact_lock(77)")):
        try:
            await_blocked(scene)
            named = doctor(scene)["idle"]
        finally:
            scene.owner.execute("SELECT pg_advisory_unlock(77)")
    (told,) = named
    assert (told["pid"], told["application"], sorted(told["tables"])) == (
        idle.info.backend_pid,
        "mine",
        ["queue", "task"],
    )
    idle.rollback()


def test_who_keeps_vacuum_from_its_work_is_named(
    scene: Scene, powers: str, opened: Callable[..., psycopg.Connection[Any]], twin: Database
) -> None:
    """Q14, Q61: a snapshot or a transaction of this database; not a session without, a slot or a standby that holds nothing, nor ourselves."""
    slot = f"pk_{uuid4().hex[:12]}"
    scene.owner.execute(f"SELECT pg_create_physical_replication_slot('{slot}')")
    try:
        snapshot = opened(powers, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1", name="snapshot")
        writer = opened(powers, "SELECT pg_current_xact_id()", name="writer")
        opened(powers, "SELECT 1", name="nothing")
        opened(twin.dsn, "SELECT pg_current_xact_id()", name="elsewhere")
        with psycopg.connect(scene.database.dsn, autocommit=True, replication="true", application_name="standby"):
            told = scene.value("SELECT poolkeeper.vacuum_holders()")
        assert {(one["kind"], one["name"], one["application"]) for one in told} == {
            ("session", str(conn.info.backend_pid), name) for conn, name in ((snapshot, "snapshot"), (writer, "writer"))
        }
    finally:
        scene.owner.execute(f"SELECT pg_drop_replication_slot('{slot}')")


def test_the_installations_own_figures(
    scene: Scene, powers: str, opened: Callable[..., psycopg.Connection[Any]]
) -> None:
    """Q61, Q51: logins that are gone, what lives of which version, when it was tended, and the oldest transaction."""
    scene.owner.execute("INSERT INTO poolkeeper.access (role) VALUES ('gone'), ('also-gone') ON CONFLICT DO NOTHING")
    for version in ("1", "1", "2"):
        scene.worker(version=version)
    scene.worker(version="2").end()
    scene.worker()
    run(scene.actor("operator"), calls.maintain())
    scene.owner.execute(
        "INSERT INTO poolkeeper.retention_walk (kind, began_at) VALUES ('old', 'epoch') ON CONFLICT (kind) DO NOTHING"
    )
    scene.advance(5)
    with scene.owner.transaction():
        scene.owner.execute("SELECT 1")  # ourselves are older, and not named
        old = opened(powers, "SELECT 1", name="old")
        opened(powers, "SELECT 1", name="young")
        age = scene.value(
            "SELECT extract(epoch FROM clock_timestamp() - a.xact_start) FROM pg_stat_activity AS a WHERE a.pid = %s",
            old.info.backend_pid,
        )
        told = doctor(scene)
    assert (told["nobody"], told["versions"], told["months_missing"]) == (2, {"1": 2, "2": 1, "unknown": 1}, [])
    assert 5 <= told["upkeep_ago"] < 300
    assert timedelta(seconds=told["clock_ahead"]) >= timedelta(seconds=4)
    # others of this server may be older still
    assert told["oldest"]["seconds"] >= age
    assert told["oldest"]["pid"] != scene.owner.info.backend_pid
    scene.owner.execute("DELETE FROM poolkeeper.access WHERE role IN ('gone', 'also-gone')")


def test_months_that_are_over_are_not_missing(scene: Scene) -> None:
    """Q61: those that are named are not there, and will be needed."""
    with scene.owner.transaction(force_rollback=True):
        scene.owner.execute("UPDATE poolkeeper.clock_offset SET by = by + interval '70 days'")
        missing = doctor(scene)["months_missing"]
        assert missing
        assert [name for name in missing if scene.value("SELECT to_regclass('poolkeeper.' || %s)", name)] == []


def test_who_has_no_transaction_is_not_the_oldest(scene: Scene) -> None:
    """Q61: where nobody has one, nobody is told."""
    for _ in range(5):
        oldest = doctor(scene)["oldest"]
        assert oldest is None or oldest["seconds"] is not None


def test_what_a_standby_holds_is_told_once(scene: Scene) -> None:
    """Q61: as a standby's, not as a session's as well."""
    with psycopg.connect(scene.database.dsn, replication="database", application_name="copying") as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT pg_current_xact_id()")
        mine = [one["kind"] for one in doctor(scene)["holders"] if one["name"] == str(conn.info.backend_pid)]
    assert mine == ["standby"]


def test_who_has_only_looked_holds_nothing(
    scene: Scene, powers: str, opened: Callable[..., psycopg.Connection[Any]]
) -> None:
    """Q61: whatever it is isolated from."""
    scene.submit()
    opened(
        powers,
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SELECT 1 FROM poolkeeper.task",
        "SELECT 1 FROM poolkeeper.queue WHERE id = 1",
    )
    assert doctor(scene)["idle"] == []
