"""F12 to F14: a day of churn, an hour of a real trace, and three times the capacity, compressed in time.

- F12: rounds of submitting and working off while what has ended goes by its age and autovacuum runs: throughput and size stay.
- F13: the hour of the trace, twenty times as fast: payloads of 2 to 64 KB, 3 % of the first runs meet a 429, 1 % a time-out, and a worker is
  killed all the time. What waits is told, and nothing is lost.
- F14: three times what the worker can do is submitted to a queue with a bound: the rest is refused, no lease expires, throughput stays.
"""

import asyncio
import random
import signal
import threading
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import psycopg

from benchmarks.drain import wait_for
from benchmarks.figures import Figure
from benchmarks.footprint import processor
from benchmarks.pickup import quantile
from benchmarks.rig import Rig, fill, install, worker
from benchmarks.scaling import trace
from poolkeeper import AsyncClient
from poolkeeper.store import calls, connect, run

FASTER = 20
PACE = 3.0  # x the capacity
SLOTS = 10
WORKERS = 8
SERVICE = 0.05  # seconds of a task of F14
KEPT = {
    f"retention_{name}_seconds": 1 for name in ("payload", "result", "checkpoint", "events", "dead_letters", "keys")
}


def _one(conn: psycopg.Connection, query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def churn(rig: Rig, rounds: int, count: int) -> tuple[list[float], list[float]]:
    """Tasks a second, and MiB of the schema afterwards, of each round."""
    rates, sizes = [], []
    size = "SELECT sum(pg_total_relation_size(c.oid)) / 1048576.0 FROM pg_class AS c WHERE c.relnamespace = 'poolkeeper'::regnamespace AND c.relkind = 'r'"
    with rig.database() as dsn, psycopg.connect(rig.server.dsn(), autocommit=True) as root:
        for setting in ("autovacuum_naptime = '2s'", "autovacuum_vacuum_cost_delay = 0"):
            root.execute(f"ALTER SYSTEM SET {setting}".encode())
        root.execute("SELECT pg_reload_conf()")
        try:
            install(dsn, KEPT)
            with worker(dsn), connect(dsn) as conn:
                for number in range(rounds):
                    began = time.monotonic()
                    fill(dsn, count - 1)
                    run(conn, calls.submit("bench", "bench.noop", {"n": count}))  # which wakes the worker
                    wait_for(
                        lambda: _one(conn, "SELECT count(*) FROM (SELECT FROM poolkeeper.ready LIMIT 1) AS x") == 0, 300
                    )
                    wait_for(
                        lambda: _one(conn, "SELECT count(*) FROM (SELECT FROM poolkeeper.lease LIMIT 1) AS x") == 0, 300
                    )
                    rates.append(count / (time.monotonic() - began))
                    time.sleep(1.1)  # until it is old enough
                    while run(conn, calls.maintain(5_000)).more:
                        pass
                    sizes.append(float(_one(conn, size)))
                    print(f"  F12 round {number + 1}: {rates[-1]:,.0f} tasks/s, {sizes[-1]:.1f} MiB", flush=True)
        finally:
            root.execute("ALTER SYSTEM RESET ALL")
            root.execute("SELECT pg_reload_conf()")
    return rates, sizes


def hour(rig: Rig, minutes: int) -> dict[str, float]:
    """The first minutes of the trace: what was waited for the first start, what was lost, what it took."""
    draw = random.Random(3)  # noqa: S311 - the same each time
    load = [(at / FASTER, min(seconds, 120.0) / FASTER) for at, seconds in trace(10) if at < 60 * minutes]
    policy = {
        "visibility_timeout_seconds": 2,
        "backoff_initial_seconds": 0.1,
        "backoff_max_seconds": 1,
        "max_payload_bytes": 1 << 20,
    }
    with rig.database() as dsn, ExitStack() as stack:
        install(dsn, policy)
        workers = [stack.enter_context(worker(dsn, env={"POOLKEEPER_CONCURRENCY": str(SLOTS)})) for _ in range(WORKERS)]
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        wait_for(lambda: _one(conn, "SELECT count(*) FROM poolkeeper.session") == len(workers))
        spent, over = [0.0], threading.Event()

        def kill() -> None:
            while not over.wait(30 / FASTER):
                victim = workers.pop(0)
                spent[0] += processor(victim.pid)
                victim.send_signal(signal.SIGKILL)
                workers.append(stack.enter_context(worker(dsn, env={"POOLKEEPER_CONCURRENCY": str(SLOTS)})))

        killer = threading.Thread(target=kill)
        killer.start()
        began = time.monotonic()
        with connect(dsn) as own:
            for at, seconds in load:
                time.sleep(max(0.0, began + at - time.monotonic()))
                luck = draw.random()
                first = "429" if luck < 0.03 else "timeout" if luck < 0.04 else None
                payload = {"seconds": seconds, "first": first, "pad": "x" * draw.randrange(2_000, 64_000)}
                assert run(own, calls.submit("bench", "bench.trace", payload)).code is None
        ended = "SELECT count(DISTINCT task_id) FROM poolkeeper.delivery WHERE outcome = 'succeeded'"
        try:
            wait_for(lambda: _one(conn, ended) == len(load), 120)
        finally:
            over.set()
            killer.join()
        took = time.monotonic() - began
        waits = conn.execute(
            "SELECT extract(epoch FROM claimed_at - ready_at)::float8 FROM poolkeeper.delivery WHERE delivery = 1"
        ).fetchall()
        busy = sum(seconds for _, seconds in load)
        spent[0] += sum(processor(each.pid) for each in workers if each.poll() is None)
        return {
            "tasks": len(load),
            "lost": len(load) - _one(conn, ended),
            "dead": _one(conn, "SELECT count(*) FROM poolkeeper.dead"),
            "expired": _one(conn, "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'expired'"),
            "p99": quantile([row[0] for row in waits], 0.99) * FASTER,
            "cpu_per_busy_slot_percent": 100 * spent[0] / busy,
            "connections_per_slot": 2 / SLOTS,
            "took": took,
        }


def overload(rig: Rig, seconds: float) -> dict[str, float]:
    """Tasks a second of one worker at its capacity and at three times that, with what was refused and what expired."""
    capacity = SLOTS / SERVICE
    found: dict[str, float] = {}
    for name, pace in (("at", 1.0), ("over", PACE)):
        with rig.database() as dsn:
            install(dsn, {"max_waiting": int(5 * capacity)})
            with worker(dsn, env={"POOLKEEPER_CONCURRENCY": str(SLOTS)}), psycopg.connect(dsn, autocommit=True) as conn:
                wait_for(lambda: _one(conn, "SELECT count(*) FROM poolkeeper.session") == 1)
                fill(dsn, int(2 * capacity), "bench.short")
                refused = asyncio.run(_flood(dsn, capacity * pace, seconds))
                begun, ended = "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'succeeded'", time.monotonic()
                first = _one(conn, begun)
                time.sleep(2)  # it is full still
                found[f"{name}_rate"] = (_one(conn, begun)) / (seconds + time.monotonic() - ended) if first else 0.0
                found[f"{name}_refused"] = refused
                found[f"{name}_expired"] = _one(
                    conn, "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'expired'"
                )
    return found


async def _flood(dsn: str, rate: float, seconds: float) -> int:
    clients = [AsyncClient(dsn=dsn) for _ in range(4)]
    refused = 0

    async def send(client: AsyncClient) -> None:
        nonlocal refused
        began, sent = time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            await asyncio.sleep(max(0.0, sent / (rate / len(clients) / 10) - now))
            some = [{"type": "bench.short", "payload": {"seconds": SERVICE}} for _ in range(10)]
            refused += sum(verdict.code is not None for verdict in await client.submit_many("bench", some))  # type: ignore[arg-type]
            sent += 1

    await asyncio.gather(*map(send, clients))
    for client in clients:
        await client.close()
    return refused


def figures(rig: Rig, ids: set[str], *, quick: bool) -> list[Figure]:
    """F12, F13 and F14, as asked."""
    found: list[Figure] = []
    if "F12" in ids:
        rounds, count = (9, 5_000) if quick else (48, 20_000)
        rates, sizes = churn(rig, rounds, count)
        third = rounds // 3
        flat = median(rates[-third:]) / median(rates[:third])
        grown = max(sizes[-third:]) / max(sizes[third : 2 * third])
        unit = f"{rounds} rounds of {count:,} tasks that end and go, autovacuum on"
        detail = {"rates": [round(rate) for rate in rates], "mebibytes": [round(size, 1) for size in sizes]}
        found.append(
            Figure(
                "F12",
                ">= 0.9 x",
                "",
                f"{flat:.2f} x",
                f"{unit}: the last third's throughput by the first's",
                flat >= 0.9,
                detail,
            )
        )
        found.append(
            Figure(
                "F12",
                "<= 1.2 x",
                "",
                f"{grown:.2f} x",
                f"{unit}: the last third's size by the second's",
                grown <= 1.2,
                detail,
            )
        )
    if "F13" in ids:
        minutes = 5 if quick else 60
        told = hour(rig, minutes)
        print(f"  F13: {told}", flush=True)
        unit = f"{minutes} minutes of the trace, {FASTER} times as fast, a worker killed all the time"
        lost = told["lost"] + told["dead"]
        found.append(Figure("F13", "0 lost", "", f"{lost:g} of {told['tasks']:,}", unit, lost == 0, told))
        found.append(
            Figure(
                "F13",
                "<= 30 s",
                "",
                f"{told['p99']:.1f} s",
                f"{unit}: p99 of the first start, in the trace's time",
                told["p99"] <= 30,
                told,
            )
        )
    if "F14" in ids:
        told = overload(rig, 8.0 if quick else 30.0)
        print(f"  F14: {told}", flush=True)
        ratio = told["over_rate"] / told["at_rate"]
        well = ratio >= 0.9 and told["over_expired"] == 0 and told["over_refused"] > 0
        text = f"{ratio:.2f} x, {told['over_refused']:,} refused, {told['over_expired']} expired"
        found.append(
            Figure(
                "F14",
                ">= 0.9 x, 0 expired",
                "",
                text,
                f"{PACE:g} x the capacity submitted, by throughput at the capacity",
                well,
                told,
            )
        )
    return found
