"""F1: drain no-op tasks with one worker process at its defaults, beside peers and the floor, in interleaved rounds.

Ours is timed by the database: from the first claim to the last committed settle, and the ended rows are counted.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.figures import Figure, beside, spread
from benchmarks.peers import Peer
from benchmarks.rig import Rig, fill, install, worker

_FLOOR = (Path(__file__).parent / "floor.sql").read_text().split("-- name: ")[1:]
FLOOR = dict(part.split("\n", 1) for part in _FLOOR)


def ours(rig: Rig, count: int) -> float:
    """Tasks per second of `poolkeeper worker`."""
    with rig.database() as dsn:
        install(dsn)
        fill(dsn, count)
        with worker(dsn), psycopg.connect(dsn, autocommit=True) as conn:
            wait_for(
                lambda: _count(conn, "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'succeeded'") == count
            )
            row = conn.execute(
                "SELECT extract(epoch FROM max(ended_at) - min(claimed_at)) FROM poolkeeper.delivery"
            ).fetchone()
        assert row is not None
        return count / float(row[0])


def theirs(rig: Rig, peer: Peer, count: int) -> float:
    """Tasks per second of one worker of a peer's, from its first handler to the last settle that its database shows."""
    with rig.database() as dsn:
        peer.ask("install", dsn)
        peer.ask("bulk", dsn, peer.of(count))
        answer = peer.ask("drain", dsn, peer.of(count))
        assert (answer["ended"], answer["left"]) == (peer.of(count), 0), answer
        return peer.of(count) / float(answer["seconds"])


def floor(rig: Rig, count: int) -> float:
    """Tasks per second of the bare SQL."""
    with rig.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        for name in ("table", "index"):
            conn.execute(FLOOR[name].encode())
        conn.execute(FLOOR["fill"].encode(), [count])
        done, began = 0, time.monotonic()
        while rows := conn.execute(FLOOR["claim"].encode()).fetchall():
            conn.execute(FLOOR["settle"].encode(), [[row[0] for row in rows]])
            done += len(rows)
        assert done == count
        return count / (time.monotonic() - began)


def figures(rig: Rig, peers: list[Peer], *, count: int, rounds: int) -> list[Figure]:
    """F1."""
    sides: dict[str, Callable[[], float]] = {"poolkeeper": lambda: ours(rig, count), "floor": lambda: floor(rig, count)}
    for peer in peers:
        sides[peer.name] = partial(theirs, rig, peer, count)
    got: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, measure in sides.items():
            got[name].append(measure())
            print(f"  F1 round {number + 1}: {name} {got[name][-1]:,.0f} tasks/s", flush=True)
    rate = {name: median(samples) for name, samples in got.items()}
    detail = {
        "tasks": count,
        "shares": {peer.name: peer.share for peer in peers},
        **{name: spread(samples) for name, samples in got.items()},
    }
    unit = f"drain of {count:,} no-op tasks, one worker, defaults"
    bounds = {"pgqueuer": (1.2, 1.5), "floor": (0.45, 0.6), "graphile-worker": (None, 0.9)}
    return beside(rate, "F1", unit, bounds, detail)


def wait_for(true: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until `true()`; raise TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("not within the bound")
        time.sleep(0.2)


def _count(conn: psycopg.Connection, query: str) -> int:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])
