"""Database restarts while the dead are recovered, limits under claimers and crashes, due times (field cases C10, C12, C16, C42, C56)."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fixtures.workers import LEASE, Stage, eventually
from lab.postgres import Server
from poolkeeper import Client
from poolkeeper.errors import Conflict
from poolkeeper.store import calls, connect, run

pytestmark = pytest.mark.wide


def number(stage: Stage, query: str, *params: Any) -> int:
    with psycopg.connect(stage.dsn) as conn:
        row = conn.execute(query.encode(), params).fetchone()
    assert row is not None
    return int(row[0])


def live_leases(stage: Stage, count: int) -> None:
    """So many leases of a live session, of older tasks and an hour each."""
    stage.apply("default/slow", visibility_timeout="1h")
    with connect(stage.dsn) as conn:
        for first in range(0, count, 1000):
            tasks = [{"type": "t.noop", "payload": n} for n in range(first, min(first + 1000, count))]
            run(conn, calls.submit_many("default/slow", tasks))
        session = run(
            conn, calls.register_session("default/other", ["default/slow"], ["t.noop"], concurrency=10_000, info={})
        )
        held = turn = 0
        while held < count:
            turn += 1
            held += len(run(conn, calls.turn(session, turn, turn - 1, [], 1000)).claimed)
    assert held == count


EXPIRED = "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'expired'"


DEEP = [pytest.mark.deep, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("count", "ahead"), [(60, 300), pytest.param(250, 12_000, marks=DEEP)])
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_what_a_dead_worker_held_comes_back_although_the_database_dies_meanwhile(
    own_stage: Stage, server: Server, count: int, ahead: int, long: bool
) -> None:
    """C10: leases behind those of a live worker; the database is stopped in the midst; all begin again, long ones side by side (Q27)."""
    stage = own_stage
    stage.apply(visibility_timeout="10s")  # on a busy machine no starved worker loses a lease
    live_leases(stage, ahead)
    victim = stage.worker(concurrency=count).ready()
    tasks = stage.submit_many("t.hangs_then_waits", ["go"] * count)
    stage.note("in", count=count)
    peers = [stage.worker(concurrency=-(-count // 2)).ready() for _ in range(2)]
    if not long:
        stage.release("go")
    victim.signal(signal.SIGKILL)
    eventually(lambda: number(stage, EXPIRED) > 0, "the first of them are found", 60)
    server.stop("immediate")
    time.sleep(3)  # what is tried now fails
    server.start()
    eventually(lambda: number(stage, EXPIRED) == count, "all of them are found", 120)
    eventually(lambda: len(stage.notes("in")) >= 2 * count, "all have begun again, none waits for another's end", 500)
    assert {x["pid"] for x in stage.notes("in")[count:]}.isdisjoint({victim.pid, *(peer.pid for peer in peers)})
    stage.release("go")
    for task in tasks:
        stage.ends(task)
        ended = [
            outcome for outcome in stage.deliveries(task) if outcome != "returned"
        ]  # the answer was lost, nothing began
        assert ended == ["expired", "succeeded"]
    assert number(stage, "SELECT count(*) FROM poolkeeper.lease") == ahead
    assert all(peer.process.poll() is None for peer in peers)


def requeue(stage: Stage, task: UUID, why: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "poolkeeper", "dlq", "requeue", str(task), "--why", why, "--dsn", stage.dsn]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_keyed_dead_letter_that_two_people_requeue_runs_once_more(stage: Stage) -> None:
    """C12: neither swallowed as a duplicate nor dead at once: a new budget, higher token, old checkpoint; the key stays its own."""
    stage.apply(max_deliveries=2)
    stage.worker().ready()
    task = stage.submit("t.until", "flag", key="K")
    stage.ends(task, "dead")
    assert stage.deliveries(task) == ["failed", "failed"]
    stage.release("flag")
    both = [requeue(stage, task, why) for why in ("fixed", "fixed too")]
    answers = [(one.communicate()[0].decode(), one.returncode) for one in both]
    assert sorted(code for _, code in answers) == [0, 4], answers
    view = stage.ends(task)
    assert view.deliveries == 3
    assert len(stage.notes("step", task)) == 1
    assert [note["delivery"] for note in stage.notes("in", task)] == [1, 2, 3]
    assert stage.submit("t.until", "flag", key="K") == task
    with Client(dsn=stage.dsn) as client, pytest.raises(Conflict):
        client.submit("default/q", "t.until", "another", key="K")
    asked = [line for line in stage.ask(calls.timeline(task)) if line.what == "requeued"]
    assert len(asked) == 1
    assert asked[0].actor
    assert asked[0].reason in {"fixed", "fixed too"}


def most_at_once(stage: Stage, since: int = 0) -> int:
    running = most = 0
    for note in stage.notes()[since:]:
        running += {"in": 1, "out": -1}.get(note["what"], 0)
        most = max(most, running)
    return most


@pytest.mark.parametrize(
    ("processes", "tasks", "finished"),
    [(6, 150, 0), pytest.param(30, 2000, 500_000, marks=[pytest.mark.deep, pytest.mark.timeout(900)])],
)
def test_many_processes_that_claim_at_once_keep_to_the_limit(
    stage: Stage, processes: int, tasks: int, finished: int
) -> None:
    """C16: queue limit 3, a pool of 2, short tasks of mixed priority, higher ones arriving all the time; the work gets done."""
    stage.apply(concurrency={"max": 3}, visibility_timeout="30s")  # on a busy machine no starved worker loses a lease
    for pool in ("default/pool", "default/other"):
        stage.ask(calls.set_pool(pool, max_running=2))
    if finished:
        with psycopg.connect(stage.dsn) as conn:
            conn.execute(
                "INSERT INTO poolkeeper.delivery (task_id, delivery, queue_id, pool_id, session_id, ready_at, claimed_at, started_at, ended_at, outcome, next_state, token_hash, state_version)"
                " SELECT poolkeeper.new_id(), 1, 1, 1, poolkeeper.new_id(), now(), now(), now(), now(), 'succeeded', 'succeeded', sha256(n::text::bytea), 3 FROM generate_series(1, %s) AS n",
                [finished],
            )
            conn.execute("ANALYZE")
    with Client(dsn=stage.dsn) as client:
        client.submit_many(
            "default/q",
            [{"type": "t.sleeps", "payload": 0.02, "priority": n % 5} for n in range(tasks)],
        )
    for n in range(processes):
        stage.worker({"POOLKEEPER_POOL": ("default/pool", "default/other")[n % 2]}, concurrency=10)
    urgent: list[UUID] = []
    while (done := stage.states().get("succeeded", 0)) < tasks:
        if len(urgent) < tasks // 2:
            urgent.append(stage.submit("t.sleeps", 0.02, priority=9))
        held = number(stage, "SELECT count(*) FROM poolkeeper.lease")
        assert held <= 3, (held, done)
        by_pool = number(
            stage, "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM poolkeeper.lease GROUP BY pool_id) AS x"
        )
        assert by_pool <= 2
    for task in urgent:
        stage.ends(task)
    assert 2 <= most_at_once(stage) <= 3


@pytest.mark.parametrize("rounds", [5, pytest.param(60, marks=[pytest.mark.deep, pytest.mark.timeout(1200)])])
def test_after_any_number_of_crashes_exactly_the_limit_runs(own_stage: Stage, server: Server, rounds: int) -> None:
    """C42: workers and the database are killed at any moment, half of the calls told to wait; then no slot is missing or spare."""
    stage = own_stage
    stage.apply(concurrency={"max": 3}, max_deliveries=100, max_snoozes=1000)
    rng = random.Random(42)
    alive = [stage.worker() for _ in range(2)]
    tasks = stage.submit_many("t.busy", ["calm"] * rounds * 8)
    for turn in range(rounds):
        time.sleep(rng.uniform(0.1, 1.5))
        victim = alive.pop(rng.randrange(len(alive)))
        victim.signal(signal.SIGKILL)
        victim.process.wait()
        alive.append(stage.worker())
        if turn % 10 == 3:
            server.kill()
            server.start()
    told_to_wait = "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'snoozed'"
    eventually(lambda: number(stage, told_to_wait) > 0, "some were told to wait")
    stage.release("calm")
    for task in tasks:
        stage.ends(task)
    assert number(stage, "SELECT count(*) FROM poolkeeper.lease") == 0
    assert set(stage.states()) == {"succeeded"}
    since = len(stage.notes())
    held = stage.submit_many("t.hold", ["go"] * 9)
    eventually(lambda: len(stage.notes()[since:]) == 3, "three run")
    with connect(stage.dsn) as conn:
        for _ in range(20):  # whoever looks for work finds none
            time.sleep(0.1)
            assert number(stage, "SELECT count(*) FROM poolkeeper.lease") == 3
            run(conn, calls.sweep())
    assert len(stage.notes()[since:]) == 3
    stage.release("go")
    for task in held:
        stage.ends(task)
    assert most_at_once(stage, since) == 3


def test_what_is_due_later_than_a_lease_is_held_by_nobody_and_begins_once_and_not_early(stage: Stage) -> None:
    """C56: 50 tasks due in three leases, workers in other time zones started anew twice meanwhile, a database with another."""
    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        conn.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET TimeZone = ''America/St_Johns''', current_database()); END $$"
        )
    zones = [{"TZ": zone, "PGTZ": zone} for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago")]
    alive = [stage.worker(zone).ready() for zone in zones]
    tasks = [stage.submit("t.count", n, delay=timedelta(seconds=3 * LEASE)) for n in range(50)]
    for _ in range(2):
        for old in alive:
            old.signal(signal.SIGTERM)
            assert old.wait() == 0
        alive = [stage.worker(zone).ready() for zone in zones]
    for task in tasks:
        stage.ends(task)
        *others, last = stage.deliveries(task)
        assert (last, set(others) - {"returned"}) == ("succeeded", set()), "claimed ahead by a worker that then drained"
        assert len(stage.notes("done", task)) == 1
    early = "SELECT count(*) FROM poolkeeper.delivery AS d JOIN poolkeeper.task AS t ON t.id = d.task_id WHERE d.claimed_at < t.run_at"
    assert number(stage, early) == 0
    argv = [sys.executable, "-m", "poolkeeper", "task", "show", str(tasks[0]), "--output", "json", "--dsn", stage.dsn]
    shown = json.loads(subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **zones[0]}).stdout)
    assert shown["run_at"][-6:] not in {"", shown["run_at"]}
