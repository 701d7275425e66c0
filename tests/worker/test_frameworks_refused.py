"""Q4: connections that commit each statement, and what is no connection that a client can use: told, with the remedy."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

from fixtures.frameworks import django_alias, url
from fixtures.workers import Stage
from poolkeeper import AsyncClient, Client, Context, Poolkeeper
from poolkeeper.testing import Kit


@pytest.fixture
def dsn(stage: Stage) -> str:
    return stage.dsn


@pytest.fixture
def engine(dsn: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(url(dsn))
    yield made
    made.dispose()


@pytest.fixture
def alias(dsn: str) -> Iterator[str]:
    made = django_alias(dsn)
    yield made
    connections[made].close()


def test_where_each_statement_is_committed_the_task_is_there_at_once(
    stage: Stage, engine: sa.Engine, alias: str
) -> None:
    """Q4: as a row of the program's would be; a rollback takes neither back. Nothing is left open."""
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        Client(conn).submit("q", "t.count", 1)
        assert stage.states() == {"ready": 1}
        conn.rollback()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as core:
        Client(core).submit("q", "t.count", 2)
        assert stage.states() == {"ready": 2}
        core.rollback()
    Client(connections[alias]).submit("q", "t.count", 3)
    assert stage.states() == {"ready": 3}
    assert connections[alias].connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_djangos_own_transaction_rules_are_kept(stage: Stage, alias: str) -> None:
    """Q4: a transaction that Django holds for broken takes no task; set_autocommit works as it does for rows."""
    with transaction.atomic(using=alias):
        transaction.set_rollback(True, using=alias)
        with pytest.raises(TransactionManagementError):
            Client(connections[alias]).submit("q", "t.count")
    transaction.set_autocommit(False, using=alias)
    Client(connections[alias]).submit("q", "t.count")
    assert stage.states() == {}
    transaction.commit(using=alias)
    assert stage.states() == {"ready": 1}
    transaction.set_autocommit(True, using=alias)


def test_a_connection_that_django_closed_is_opened_again(stage: Stage) -> None:
    """Q4: a connection that was closed is opened again, as for Django's own statements."""
    alias = django_alias(stage.dsn, OPTIONS={"application_name": "shop"}, CONN_HEALTH_CHECKS=True)
    connections[alias].close()
    with transaction.atomic(using=alias):
        Client(connections[alias]).submit("q", "t.count")
    assert stage.states() == {"ready": 1}
    connections[alias].close()


def test_djangos_proxy_is_the_connection(stage: Stage, alias: str) -> None:
    """Q4: `from django.db import connection`."""
    from django.utils.connection import ConnectionProxy

    Client(ConnectionProxy(connections, alias)).submit("q", "t.count")
    assert stage.states() == {"ready": 1}


def test_psycopg2_is_refused_with_the_remedy(dsn: str) -> None:
    """Q4: its own connection, and SQLAlchemy's engine on it."""
    plain = psycopg2.connect(dsn)
    with pytest.raises(TypeError, match=r"not psycopg2's connection; connect by psycopg 3: import psycopg"):
        Client(plain).submit("q", "t.count")
    plain.close()
    engine = sa.create_engine(url(dsn, "psycopg2"))
    remedy = r"not psycopg2's connection inside of sqlalchemy's (Connection|Session); make the engine with psycopg 3: create_engine\('postgresql\+psycopg://"
    with engine.connect() as conn, pytest.raises(TypeError, match=remedy):
        Client(conn).submit("q", "t.count")
    with orm.Session(engine) as session, pytest.raises(TypeError, match=remedy):
        Client(session).submit("q", "t.count")
    engine.dispose()


def test_a_database_of_another_kind_is_refused_with_the_remedy() -> None:
    """Q4."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as conn, pytest.raises(TypeError, match="not sqlite3's Connection inside of sqlalchemy's"):
        Client(conn).submit("q", "t.count")
    engine.dispose()
    alias = django_alias("host=h port=1 dbname=:memory: user=u", ENGINE="django.db.backends.sqlite3")
    with pytest.raises(TypeError, match=r"sqlite3's Connection inside of django's .*; a Django database of the engine"):
        Client(connections[alias]).submit("q", "t.count")
    connections[alias].close()


def test_what_gives_connections_is_none(engine: sa.Engine) -> None:
    """Q4: with what to write instead."""
    for given, told in (
        (engine, "sqlalchemy's Engine is no connection; take a connection of it: with engine.begin()"),
        (orm.sessionmaker(engine), "sessionmaker is no connection; take a session of it"),
        (object(), "not object; give one of these, or Client"),
        ("postgresql://h/d", "not str; give one of these, or Client"),
    ):
        with pytest.raises(TypeError, match=told.replace("(", r"\(").replace(")", r"\)")):
            Client(given).submit("q", "t.count")  # type: ignore[arg-type]


async def test_each_face_names_the_other(dsn: str, engine: sa.Engine, alias: str) -> None:
    """Q4: nothing is begun or left unawaited on the way."""
    asynchronous = sa_async.create_async_engine(url(dsn))
    async with asynchronous.connect() as conn, sa_async.AsyncSession(asynchronous) as session:
        for given in (conn, session):
            with pytest.raises(TypeError, match=r"is for coroutines; write: await AsyncClient"):
                Client(given).submit("q", "t.count")  # type: ignore[arg-type]
            assert not given.in_transaction()
        with pytest.raises(TypeError, match="made by an AsyncSession; give that to AsyncClient"):
            await session.run_sync(lambda inner: Client(inner).submit("q", "t.count"))
    with pytest.raises(TypeError, match="AsyncEngine is no connection"):
        await AsyncClient(asynchronous).submit("q", "t.count")  # type: ignore[arg-type]
    await asynchronous.dispose()
    with orm.Session(engine) as blocking, pytest.raises(TypeError, match=r"would block the event loop; write: Client"):
        await AsyncClient(blocking).submit("q", "t.count")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"by asgiref's sync_to_async, its transaction.atomic"):
        await AsyncClient(connections[alias]).submit("q", "t.count")


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy", "django"])
def test_a_task_cannot_end_where_each_statement_is_committed(poolkeeper_dsn: str, kind: str) -> None:
    """Q18: nothing would commit together; the remedy is the framework's."""
    app = Poolkeeper()
    engine, alias = sa.create_engine(url(poolkeeper_dsn), isolation_level="AUTOCOMMIT"), django_alias(poolkeeper_dsn)
    makes: dict[str, tuple[Callable[[], Any], str]] = {
        "psycopg": (lambda: psycopg.connect(poolkeeper_dsn, autocommit=True), r"write: with conn.transaction\(\)"),
        "sqlalchemy": (engine.connect, r"on an engine that is not in AUTOCOMMIT"),
        "django": (lambda: connections[alias], r"write: with transaction.atomic\(\)"),
    }
    make, told = makes[kind]

    @app.task("a.b")
    def book(_: Any, ctx: Context) -> None:
        conn = make()
        try:
            ctx.succeed_in_sync(conn)
        finally:
            conn.close()

    with Kit(app, dsn=poolkeeper_dsn, policy={"maxDeliveries": 1}) as kit:
        done = kit.run(book)
    engine.dispose()
    assert done.error_class == "RuntimeError"
    assert done.error is not None
    assert re.search(told, done.error), done.error


def test_no_framework_is_imported_by_us() -> None:
    """Q4: a submitter without SQLAlchemy and Django pays nothing for them."""
    code = "import sys; from poolkeeper import Client\ntry: Client(object()).submit('q', 'a.b')\nexcept TypeError: pass\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"sqlalchemy", "django"} & set(done.stdout.split()) == set()
