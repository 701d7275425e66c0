"""Nothing waits where it must not, and nothing deadlocks (contract 19, 20, Q10, Q51)."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from poolkeeper.errors import PoolkeeperError
from poolkeeper.firing import planned
from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, Worker, seconds
from store.test_slots import put
from store.windowing import entry, tell, use, window


@pytest.fixture
def held(scene: Scene) -> psycopg.Connection:
    """A transaction of a bad neighbour, that locks rows and sits there."""
    return scene._stack.enter_context(psycopg.connect(scene.database.dsn))


def impatient(scene: Scene, kind: str = "worker") -> psycopg.Connection:
    """A connection that fails rather than wait for a lock."""
    conn = scene.connect(kind)
    conn.execute("SET lock_timeout = '100ms'")
    return conn


@pytest.mark.parametrize(
    "table",
    [
        *("queue", "pool", "ready", "later", "suspect", "lease", "gate", "gate_due", "ordered", "schedule"),
        *("provider", "provider_window", "provider_hold", "provider_spent"),
    ],
)
def test_a_claim_waits_for_no_row_that_others_share(scene: Scene, held: psycopg.Connection, table: str) -> None:
    """Q10, Q51: whatever row a neighbour holds, the turn answers at once, sweep included."""
    scene.queue(concurrency_max=10)
    use(scene, entry(1, windows={"requests": window(9)}), most=10)
    put(scene)
    dead = scene.worker()
    scene.submit_many(4)
    dead.claim(2)
    scene.submit_many(3, ordering_key="k")
    scene.submit(delay=seconds(5))
    scene.advance(16)
    scene.submit(delay=seconds(0.0))
    worker = scene.worker(conn=impatient(scene))
    tell(scene, mine := worker.take())
    held.execute(f"SELECT 1 FROM poolkeeper.{table} FOR UPDATE".encode())
    answer = worker.turn(
        [] if table == "lease" else [Settle(mine.task_id, mine.token, "succeeded")], want=3, sweep=True
    )
    assert answer.come_again >= seconds(0.01)
    held.rollback()


def test_a_renewal_waits_for_nobody(scene: Scene, held: psycopg.Connection) -> None:
    """Q20: neither for limiters nor for leases nor for a turn of the same session."""
    scene.queue(concurrency_max=10)
    scene.submit_many(2)
    worker = scene.worker()
    tasks = [c.task_id for c in worker.claim(2)]
    put(scene)
    for table in ("queue", "pool", "lease", "ready", "schedule"):
        held.execute(f"SELECT 1 FROM poolkeeper.{table} FOR UPDATE".encode())
    conn = impatient(scene)
    assert run(conn, calls.renew(worker.session, worker.received, tasks)).lost == []
    held.rollback()
    turning = scene.connect("worker", autocommit=False)
    run(turning, calls.turn(worker.session, 2, 1, [], 1, sweep=True))
    assert run(conn, calls.renew(worker.session, 1, tasks)).lost == []
    turning.rollback()


def test_a_submit_waits_for_nobody(scene: Scene, held: psycopg.Connection) -> None:
    """Q4: it only inserts; claims, policies in the making and other submits are not in its way."""
    scene.submit_many(2)
    worker = scene.worker()
    worker.claim(1)
    for table in ("queue", "pool", "lease", "ready", "session", "task", "gate", "gate_due", "ordered", "schedule"):
        held.execute(f"SELECT 1 FROM poolkeeper.{table} FOR UPDATE".encode())
    assert run(impatient(scene, "submitter"), calls.submit("q", "a.b", 1, key="k", ordering_key="k")).code is None
    held.rollback()


def test_a_sweep_waits_for_no_lease(scene: Scene, held: psycopg.Connection) -> None:
    """Q22: what is locked is left for the next one."""
    scene.submit_many(3)
    worker = scene.worker()
    (first, *_) = worker.claim(3)
    scene.advance(16)
    held.execute("SELECT 1 FROM poolkeeper.lease WHERE task_id = %s FOR UPDATE", [first.task_id])
    assert run(impatient(scene, "operator"), calls.sweep()) == 2
    held.rollback()
    assert scene.sweep() == 1


def fires(conn: psycopg.Connection, seed: int) -> None:
    """Fire what is due, and change schedules meanwhile."""
    for n in range(60):
        due = run(conn, calls.due_schedules(None)).schedules
        run(conn, calls.fire_schedules([planned(one) for one in due]))
        how: dict[str, Any] = {
            "cron": "* * * * * *",
            "zone": "UTC",
            "catch_up": "all",
            "catch_up_limit": 5,
            "who": "x",
        }
        task = {"type": "a.b", "payload": n, "ordering_key": "k"}
        run(conn, calls.set_schedule("qr"[n % 2], f"s{(n + seed) % 3}", task=task, **how))


def test_everything_at_once_without_a_deadlock(scene: Scene) -> None:
    """Contract 19: workers with limits, sweeps, cancels, requeues, keys, ordering, policies and ends of sessions, side by side."""
    scene.queue(concurrency_max=12, visibility_timeout_seconds=5, max_hand_backs=3)
    scene.queue("r", concurrency_max=12, visibility_timeout_seconds=5)
    scene.ask("operator", calls.set_pool("local/p", max_running=15))
    ids = scene.submit_many(60) + scene.submit_many(30, queue="r") + scene.submit_many(30, queue="r", ordering_key="k")
    outcomes = ["succeeded", "failed", "dead", "handed_back", "snoozed"]

    def works(worker: Worker, seed: int) -> None:
        rng = random.Random(seed)
        held: list[Claimed] = []
        for n in range(60):
            if n % 20 == 19:
                worker.end()
                worker, held = scene.worker(conn=worker.conn, queues=["r", "q"]), []
            settles = [Settle(c.task_id, c.token, rng.choice(outcomes), retry_after=seconds(0)) for c in held]
            answer = worker.turn(settles, want=rng.randint(1, 6), sweep=rng.random() < 0.5)
            held = answer.claimed or (worker.claim(1, isolated=True) if answer.isolate else [])
            if rng.random() < 0.3:
                held = []
            worker.renew()

    def tends(conn: psycopg.Connection, seed: int) -> None:
        rng = random.Random(seed)
        for n in range(80):
            verb = rng.choice([calls.cancel, calls.requeue, calls.discard])
            run(conn, verb(rng.choice(ids), who="ann", why="x"))
            run(conn, calls.submit(rng.choice("qr"), "a.b", 1, key=f"k{n}", ordering_key=rng.choice([None, "k", "l"])))
            run(conn, calls.sweep(20))

    def moves(conn: psycopg.Connection) -> None:
        for n in range(40):
            conn.execute("UPDATE poolkeeper.clock_offset SET by = by + '1 s'")
            conn.execute("SELECT * FROM poolkeeper.set_pool('local/p', %s)", [10 + n % 5])
            scene.queue("r", concurrency_max=12, visibility_timeout_seconds=5, ordering=["skip", "block"][n % 2])

    with ThreadPoolExecutor(9) as pool:
        jobs = [pool.submit(works, scene.worker(conn=scene.connect("worker"), queues=["q", "r"]), n) for n in range(4)]
        jobs += [pool.submit(tends, scene.connect("person"), n) for n in range(2)]
        jobs += [pool.submit(fires, scene.connect("worker"), n) for n in range(2)]
        jobs.append(pool.submit(moves, scene._stack.enter_context(scene.database.connect())))
        for each in jobs:
            each.result(120)  # a deadlock, or any other error, is raised here


def test_an_idle_transaction_that_holds_a_limiter_is_noticed_not_waited_for(scene: Scene) -> None:
    """Q51: the others pass over and are told to come again at once; once it is gone they go on."""
    scene.queue(concurrency_max=3)
    scene.submit_many(3)
    bad = scene.worker(conn=scene.connect("worker", autocommit=False))
    bad.conn.commit()
    bad.claim(1)
    worker = scene.worker(conn=impatient(scene))
    answer = worker.turn(want=1)
    assert (answer.claimed, answer.come_again < seconds(1)) == ([], True)
    bad.conn.rollback()
    assert len(worker.claim(3)) == 3


def test_errors_of_the_database_are_told_as_ours(scene: Scene) -> None:
    """Quality 2.5: a lost connection is Unavailable, with words of what to do."""
    conn = scene.connect("submitter")
    scene.owner.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
    with pytest.raises(PoolkeeperError) as caught:
        run(conn, calls.submit("q", "a.b", 1))
    assert caught.value.code == "database_unreachable"
