"""A call of the contract as a value: statement, parameters and how to read the rows. It does no I/O.

``run`` and ``arun`` execute it on a sync or an async connection: one core, two faces, neither a copy of the other.
On a connection in a transaction of the caller's, the call is part of that transaction. Answers come in binary form: as
text, moments and durations would be written as the session's DateStyle and IntervalStyle say, which may be anybody's.
The cursor is psycopg's own, not what the connection makes: that of Django's connections knows no binary form.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Generic, TypeVar, cast, get_args, get_type_hints
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row

from poolkeeper.codes import IN_TRANSACTION, Code
from poolkeeper.errors import error
from poolkeeper.jsonsafe import text_fault
from poolkeeper.store.connection import translated
from poolkeeper.store.statements import statements

T = TypeVar("T")
Row = Any


@dataclass(frozen=True)
class Call(Generic[T]):
    """One statement of ``calls.sql``, or of another file; ``read`` turns its rows into the answer."""

    name: str
    params: Mapping[str, Any]
    read: Callable[[list[Row]], T]
    file: str = "calls.sql"

    @property
    def sql(self) -> bytes:
        """Text of the statement."""
        return statements(self.file)[self.name].encode()


def run(conn: psycopg.Connection[Any], call: Call[T]) -> T:
    """Execute on a sync connection; raises the errors of ``poolkeeper.errors``."""
    _check_texts(call)
    with translated():
        cursor = psycopg.Cursor(conn, row_factory=namedtuple_row)
        cursor.execute(call.sql, call.params, binary=True)
        rows = cursor.fetchall() if cursor.description else []
    return call.read(rows)


async def arun(conn: psycopg.AsyncConnection[Any], call: Call[T]) -> T:
    """Execute on an async connection; raises the errors of ``poolkeeper.errors``."""
    _check_texts(call)
    with translated():
        cursor = psycopg.AsyncCursor(conn, row_factory=namedtuple_row)
        await cursor.execute(call.sql, call.params, binary=True)
        rows = await cursor.fetchall() if cursor.description else []
    return call.read(rows)


def _check_texts(call: Call[Any]) -> None:
    """Refuse what no statement could carry, before anything is sent; the driver would raise errors of its own."""
    for name, param in call.params.items():
        for text in (param,) if isinstance(param, str) else param if isinstance(param, list | tuple) else ():
            reason = text_fault(text) if isinstance(text, str) else None
            if reason is not None:
                raise error(Code.OPTION_INVALID, f"{name} {ascii(text)[:80]} {reason}")


def one(kind: Callable[..., T]) -> Callable[[list[Row]], T]:
    """Read exactly one row as a value with the fields of its columns."""
    return lambda rows: _build(kind, rows[0]._asdict())


def maybe(kind: Callable[..., T]) -> Callable[[list[Row]], T | None]:
    """Read one row or none."""
    return lambda rows: _build(kind, rows[0]._asdict()) if rows else None


def many(kind: Callable[..., T]) -> Callable[[list[Row]], list[T]]:
    """Read every row; all have the columns of the first."""
    names = _names(kind)

    def read(rows: list[Row]) -> list[T]:
        if not rows:
            return []
        columns = rows[0]._fields
        if "code" in columns and columns[-len(names) :] == tuple(names) and all(row.code is None for row in rows):
            return [kind(*row[-len(names) :]) for row in rows]  # as most of 10,000 verdicts are
        chosen = [(name, columns.index(name)) for name in names if name in columns]
        made = []
        for row in rows:
            values = {name: row[place] for name, place in chosen}
            if values.get("code") is not None:
                values["code"] = Code(values["code"])
            made.append(kind(**values))
        return made

    return read


def value(rows: list[Row]) -> Any:
    """Read the one value of the one row."""
    return rows[0].value


def nothing(rows: list[Row]) -> None:
    """Read nothing."""


def _names(kind: Callable[..., Any]) -> list[str]:
    return [f.name for f in fields(cast("Any", kind))]


def _build(kind: Callable[..., T], row: dict[str, Any]) -> T:
    if row.get("code") not in {None, IN_TRANSACTION}:
        row["code"] = Code(row["code"])
    names = _names(kind)
    return kind(**{k: v for k, v in row.items() if k in names})


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """A row value from JSON: seconds become durations where the field is one, nested lists their kinds."""
    return kind(
        **{name: None if (raw := data.get(name)) is None else read(raw) for name, read in _readers(cast("Any", kind))}
    )


@cache
def _readers(kind: type[Any]) -> list[tuple[str, Callable[[Any], Any]]]:
    """How each field of a kind is read; looked up once, since a reading may have thousands of rows."""
    return [(name, _reader(hint)) for name, hint in get_type_hints(kind).items()]


def _reader(hint: Any) -> Callable[[Any], Any]:
    inner = get_args(hint)
    if hint is timedelta or timedelta in inner:
        return lambda raw: timedelta(seconds=float(raw))
    if inner and hasattr(inner[0], "__dataclass_fields__"):
        return lambda raw: [from_json(inner[0], item) for item in raw]
    if hasattr(hint, "__dataclass_fields__"):
        return lambda raw: from_json(hint, raw)
    moment = datetime if datetime in inner else hint
    if hasattr(moment, "fromisoformat"):
        return lambda raw: moment.fromisoformat(raw) if isinstance(raw, str) else raw
    return UUID if hint is UUID else lambda raw: raw
