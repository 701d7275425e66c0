"""chancy: its executor for coroutines, eager polling, wide concurrency."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from chancy import Chancy, Queue, Worker, job

from benchmarks.peers.python.peer import BULK, Payload, Send, Stop, rows

CONCURRENCY = 500
QUIET = logging.getLogger(__name__)  # its own writes a line for each task
QUIET.setLevel(logging.WARNING)
_handlers: list[Callable[[Payload], None]] = []


@job()  # type: ignore[untyped-decorator, unused-ignore]
async def noop(**payload: int) -> None:
    """Tell the handler of this process."""
    _handlers[0](payload)


class ChancyPeer:
    """See the module."""

    package = "chancy"
    run = staticmethod(asyncio.run)
    settings: ClassVar[dict[str, Any]] = {
        "concurrency": CONCURRENCY,
        "executor": "AsyncExecutor",
        "eager_polling": True,
    }

    async def install(self, dsn: str) -> None:
        async with Chancy(dsn, log=QUIET) as chancy:
            await chancy.migrate()
            await chancy.declare(
                Queue(
                    "default",
                    concurrency=CONCURRENCY,
                    executor=Chancy.Executor.Async,
                    eager_polling=True,
                    polling_interval=1,
                )
            )

    async def bulk(self, dsn: str) -> Callable[[list[Payload]], Awaitable[Any]]:
        chancy = await Chancy(dsn, log=QUIET).__aenter__()

        async def send(payloads: list[Payload]) -> None:
            async for _ in chancy.push_many([noop.job.with_kwargs(**payload) for payload in payloads], batch_size=BULK):
                pass

        return send

    async def submit(self, dsn: str, connections: int) -> Send:
        chancy = await Chancy(dsn, max_connection_pool_size=connections, log=QUIET).__aenter__()
        return lambda payload: chancy.push(noop.job.with_kwargs(**payload))

    async def work(self, dsn: str, handler: Callable[[Payload], None]) -> Stop:
        _handlers[:] = [handler]
        chancy = await Chancy(dsn, log=QUIET).__aenter__()
        worker = await Worker(chancy, register_signal_handlers=False).__aenter__()

        async def stop() -> None:
            await worker.stop()
            await chancy.__aexit__(None, None, None)

        return stop

    async def left(self, dsn: str) -> int:
        return await rows(
            dsn,
            "SELECT count(*) FROM (SELECT FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed') LIMIT 1) AS x",
        )


PEER = ChancyPeer()
