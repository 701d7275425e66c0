"""Reads what the store's .sql files say of themselves: functions with comments, grants, look-up rows. Pure but for reading them.

Does not understand SQL: it knows the one form in which these files are written, and raises where a file has another.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile

from poolkeeper.store.statements import sql_file, sql_names

_FUNCTION = re.compile(
    r"^CREATE OR REPLACE FUNCTION poolkeeper\.(?P<name>\w+)\s*\((?P<arguments>.*?)\)\s*(?:RETURNS (?P<returns>.*?))?\s*\nLANGUAGE",
    re.DOTALL | re.MULTILINE,
)
_GRANT = re.compile(r"^GRANT EXECUTE ON FUNCTION\s+(?P<what>.*?)\s+TO\s+(?P<roles>[\w, ]+);", re.DOTALL | re.MULTILINE)
_GRANTED = re.compile(r"poolkeeper\.(\w+)\(")
_ROW = re.compile(r"^\s+\('((?:[^']|'')*)', '((?:[^']|'')*)', '((?:[^']|'')*)'\)[,;]", re.MULTILINE)
_ROLE = "poolkeeper_"


@dataclass(frozen=True)
class Function:
    """One function as its file declares it."""

    name: str
    file: str
    arguments: str
    returns: str
    comment: str


def functions() -> list[Function]:
    """All functions, in the order of files and lines."""
    found = []
    for file in sql_names("functions"):
        text = sql_file(f"functions/{file}")
        for match in _FUNCTION.finditer(text):
            arguments, returns = (" ".join((match[part] or "").split()) for part in ("arguments", "returns"))
            found.append(Function(match["name"], file, arguments, returns, _comment_above(text[: match.start()])))
    return found


def grants() -> dict[str, list[str]]:
    """Function name to the group roles that may call it, without their prefix."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sql_names("functions"):
        for match in _GRANT.finditer(sql_file(f"functions/{file}")):
            roles = [role.strip().removeprefix(_ROLE) for role in match["roles"].split(",")]
            for name in _GRANTED.findall(match["what"]):
                found[name].update(roles)
    return {name: sorted(roles) for name, roles in found.items()}


def rows(table: str) -> list[tuple[str, str, str]]:
    """The rows that migrations insert into a look-up table of three text columns."""
    found: list[tuple[str, str, str]] = []
    for file in sql_names("migrations"):
        for statement in sql_file(f"migrations/{file}").split(f"INSERT INTO poolkeeper.{table} ")[1:]:
            found += _ROW.findall(statement.split(";\n")[0] + ";")
    return [(name, first.replace("''", "'"), second.replace("''", "'")) for name, first, second in found]


def about(file: str) -> str:
    """The comment at the top of a function file."""
    lines = sql_file(f"functions/{file}").splitlines()
    return _words(list(takewhile(lambda line: line.startswith("--"), lines)))


def _comment_above(text: str) -> str:
    """The comment that ends right above; empty when something else stands there."""
    lines: list[str] = []
    for line in reversed(text.splitlines()):
        if not line.startswith("--"):
            break
        lines.insert(0, line)
    return _words(lines)


def _words(lines: list[str]) -> str:
    return " ".join(" ".join(line.removeprefix("--") for line in lines).split())
