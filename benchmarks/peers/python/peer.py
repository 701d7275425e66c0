"""What a peer in Python does when it is asked, and how it answers: as in ../node/peer.mjs.

A verb, the DSN and numbers are given; the answer is one line of JSON. Times are taken here, in the same way for each.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, ClassVar, Protocol

import psycopg

BULK = 10_000
Payload = dict[str, int]
Send = Callable[[Payload], Awaitable[Any]]
Stop = Callable[[], Awaitable[None]]


class Peer(Protocol):
    """One queue, at the best settings of its documentation."""

    package: str
    settings: ClassVar[dict[str, Any]]
    run: Callable[..., Any]  # asyncio.run, or that of another loop

    async def install(self, dsn: str) -> None:
        """Make its schema and its queue."""

    async def bulk(self, dsn: str) -> Callable[[list[Payload]], Awaitable[Any]]:
        """What submits many at once."""

    async def submit(self, dsn: str, connections: int) -> Send:
        """What submits one."""

    async def work(self, dsn: str, handler: Callable[[Payload], None]) -> Stop:
        """Start one worker."""

    async def left(self, dsn: str) -> int:
        """More than 0 while a task has not ended in the database."""


async def rows(dsn: str, query: str) -> int:
    """The one number that a query answers."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        row = await (await conn.execute(query.encode())).fetchone()
    assert row is not None
    return int(row[0])


async def _bulk(peer: Peer, dsn: str, count: int) -> dict[str, Any]:
    send = await peer.bulk(dsn)
    began = time.monotonic()
    for first in range(0, count, BULK):
        await send([{"n": n} for n in range(first, min(first + BULK, count))])
    return {"seconds": time.monotonic() - began}


async def _submit(peer: Peer, dsn: str, count: int, connections: int) -> dict[str, Any]:
    send = await peer.submit(dsn, connections)
    await send({"n": -1})
    numbers = iter(range(count))

    async def one_by_one() -> None:
        for n in numbers:
            await send({"n": n})

    began = time.monotonic()
    await asyncio.gather(*(one_by_one() for _ in range(connections)))
    return {"seconds": time.monotonic() - began}


async def _drain(peer: Peer, dsn: str, count: int) -> dict[str, Any]:
    starts: list[float] = []
    done = 0
    finished = asyncio.Event()

    def handler(_payload: Payload) -> None:
        nonlocal done
        if not starts:
            starts.append(time.monotonic())
        done += 1
        if done == count:
            finished.set()

    stop = await peer.work(dsn, handler)
    await finished.wait()
    while await peer.left(dsn) > 0:  # noqa: ASYNC110 - a database tells nobody
        await asyncio.sleep(0.002)
    seconds = time.monotonic() - starts[0]
    await stop()
    return {"seconds": seconds, "ended": done, "left": await peer.left(dsn)}


async def _pickup(peer: Peer, dsn: str, rate: int, seconds: int) -> dict[str, Any]:
    waits: list[float] = []
    stop = await peer.work(dsn, lambda payload: waits.append((time.monotonic_ns() - payload["at"]) / 1e6))
    send = await peer.submit(dsn, 2)
    await asyncio.sleep(2)
    began = time.monotonic()
    sent = []
    for n in range(rate * seconds):
        await asyncio.sleep(max(0.0, began + n / rate - time.monotonic()))
        sent.append(asyncio.ensure_future(send({"at": time.monotonic_ns()})))
    await asyncio.gather(*sent)
    while len(waits) < len(sent):  # noqa: ASYNC110 - the last of many
        await asyncio.sleep(0.02)
    await stop()
    return {"waits": waits}


VERBS: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "bulk": _bulk,
    "submit": _submit,
    "drain": _drain,
    "pickup": _pickup,
}


async def _answer(peer: Peer, verb: str, arguments: list[str]) -> dict[str, Any]:
    if verb == "about":
        return {"version": version(peer.package), "settings": peer.settings}
    dsn, *numbers = arguments
    if verb == "install":
        await peer.install(dsn)
        return {}
    return await VERBS[verb](peer, dsn, *map(int, numbers))


def main(peer: Peer, verb: str, arguments: list[str]) -> None:
    """Do what is asked."""
    print(json.dumps(peer.run(_answer(peer, verb, arguments))), flush=True)
