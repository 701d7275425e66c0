"""A fresh database of one server for each measurement, and our worker as users run it.

The server keeps its promises while it is measured: fsync and synchronous_commit are on.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from lab.postgres import Server
from poolkeeper.store import calls, connect, migrate, run

HERE = Path(__file__).parent
BULK = 5_000


class Rig:
    """One server; `database` makes a fresh database on it and drops it afterwards."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @contextmanager
    def database(self) -> Iterator[str]:
        """DSN of an empty database."""
        name = f"bench_{secrets.token_hex(4)}"
        with psycopg.connect(self.server.dsn(), autocommit=True) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield self.server.dsn(name)
        finally:
            with psycopg.connect(self.server.dsn(), autocommit=True) as conn:
                conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
                conn.execute("CHECKPOINT")  # its dirty pages are not the next one's load


def install(dsn: str, policy: dict[str, Any] | None = None) -> None:
    """Schema and one queue `bench` with default policy."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        migrate.apply(conn, say=lambda _line: None)
    with connect(dsn) as conn:
        run(conn, calls.apply_policy("local", "default", "default", "bench", policy or {}, who="bench"))


def fill(dsn: str, count: int, type_: str = "bench.noop") -> None:
    """Submit `count` tasks in bulk."""
    with connect(dsn) as conn:
        for first in range(0, count, BULK):
            some = [{"type": type_, "payload": {"n": n}} for n in range(first, min(first + BULK, count))]
            run(conn, calls.submit_many("bench", some, notify=False))


@contextmanager
def worker(dsn: str, *, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`poolkeeper worker` at its defaults, beside the queue; ended by SIGTERM, at last by SIGKILL."""
    argv = [str(Path(sys.executable).with_name("poolkeeper")), "worker", "benchmarks.apps:app", "--queue", "bench"]
    settings = {"POOLKEEPER_DSN": dsn, "POOLKEEPER_HTTP_ADDR": "127.0.0.1:0", "PYTHONPATH": str(HERE.parent)}
    process = subprocess.Popen(argv, env={**os.environ, **settings, **(env or {})}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
