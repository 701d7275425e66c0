"""F2, the bulk of it: 10,000 tasks in one call, beside the same rows copied and inserted bare, in interleaved rounds.

Each side is timed from Python values to the answer of the commit, on a connection that is open. Ours checks every task,
digests every key and answers a verdict for each; the others only write: COPY is given rows that are ready, with ids and
digests; the bare INSERT makes ids from one JSON text.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg.types.json import Json

from benchmarks.figures import Figure, beside, spread
from benchmarks.peers import Peer
from benchmarks.rig import Rig, install
from poolkeeper.store import calls, connect, run

COUNT = 10_000
CALLS = 5
_PARTS = (Path(__file__).parent / "bulk.sql").read_text().split("-- name: ")[1:]
SQL = {name: text.strip().encode() for name, text in (part.split("\n", 1) for part in _PARTS)}

Task = dict[str, Any]
Side = Callable[[psycopg.Connection[Any], list[Task]], float]


def ours(conn: psycopg.Connection[Any], tasks: list[Task]) -> float:
    """Seconds of one `submit_many`."""
    began = time.perf_counter()
    verdicts = run(conn, calls.submit_many("bench", tasks))
    seconds = time.perf_counter() - began
    assert sum(verdict.created for verdict in verdicts) == COUNT
    return seconds


def copied(conn: psycopg.Connection[Any], tasks: list[Task]) -> float:
    """Seconds of COPY of the rows that a submit made."""
    run(conn, calls.submit_many("bench", tasks))
    rows = conn.execute(SQL["rows"]).fetchall()
    parts = [
        ("copy task", [row[:10] for row in rows]),
        ("copy ready", [(row[0], row[1], row[4], row[10], row[11], row[6]) for row in rows]),
        ("copy key", [(row[3], row[1], row[9], row[0], f"\\x{row[12]}", row[5]) for row in rows if row[9]]),
    ]
    began = time.perf_counter()
    with conn.transaction(), conn.cursor() as cursor:
        for name, some in parts:
            with cursor.copy(SQL[name]) as copy:
                for row in some:
                    copy.write_row(row)
    return time.perf_counter() - began


def inserted(conn: psycopg.Connection[Any], tasks: list[Task]) -> float:
    """Seconds of one bare INSERT into the same tables, which answers the ids."""
    began = time.perf_counter()
    rows = conn.execute(SQL["insert"], {"tasks": Json(tasks)}).fetchall()
    seconds = time.perf_counter() - began
    assert len(rows) == COUNT
    return seconds


SIDES: dict[str, Side] = {"poolkeeper": ours, "COPY": copied, "INSERT": inserted}


def figures(rig: Rig, peers: list[Peer], *, rounds: int) -> list[Figure]:
    """F2 in bulk, without keys and with one for each task."""
    found: list[Figure] = []
    with rig.database() as dsn, connect(dsn) as conn:
        install(dsn)
        conn.execute(SQL["shape"])
        for what in ("without keys", "with keys"):
            tasks = [
                {"type": "bench.noop", "tenant": "default", "payload": {"n": n, "to": "someone@example.com"}}
                | ({"key": f"order-{n}"} if what == "with keys" else {})
                for n in range(COUNT)
            ]
            got: dict[str, list[float]] = {name: [] for name in SIDES}
            for number in range(rounds):
                for name, side in SIDES.items():
                    conn.execute(SQL["empty"])
                    got[name].append(COUNT / side(conn, tasks))
                    print(f"  F2 round {number + 1}, {what}: {name} {got[name][-1]:,.0f} tasks/s", flush=True)
            if what == "without keys":
                for number in range(max(1, rounds // 3)):
                    for peer in peers:
                        got.setdefault(peer.name, []).append(theirs(rig, peer))
                        print(
                            f"  F2 round {number + 1}, in bulk: {peer.name} {got[peer.name][-1]:,.0f} tasks/s",
                            flush=True,
                        )
            found += _judged(what, got, [peer.name for peer in peers if peer.name in got])
    return found


def theirs(rig: Rig, peer: Peer) -> float:
    """Tasks per second of a peer's calls for 10,000 each, the mean of CALLS."""
    with rig.database() as dsn:
        peer.ask("install", dsn)
        return CALLS * COUNT / float(peer.ask("bulk", dsn, CALLS * COUNT)["seconds"])


def _judged(what: str, got: dict[str, list[float]], peers: list[str]) -> Sequence[Figure]:
    rate = {name: median(samples) for name, samples in got.items()}
    detail = {"tasks": COUNT, **{name: spread(samples) for name, samples in got.items()}}
    unit = f"submit of {COUNT:,} tasks in one call, {what}"
    fastest = max(peers, key=rate.__getitem__, default=None)
    bounds = {"INSERT": (0.8, 1.0), "COPY": (0.5, 0.8)} | ({fastest: (1.0, None)} if fastest else {})
    return beside(rate, "F2", unit, bounds, detail)
