"""F7: one tenant with a great backlog, a thousand others that submit now and then: how long these wait, with and without the first.

One `poolkeeper worker` at its defaults; the handler does nothing, so that the hog keeps every slot busy all the time.
"""

import asyncio
import random
import time
from functools import partial
from statistics import median

import psycopg

from benchmarks.drain import wait_for
from benchmarks.figures import Figure, spread
from benchmarks.pickup import quantile
from benchmarks.rig import Rig, fill, install, worker
from poolkeeper import AsyncClient

TENANTS = 1_000
RATE = 50  # tasks a second of all of them
SEED = 7


async def _trickle(dsn: str, seconds: float) -> int:
    draw = random.Random(SEED)  # noqa: S311 - the same tenants each time
    sent = 0
    async with AsyncClient(dsn=dsn) as client:
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            await asyncio.sleep(max(0.0, sent / RATE - now))
            tenant = f"tenant-{draw.randrange(TENANTS)}"
            await client.submit("bench", "bench.pickup", {"at": time.monotonic_ns()}, tenant=tenant)
            sent += 1
    return sent


def waits(rig: Rig, backlog: int, seconds: float) -> list[float]:
    """Milliseconds from submit to start, of the others."""
    with rig.database() as dsn:
        install(dsn)
        if backlog:
            fill(dsn, backlog)
        with worker(dsn), psycopg.connect(dsn, autocommit=True) as conn:
            sessions = "SELECT count(*) FROM poolkeeper.session"
            wait_for(lambda: conn.execute(sessions).fetchone() == (1,))
            time.sleep(2)
            sent = asyncio.run(_trickle(dsn, seconds))
            if backlog:
                left = conn.execute("SELECT count(*) FROM (SELECT FROM poolkeeper.ready LIMIT 1) AS x").fetchone()
                assert left == (1,), "the hog's backlog came to an end: the case was not measured"
            theirs = (
                "SELECT (d.result)::float8 FROM poolkeeper.delivery AS d JOIN poolkeeper.task AS t ON t.id = d.task_id"
                " WHERE t.type = 'bench.pickup' AND d.outcome = 'succeeded'"
            )
            wait_for(lambda: len(conn.execute(theirs.encode()).fetchall()) == sent)
            return [float(row[0]) for row in conn.execute(theirs.encode()).fetchall()]


def figures(rig: Rig, *, quick: bool) -> list[Figure]:
    """F7."""
    backlog, seconds, rounds = (400_000, 10.0, 1) if quick else (1_000_000, 20.0, 3)
    sides = {"without": partial(waits, rig, 0, seconds), "with": partial(waits, rig, backlog, seconds)}
    got: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, measure in sides.items():
            got[side].append(quantile(measure(), 0.99))
            print(f"  F7 round {number + 1}: p99 {side} {got[side][-1]:.1f} ms", flush=True)
    ratio = median(got["with"]) / median(got["without"])
    unit = f"pick-up p99 of {TENANTS:,} tenants beside one with {backlog:,} tasks"
    detail = {side: spread(samples) for side, samples in got.items()}
    return [
        Figure("F7", "<= 2 x without", "", f"{ratio:.2f} x ({median(got['with']):.1f} ms)", unit, ratio <= 2, detail)
    ]
