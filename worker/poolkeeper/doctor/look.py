"""Gathers the facts that the checks judge: each in a transaction of its own that writes nothing and ends in time.

Guarantees: a fact that this login may not have, or that took too long, is an ``Unseen`` with the reason and never an error;
without a connection it is an error as everywhere. Works behind a pooler in transaction mode.
"""

import time
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from poolkeeper.codes import Code
from poolkeeper.doctor.finding import Unseen
from poolkeeper.errors import PoolkeeperError
from poolkeeper.redact import bounded, redact
from poolkeeper.store import Call, calls, run
from poolkeeper.store import migrate as schema
from poolkeeper.store.looking import look

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that one look may take."""

LOOKS = ("server", "role_settings", "login", "access", "connections", "rights", "tables", "replication")
CLOCK_TRIES = 5

_REMEDIES = {
    Code.ROLE_NOT_ALLOWED: "ask as a login of poolkeeper_reader, poolkeeper_person or poolkeeper_operator without limits in poolkeeper.access, or as the schema's owner",
    Code.SCHEMA_TOO_OLD: "run: poolkeeper migrate --apply",
    Code.DATABASE_BUSY: "ask again when the database is less busy",
}


@dataclass(frozen=True)
class Clock:
    """The database's clock minus ours, and how wrong that may be: half of the round trip; seconds."""

    ahead: float
    give: float


@dataclass(frozen=True)
class Program:
    """What this program is: the texts that it would apply, the schemas that it works with, its version."""

    functions: str
    migrations: dict[str, str]
    supported: range
    version: str


def gather(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    """All facts by name; raises Unavailable where the connection is lost."""
    facts: dict[str, Any] = {name: _asked(conn, look(name)) for name in LOOKS}
    facts["store"] = _asked(conn, calls.doctor())
    facts["installation"] = _asked(conn, calls.installation())
    facts["clock"] = _clock(conn)
    facts["program"] = program()
    facts["told"] = {"backend": conn.info.backend_pid, "host": conn.info.host, "database": conn.info.dbname}
    return facts


def program() -> Program:
    """What runs here."""
    from importlib.metadata import version

    texts = {str(one.version): one.checksum for one in schema.migrations()}
    return Program(schema.functions().checksum, texts, schema.SUPPORTED, version("poolkeeper"))


def _asked(conn: psycopg.Connection[Any], call: Call[T]) -> T | Unseen:
    try:
        with conn.transaction():
            run(conn, calls.only_look(PATIENCE))
            return run(conn, call)
    except PoolkeeperError as refused:
        if refused.code is Code.DATABASE_UNREACHABLE:
            raise
        return Unseen(str(refused), _REMEDIES.get(refused.code, "see the message"))
    except psycopg.Error as refused:
        return Unseen(bounded(redact(" ".join(str(refused).split())), 300), "see the message")


def _clock(conn: psycopg.Connection[Any]) -> Clock | Unseen:
    best: Clock | None = None
    for _ in range(CLOCK_TRIES):
        before, began = time.time(), time.monotonic()
        moment = _asked(conn, look("moment"))
        if isinstance(moment, Unseen):
            return moment
        took = time.monotonic() - began
        if best is None or took / 2 < best.give:
            best = Clock(moment.timestamp() - before - took / 2, took / 2)
    return best or Unseen("the clock was not asked", "see the message")
