"""What `make mutate` does to the databases of a test, those that it makes for itself included (quality 3)."""

from dataclasses import replace

import pytest

from fixtures import postgres
from fixtures.postgres import Database, migrated_template
from lab.postgres import Server
from mutate.guards import Guard, guards
from mutate.mutant import NoMutant, Stage, mutated
from poolkeeper.store import migrate
from poolkeeper.store.statements import sql_file

SAYS = "a pool has no such login"
FILE = "69_logins.sql"


@pytest.fixture
def guard(pg_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Guard:
    """One of a function, on the server of this run."""
    monkeypatch.setenv("POOLKEEPER_TEST_DSN", pg_dsn)
    (found,) = (each for each in guards(FILE, sql_file(f"functions/{FILE}")) if SAYS in each.text)
    return found


def stands(made: Database) -> bool:
    """Whether the guard is in the database, which is up to date either way."""
    with made.connect() as conn:
        assert migrate.plan(conn) == []
        query = "SELECT prosrc FROM pg_proc WHERE proname = 'demand_may_give'"
        (text,) = conn.execute(query).fetchone() or ()
    return SAYS in text


@pytest.mark.parametrize("lasts", [True, False])
def test_each_database_of_a_test_lacks_the_guard(
    guard: Guard, database: Database, empty_database: Database, pg_dsn: str, lasts: bool
) -> None:
    """Clones, the stage, what a fixture migrates on a server of its own, what a test migrates by itself; and has it again afterwards."""
    stage = Stage(pg_dsn, database.name) if lasts else None
    with Server(fsync=False) as other:
        with mutated(guard, database.name, stage):
            for name in ("imported", "looked up"):
                template = migrated_template if name == "imported" else postgres.migrated_template
                with template(other.dsn()) as clone:
                    assert not stands(clone()), name
            with postgres.migrated_template(pg_dsn) as clone:
                made = clone()
                assert not stands(made)
                made.drop()
            with empty_database.connect() as conn:
                migrate.apply(conn, say=lambda _: None)
            assert not stands(empty_database)
            assert stage is None or not stands(stage.database())
        with migrated_template(other.dsn()) as clone:
            assert stands(clone())
    if stage is not None:
        stage.put_back(guard, whole=False)
        assert stands(stage.database())
        stage.drop()


@pytest.mark.parametrize("file", [FILE, "0001_installation.sql"])
def test_what_postgres_refuses_is_told_before_any_test(
    guard: Guard, database: Database, pg_dsn: str, file: str
) -> None:
    """A fixture that fails would be taken for a test that saw it."""
    nonsense = replace(guard, file=file, start=0, end=1, instead="nonsense")
    stage = Stage(pg_dsn, database.name)
    with pytest.raises(NoMutant, match="nonsense"), mutated(nonsense, database.name, stage if file == FILE else None):
        pass
    stage.drop()
