"""Leases, clocks, builds, drains and frozen workers, as they went wrong elsewhere (field cases C02, C04, C06, C08, C14, C30)."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from fixtures.workers import LEASE, Stage, Worker, eventually

pytestmark = pytest.mark.wide


def rows(stage: Stage, query: str, *params: Any) -> list[Any]:
    with psycopg.connect(stage.dsn, row_factory=namedtuple_row) as conn:
        return conn.execute(query.encode(), params).fetchall()


def test_no_kind_of_long_handler_makes_a_live_worker_lose_its_lease(stage: Stage) -> None:
    """C02: waiting, blocking and computing on the event loop, and holding the interpreter lock in a child process."""
    for _ in range(2):
        stage.worker().ready()
    long = 1.5 * LEASE
    kinds = {"t.sleeps": 6, "t.block": 3, "t.burns": 3, "t.stops_all_process": 2}
    tasks = [stage.submit(kind, long) for kind, count in kinds.items() for _ in range(count)]
    for task in tasks:
        stage.ends(task)
    assert len(stage.notes("in")) == len(tasks)
    assert [stage.deliveries(task) for task in tasks] == [["succeeded"]] * len(tasks)


def test_what_holds_the_interpreter_lock_for_longer_than_a_lease_is_run_again_apart_from_the_others(
    stage: Stage,
) -> None:
    """C02: no thread of that process can renew. Nothing counts twice; the next time it stops a child process alone."""
    workers = {worker.pid: worker for worker in (stage.worker().ready(), stage.worker().ready())}
    task = stage.submit("t.stops_all", 2.5 * LEASE)
    beside = [stage.submit("t.hold", "go") for _ in range(2)]  # the other worker has free slots, and looks
    first = stage.note("in", task)
    eventually(lambda: stage.deliveries(task) == ["expired"], "others notice that nobody renews")
    stage.release("go")  # a worker has to be empty to run it alone
    second = stage.note("in", task, count=2)
    assert second["pid"] not in workers, "the second delivery runs in a process of its own"
    stage.ends(task)
    for each in beside:
        stage.ends(each)
    assert stage.deliveries(task) == ["expired", "succeeded"]
    eventually(lambda: len(stage.notes("out", task)) == 2, "the first delivery comes to its end as well")
    after = [stage.submit("t.count") for _ in range(20)]
    for each in after:
        stage.ends(each)
    assert workers[first["pid"]].process.poll() is None


WRONG_CLOCK = """
import datetime, time
_true, _by = time.time, {by}
time.time = lambda: _true() + _by
time.time_ns = lambda: int((_true() + _by) * 1e9)
class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)
datetime.datetime = _Datetime
"""


def wrong_clock(stage: Stage, seconds: int) -> Worker:
    """A worker whose clock is wrong by so much, in its child processes as well."""
    folder = stage.folder / f"clock{seconds}"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WRONG_CLOCK.format(by=seconds))
    return stage.worker({"PYTHONPATH": str(folder)})


def test_leases_and_due_times_follow_the_databases_clock_alone(stage: Stage) -> None:
    """C04: workers 15 minutes ahead and behind; one is killed: only its tasks run twice, and nothing starts early."""
    workers = {worker.pid: worker for worker in (wrong_clock(stage, by).ready() for by in (0, 900, -900))}
    now = [stage.submit("t.sleeps", 1.5 * LEASE) for _ in range(18)]
    later = [stage.submit("t.count", delay=timedelta(seconds=2 * LEASE)) for _ in range(12)]
    eventually(lambda: len({note["pid"] for note in stage.notes("in")}) == 3, "each of the workers has begun something")
    clocks = [note["at"] - time.time() for note in stage.notes("in")]
    assert min(clocks) < -800 < 800 < max(clocks), "the handlers see the wrong clocks"
    victim = workers[stage.notes("in")[0]["pid"]]
    victim.signal(signal.SIGKILL)
    for task in now + later:
        stage.ends(task)
    (killed,) = rows(stage, "SELECT id FROM poolkeeper.session WHERE (info ->> 'pid')::int = %s", victim.pid)
    twice = rows(
        stage, "SELECT session_id, outcome FROM poolkeeper.delivery WHERE outcome NOT IN ('succeeded', 'returned')"
    )
    assert twice
    assert {(row.session_id, row.outcome) for row in twice} == {(killed.id, "expired")}
    early = "SELECT 1 FROM poolkeeper.delivery AS d JOIN poolkeeper.task AS t ON t.id = d.task_id WHERE d.claimed_at < t.run_at"
    assert rows(stage, early) == []


CLAIMS = """
    CREATE TABLE claims (task_id uuid);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.claims (task_id) VALUES (NEW.task_id);
        RETURN NEW;
    END $$;
    CREATE TRIGGER note AFTER INSERT ON poolkeeper.lease FOR EACH ROW EXECUTE FUNCTION note();
"""
"""Every claim of a task, also one that would be given back."""


def turns(worker: Worker) -> float:
    """Round trips of its claim loop so far."""
    lines = worker.get("/metrics")[1].splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("poolkeeper_worker_turns_total "))


def told(stage: Stage, *argv: str) -> Any:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "poolkeeper", *argv, "--output", "json"]
    found = subprocess.run(command, env={**os.environ, "POOLKEEPER_DSN": stage.dsn}, capture_output=True, check=True)
    return json.loads(found.stdout)


def test_a_build_that_lacks_a_type_leaves_its_tasks_alone_until_one_comes_that_has_it(stage: Stage) -> None:
    """C06: no claim, nothing spent, no hot loop; queue and task say that nobody can; the new build's first delivery does it."""
    stage.apply(max_deliveries=3)
    with psycopg.connect(stage.dsn) as conn:
        conn.execute(CLAIMS)
    old = stage.worker({"POOLKEEPER_TASK_TYPES": "t.noop", "POOLKEEPER_BUILD": "v1"}).ready()
    unknown = [stage.submit("t.count", n) for n in range(10)]
    known = [stage.submit("t.noop") for _ in range(10)]
    for task in known:
        stage.ends(task)
    at, before = time.monotonic(), turns(old)
    eventually(lambda: turns(old) >= before + 12, "the old build has looked many times")
    looked, seconds = turns(old) - before, time.monotonic() - at
    assert looked <= 5 + 5 * seconds, "an idle turn now and then, never one after another"
    for task in unknown:
        view = stage.view(task)
        assert (view.state, view.reason, view.deliveries) == ("ready", "no_capable_worker", 0)
    (queue,) = told(stage, "queue", "list")
    assert (queue["ready"], queue["no_capable_worker"], queue["dead"]) == (10, 10, 0)
    assert told(stage, "task", "show", str(unknown[0]))["reason"] == "no_capable_worker"
    assert stage.notes() == []
    claims = "SELECT task_id, count(*) AS n FROM public.claims GROUP BY task_id"
    assert {row.task_id: row.n for row in rows(stage, claims)} == dict.fromkeys(known, 1)
    stage.worker({"POOLKEEPER_BUILD": "v2"}).ready()
    for task in unknown:
        assert stage.ends(task).deliveries == 1
    assert {row.task_id: row.n for row in rows(stage, claims)} == dict.fromkeys([*known, *unknown], 1)
    assert told(stage, "queue", "list")[0]["no_capable_worker"] == 0
    assert old.process.poll() is None, old.log


def test_six_drains_cost_a_task_neither_its_budget_nor_its_steps(stage: Stage) -> None:
    """C08: three deliveries may fail; six are handed back, each at its checkpoint, and counted apart."""
    stage.apply(max_deliveries=3)
    grace = {"POOLKEEPER_GRACE_PERIOD": "2", "POOLKEEPER_HAND_BACK_MARGIN": "1.5"}
    workers = [stage.worker(grace).ready(), stage.worker(grace).ready()]
    task = stage.submit("t.steps", 7)
    for step in range(6):
        said = eventually(lambda: [n for n in stage.notes("saved", task) if n["step"] == step], f"step {step} is saved")
        worker = next(worker for worker in workers if worker.pid == said[0]["pid"])
        workers.append(stage.worker(grace))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log
        stage.release(f"step{step}")
    stage.release("step6")
    assert stage.ends(task).result == 7
    assert stage.deliveries(task) == ["handed_back"] * 6 + ["succeeded"]
    assert [note["step"] for note in stage.notes("step", task)] == list(range(7))


HISTORY = """
    CREATE TABLE saved (no bigserial, delivery int, sequence int, value jsonb);
    CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.saved (delivery, sequence, value) VALUES (NEW.delivery, NEW.sequence, NEW.value);
        RETURN NEW;
    END $$;
    CREATE TRIGGER keep AFTER INSERT OR UPDATE ON poolkeeper.checkpoint FOR EACH ROW EXECUTE FUNCTION keep();
"""
"""Every checkpoint that is written, in the order of writing."""


def test_a_thawed_worker_neither_saves_nor_goes_on(stage: Stage) -> None:
    """C14: stopped in step 5, thawed when its successor is in step 12: checkpoints go forward only, one last call at most."""
    with psycopg.connect(stage.dsn) as conn:
        conn.execute(HISTORY)
    workers = {worker.pid: worker for worker in (stage.worker().ready(), stage.worker().ready())}
    for number in range(5):
        stage.release(f"step{number}")
    task = stage.submit("t.steps", 20)
    first = workers[stage.note("saved", task, count=6)["pid"]]
    first.signal(signal.SIGSTOP)
    second = stage.note("step", task, count=7)
    assert (second["step"], second["delivery"]) == (6, 2)
    for number in range(5, 12):
        stage.release(f"step{number}")
    eventually(lambda: any(note["step"] == 12 for note in stage.notes("saved", task)), "the successor is in step 12")
    first.signal(signal.SIGCONT)
    eventually(lambda: "its lease is lost" in first.log or "lease_expired" in first.log, "the first one heard of it")
    beside = [stage.submit("t.count") for _ in range(20)]
    for each in beside:
        stage.ends(each)
    for number in range(12, 20):
        stage.release(f"step{number}")
    assert stage.ends(task).result == 20
    assert stage.deliveries(task) == ["expired", "succeeded"]
    saved = [(row.delivery, row.value) for row in rows(stage, "SELECT * FROM saved ORDER BY no")]
    assert saved == sorted(saved), saved
    assert [value for _, value in saved] == list(range(1, 21))
    late = [note for note in stage.notes("step", task) if note["delivery"] == 1 and note["step"] > 5]
    assert len(late) <= 1, "what was in flight, and nothing after the refusal"


def test_a_drain_ends_in_time_with_every_kind_of_handler_although_the_lease_is_long(stage: Stage) -> None:
    """C30: with checkpoints, without, and deaf to cancelling; a second SIGTERM; then others begin at once, not after the lease."""
    stage.apply(visibility_timeout="5m")
    worker = stage.worker({"POOLKEEPER_GRACE_PERIOD": "6", "POOLKEEPER_HAND_BACK_MARGIN": "4"}).ready()
    steps = stage.submit("t.walks", [60, 0.3])
    others = [stage.submit(kind, "go") for kind in ("t.hold", "t.deaf", "t.stubborn")]
    reached = stage.note("step", steps, count=3)["step"]
    for task in others:
        stage.note("in", task)
    worker.signal(signal.SIGTERM)
    eventually(lambda: "draining" in worker.log, "the drain has begun")
    late = stage.submit("t.count")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    assert stage.deliveries(late) == []
    for task in (steps, *others):
        assert stage.deliveries(task) == ["handed_back"]
    told = len(stage.notes("cancelled", others[1]))
    assert told, "the deaf one was told"
    stage.release("go")
    stage.worker().ready()
    for task in (*others, late):
        stage.ends(task)
    resumed = next(note for note in stage.notes("step", steps) if note["delivery"] == 2)
    assert resumed["step"] > reached
    for task in others:
        assert [note["delivery"] for note in stage.notes("in", task)] == [1, 2]
