"""A stage for each test of this layer: see fixtures.workers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.kits import app, log
from fixtures.postgres import Database
from fixtures.workers import Stage, StageOn
from lab.postgres import Server
from poolkeeper.store import connect, migrate
from poolkeeper.store.statements import statements
from poolkeeper.testing import Kit, MakeKit


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Iterator[Stage]:
    """An empty stage with one queue, default/q, whose leases last LEASE seconds."""
    made = Stage(database.dsn, tmp_path)
    made.apply()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of this test's own, with durable commits: it is killed."""
    with Server() as made:
        with connect(made.dsn()) as conn:
            migrate.apply(conn, say=lambda _line: None)
        yield made


@pytest.fixture
def own_stage(server: Server, tmp_path: Path) -> Iterator[Stage]:
    """The same stage on that server."""
    made = Stage(server.dsn(), tmp_path)
    made.apply()
    yield made
    made.close()


@pytest.fixture
def stage_on(tmp_path: Path) -> Iterator[StageOn]:
    """Stages on servers that the test makes, migrated here."""
    made: list[Stage] = []

    def make(server: Server, dsn: str | None = None) -> Stage:
        with connect(server.dsn()) as conn:
            migrate.apply(conn, say=lambda _line: None)
        made.append(Stage(dsn or server.dsn(), tmp_path))
        made[-1].apply(max_deliveries=20)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def poolkeeper_template(pg_template: Callable[[], Database]) -> Iterator[Callable[[], str]]:
    """What the testing kit's plugin makes, of the template that this run has anyway."""
    made: list[Database] = []

    def clone() -> str:
        made.append(pg_template())
        with made[-1].connect() as conn:
            conn.execute(statements("testing.sql")["movable_clock"].encode())
        return made[-1].dsn

    yield clone
    for each in made:
        each.drop()


@pytest.fixture(scope="module")
def poolkeeper_dsn(poolkeeper_template: Callable[[], str]) -> str:
    """One database for all kits of a module: each test has queues of its own, and that is what costs least."""
    return poolkeeper_template()


@pytest.fixture
def kit(poolkeeper_kit: MakeKit[Kit]) -> Kit:
    """A kit for the handlers of fixtures.kits."""
    log.clear()
    return poolkeeper_kit(app)
