"""Bringing the schema up to date, on a connection of the schema's owner, direct or through a pooler (contract 18, C20).

Guarantees: numbered migrations run once, in order, in one transaction with a lock against a second migrator; a
migration that was changed after it ran is noticed by its checksum. Functions are replaced whenever their text changed.
Not done here: going back. Workers and API only ``check``.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL

from poolkeeper.codes import Code
from poolkeeper.errors import error
from poolkeeper.store.connection import translated
from poolkeeper.store.statements import sql_file, sql_names, statements

SUPPORTED = range(5, 6)
"""Schema versions that this program works with."""


@dataclass(frozen=True)
class Migration:
    """One file to run: a numbered migration, or the functions (version None)."""

    version: int | None
    name: str
    checksum: str
    text: str


def migrations() -> list[Migration]:
    """All numbered migrations of this program, in order."""
    found = []
    for name in sql_names("migrations"):
        text = sql_file(f"migrations/{name}")
        found.append(Migration(int(name.split("_")[0]), name, hashlib.sha256(text.encode()).hexdigest(), text))
    return found


def functions() -> Migration:
    """All function files as one text: replaced together."""
    text = "\n".join(sql_file(f"functions/{name}") for name in sql_names("functions"))
    return Migration(None, "functions", hashlib.sha256(text.encode()).hexdigest(), text)


def plan(conn: psycopg.Connection[Any]) -> list[Migration]:
    """What ``apply`` would run, in order; empty when the schema is up to date.

    Raises
    ------
    Unavailable
        ``schema_too_new``: the database knows a migration that this program does not; ``schema_too_old`` (a changed
        migration): the text of one that ran differs from this program's.
    """
    with translated():
        sql = statements("migrate.sql")
        cursor = conn.cursor(row_factory=dict_row)
        if not _one(cursor, sql["has_ledger"]):
            return [*migrations(), functions()]
        applied = {row["version"]: row for row in cursor.execute(SQL(cast("Any", sql["applied"]))).fetchall()}
        known = {m.version: m for m in migrations()}
        for version, row in applied.items():
            if version not in known:
                raise error(
                    Code.SCHEMA_TOO_NEW, f"schema has migration {row['name']}, unknown here; upgrade poolkeeper"
                )
            if row["checksum"] != known[version].checksum:
                raise error(
                    Code.SCHEMA_TOO_OLD,
                    f"migration {row['name']} was applied with another text; restore the release that applied it",
                )
        todo = [m for m in migrations() if m.version not in applied]
        if todo or _one(cursor, sql["functions_checksum"]) != functions().checksum:
            todo.append(functions())
        return todo


def apply(conn: psycopg.Connection[Any], *, say: Callable[[str], object] = print) -> int:
    """Run what is missing; returns how many steps ran. Safe to run twice and by two at once."""
    sql = statements("migrate.sql")
    with translated(), conn.transaction():
        cursor = conn.cursor(row_factory=dict_row)
        cursor.execute(SQL(cast("Any", sql["one_at_a_time"])))
        todo = plan(conn)
        if not todo:
            say("schema is up to date")
            return 0
        cursor.execute(SQL(cast("Any", sql["settings"])))
        if todo[0].version == migrations()[0].version:
            for name in ("create_schema", "ledger", "functions_ledger"):
                cursor.execute(SQL(cast("Any", sql[name])))
        for step in todo:
            say(f"applying {step.name}")
            cursor.execute(step.text.encode())
            if step.version is None:
                cursor.execute(SQL(cast("Any", sql["record_functions"])), {"checksum": step.checksum})
            else:
                cursor.execute(
                    SQL(cast("Any", sql["record"])),
                    {"version": step.version, "name": step.name, "checksum": step.checksum},
                )
        cursor.execute(SQL(cast("Any", sql["first_partitions"])))
    return len(todo)


def check_version(version: int | None) -> None:
    """Compare the version that ``installation()`` answered with SUPPORTED; raises Unavailable naming the command."""
    if version is None or version < SUPPORTED.start:
        raise error(
            Code.SCHEMA_TOO_OLD,
            f"schema version is {version or 'none'}, this program needs {SUPPORTED.start}; run: poolkeeper migrate --apply",
        )
    if version >= SUPPORTED.stop:
        raise error(
            Code.SCHEMA_TOO_NEW,
            f"schema version is {version}, this program knows up to {SUPPORTED.stop - 1}; upgrade poolkeeper",
        )


def _one(cursor: psycopg.Cursor[dict[str, Any]], text: str) -> Any:
    row = cursor.execute(SQL(cast("Any", text))).fetchone()
    return None if row is None else row["value"]
