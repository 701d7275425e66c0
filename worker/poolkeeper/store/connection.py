"""Connections with the settings that the guarantees need, and database errors as ours.

Every connection is named, notices a dead peer within seconds (keepalives, TCP user time-out) and never waits for a
connect longer than ``connect_timeout``. An error says which database it is about and never holds a password: a DSN
whose parts cannot be told apart is refused before anything quotes it (C58). Nothing here retries: callers decide.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from poolkeeper.codes import Code
from poolkeeper.errors import PoolkeeperError, error
from poolkeeper.redact import bounded, redact, shown

_SETTINGS: dict[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}

EXPECTED = "write postgresql://user@host:5432/database, or key=value pairs"
ENCODE = (
    "in a URL the characters of a password other than letters, digits and -._~ are written as %XX, such as %40 for @"
)
HIGHEST_PORT = 65535

Fault = psycopg.Error
"""What passes unchanged where the program is at fault, or a server does what nobody foresaw; for who goes on whatever it is."""


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parts of a DSN; raises ValueError with what is wrong, of which no part is quoted."""
    if not isinstance(dsn, str):
        raise ValueError(f"is {shown(dsn)}, not a text; {EXPECTED}")  # noqa: TRY004  (as for all that is wrong with it)
    try:
        given = conninfo_to_dict(dsn.strip())
    except (psycopg.ProgrammingError, UnicodeError):
        given = {}
    hosts, ports = str(given.get("host") or ""), str(given.get("port") or "")
    if not given:
        problem = f"cannot be parsed; {ENCODE if '://' in dsn else EXPECTED}"
    elif "\x00" in dsn or any("\n" in str(part) for part in given.values()):  # libpq would end at the NUL
        problem = f"holds more than one line; {EXPECTED}"
    elif "@" in hosts or ("://" in dsn and "@" in str(given.get("dbname") or "")):
        problem = f"has an @ outside of its place; {ENCODE}"
    elif any(port and not _is_port(port) for port in ports.split(",")):
        problem = f"has a port that is no number from 1 to {HIGHEST_PORT}; {ENCODE if '://' in dsn else EXPECTED}"
    else:
        return given
    raise ValueError(problem)


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 1 <= int(text) <= HIGHEST_PORT


def conninfo(dsn: str, *, name: str, **settings: object) -> str:
    """DSN with our settings below the user's own.

    Raises
    ------
    Misconfigured
        ``dsn_invalid``; the text of the DSN is not repeated, it may hold a password.
    """
    return make_conninfo(**_parameters(dsn, name, settings))


def _parameters(dsn: str, name: str, settings: Mapping[str, object]) -> dict[str, Any]:
    problem = ""
    try:
        given = parse_dsn(dsn)
    except ValueError as cause:
        problem = str(cause)
    if problem:  # raised out here: no traceback shows libpq's own words, which quote the DSN
        raise error(Code.DSN_INVALID, f"the DSN {problem}")
    return {**_SETTINGS, "application_name": name, **{k: str(v) for k, v in settings.items()}, **given}


def connect(
    dsn: str, *, autocommit: bool = True, name: str = "poolkeeper", **settings: object
) -> psycopg.Connection[Any]:
    """Open a connection for ``run``; raises Unavailable or Misconfigured.

    It prepares no statements: behind a pooler in transaction mode they would now and then be another client's (C20).
    """
    given = _parameters(dsn, name, settings)
    with _connecting(given):
        return psycopg.connect(make_conninfo(**given), autocommit=autocommit, prepare_threshold=None)


async def aconnect(
    dsn: str, *, autocommit: bool = True, name: str = "poolkeeper", **settings: object
) -> psycopg.AsyncConnection[Any]:
    """Open a connection for ``arun``, as ``connect`` does; raises Unavailable or Misconfigured."""
    given = _parameters(dsn, name, settings)
    with _connecting(given):
        return await psycopg.AsyncConnection.connect(
            make_conninfo(**given), autocommit=autocommit, prepare_threshold=None
        )


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


@contextmanager
def _connecting(given: Mapping[str, Any]) -> Iterator[None]:
    """The same while a connection is made: whatever it is, the DSN or the server is at fault, and the line says which."""
    try:
        yield
    except psycopg.Error as cause:
        ours = translate(cause) or _without_state(str(cause))
        raise error(ours.code, f"{_place(given)}: {ours}") from cause
    except UnicodeError as cause:
        raise error(Code.DSN_INVALID, f"{_place(given)}: no name of a host can be that; check the DSN") from cause


def _place(given: Mapping[str, Any]) -> str:
    hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "a local socket").split(",")
    ports = str(given.get("port") or os.environ.get("PGPORT") or "5432").split(",")
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    at = ", ".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
    named = given.get("dbname") or given.get("user")
    return bounded(f'database "{named}" at {at}' if named else f"database at {at}", 300)


_REFUSED = "the database refused the login; check user and password in the DSN or its Secret"
_NOT_THERE = "there is no such database; correct the DSN or create it"
_FULL = "the database takes no more connections; raise its limit or end some"
_RIGHT = "this login lacks the right; grant it a poolkeeper_* role, and give it its row in poolkeeper.access"
_BUSY = "the database cannot serve the call now; try again"

_BY_STATE: dict[str, tuple[Code, str]] = {
    "PK403": (Code.ROLE_NOT_ALLOWED, "this login may not do that"),
    "PK409": (Code.NOT_LEADING, "another operator leads"),
    "42501": (Code.ROLE_NOT_ALLOWED, _RIGHT),
    "25006": (Code.DATABASE_READ_ONLY, "the database is read-only (a standby?); point the DSN at the primary"),
    "53300": (Code.CONNECTIONS_EXHAUSTED, _FULL),
    "53100": (Code.DATABASE_BUSY, "the database has no space left; make room on its disk"),
    "53200": (Code.DATABASE_BUSY, _BUSY),
    "53400": (Code.DATABASE_BUSY, _BUSY),
    "55P03": (Code.DATABASE_BUSY, "another session holds a lock for too long; try again"),
    "57014": (Code.DATABASE_BUSY, _BUSY),
    "40001": (Code.DATABASE_BUSY, _BUSY),
    "40P01": (Code.DATABASE_BUSY, _BUSY),
    "3F000": (Code.SCHEMA_TOO_OLD, "schema poolkeeper is not there; run: poolkeeper migrate --apply"),
    "42P01": (Code.SCHEMA_TOO_OLD, "a table of the schema is not there; run: poolkeeper migrate --apply"),
    "42883": (Code.SCHEMA_TOO_OLD, "a function of the schema is not there; run: poolkeeper migrate --apply"),
    "28P01": (Code.LOGIN_REFUSED, _REFUSED),
    "28000": (Code.LOGIN_REFUSED, _REFUSED),
    "3D000": (Code.DSN_INVALID, _NOT_THERE),
}

_NAMED: dict[str | None, Code] = {"PK410": Code.LEASE_EXPIRED, "PK422": Code.PAYLOAD_INVALID}
"""States whose message is the code itself."""


def translate(cause: psycopg.Error) -> PoolkeeperError | None:
    """Our error for a driver's, or None where the program is at fault."""
    state = cause.sqlstate
    if state in _BY_STATE:
        code, text = _BY_STATE[state]
        hint = cause.diag.message_hint if state.startswith("PK") else cause.diag.message_primary
        return error(code, f"{text} ({hint})" if hint else text)
    if state in _NAMED:
        primary, hint = cause.diag.message_primary, cause.diag.message_hint
        return error(Code(primary or _NAMED[state]), f"{primary}: {hint}")
    if state is None and isinstance(cause, psycopg.OperationalError):
        return _without_state(str(cause))
    if state is not None and state.startswith(("08", "57P")):
        return _in_words(str(cause)) or error(Code.DATABASE_UNREACHABLE, f"the database went away: {cause}".strip())
    return None


_TLS = "TLS cannot be set up as the DSN says; mend sslmode, sslrootcert or the certificates"
POOLER = "a connection pooler is in between; set POOLKEEPER_POOLER=transaction (Database: spec.pooler), POOLKEEPER_DIRECT_DSN past it"
_NONE_FREE = "a connection pooler found no connection to the database in time; raise its size, or see whether the database is there"
_STATEMENT = "a connection pooler in statement mode takes no transactions; point the DSN at a pool in transaction or session mode"
_PARTS = f"a part of the DSN has a value that cannot be; {EXPECTED}"
_BY_WORDS: tuple[tuple[str, Code, str], ...] = (  # of libpq and the server, in English; others mean unreachable
    (r"too many connections for|too many clients|connection slots are reserved|no more connections allowed", Code.CONNECTIONS_EXHAUSTED, _FULL),
    (r"authentication failed|no pg_hba\.conf entry|no password supplied", Code.LOGIN_REFUSED, _REFUSED),
    (r'role ".*" (does not exist|is not permitted to log in)', Code.LOGIN_REFUSED, _REFUSED),
    (r'database ".*" does not exist|no such database', Code.DSN_INVALID, _NOT_THERE),
    (r"permission denied for database", Code.ROLE_NOT_ALLOWED, "this login may not connect; GRANT CONNECT"),
    (r"root certificate|certificate verify failed|does not support SSL|does not match host name", Code.DSN_INVALID, _TLS),
    (r"weak sslmode", Code.DSN_INVALID, _TLS),
    (r"certificate file|private key file", Code.DSN_INVALID, _TLS),
    (r"unsupported startup parameter", Code.DATABASE_UNREACHABLE, POOLER),
    (r"query_wait_timeout|client_login_timeout", Code.DATABASE_UNREACHABLE, _NONE_FREE),
    (r"not allowed in statement pooling mode", Code.DSN_INVALID, _STATEMENT),
    (r"invalid \w+ value|invalid integer value|invalid port number|bad value for|could not match", Code.DSN_INVALID, _PARTS),
)  # fmt: skip


def _without_state(text: str) -> PoolkeeperError:
    """A connection that never came to be, or broke, carries no SQLSTATE; the server's own words tell why."""
    return _in_words(text) or error(
        Code.DATABASE_UNREACHABLE,
        f"it cannot be reached; check host and port, and that the server runs ({_bounded_line(text)})",
    )


def _in_words(text: str) -> PoolkeeperError | None:
    for words, code, told in _BY_WORDS:
        if re.search(words, text):
            return error(code, told if told is _PARTS else f"{told} ({_bounded_line(text)})")
    return None


def _bounded_line(text: str) -> str:
    return bounded(redact(" ".join(text.split())), 500)
