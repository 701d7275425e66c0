"""The psycopg connection inside what a program holds: psycopg's own, or one of SQLAlchemy or Django on top of it (Q4).

Guarantees: what is done on it is done as the program's own statements are: in the transaction that its owner commits or
rolls back, savepoints included, which is begun where the owner begins them lazily; at once where the owner commits each
statement. What cannot be used is refused with the remedy. Imports no framework: who hands us one of its objects has.
"""

import sys
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import psycopg

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session


class DjangoConnection(Protocol):
    """`django.db.connection`, or one of `django.db.connections`."""

    def ensure_connection(self) -> None:
        """Connect if need be."""
        ...


SyncConnection: TypeAlias = "psycopg.Connection[Any] | Connection | Session | scoped_session[Any] | DjangoConnection"
"""What the blocking face works on."""

AnyAsyncConnection: TypeAlias = (
    "psycopg.AsyncConnection[Any] | AsyncConnection | AsyncSession | async_scoped_session[Any]"
)
"""What the asynchronous face works on."""

ALCHEMY_REMEDY = "make the engine with psycopg 3: create_engine('postgresql+psycopg://…'), for coroutines create_async_engine of the same URL"
NOT_ITSELF = {
    ("sqlalchemy.engine", "Engine"): "take a connection of it: with engine.begin() as connection",
    ("sqlalchemy.ext.asyncio", "AsyncEngine"): "take a connection of it: async with engine.begin() as connection",
    ("sqlalchemy.orm", "sessionmaker"): "take a session of it: with factory.begin() as session",
    ("sqlalchemy.ext.asyncio", "async_sessionmaker"): "take a session of it: async with factory.begin() as session",
    ("psycopg_pool", "ConnectionPool"): "take a connection of it: with pool.connection() as connection",
    ("psycopg_pool", "AsyncConnectionPool"): "take a connection of it: async with pool.connection() as connection",
}
"""What gives connections and is none, with what to write instead."""


def reach(given: "SyncConnection") -> "psycopg.Connection[Any]":
    """Return the psycopg connection inside; raises TypeError with the remedy for what cannot be used."""
    _demand(given, "Client", wanted=not _is_async(given))
    way, step = _way(given), None
    try:
        while True:
            step = way.send(step)
    except StopIteration as arrived:
        inner = arrived.value
    if not isinstance(inner, psycopg.Connection):
        raise TypeError(_unfit(given, inner))
    return inner


async def areach(given: "AnyAsyncConnection") -> "psycopg.AsyncConnection[Any]":
    """Return the psycopg connection inside; raises TypeError with the remedy for what cannot be used."""
    _demand(given, "AsyncClient", wanted=not _blocks(given))
    way, step = _way(given), None
    try:
        while True:
            step = way.send(step)
            step = await step if isinstance(step, Awaitable) else step
    except StopIteration as arrived:
        inner = arrived.value
    if not isinstance(inner, psycopg.AsyncConnection):
        raise TypeError(_unfit(given, inner))
    return inner


def in_words(given: Any) -> str:
    """How to begin a transaction on it, for messages."""
    if hasattr(given, "ensure_connection"):
        return "with transaction.atomic()"
    if _kind(given, "sqlalchemy.orm", "Session", "scoped_session") or _kind(given, "sqlalchemy", "Connection"):
        return "with engine.begin() as connection, on an engine that is not in AUTOCOMMIT"
    return f"{'async ' if isinstance(given, psycopg.AsyncConnection) else ''}with conn.transaction()"


def _way(given: Any) -> Generator[Any, Any, Any]:
    """The steps to the driver's connection, the same for both faces: what is yielded is sent back, awaited where it can be."""
    if hasattr(given, "ensure_connection"):
        return _inside_django(given)
    if _kind(given, "sqlalchemy.orm", "scoped_session") or _kind(
        given, "sqlalchemy.ext.asyncio", "async_scoped_session"
    ):
        given = given()
    if _kind(given, "sqlalchemy.orm", "Session") or _kind(given, "sqlalchemy.ext.asyncio", "AsyncSession"):
        given = yield given.connection()
    asynchronous = _kind(given, "sqlalchemy.ext.asyncio", "AsyncConnection")
    if not asynchronous and not _kind(given, "sqlalchemy", "Connection"):
        return given
    if not given.in_transaction():
        yield given.begin()  # else its commit() would think that there is nothing to commit
    pooled = (yield given.get_raw_connection()) if asynchronous else given.connection
    return pooled.driver_connection


def _inside_django(given: Any) -> Any:
    """As Django's own cursors do it: the right thread, a live connection, no transaction that is broken already."""
    given.ensure_connection()
    given.validate_thread_sharing()
    given.validate_no_broken_transaction()
    return given.connection


def _kind(given: Any, module: str, *names: str) -> bool:
    """Whether it is of a class that lives there; a module that nobody has imported has no objects."""
    home = sys.modules.get(module)
    return home is not None and isinstance(given, tuple(cast("type", getattr(home, name)) for name in names))


def _is_async(given: Any) -> bool:
    return isinstance(given, psycopg.AsyncConnection) or _kind(
        given, "sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession", "async_scoped_session"
    )


def _blocks(given: Any) -> bool:
    return (
        isinstance(given, psycopg.Connection)
        or hasattr(given, "ensure_connection")
        or _kind(given, "sqlalchemy.orm", "Session", "scoped_session")
        or _kind(given, "sqlalchemy", "Connection")
    )


def _demand(given: Any, face: str, *, wanted: bool) -> None:
    """Refuse what belongs to the other face, before anything is asked of it."""
    if wanted:
        return
    if face == "Client":
        raise TypeError(f"{_named(given)} is for coroutines; write: await AsyncClient(…).submit(…)")
    remedy = "write: Client(…).submit(…)"
    if hasattr(given, "ensure_connection"):
        remedy = "call a function that takes Client(connection) by asgiref's sync_to_async, its transaction.atomic() included"
    raise TypeError(f"{_named(given)} would block the event loop; {remedy}, or take an asynchronous connection")


def _unfit(given: Any, inner: Any) -> str:
    """What is wrong with what was reached, and what to do."""
    for (module, name), remedy in NOT_ITSELF.items():
        if _kind(given, module, name):
            return f"{_named(given)} is no connection; {remedy}"
    through = "" if inner is given else f" inside of {_named(given)}"
    if hasattr(given, "ensure_connection"):
        remedy = "a Django database of the engine django.db.backends.postgresql is one, once psycopg 3 is installed: pip install 'psycopg[binary]'"
    elif isinstance(inner, psycopg.AsyncConnection):
        remedy = "this session was made by an AsyncSession; give that to AsyncClient"
    elif inner is not given:
        remedy = ALCHEMY_REMEDY
    elif type(inner).__module__.partition(".")[0] in {"psycopg2", "asyncpg"}:
        remedy = "connect by psycopg 3: import psycopg; psycopg.connect(…)"
    else:
        remedy = "give one of these, or Client(dsn=…) for a connection of the client's own"
    return f"expected a connection of psycopg 3 (or of SQLAlchemy or Django on top of it), not {_named(inner)}{through}; {remedy}"


def _named(thing: Any) -> str:
    module, name = type(thing).__module__, type(thing).__name__
    return name if module in {"builtins", "__main__"} else f"{module.partition('.')[0]}'s {name}"
