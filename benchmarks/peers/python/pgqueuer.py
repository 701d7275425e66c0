"""pgqueuer, as its documentation does it best: asyncpg, uvloop, batches."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.models import Job

from benchmarks.peers.python.peer import Payload, Send, Stop

BATCH = 500


class Pgqueuer:
    """See the module."""

    package = "pgqueuer"
    run = staticmethod(uvloop.run)
    settings: ClassVar[dict[str, Any]] = {"batch_size": BATCH, "driver": "asyncpg", "loop": "uvloop"}

    async def install(self, dsn: str) -> None:
        await Queries(AsyncpgDriver(await asyncpg.connect(dsn))).install()

    async def bulk(self, dsn: str) -> Callable[[list[Payload]], Awaitable[Any]]:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
        return lambda payloads: queries.enqueue(
            ["noop"] * len(payloads), [json.dumps(payload).encode() for payload in payloads], [0] * len(payloads)
        )

    async def submit(self, dsn: str, connections: int) -> Send:
        pool = await asyncpg.create_pool(dsn, min_size=connections, max_size=connections)
        queries = Queries(AsyncpgPoolDriver(pool))
        return lambda payload: queries.enqueue("noop", json.dumps(payload).encode())

    async def work(self, dsn: str, handler: Callable[[Payload], None]) -> Stop:
        pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

        @pgq.entrypoint("noop")  # type: ignore[untyped-decorator, unused-ignore]
        async def noop(job: Job) -> None:
            handler(json.loads(job.payload or b"{}"))

        running = asyncio.ensure_future(pgq.run(batch_size=BATCH))

        async def stop() -> None:
            pgq.shutdown.set()
            await running

        return stop

    async def left(self, dsn: str) -> int:
        conn = await asyncpg.connect(dsn)
        try:
            return int(await conn.fetchval("SELECT count(*) FROM (SELECT FROM pgqueuer LIMIT 1) AS x"))
        finally:
            await conn.close()


PEER = Pgqueuer()
