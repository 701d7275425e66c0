"""The worker's own connection for turns and checkpoints: one, opened again whenever it is lost, for ever, and anew where the DSN changes.

Guarantees: a call is answered, or raises within its time-out; a lost connection is never used again; the log says once
that something fails and once that it works again, in between at intervals. Repeating a call is the caller's decision.
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from poolkeeper.codes import Code
from poolkeeper.errors import PoolkeeperError, Unavailable, error
from poolkeeper.redact import bounded, redact
from poolkeeper.store import Call, aconnect, arun
from poolkeeper.store.connection import POOLER
from poolkeeper.store.prepared import aprepare
from poolkeeper.worker.rotation import Rotation

_log = logging.getLogger("poolkeeper.worker")
T = TypeVar("T")

SAY_AGAIN = 60.0
"""Seconds between two log lines about an outage that goes on."""

SAY_NEWS = 5.0
"""Seconds between two of them when the reason has become another."""

GIVE_UP_HERE = 15.0
"""Seconds after which an answer is waited for no longer."""

GIVE_UP_THERE = 12_000
"""Milliseconds after which the server ends a statement: before we give up, so that no turn commits behind our back."""


def pause(failures: int, rng: random.Random, *, first: float = 0.1, longest: float = 5.0) -> float:
    """Return seconds to wait after `failures` failures in a row: doubling, bounded, with jitter."""
    return float(min(longest, first * 2 ** min(failures, 10)) * rng.uniform(0.5, 1.0))


class Outage:
    """Says in the log that something is out of reach: when it begins, at intervals, and when it is over."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._since: float | None = None
        self._said = 0.0
        self._kind = ""
        self.failures = 0

    def failed(self, error: BaseException) -> None:
        """Note one more failure."""
        now = time.monotonic()
        kind = str(getattr(error, "code", type(error).__name__))
        self.failures += 1
        if self._since is None:
            self._since = now
        elif now - self._said < (SAY_AGAIN if kind == self._kind else SAY_NEWS):
            return
        self._said, self._kind = now, kind
        since = f"failing for {now - self._since:.0f} s" if self.failures > 1 else "failed"
        self._log.warning("%s: %s, trying again for ever: %s", self._what, since, _reason(error))

    def over(self) -> None:
        """Note that it works."""
        if self._since is not None:
            self._log.warning("%s: works again after %.1f s", self._what, time.monotonic() - self._since)
        self._since = None
        self.failures = 0


def _reason(error: BaseException) -> str:
    """Return one line about an error; the driver's own text may be a page of SQL."""
    text = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return bounded(redact(" ".join((text or str(error)).split())), 300) or type(error).__name__


def cut(conn: psycopg.Connection | psycopg.AsyncConnection) -> None:
    """End a connection from another thread or callback: whoever waits on it gets an error at once."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=socket_copy(conn)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def socket_copy(conn: psycopg.Connection | psycopg.AsyncConnection) -> int:
    """Return a duplicate of the connection's file descriptor, so that shutting it down leaves the owner's alone."""
    return os.dup(conn.fileno())


class Link:
    """One asynchronous connection; see the module."""

    def __init__(self, dsn: Callable[[], str], *, name: str, pooled: bool = False) -> None:
        self._rotation = Rotation(dsn, "turns")
        self._name = name
        self._pooled = pooled
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._opening = asyncio.Lock()
        self._calls: dict[psycopg.AsyncConnection[Any], int] = {}  # under way on each
        self._moving: tuple[str, asyncio.Task[None]] | None = None  # to another DSN
        self._told = False

    async def call(self, call: Call[T], *, within: float = GIVE_UP_HERE) -> T:
        """Return the answer of the database; raises Unavailable when it is out of reach or silent for `within` seconds."""
        began = time.monotonic()
        conn = self._conn
        if conn is None or conn.closed:
            try:
                async with asyncio.timeout(within):
                    conn = await self._open()
            except TimeoutError:
                raise error(Code.DATABASE_UNREACHABLE, f"no connection within {within:.1f} s") from None
        else:
            self._look_elsewhere()
        self._calls[conn] = self._calls.get(conn, 0) + 1
        clock = asyncio.get_running_loop().call_later(within - (time.monotonic() - began), cut, conn)
        try:
            return await arun(conn, call)
        except (PoolkeeperError, psycopg.Error) as problem:
            if isinstance(problem, Unavailable) or conn.closed:
                await self._drop(conn)
            raise
        finally:
            clock.cancel()
            await self._leave(conn)

    def _look_elsewhere(self) -> None:
        """Begin to connect by another DSN where there is one; calls go on by the connection that there is, however long that takes."""
        dsn = self._rotation.another()
        if dsn is None or (self._moving is not None and self._moving[0] == dsn):
            return
        if self._moving is not None:
            self._moving[1].cancel()
        self._moving = dsn, asyncio.get_running_loop().create_task(self._move(dsn))

    async def _move(self, dsn: str) -> None:
        """Connect by another DSN; the connection that there is goes when its last call has been answered, or stays if this fails."""
        try:
            async with asyncio.timeout(GIVE_UP_HERE):
                fresh = await self._connect(dsn)
        except Exception as problem:  # noqa: BLE001  (whatever it is, calls go on by the connection that there is)
            self._rotation.failed(problem)
            return
        finally:
            if self._moving is not None and self._moving[1] is asyncio.current_task():
                self._moving = None
        before, self._conn = self._conn, fresh
        self._rotation.took(dsn)
        if before is not None and before not in self._calls:
            await before.close()

    async def _leave(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """One call fewer is under way on it; nobody needs one that was moved away from after its last."""
        self._calls[conn] -= 1
        if not self._calls[conn]:
            del self._calls[conn]
            if conn is not self._conn:
                await conn.close()

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        async with self._opening:
            if self._conn is None or self._conn.closed:
                self._conn = None
                self._conn = await self._connect(self._rotation.first())
            return self._conn

    async def _connect(self, dsn: str) -> "psycopg.AsyncConnection[Any]":
        if self._pooled:  # a pooler in transaction mode takes neither options nor, for sure, prepared statements
            return await aconnect(dsn, name=self._name)
        conn = await aconnect(dsn, name=self._name, options=f"-c statement_timeout={GIVE_UP_THERE}")
        clock = asyncio.get_running_loop().call_later(GIVE_UP_HERE, cut, conn)
        try:
            alone = await aprepare(conn)
        except BaseException:
            await conn.close()
            raise
        finally:
            clock.cancel()
        if not alone and not self._told:
            self._told = True
            _log.warning("%s", POOLER)
        return conn

    async def _drop(self, conn: psycopg.AsyncConnection[Any]) -> None:
        if self._conn is conn:
            self._conn = None
        await conn.close()

    async def close(self) -> None:
        """Close the connection, if there is one, and make no other."""
        if self._moving is not None:
            self._moving[1].cancel()
        if self._conn is not None:
            await self._drop(self._conn)
