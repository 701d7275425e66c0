"""P1, P2, P5 under random faults: kills, freezes, drains of workers, restarts and crashes of the database."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from fixtures.workers import Stage, Worker, eventually
from lab.postgres import Server

SECONDS = float(os.environ.get("POOLKEEPER_CHAOS_SECONDS", "120"))


@pytest.mark.deep
@pytest.mark.timeout(SECONDS + 300)
def test_nothing_is_lost_and_nothing_succeeds_twice_under_random_faults(server: Server, tmp_path: Path) -> None:
    """P1, P2: every accepted task ends as succeeded, with exactly one delivery that did; prints how far it came."""
    seed = int(os.environ.get("POOLKEEPER_CHAOS_SEED", str(time.time_ns() % 100_000)))
    rng = random.Random(seed)
    stage = Stage(server.dsn(), tmp_path)
    stage.apply(max_deliveries=100, max_hand_backs=1000)
    done: Counter[str] = Counter()
    tasks = []
    try:
        alive = [_begin(stage) for _ in range(3)]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            tasks += stage.submit_many("t.count", list(range(rng.randint(1, 300))))
            tasks += stage.submit_many("t.process", list(range(rng.randint(0, 3))))
            fault = rng.choice(["kill", "freeze", "drain", "restart", "crash", "cut", "nothing"])
            done[fault] += 1
            _do(fault, stage, server, alive, rng)
            time.sleep(rng.uniform(0.1, 2.0))
        for worker in alive:
            worker.signal(signal.SIGCONT)
        eventually(
            lambda: set(stage.states()) == {"succeeded"}, f"all succeed (seed {seed}): {stage.states()}", timeout=200
        )
        with psycopg.connect(server.dsn()) as conn:
            doubled = conn.execute(
                "SELECT task_id FROM poolkeeper.delivery WHERE outcome = 'succeeded' GROUP BY task_id HAVING count(*) > 1"
            ).fetchall()
        assert doubled == []
        assert stage.states() == {"succeeded": len(tasks)}
        print(f"seed {seed}: {len(tasks)} tasks, faults {dict(done)}")  # noqa: T201  (a deep run says how far it came)
    finally:
        stage.close()


def _begin(stage: Stage) -> Worker:
    return stage.worker({"POOLKEEPER_GRACE_PERIOD": "4", "POOLKEEPER_HAND_BACK_MARGIN": "2"})


def _do(fault: str, stage: Stage, server: Server, alive: list[Worker], rng: random.Random) -> None:
    victim = alive[rng.randrange(len(alive))]
    match fault:
        case "kill" | "drain":
            alive.remove(victim)
            victim.signal(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            victim.signal(signal.SIGCONT)
            alive.append(_begin(stage))
        case "freeze":
            victim.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.5, 5.0))
            victim.signal(signal.SIGCONT)
        case "restart":
            server.restart("fast")
        case "crash":
            server.kill()
            server.start()
        case "cut":
            with psycopg.connect(server.dsn(), autocommit=True) as conn:
                conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'poolkeeper%'"
                )
