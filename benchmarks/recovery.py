"""F9 and F10: how soon a task runs again after its worker was killed, and where a task that kills its process stops."""

import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.drain import wait_for
from benchmarks.figures import Figure, spread
from benchmarks.rig import Rig, install, worker
from poolkeeper.store import calls, connect, run

if TYPE_CHECKING:
    import subprocess


def kill_to_rerun(rig: Rig) -> float:
    """Seconds from SIGKILL of the worker that runs the one task until it runs in the other, at defaults."""
    with rig.database() as dsn, ExitStack() as stack:
        install(dsn)
        for _ in range(2):
            stack.enter_context(worker(dsn))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        with connect(dsn) as own:
            run(own, calls.submit("bench", "bench.long", {"seconds": 2.0}))
        pid = _runner(conn, 1)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert _runner(conn, 2) != pid
        return time.monotonic() - began


def _runner(conn: psycopg.Connection, delivery: int) -> int:
    """Pid of the worker process that runs this delivery, said by the handler itself in user code."""
    found: list[int] = []

    def there() -> bool:
        row = conn.execute(
            "SELECT (value ->> 'pid')::integer FROM poolkeeper.checkpoint WHERE delivery = %s", [delivery]
        ).fetchone()
        found.extend(row or ())
        return bool(found)

    wait_for(there, 60)
    return found[0]


def poison(rig: Rig, neighbours: int) -> dict[str, Any]:
    """Deliveries of one poison task among others, with workers that are started again when they die."""
    with rig.database() as dsn, ExitStack() as stack:
        install(dsn, {"visibility_timeout_seconds": 2})
        with connect(dsn) as own:
            for n in range(neighbours):
                run(own, calls.submit("bench", "bench.long", {"seconds": 0.5, "n": n}))
            verdict = run(own, calls.submit("bench", "bench.poison", {"n": 0}, priority=9))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        workers: list[subprocess.Popen[bytes]] = []

        def settled() -> bool:
            alive = [w for w in workers if w.poll() is None]
            while len(alive) < 2:
                alive.append(stack.enter_context(worker(dsn)))
            workers[:] = alive
            row = conn.execute(
                "SELECT (SELECT count(*) FROM poolkeeper.dead) + (SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'succeeded')"
            ).fetchone()
            return row is not None and row[0] == neighbours + 1

        wait_for(settled, 240)
        rows = conn.execute("SELECT task_id, count(*) FROM poolkeeper.delivery GROUP BY task_id").fetchall()
        spent = {row[0]: row[1] for row in rows}
        dead = [row[0] for row in conn.execute("SELECT task_id FROM poolkeeper.dead").fetchall()]
        others = [n for task, n in spent.items() if task != verdict.task_id]
        return {
            "poison_deliveries": spent[verdict.task_id],
            "dead": len(dead),
            "only_poison_dead": dead == [verdict.task_id],
            "most_deliveries_of_a_neighbour": max(others),
        }


def figures(rig: Rig, *, rounds: int) -> list[Figure]:
    """F9 and F10."""
    seconds = []
    for number in range(rounds):
        seconds.append(kill_to_rerun(rig))
        print(f"  F9 round {number + 1}: {seconds[-1]:.1f} s from SIGKILL to the next run", flush=True)
    outcome = poison(rig, 20)
    print(f"  F10: {outcome}", flush=True)
    well = (
        outcome["poison_deliveries"] == 5
        and outcome["only_poison_dead"]
        and outcome["most_deliveries_of_a_neighbour"] <= 2
    )
    return [
        Figure(
            "F9",
            "<= 20 s",
            "<= 20 s",
            f"{max(seconds):.1f} s at most",
            "SIGKILL to the next run, defaults",
            max(seconds) <= 20,
            spread(seconds),
        ),
        Figure(
            "F10",
            "exactly 5 deliveries",
            "neighbours lose <= 1",
            f"{outcome['poison_deliveries']} deliveries",
            "poison task among 20 others",
            well,
            outcome,
        ),
    ]
