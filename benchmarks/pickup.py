"""F3: from before the submit to the start of the handler, at 200 tasks a second, beside peers, in interleaved rounds.

All times are of the machine's one monotonic clock. Ours are submitted by this process and run by `poolkeeper worker`, which returns each
wait as the task's result; a peer submits and works in one process.
"""

import asyncio
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import psycopg

from benchmarks.drain import wait_for
from benchmarks.figures import Figure, spread
from benchmarks.peers import Peer
from benchmarks.rig import Rig, install, worker
from poolkeeper import AsyncClient

if TYPE_CHECKING:
    from collections.abc import Callable

RATE = 200  # tasks a second
Waits = list[float]  # milliseconds


async def _send(dsn: str, count: int) -> None:
    clients = [AsyncClient(dsn=dsn) for _ in range(2)]
    turns = [asyncio.Lock() for _ in clients]

    async def submit(number: int) -> None:
        at = time.monotonic_ns()
        async with turns[number % 2]:
            await clients[number % 2].submit("bench", "bench.pickup", {"at": at})

    began = time.monotonic()
    sent = []
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
        sent.append(asyncio.ensure_future(submit(number)))
    await asyncio.gather(*sent)
    for client in clients:
        await client.close()


def ours(rig: Rig, seconds: int) -> Waits:
    """Waits of tasks of `poolkeeper worker`, which is idle and listens when they begin."""
    count = RATE * seconds
    with rig.database() as dsn:
        install(dsn)
        with worker(dsn), psycopg.connect(dsn, autocommit=True) as conn:
            wait_for(lambda: conn.execute("SELECT count(*) FROM poolkeeper.session").fetchone() == (1,))
            time.sleep(2)
            asyncio.run(_send(dsn, count))
            ended = "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'succeeded'"
            wait_for(lambda: conn.execute(ended).fetchone() == (count,))
            rows = conn.execute("SELECT result FROM poolkeeper.delivery").fetchall()
    return [float(row[0]) for row in rows]


def theirs(rig: Rig, peer: Peer, seconds: int) -> Waits:
    """The same of a peer's."""
    with rig.database() as dsn:
        peer.ask("install", dsn)
        return [float(wait) for wait in peer.ask("pickup", dsn, RATE, seconds)["waits"]]


def quantile(waits: Waits, share: float) -> float:
    """The wait that `share` of them do not exceed."""
    return sorted(waits)[min(len(waits) - 1, int(share * len(waits)))]


def figures(rig: Rig, peers: list[Peer], *, seconds: int, rounds: int) -> list[Figure]:
    """F3."""
    sides: dict[str, Callable[[], Waits]] = {"poolkeeper": partial(ours, rig, seconds)}
    for peer in peers:
        sides[peer.name] = partial(theirs, rig, peer, seconds)
    got: dict[str, dict[float, list[float]]] = {name: {0.5: [], 0.99: []} for name in sides}
    for number in range(rounds):
        for name, measure in sides.items():
            waits = measure()
            for share, found in got[name].items():
                found.append(quantile(waits, share))
            print(
                f"  F3 round {number + 1}: {name} p50 {got[name][0.5][-1]:.1f} ms, p99 {got[name][0.99][-1]:.1f} ms",
                flush=True,
            )
    made = []
    for share, title in ((0.5, "p50"), (0.99, "p99")):
        rate = {name: median(found[share]) for name, found in got.items()}
        detail = {"seconds": seconds, **{name: spread(found[share]) for name, found in got.items()}}
        for other, wait in rate.items():
            if other != "poolkeeper":
                must = other == "graphile-worker"
                made.append(
                    Figure(
                        "F3",
                        f"<= {other}" if must else f"beside {other}",
                        "",
                        f"{rate['poolkeeper']:.1f} ms, {wait:.1f} ms",
                        f"pick-up {title} at {RATE} tasks/s",
                        not must or rate["poolkeeper"] <= wait,
                        detail,
                    )
                )
    return made
