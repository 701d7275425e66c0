"""Postgres databases for tests: a server of our own, or one that is named; for each test a fresh database (Q50).

Guarantees: a server that we start listens on loopback only and is gone with its data when its owner is, however that
ends. A database is a clone of a template that is migrated once. Nothing here is durable: no test may speak of that.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from poolkeeper.store import connect, migrate, run
from poolkeeper.store.call import Call, nothing
from poolkeeper.store.statements import statements
from poolkeeper.testing.postgres_binaries import Binaries, PostgresMissing, find, ids

STARTS = 3
"""Times that a port is looked for: another program may take it first."""

PATIENCE = 60.0
"""Seconds that a server may take to start."""

_UNTIL_WE_END = 'folder=$1; shift; "$@" & pid=$!; read _; kill -QUIT $pid; wait $pid; rm -rf "$folder"'
"""Our end of a pipe closes when we end, by whatever: then it ends the server and removes its data."""

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "timezone": "UTC",
    "lc_messages": "C",
}


@contextmanager
def server(named: str | None = None) -> Iterator[str]:
    """Yield the DSN of a server, database `postgres`: the one that is named, in words or in POOLKEEPER_TEST_DSN, or one of our own."""
    dsn = named or os.environ.get("POOLKEEPER_TEST_DSN")
    if dsn:
        yield dsn
        return
    binaries = find()
    for start in range(STARTS):
        try:
            with _started(binaries) as dsn:
                yield dsn
                return
        except _PortTaken:
            if start == STARTS - 1:
                raise


@contextmanager
def template(dsn: str) -> Iterator[Callable[[], str]]:
    """Migrate a template on a server; what is yielded makes a clone of it and returns its DSN. All are dropped at the end."""
    names = [f"poolkeeper_kit_{secrets.token_hex(6)}"]
    with connect(dsn, name="poolkeeper kit") as conn:
        conn.execute(_create(names[0], "template1"))
        try:
            with connect(make_conninfo(dsn, dbname=names[0]), name="poolkeeper kit") as inside:
                migrate.apply(inside, say=lambda _line: None)
                inside.execute(statements("testing.sql")["movable_clock"].encode())

            def clone() -> str:
                name = f"{names[0]}_{len(names)}"
                conn.execute(_create(name, names[0]))
                names.append(name)
                made = url(dsn, dbname=name)
                with connect(made, name="poolkeeper kit") as inside:
                    run(inside, Call("a_clone", {}, nothing, file="testing.sql"))
                return made

            yield clone
        finally:
            for name in reversed(names):
                conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def drop(dsn: str) -> None:
    """Drop a database at once, whoever is connected."""
    parts: dict[str, Any] = conninfo_to_dict(dsn)
    with connect(make_conninfo(dsn, dbname="postgres"), name="poolkeeper kit") as conn:
        conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(parts["dbname"])))


def url(dsn: str, **more: str) -> str:
    """A DSN as a URL, which SQLAlchemy and others read too: `postgresql://user:password@host:port/name?more`."""
    parts = {name: str(part) for name, part in {**conninfo_to_dict(dsn), **more}.items() if part is not None}
    user, password = quote(parts.pop("user", ""), safe=""), quote(parts.pop("password", ""), safe="")
    login = f"{user}{':' if password else ''}{password}{'@' if user else ''}"
    host, port = parts.pop("host", ""), parts.pop("port", "")
    if host.startswith("/") or "," in host:  # a socket, or several: libpq reads them from here as well
        parts["host"], host = host, ""
        if port:
            parts["port"], port = port, ""
    at = f"{f'[{host}]' if ':' in host else host}{':' if port else ''}{port}"
    name = quote(parts.pop("dbname", ""), safe="")
    return f"postgresql://{login}{at}/{name}{'?' if parts else ''}{urlencode(parts, quote_via=quote)}"


def _create(name: str, of: str) -> sql.Composed:
    return sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(of))


class _PortTaken(PostgresMissing):
    """Somebody else was faster."""


@contextmanager
def _started(binaries: Binaries) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="poolkeeper-kit-"))
    uid, gid = ids(binaries.user) if binaries.user else (None, None)
    if uid is not None and gid is not None:
        os.chown(folder, uid, gid)
    data, log = folder / "data", folder / "log"
    who: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": None if uid is None else [], "cwd": folder}
    made = subprocess.run(
        [binaries.folder / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"],
        capture_output=True, text=True, check=False, **who,
    )  # fmt: skip
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise PostgresMissing(f"initdb of {binaries} failed: {made.stderr.strip()}")
    port = _free_port()
    settings = {**_SETTINGS, "port": str(port)}
    command = [
        binaries.folder / "postgres",
        "-D",
        data,
        *(x for pair in settings.items() for x in ("-c", "=".join(pair))),
    ]
    with log.open("wb") as output:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _UNTIL_WE_END, "sh", str(folder), *map(str, command)],
            stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True, **who,
        )  # fmt: skip
    try:
        _await_ready(binaries, data / "postmaster.pid", log, guard)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        assert guard.stdin is not None  # noqa: S101
        guard.stdin.close()
        guard.wait(PATIENCE)


def _await_ready(binaries: Binaries, status: Path, log: Path, guard: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines = status.read_text().splitlines() if status.exists() else []
        if len(lines) >= 8 and lines[7].strip() == "ready":  # noqa: PLR2004  (the server's own word on its state)
            return
        said = log.read_text(errors="replace")
        if "could not create any TCP/IP sockets" in said or "could not bind" in said:
            raise _PortTaken(f"{binaries}: no free port was found in {STARTS} attempts: {said.strip()[-500:]}")
        if "FATAL" in said or guard.poll() is not None:
            raise PostgresMissing(f"{binaries} did not start: {said.strip()[-2000:]}")
        time.sleep(0.01)
    raise PostgresMissing(
        f"{binaries} did not come up within {PATIENCE:g} s: {log.read_text(errors='replace').strip()[-2000:]}"
    )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
