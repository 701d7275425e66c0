"""What the operator remembers of a database, where no worker is left to remember anything (Q24)."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lab.postgres import Server
from poolkeeper.store import calls, connect, migrate, run
from poolkeeper_operator.observe.link import Link

pytestmark = pytest.mark.wide


@asynccontextmanager
async def reading(server: Server) -> AsyncIterator[Link]:
    """The operator's own reader of a database, ten times a second."""

    async def after(_link: Link) -> None:
        return None

    def lead(namespace: str) -> Any:
        return calls.lead("local", namespace, lease="default/poolkeeper", epoch=1, holder="test")

    link = Link(("default", "main"), "local", lead, after)
    await link.use(server.dsn(), None, timedelta(seconds=0.1))
    try:
        yield link
    finally:
        await link.close()


async def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.05)


def copy(folder: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", folder, to], check=True)


def install(server: Server) -> None:
    """The schema and a queue."""
    with connect(server.dsn()) as conn:
        migrate.apply(conn, say=lambda _line: None)
        run(conn, calls.apply_policy("local", "default", "default", "q", {}, who="test"))


async def submit(server: Server, link: Link) -> None:
    """Twenty tasks, which the operator has read."""
    with connect(server.dsn()) as conn:
        for n in range(20):
            run(conn, calls.submit("q", "a.b", n))
    await until(lambda: link.reading is not None and link.reading.stats.queues[0].ready == 20)


async def test_a_restore_of_older_files_is_held_by_the_operators_reading(tmp_path: Path) -> None:
    """Q24: no worker at all: the position of the reading before is beyond the end of what came back."""
    with Server() as server:
        install(server)
        server.stop()
        copy(server.folder, tmp_path / "copy")
        server.start()
        async with reading(server) as link:
            await submit(server, link)
            server.stop()
            copy(tmp_path / "copy", server.folder)
            server.start()
            await until(lambda: link.reading is not None and link.reading.stats.held == "older_copy")
            with connect(server.dsn()) as conn:
                assert run(conn, calls.accept_installation("ann", "the newer files are gone"))
            await until(lambda: link.reading is not None and link.reading.stats.held is None)


async def test_a_restart_that_lost_nothing_is_not_held() -> None:
    """Q24: an immediate stop in the middle of submits; what was acknowledged is there, and it goes on."""
    with Server() as server:
        install(server)
        async with reading(server) as link:
            await submit(server, link)
            server.kill()
            server.start()
            before = link.reading
            await until(lambda: link.reading is not before and not link.failures)
            assert link.reading is not None
            assert (link.reading.stats.held, link.reading.stats.queues[0].ready) == (None, 20)
