"""What a worker process is told by its environment (contract of the worker pod), read once and checked at once.

Guarantees: every wrong value is refused before anything starts, naming the variable and the remedy. The DSN alone is
read anew for every connection, so that a rotated secret reaches a running worker.
"""

import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured

DEFAULT_CONCURRENCY = 10
DEFAULT_GRACE = 30.0
DEFAULT_MARGIN = 5.0
DEFAULT_ADDRESS = "127.0.0.1:8080"

LONGEST_POOL = 200
LONGEST_GRACE = 604_800.0
"""Seconds, a week: more than any cluster gives."""

_LABEL = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_QUEUE = re.compile(f"{_LABEL}/{_LABEL}")

Pooler = Literal["none", "transaction"]


@dataclass(frozen=True)
class Dsn:
    """Where the database is: a file (a mounted Secret, read at each connection) or a text."""

    file: Path | None = None
    text: str | None = None
    variable: str = "POOLKEEPER_DSN"

    def read(self) -> str:
        """Return the DSN of this moment; raises Misconfigured `dsn_missing` or `dsn_invalid`."""
        dsn = self._content().strip()
        if not dsn:
            raise Misconfigured(
                Code.DSN_MISSING,
                f"{self._name()} is empty; write a DSN such as postgresql://user@host/database into it",
            )
        from poolkeeper.store.connection import parse_dsn

        problem = ""
        try:
            parse_dsn(dsn)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise Misconfigured(Code.DSN_INVALID, f"{self._name()} {problem}")
        return dsn

    def _content(self) -> str:
        if self.file is None:
            return self.text or ""
        try:
            return self.file.read_text()
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        # raised out here: the traceback of a UnicodeError would show the content
        raise Misconfigured(
            Code.DSN_MISSING, f"{self._name()} cannot be read: {why}; mount the secret or correct the path"
        )

    def _name(self) -> str:
        return self.variable if self.file is None else f'{self.variable} "{self.file}"'


def find_dsn(environ: Mapping[str, str], given: str | None = None, variable: str = "POOLKEEPER_DSN") -> Dsn:
    """Return the DSN that is configured: an option, else the file, else the variable; raises Misconfigured `dsn_missing`."""
    if given is not None:
        return Dsn(text=given, variable="--dsn")
    if file := environ.get(f"{variable}_FILE"):
        return Dsn(file=Path(file), variable=f"{variable}_FILE")
    if text := environ.get(variable):
        return Dsn(text=text, variable=variable)
    raise Misconfigured(
        Code.DSN_MISSING,
        f"no database is named; set {variable}_FILE, {variable} or --dsn to postgresql://user@host/database",
    )


@dataclass(frozen=True)
class Settings:
    """All that one worker process is told. Seconds are real seconds."""

    app: str
    queues: tuple[str, ...]
    dsn: Dsn
    direct_dsn: Dsn | None = None
    pooler: Pooler = "none"
    task_types: tuple[str, ...] = ()
    tenants: tuple[str, ...] | None = None
    tenants_except: tuple[str, ...] = ()
    concurrency: int = DEFAULT_CONCURRENCY
    pool: str = ""
    build: str = ""
    image: str = ""
    grace: float = DEFAULT_GRACE
    hand_back_margin: float = DEFAULT_MARGIN
    pod: Mapping[str, str] = field(default_factory=dict)
    http_host: str = "127.0.0.1"
    http_port: int = 8080

    @property
    def listens(self) -> bool:
        """Whether LISTEN can work: not through a pooler in transaction mode, unless there is a direct way."""
        return self.direct_dsn is not None or self.pooler == "none"


def read_settings(
    environ: Mapping[str, str] | None = None,
    *,
    app: str | None = None,
    queues: Sequence[str] = (),
    concurrency: int | None = None,
    dsn: str | None = None,
) -> Settings:
    """Return the settings of this process; options of the command line win. Raises Misconfigured."""
    env = os.environ if environ is None else environ
    grace = _seconds(env, "POOLKEEPER_GRACE_PERIOD", DEFAULT_GRACE)
    host, port = _address(env.get("POOLKEEPER_HTTP_ADDR") or DEFAULT_ADDRESS)
    direct = env.get("POOLKEEPER_DIRECT_DSN_FILE") or env.get("POOLKEEPER_DIRECT_DSN")
    return Settings(
        app=_required(app or env.get("POOLKEEPER_APP"), "POOLKEEPER_APP", "the application as module:attribute"),
        queues=_queues(tuple(queues) or _list(env, "POOLKEEPER_QUEUES")),
        dsn=find_dsn(env, dsn),
        direct_dsn=find_dsn(env, variable="POOLKEEPER_DIRECT_DSN") if direct else None,
        pooler=_pooler(env.get("POOLKEEPER_POOLER") or "none"),
        task_types=_list(env, "POOLKEEPER_TASK_TYPES"),
        tenants=_names(env, "POOLKEEPER_TENANTS_ONLY"),
        tenants_except=_names(env, "POOLKEEPER_TENANTS_EXCEPT") or (),
        concurrency=concurrency or _count(env, "POOLKEEPER_CONCURRENCY", DEFAULT_CONCURRENCY),
        pool=_pool(env.get("POOLKEEPER_POOL") or f"local/{socket.gethostname()}"),
        build=env.get("POOLKEEPER_BUILD") or _package_version(),
        image=env.get("POOLKEEPER_IMAGE", ""),
        grace=grace,
        hand_back_margin=min(_seconds(env, "POOLKEEPER_HAND_BACK_MARGIN", DEFAULT_MARGIN), grace / 2),
        pod={
            name: env.get(f"POOLKEEPER_{name.upper()}", "")
            for name in ("pod_name", "pod_namespace", "pod_uid", "node_name")
        },
        http_host=host,
        http_port=port,
    )


def _refuse(variable: str, problem: str) -> Misconfigured:
    return Misconfigured(
        Code.APP_NOT_IMPORTABLE if variable == "POOLKEEPER_APP" else Code.SETTING_INVALID, f"{variable} {problem}"
    )


def _required(value: str | None, variable: str, what: str) -> str:
    if not value:
        raise _refuse(variable, f"is not set; it names {what}")
    return value


def _list(env: Mapping[str, str], variable: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in env.get(variable, "").split(",") if part.strip())


def _names(env: Mapping[str, str], variable: str) -> tuple[str, ...] | None:
    """A JSON array of tenants, whose names may hold commas; None where it is not set."""
    text = env.get(variable)
    if not text:
        return None
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise _refuse(variable, f'is {text[:200]!a}; expected a JSON array of tenants, such as ["acme"]')
    return tuple(names)


def _queues(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise _refuse(
            "POOLKEEPER_QUEUES", 'is not set; it lists the queues to work off, such as "team-a/orders,team-a/mail"'
        )
    paths = tuple(dict.fromkeys(name if "/" in name else f"default/{name}" for name in names))
    for path in paths:
        if not _QUEUE.fullmatch(path):
            raise _refuse(
                "POOLKEEPER_QUEUES",
                f"names {path[:200]!a}; a queue is namespace/name, each of a-z, 0-9 and -, at most 63 characters",
            )
    return paths


def _pool(name: str) -> str:
    if not 1 <= len(name) <= LONGEST_POOL or not name.isprintable():
        raise _refuse("POOLKEEPER_POOL", f"is {name[:LONGEST_POOL]!a}; expected namespace/name, at most 200 characters")
    return name


def _pooler(value: str) -> Pooler:
    match value.lower():
        case "none":
            return "none"
        case "transaction":
            return "transaction"
        case _:
            raise _refuse("POOLKEEPER_POOLER", f'is "{value}"; expected none or transaction')


def _count(env: Mapping[str, str], variable: str, default: int) -> int:
    text = env.get(variable)
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 10_000:  # noqa: PLR2004
        raise _refuse(variable, f'is "{text[:80]}"; expected a number from 1 to 10000')
    return int(text)


def _seconds(env: Mapping[str, str], variable: str, default: float) -> float:
    text = env.get(variable)
    if not text:
        return default
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) > LONGEST_GRACE:
        raise _refuse(variable, f'is "{text[:80]}"; expected seconds, such as 30, at most {LONGEST_GRACE:.0f}')
    return float(text)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:  # noqa: PLR2004
        raise _refuse("POOLKEEPER_HTTP_ADDR", f'is "{text[:80]}"; expected host:port, such as 0.0.0.0:8080')
    return host.strip("[]") or "127.0.0.1", int(port)


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("poolkeeper")
    except PackageNotFoundError:
        return "unknown"
