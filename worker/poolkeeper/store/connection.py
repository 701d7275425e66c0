"""Connections with the settings that the guarantees need, and database errors as ours.

Every connection is named, notices a dead peer within seconds (keepalives, TCP user time-out) and never waits for a
connect longer than ``connect_timeout``. Nothing here retries: callers decide.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from poolkeeper.codes import Code
from poolkeeper.errors import PoolkeeperError, error

_SETTINGS: dict[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


def conninfo(dsn: str, *, name: str, **settings: object) -> str:
    """DSN with our settings below the user's own.

    Raises
    ------
    Misconfigured
        ``dsn_invalid``; the text of the DSN is not repeated, it may hold a password.
    """
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as cause:
        raise error(
            Code.DSN_INVALID, "the DSN cannot be parsed; write postgresql://user:password@host:5432/database"
        ) from cause
    merged: dict[str, Any] = {
        **_SETTINGS,
        "application_name": name,
        **{k: str(v) for k, v in settings.items()},
        **given,
    }
    return make_conninfo(**merged)


def connect(
    dsn: str, *, autocommit: bool = True, name: str = "poolkeeper", **settings: object
) -> psycopg.Connection[Any]:
    """Open a connection for ``run``; raises Unavailable or Misconfigured."""
    text = conninfo(dsn, name=name, **settings)
    with translated():
        return psycopg.connect(text, autocommit=autocommit)


async def aconnect(
    dsn: str, *, autocommit: bool = True, name: str = "poolkeeper", **settings: object
) -> psycopg.AsyncConnection[Any]:
    """Open a connection for ``arun``; raises Unavailable or Misconfigured."""
    text = conninfo(dsn, name=name, **settings)
    with translated():
        return await psycopg.AsyncConnection.connect(text, autocommit=autocommit)


@contextmanager
def translated() -> Iterator[None]:
    """Turn what the driver raises into our tree; what is a fault of the program passes unchanged."""
    try:
        yield
    except psycopg.Error as cause:
        ours = translate(cause)
        if ours is None:
            raise
        raise ours from cause


_BY_STATE: dict[str, tuple[Code, str]] = {
    "PK403": (Code.ROLE_NOT_ALLOWED, "this login may not do that"),
    "42501": (Code.ROLE_NOT_ALLOWED, "this login lacks the right; join it to a poolkeeper_* role"),
    "25006": (Code.DATABASE_READ_ONLY, "the database is read-only (a standby?); point the DSN at the primary"),
    "53300": (Code.CONNECTIONS_EXHAUSTED, "the database takes no more connections"),
    "3F000": (Code.SCHEMA_TOO_OLD, "schema poolkeeper is not there; run: poolkeeper migrate --apply"),
    "42P01": (Code.SCHEMA_TOO_OLD, "a table of the schema is not there; run: poolkeeper migrate --apply"),
    "42883": (Code.SCHEMA_TOO_OLD, "a function of the schema is not there; run: poolkeeper migrate --apply"),
    "28P01": (Code.DSN_INVALID, "the database refused the password; check the Secret or the DSN"),
    "28000": (Code.DSN_INVALID, "the database refused the login; check the Secret or the DSN"),
    "3D000": (Code.DSN_INVALID, "there is no such database; check the DSN"),
}


def translate(cause: psycopg.Error) -> PoolkeeperError | None:
    """Our error for a driver's, or None where the program is at fault."""
    state = cause.sqlstate
    if state in _BY_STATE:
        code, text = _BY_STATE[state]
        hint = cause.diag.message_hint if state.startswith("PK") else cause.diag.message_primary
        return error(code, f"{text}: {hint}" if hint else text)
    if state is None and isinstance(cause, psycopg.OperationalError):
        return _without_state(str(cause))
    if state is not None and (state.startswith(("08", "57P")) or state == "53400"):
        return error(Code.DATABASE_UNREACHABLE, f"the database went away: {cause}".strip())
    return None


def _without_state(text: str) -> PoolkeeperError:
    """A connection that never came to be, or broke, carries no SQLSTATE; the server's own words tell why."""
    for sign, state in (
        ("password authentication failed", "28P01"),
        ("no pg_hba.conf entry", "28000"),
        ('role "', "28000"),
        ('database "', "3D000"),
        ("too many clients", "53300"),
        ("remaining connection slots", "53300"),
    ):
        if sign in text and "FATAL" in text:
            code, said = _BY_STATE[state]
            return error(code, f"{said}: {text.strip().splitlines()[-1]}")
    return error(Code.DATABASE_UNREACHABLE, f"the database cannot be reached: {' '.join(text.split())}")
