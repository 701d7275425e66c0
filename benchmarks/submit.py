"""F2, one by one: submits with wake-up on, over 1 and 16 connections, beside peers and a bare INSERT of one row, in interleaved rounds.

Each side waits for the commit of each task; the bare INSERT has a payload, a key of its own, one index, and wakes nobody.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median

import psycopg

from benchmarks.drain import FLOOR
from benchmarks.figures import Figure, beside, spread
from benchmarks.peers import Peer
from benchmarks.rig import Rig, install
from poolkeeper import AsyncClient

Send = Callable[[int], Awaitable[object]]


async def _one_by_one(sends: list[Send], count: int) -> float:
    numbers = iter(range(count))

    async def each(send: Send) -> None:
        for n in numbers:
            await send(n)

    await asyncio.gather(*(send(-1) for send in sends))
    began = time.monotonic()
    await asyncio.gather(*map(each, sends))
    return count / (time.monotonic() - began)


async def _ours(dsn: str, count: int, connections: int) -> float:
    clients = [AsyncClient(dsn=dsn) for _ in range(connections)]

    def by(client: AsyncClient) -> Send:
        return lambda n: client.submit("bench", "bench.noop", {"n": n})

    try:
        return await _one_by_one([by(client) for client in clients], count)
    finally:
        for client in clients:
            await client.close()


async def _bare(dsn: str, count: int, connections: int) -> float:
    open_ = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(connections)]

    def by(conn: psycopg.AsyncConnection) -> Send:
        return lambda n: conn.execute(FLOOR["one"].encode(), [f'{{"n": {n}}}'])

    try:
        return await _one_by_one([by(conn) for conn in open_], count)
    finally:
        for conn in open_:
            await conn.close()


def ours(rig: Rig, count: int, connections: int) -> float:
    """Tasks per second of `AsyncClient.submit`."""
    with rig.database() as dsn:
        install(dsn)
        return asyncio.run(_ours(dsn, count, connections))


def bare(rig: Rig, count: int, connections: int) -> float:
    """Rows per second of the bare INSERT."""
    with rig.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            for name in ("table", "index"):
                conn.execute(FLOOR[name].encode())
        return asyncio.run(_bare(dsn, count, connections))


def theirs(rig: Rig, peer: Peer, count: int, connections: int) -> float:
    """Tasks per second of a peer's."""
    with rig.database() as dsn:
        peer.ask("install", dsn)
        return count / float(peer.ask("submit", dsn, count, connections)["seconds"])


def figures(rig: Rig, peers: list[Peer], *, count: int, rounds: int) -> list[Figure]:
    """F2, one by one."""
    found: list[Figure] = []
    for connections in (1, 16):
        sides: dict[str, Callable[[], float]] = {
            "poolkeeper": partial(ours, rig, count, connections),
            "INSERT": partial(bare, rig, count, connections),
        }
        for peer in peers:
            sides[peer.name] = partial(theirs, rig, peer, count, connections)
        got: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            for name, measure in sides.items():
                got[name].append(measure())
                print(
                    f"  F2 round {number + 1}, {connections} connections: {name} {got[name][-1]:,.0f} tasks/s",
                    flush=True,
                )
        rate = {name: median(samples) for name, samples in got.items()}
        detail = {"tasks": count, **{name: spread(samples) for name, samples in got.items()}}
        unit = f"submits one by one, {connections} connection{'s' * (connections > 1)}"
        fastest = max((peer.name for peer in peers), key=rate.__getitem__, default=None)
        bounds = {"INSERT": (0.8, None)} | ({fastest: (1.0, None)} if fastest else {})
        found += beside(rate, "F2", unit, bounds, detail)
    return found
