"""F1: drain no-op tasks with one worker process at its defaults, beside pgqueuer and the floor, in interleaved rounds.

Ours is timed by the database: from the first claim to the last committed settle, and the ended rows are counted.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.figures import Figure, spread
from benchmarks.rig import Rig, fill, install, worker

PGQUEUER_BATCH = 500
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


def pgqueuer(rig: Rig, count: int) -> float:
    """Tasks per second of pgqueuer, batch of PGQUEUER_BATCH, asyncpg, uvloop."""
    with rig.database() as dsn:
        program = [sys.executable, "-m", "benchmarks.peers.pgqueuer_drain"]
        root = Path(__file__).parent.parent
        subprocess.run([*program, "fill", dsn, str(count)], check=True, cwd=root)
        said = subprocess.run(
            [*program, "drain", dsn, str(count), str(PGQUEUER_BATCH)],
            check=True,
            cwd=root,
            capture_output=True,
            text=True,
        )
        seconds, succeeded = said.stdout.split()
        assert int(succeeded) == count, said.stdout
        return count / float(seconds)


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


def figures(rig: Rig, *, count: int, rounds: int) -> list[Figure]:
    """F1."""
    sides = {"poolkeeper": ours, "pgqueuer": pgqueuer, "floor": floor}
    got: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, measure in sides.items():
            got[name].append(measure(rig, count))
            print(f"  F1 round {number + 1}: {name} {got[name][-1]:,.0f} tasks/s", flush=True)
    rate = {name: median(samples) for name, samples in got.items()}
    to_peer, to_floor = rate["poolkeeper"] / rate["pgqueuer"], rate["poolkeeper"] / rate["floor"]
    detail = {
        "tasks": count,
        "pgqueuer_batch": PGQUEUER_BATCH,
        **{name: spread(samples) for name, samples in got.items()},
    }
    unit = f"drain of {count:,} no-op tasks, one worker, defaults"
    return [
        Figure(
            "F1",
            ">= 1.2 x pgqueuer",
            ">= 1.5 x",
            f"{to_peer:.2f} x ({rate['poolkeeper']:,.0f}/s)",
            unit,
            to_peer >= 1.2,
            detail,
        ),
        Figure(
            "F1",
            ">= 0.45 x floor",
            ">= 0.6 x",
            f"{to_floor:.2f} x ({rate['floor']:,.0f}/s)",
            unit,
            to_floor >= 0.45,
            detail,
        ),
    ]


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
