"""awa: its Rust core under Python handlers, queue storage, four claimers, COPY for bulk."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import awa

from benchmarks.peers.python.peer import Payload, Send, Stop, rows

QUEUE = {"name": "default", "max_workers": 500, "claimers": 4, "claim_batch_size": 512}
STORAGE = {"storage_transition_role": "queue_storage_target", "poll_interval_ms": 50}


@dataclass
class Noop:
    """What a task carries."""

    n: int = 0
    at: int = 0


class Awa:
    """See the module."""

    package = "awa-pg"
    run = staticmethod(asyncio.run)
    settings: ClassVar[dict[str, Any]] = {**QUEUE, **STORAGE}

    async def install(self, dsn: str) -> None:
        client = awa.AsyncClient(dsn)
        await client.migrate()
        await client.install_queue_storage()
        await client.close()

    async def bulk(self, dsn: str) -> Callable[[list[Payload]], Awaitable[Any]]:
        client = awa.AsyncClient(dsn)
        return lambda payloads: client.enqueue_many_copy([Noop(**payload) for payload in payloads])

    async def submit(self, dsn: str, connections: int) -> Send:
        client = awa.AsyncClient(dsn, max_connections=connections)
        return lambda payload: client.insert(Noop(**payload))

    async def work(self, dsn: str, handler: Callable[[Payload], None]) -> Stop:
        client = awa.AsyncClient(dsn)

        @client.task(Noop)  # type: ignore[untyped-decorator, unused-ignore]
        async def noop(job: Any) -> None:
            handler(asdict(job.args))

        await client.start([QUEUE], **STORAGE)

        async def stop() -> None:
            await client.shutdown()

        return stop

    async def left(self, dsn: str) -> int:
        return await rows(dsn, "SELECT count(*) FROM (SELECT FROM awa.jobs WHERE state <> 'completed' LIMIT 1) AS x")


PEER = Awa()
