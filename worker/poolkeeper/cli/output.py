"""How commands answer: a table or lines for people, JSON for programs, errors as one line on stderr."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from poolkeeper.durations import format_duration
from poolkeeper.errors import PoolkeeperError
from poolkeeper.redact import redact

F = TypeVar("F", bound=Callable[..., Any])

output = click.option(
    "--output",
    "-o",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)


def tell(error: PoolkeeperError) -> None:
    """Write an error as one line: code, then what is wrong and what to do."""
    print(f"error: {error.code}: {harmless(redact(' '.join(str(error).split())))}", file=sys.stderr)


def harmless(text: str) -> str:
    """Return a text whose control, format and unassigned characters are written as escapes: it cannot forge lines or colours."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def described(error: BaseException) -> str:
    """Return an error that is none of ours as one line: its class and its first words, redacted."""
    first = next(iter(str(error).splitlines()), "")
    return harmless(redact(f"{type(error).__name__}: {first}"[:500]))


def as_json(value: Any) -> str:
    """Return a value of the store as JSON: ids and moments as text, durations as seconds."""
    return json.dumps(value, default=_plain, ensure_ascii=False, indent=2)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return columns as wide as they must be; without rows the heads alone."""
    lines = [[*heads], *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def cell(value: Any) -> str:
    """Return one value as people read it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.astimezone().isoformat(sep=" ", timespec="seconds")
        case timedelta():
            return format_duration(value)
        case UUID() | str() | int() | float():
            return harmless(str(value))
        case _:
            return json.dumps(value, default=_plain, ensure_ascii=False)


def lines(pairs: Iterable[tuple[str, Any]]) -> str:
    """Return names and values, one pair a line."""
    known = [(name, cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in known)
