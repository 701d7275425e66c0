"""procrastinate: psycopg's pool, as many tasks at once as its pool can carry, ended ones removed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from procrastinate import App, PsycopgConnector
from procrastinate.tasks import Task

from benchmarks.peers.python.peer import Payload, Send, Stop, rows

CONCURRENCY = 50
POOL = 20


class Procrastinate:
    """See the module."""

    package = "procrastinate"
    run = staticmethod(asyncio.run)
    settings: ClassVar[dict[str, Any]] = {"concurrency": CONCURRENCY, "pool": POOL}

    async def _task(
        self, dsn: str, handler: Callable[[Payload], None], most: int = POOL
    ) -> tuple[App, Task[..., Any, Any]]:
        app = App(connector=PsycopgConnector(conninfo=dsn, min_size=1, max_size=most))
        await app.open_async()

        async def noop(**payload: int) -> None:
            handler(payload)

        return app, app.task(name="noop")(noop)

    async def install(self, dsn: str) -> None:
        app, _ = await self._task(dsn, lambda _payload: None)
        await app.schema_manager.apply_schema_async()

    async def bulk(self, dsn: str) -> Callable[[list[Payload]], Awaitable[Any]]:
        _, task = await self._task(dsn, lambda _payload: None)
        return lambda payloads: task.batch_defer_async(*payloads)  # type: ignore[arg-type, unused-ignore]

    async def submit(self, dsn: str, connections: int) -> Send:
        _, task = await self._task(dsn, lambda _payload: None, connections)
        return lambda payload: task.defer_async(**payload)

    async def work(self, dsn: str, handler: Callable[[Payload], None]) -> Stop:
        app, _ = await self._task(dsn, handler)
        running = asyncio.ensure_future(
            app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False, delete_jobs="always")
        )

        async def stop() -> None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        return stop

    async def left(self, dsn: str) -> int:
        return await rows(dsn, "SELECT count(*) FROM (SELECT FROM procrastinate_jobs LIMIT 1) AS x")


PEER = Procrastinate()
