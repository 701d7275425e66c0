"""One database: its readings, at most two connections, and since when it could not be read.

Guarantees: one stats call per tick for all its queues and pools (O10), the first one after a random part of the
interval; calls one at a time, each with a time limit; reconnects for ever; a failed reading is a failed reading, never
zeros (P9). A wake-up of the store only brings the next reading forward. A reading counts only while the store takes this operator
for the one that keeps the namespace (O29); `term` is what its writes carry. Each reading tells the position of the one before, so
that a restore or a lossy fail-over is held even where no worker remembers (Q24).
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

from poolkeeper.codes import Code
from poolkeeper.errors import PoolkeeperError
from poolkeeper.redact import redact
from poolkeeper.store import Call, aconnect, arun, calls, migrate
from poolkeeper.store.rows import PoolStats, QueueStats, Stats
from poolkeeper_operator.resources.scaling import tick_stale_after

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_TIMEOUT = 10.0
COALESCE = 0.5  # seconds between two readings, however many wake-ups come
REGISTER = 60.0  # seconds between two registrations: a third of the silence after which another operator may take over
RESIGN = 2.0
NAME = "poolkeeper operator"
Lead = Callable[[str], Call[UUID]]
"""The call that registers this operator for a namespace; raises where it does not lead."""


@dataclass(frozen=True)
class Reading:
    """One successful stats call."""

    stats: Stats
    at: datetime  # the operator's clock

    @cached_property
    def queues(self) -> dict[tuple[str, str], QueueStats]:
        """By namespace and name."""
        return {(queue.namespace, queue.name): queue for queue in self.stats.queues}

    @cached_property
    def pools(self) -> dict[str, PoolStats]:
        """By "namespace/name"."""
        return {pool.pool: pool for pool in self.stats.pools}


class Link:
    """See the module. `after` is awaited after each reading, failed ones included."""

    def __init__(
        self, key: tuple[str, str], cluster: str, lead: Lead, after: Callable[["Link"], Awaitable[None]]
    ) -> None:
        self.key = key
        self.term: UUID | None = None
        self.reading: Reading | None = None
        self.problem = "not read yet"
        self.problem_code: str | None = None
        self.failures = 0  # failed readings in a row
        self.interval = timedelta(seconds=5)
        self.direct: str | None = None  # the DSN of directSecretRef, for what is composed of it
        self.pooled = False  # whether a pooler was seen in between
        self.attentive = False  # whether a wake-up of the store should bring the next reading forward
        self._cluster = cluster
        self._lead = lead
        self._registered = 0.0
        self._after = after
        # kept whatever becomes of DSN and server: a copy or restore of this database is told by it
        self._position: Mapping[str, Any] | None = None
        self._dsn: str | None = None
        self._listens_at: str | None = None
        self._conn: Any = None
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._wake_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        """For messages."""
        return f'database "{self.key[1]}" in namespace "{self.key[0]}"'

    @property
    def dsns(self) -> tuple[str, str | None] | None:
        """The connection strings of the Database, that of directSecretRef second; None while it is not in use."""
        return None if self._dsn is None else (self._dsn, self.direct)

    @property
    def loop_name(self) -> str:
        """For liveness."""
        return f"database {'/'.join(self.key)}"

    @property
    def stale_after(self) -> timedelta:
        """A reading older than this counts as none."""
        return tick_stale_after(self.interval)

    @property
    def kept_elsewhere(self) -> bool:
        """Whether another operator keeps the namespace in this database: nothing that depends on it is ours to write."""
        return self.problem_code == Code.NOT_LEADING

    def blind(self, now: datetime) -> str | None:
        """Why there is no reading to trust; None if there is one."""
        if self.reading is not None and now - self.reading.at <= self.stale_after:
            return None
        return f"{self.name}: {self.problem}"

    async def use(self, dsn: str, listens_at: str | None, interval: timedelta) -> None:
        """Read this database from now on; a new DSN (rotation) is used at once, and idle connections to the old one end.

        `listens_at`: where wake-ups come from; None behind a pooler that does not carry them.
        """
        self.interval = interval
        if (dsn, listens_at) == (self._dsn, self._listens_at):
            return
        self._dsn, self._listens_at = dsn, listens_at
        await self._stop()
        self.term = None
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read_for_ever(), name=f"link {self.key}")]
        if listens_at is not None:
            self._tasks.append(loop.create_task(self._listen_for_ever(listens_at), name=f"listen {self.key}"))

    async def close(self) -> None:
        """Stop reading, resign and close the connections."""
        if self.term is not None and self._conn is not None and not self.failures:
            with contextlib.suppress(PoolkeeperError, OSError):
                async with asyncio.timeout(RESIGN):
                    await self.call(calls.resign(self.term))
        self._dsn = None
        await self._stop()

    def wake(self) -> None:
        """Read as soon as possible."""
        self._wake.set()

    def wake_in(self, seconds: float) -> None:
        """Read at that moment at the latest: when the oldest task will have waited too long."""
        at = asyncio.get_running_loop().time() + max(0.0, seconds)
        self._wake_at = at if self._wake_at is None else min(at, self._wake_at)

    async def call(self, call: Call[T]) -> T:
        """Run one call; raises PoolkeeperError or OSError, TimeoutError included, and then reconnects with the next."""
        async with self._turn:
            fresh = self._conn is None or self._conn.closed
            if fresh:
                self._conn = await self._open(self._dsn)
            try:
                async with asyncio.timeout(CALL_TIMEOUT):
                    if fresh:
                        self.pooled = await arun(self._conn, calls.backend()) != self._conn.info.backend_pid
                    return await arun(self._conn, call)
            except BaseException as error:
                if not isinstance(error, PoolkeeperError) or self._conn.closed:
                    await self._hang_up()
                elif error.code is Code.NOT_LEADING:
                    self.term = None  # over; the next reading says so, or brings a new one
                raise

    async def _open(self, dsn: str | None) -> Any:
        if dsn is None:
            raise ConnectionError(f"{self.name}: not in use")
        async with asyncio.timeout(CALL_TIMEOUT):
            return await aconnect(dsn, name=NAME)

    async def _hang_up(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(Exception):
                await conn.close()

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with self._turn:
            await self._hang_up()

    async def _read_for_ever(self) -> None:
        if self.reading is not None:  # at the very beginning everybody waits for it; afterwards databases are spread
            await asyncio.sleep(random.uniform(0, min(1.0, self.interval.total_seconds())))  # noqa: S311
        while True:
            self._wake.clear()
            await self._read()
            try:
                await self._after(self)
            except (PoolkeeperError, OSError) as error:
                log.warning("link.after_failed: %s: %s", self.name, redact(str(error)))
            except Exception:
                log.exception("link.after_failed: %s", self.name)
            await asyncio.sleep(COALESCE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()

    def _pause(self) -> float:
        pause = self.interval.total_seconds() * random.uniform(0.9, 1.0) - COALESCE  # noqa: S311 - spreads databases
        if self._wake_at is not None:
            pause = min(pause, self._wake_at - asyncio.get_running_loop().time())
            self._wake_at = None
        return max(0.0, pause)

    async def _read(self) -> None:
        try:
            stats = await self.call(calls.stats(cluster=self._cluster, position=self._position))
            self._position = stats.position
            migrate.check_version(stats.schema_version)
            await self._register()
        except (PoolkeeperError, OSError) as error:
            self._failed(error, getattr(error, "code", None))
        except Exception as error:
            log.debug("link.failed", exc_info=True)
            self._failed(error, None)
        else:
            if self.failures or self.reading is None:
                log.info("database.reached: %s", self.name, extra={"database": "/".join(self.key)})
            self.reading = Reading(stats, datetime.now(UTC))
            self.failures, self.problem, self.problem_code = 0, "", None

    async def _register(self) -> None:
        """Say that this operator is there; raises where another one keeps the namespace."""
        now = asyncio.get_running_loop().time()
        if self.term is None or now - self._registered >= REGISTER:
            self.term = await self.call(self._lead(self.key[0]))
            self._registered = now

    def _failed(self, error: Exception, code: str | None) -> None:
        problem = redact(" ".join(str(error).split())) or type(error).__name__
        if not self.failures or problem != self.problem:
            log.warning("database.unreachable: %s: %s", self.name, problem, extra={"database": "/".join(self.key)})
        self.failures += 1
        self.problem, self.problem_code = problem, None if code is None else str(code)

    async def _listen_for_ever(self, dsn: str) -> None:
        while True:
            conn = None
            try:
                conn = await self._open(dsn)
                if dsn == self._dsn and await arun(conn, calls.backend()) != conn.info.backend_pid:
                    return  # through a pooler that nobody told of: it would stay with some backend, which the pooler ends when a notification comes
                await arun(conn, calls.listen())
                async for _ in conn.notifies():
                    if self.attentive:
                        self.wake()
            except Exception:
                log.debug("link.listen_failed", exc_info=True)
            finally:
                if conn is not None:
                    with contextlib.suppress(Exception):
                        await conn.close()
            await asyncio.sleep(self.interval.total_seconds())
