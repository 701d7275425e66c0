"""Migrations: once, in order, together or not at all, noticed when they were changed (contract 18)."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fixtures.postgres import Database
from poolkeeper.codes import Code
from poolkeeper.errors import Unavailable
from poolkeeper.store import calls, migrate, run


def quiet(_: object) -> None:
    """Say nothing."""


def test_an_empty_database_gets_everything_and_then_nothing(empty_database: Database) -> None:
    """Contract 18: safe to run again."""
    with empty_database.connect() as conn:
        assert [m.name for m in migrate.plan(conn)] == [*(m.name for m in migrate.migrations()), "functions"]
        said: list[object] = []
        assert migrate.apply(conn, say=said.append) == len(migrate.migrations()) + 1
        assert any("0001" in str(line) for line in said)
        assert migrate.plan(conn) == []
        assert migrate.apply(conn, say=quiet) == 0
        assert run(conn, calls.installation()).schema_version in migrate.SUPPORTED


def test_two_migrators_at_once_do_the_work_of_one(empty_database: Database) -> None:
    """Contract 18: the second waits and finds nothing to do."""
    with empty_database.connect() as a, empty_database.connect() as b, ThreadPoolExecutor(2) as pool:
        steps = list(pool.map(lambda c: migrate.apply(c, say=quiet), (a, b)))
    assert sorted(steps) == [0, len(migrate.migrations()) + 1]


def test_a_migration_that_was_changed_is_noticed(database: Database) -> None:
    """Contract 18: by its checksum, naming it; nothing runs."""
    with database.connect() as conn:
        conn.execute("UPDATE poolkeeper.migration SET checksum = 'other' WHERE version = 1")
        with pytest.raises(Unavailable, match="0001") as caught:
            migrate.apply(conn, say=quiet)
        assert caught.value.code is Code.SCHEMA_TOO_OLD


def test_a_newer_schema_is_refused_with_the_remedy(database: Database) -> None:
    """Contract 18: an older program does not touch it."""
    with database.connect() as conn:
        conn.execute("INSERT INTO poolkeeper.migration (version, name, checksum) VALUES (999, '0999_future.sql', 'x')")
        with pytest.raises(Unavailable, match="upgrade poolkeeper") as caught:
            migrate.plan(conn)
        assert caught.value.code is Code.SCHEMA_TOO_NEW


def test_changed_functions_are_replaced_alone(database: Database) -> None:
    """Contract 18: no migration runs again."""
    with database.connect() as conn:
        conn.execute("UPDATE poolkeeper.functions SET checksum = 'other'")
        assert [m.name for m in migrate.plan(conn)] == ["functions"]
        assert migrate.apply(conn, say=quiet) == 1
        assert migrate.plan(conn) == []


def test_functions_can_be_replaced_on_a_used_database(database: Database) -> None:
    """Contract 18: with tasks in every place, which stay as they are."""
    with database.connect() as conn:
        run(conn, calls.apply_policy("local", "default", "default", "q", {}, who="t"))
        for _ in range(3):
            run(conn, calls.submit("q", "a.b", 1))
        session = run(conn, calls.register_session("local/p", ["q"], ["a.b"], concurrency=1, info={}))
        assert len(run(conn, calls.turn(session, 1, 0, [], 1)).claimed) == 1
        conn.execute("UPDATE poolkeeper.functions SET checksum = 'other'")
        migrate.apply(conn, say=quiet)
        assert len(run(conn, calls.turn(session, 2, 1, [], 5)).claimed) == 2


def test_a_step_that_fails_leaves_nothing_behind(empty_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 18: all or nothing, in one transaction."""
    whole = migrate.migrations()
    broken = migrate.Migration(whole[-1].version, whole[-1].name, "x", "SELECT no_such_function()")
    monkeypatch.setattr(migrate, "migrations", lambda: [*whole[:-1], broken])
    with empty_database.connect() as conn:
        with pytest.raises((psycopg.Error, Unavailable)):
            migrate.apply(conn, say=quiet)
        assert conn.execute("SELECT to_regnamespace('poolkeeper')").fetchone() == (None,)


def test_migrations_are_numbered_without_gaps_up_to_what_is_supported() -> None:
    """Contract 18: the supported range ends with the newest migration."""
    versions = [m.version for m in migrate.migrations()]
    assert versions == list(range(1, len(versions) + 1))
    assert migrate.SUPPORTED.stop - 1 == versions[-1]


@pytest.mark.parametrize(
    ("version", "code"), [(None, Code.SCHEMA_TOO_OLD), (0, Code.SCHEMA_TOO_OLD), (999, Code.SCHEMA_TOO_NEW)]
)
def test_programs_only_check_and_name_the_command(version: int | None, code: Code) -> None:
    """Contract 18: no DDL by workers."""
    with pytest.raises(Unavailable, match="poolkeeper") as caught:
        migrate.check_version(version)
    assert caught.value.code is code
    migrate.check_version(migrate.SUPPORTED.stop - 1)


def test_a_schema_that_is_not_there_is_told_with_the_command(empty_database: Database) -> None:
    """Contract 18: the first call of a worker on an empty database."""
    with empty_database.connect() as conn, pytest.raises(Unavailable, match="migrate --apply") as caught:
        run(conn, calls.installation())
    assert caught.value.code is Code.SCHEMA_TOO_OLD


def test_each_installation_has_an_id_and_keys_of_its_own(empty_database: Database, database: Database) -> None:
    """Contract 1: two installations are never taken for one."""
    with empty_database.connect() as one, database.connect() as other:
        migrate.apply(one, say=quiet)
        rows = [
            c.execute("SELECT id, digest_inner, digest_outer FROM poolkeeper.instance").fetchone() for c in (one, other)
        ]
    assert rows[0] is not None
    assert rows[1] is not None
    assert not set(rows[0]) & set(rows[1])
