"""The pytest plugin of the testing kit (Q50): fixtures for tests of handlers, found by pytest itself once Poolkeeper is installed.

Guarantees: whoever uses none of it pays nothing: no module of Poolkeeper is imported before a fixture is asked for. With
`--poolkeeper-on=both` each test that asks for a kit runs twice, in this process and on a Postgres.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from poolkeeper import Poolkeeper
    from poolkeeper.testing import AsyncKit, Kit, MakeKit

PLACES = ("process", "postgres")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where tests with a kit run, and on which Postgres."""
    group = parser.getgroup("poolkeeper", "handlers of Poolkeeper")
    group.addoption(
        "--poolkeeper-on",
        choices=(*PLACES, "both"),
        help="where tests with a kit run their tasks: in this process (the default), on a Postgres, or on both, one after the other",
    )
    group.addoption(
        "--poolkeeper-dsn",
        metavar="DSN",
        help="a server for the databases of tests, of a login that may create databases and roles; default: POOLKEEPER_TEST_DSN, "
        "else a server of our own, of the programs that POOLKEEPER_TEST_PG names or that are found",
    )
    parser.addini("poolkeeper_on", "the default of --poolkeeper-on", default="process")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on both places where that is asked for."""
    if "poolkeeper_place" in metafunc.fixturenames and _wanted(metafunc.config) == "both":
        metafunc.parametrize("poolkeeper_place", PLACES, indirect=True)


def _wanted(config: pytest.Config) -> str:
    wanted = str(config.getoption("--poolkeeper-on") or config.getini("poolkeeper_on"))
    if wanted not in {*PLACES, "both"}:
        raise pytest.UsageError(f"poolkeeper_on is process, postgres or both, not {wanted!r}")
    return wanted


@pytest.fixture
def poolkeeper_place(request: pytest.FixtureRequest) -> str:
    """Where the kits of this test keep their tasks: "process" or "postgres"."""
    return str(getattr(request, "param", None) or _wanted(request.config))


@pytest.fixture(scope="session")
def poolkeeper_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """DSN of a Postgres server for this run, of a login that may create databases."""
    from poolkeeper.testing.database import server
    from poolkeeper.testing.postgres_binaries import PostgresMissing

    try:
        found = server(request.config.getoption("--poolkeeper-dsn"))
        dsn = found.__enter__()
    except PostgresMissing as error:
        pytest.fail(f"{error}, or in --poolkeeper-dsn", pytrace=False)
    try:
        yield dsn
    finally:
        found.__exit__(None, None, None)


@pytest.fixture(scope="session")
def poolkeeper_template(poolkeeper_server: str) -> Iterator[Callable[[], str]]:
    """Makes databases with Poolkeeper's schema, clones of one that is migrated once, and returns their DSNs."""
    from poolkeeper.testing.database import template

    with template(poolkeeper_server) as clone:
        yield clone


@pytest.fixture
def poolkeeper_dsn(poolkeeper_template: Callable[[], str]) -> Iterator[str]:
    """DSN of a database of this test's own, with Poolkeeper's schema and a clock that can be moved; kits on Postgres use it."""
    from poolkeeper.testing.database import drop

    dsn = poolkeeper_template()
    yield dsn
    drop(dsn)


@pytest.fixture
def poolkeeper_kit(request: pytest.FixtureRequest, poolkeeper_place: str) -> "Iterator[MakeKit[Kit]]":
    """Makes kits: `poolkeeper_kit(app)`."""
    from poolkeeper.testing import Kit

    yield from _kits(Kit, request, poolkeeper_place)


@pytest.fixture
def poolkeeper_async_kit(request: pytest.FixtureRequest, poolkeeper_place: str) -> "Iterator[MakeKit[AsyncKit]]":
    """Makes kits for tests that are coroutines."""
    from poolkeeper.testing import AsyncKit

    yield from _kits(AsyncKit, request, poolkeeper_place)


def _kits(kind: Any, request: pytest.FixtureRequest, place: str) -> Iterator[Any]:
    dsn = request.getfixturevalue("poolkeeper_dsn") if place == "postgres" else None
    made: list[Any] = []

    def make(app: "Poolkeeper", *, policy: Mapping[str, Any] | None = None) -> Any:
        made.append(kind(app, dsn=dsn, policy=policy))
        return made[-1]

    yield make
    for kit in made:
        kit.close()
