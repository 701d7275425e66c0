"""Recurring tasks by real workers: each slot once, however many workers there are and whenever they are killed (Q34)."""

import random
import signal
from datetime import datetime, timedelta
from itertools import pairwise

import psycopg
import pytest

from fixtures.postgres import Database
from fixtures.workers import Stage, eventually
from poolkeeper.store import calls

EACH_SECOND = "* * * * * *"


def put(stage: Stage, name: str, task_type: str = "t.noop", queue: str = "default/q") -> None:
    task = {"type": task_type, "payload": None}
    call = calls.set_schedule(
        queue, name, cron=EACH_SECOND, zone="UTC", catch_up="all", catch_up_limit=1000, task=task, who="test"
    )
    assert stage.ask(call).code is None


def slots(conn: psycopg.Connection) -> dict[str, list[datetime]]:
    """The slots of each schedule that have a task, one for each task."""
    found: dict[str, list[datetime]] = {}
    query = "SELECT labels ->> 'poolkeeper.dev/schedule', (labels ->> 'poolkeeper.dev/slot')::timestamptz FROM poolkeeper.task ORDER BY 2"
    for name, slot in conn.execute(query):
        found.setdefault(name, []).append(slot)
    return found


def test_a_worker_that_is_busy_fires_all_the_same(stage: Stage, database: Database) -> None:
    """Q34: its one slot is taken for the whole time, so it takes no turns."""
    stage.submit("t.hold", "go")
    worker = stage.worker(concurrency=1).ready()
    stage.note("in")
    put(stage, "tick")
    stage.apply("default/other")
    put(stage, "elsewhere", queue="default/other")
    with database.connect() as conn:
        eventually(lambda: len(slots(conn).get("tick", ())) >= 3, "three slots are fired", 150.0)
        assert "elsewhere" not in slots(conn)
    stage.release("go")
    worker.process.terminate()
    assert worker.wait() == 0, worker.log


@pytest.mark.wide
def test_four_workers_that_are_killed_again_and_again_double_and_miss_nothing(stage: Stage, database: Database) -> None:
    """Q34: twenty schedules with a slot each second, SIGKILL at random moments, and for some seconds nobody is there at all."""
    rng = random.Random(34)
    names = [f"s{n}" for n in range(20)]
    for name in names:
        put(stage, name)
    alive = [stage.worker() for _ in range(4)]
    with database.connect() as conn:
        for _ in range(8):
            before = conn.execute("SELECT count(*) FROM poolkeeper.task").fetchone() or (0,)
            goal = before[0] + rng.randrange(1, 60)
            eventually(
                lambda: (conn.execute("SELECT count(*) FROM poolkeeper.task").fetchone() or (0,))[0] >= goal,
                "they fire",
                120.0,
            )
            victim = alive.pop(rng.randrange(len(alive)))
            victim.signal(signal.SIGKILL)
            alive.append(stage.worker())
        for each in alive:
            each.signal(signal.SIGKILL)
            each.wait()
        nobody = conn.execute("SELECT clock_timestamp() FROM pg_sleep(3)").fetchone()
        last = stage.worker().ready()
        assert nobody is not None
        eventually(
            lambda: all(found[-1] > nobody[0] for found in slots(conn).values()), "the last one makes up for it", 120.0
        )
        last.signal(signal.SIGKILL)
        last.wait()
        found = slots(conn)
    assert sorted(found) == sorted(names)
    for name, its in found.items():
        assert {b - a for a, b in pairwise(its)} == {timedelta(seconds=1)}, name
        assert len(its) > 8, "it was a short test"
