"""Whatever row somebody else holds, claimers, sweeps and the upkeep pass it over and wait for nothing (Q5, Q12, Q14, Q52).

A statement that waits is ended by its time limit, which is generous; so each lock without its SKIP LOCKED is seen.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fixtures.neighbours import BOUNDED, LIMITED, PLAIN, QUEUES, Crowd
from poolkeeper.store import calls, run
from store.scene import Worker

WAITS = "SET statement_timeout = '15s'"
PLACES = ("ordered", "ready", "later", "suspect", "dead", "lease", "gate_due", "opening", "backlog", "contact")
LIMITERS = ("queue", "pool", "lane", "gate")
SHORT = {
    f"retention_{name}_seconds": n
    for n, name in enumerate(("payload", "result", "checkpoint", "events", "dead_letters", "keys"), 100)
}


@contextmanager
def held(
    crowd: Crowd, tables: Sequence[str], where: str = "true", lock: str = "UPDATE"
) -> Iterator[psycopg.Connection[Any]]:
    """Somebody holds every row of these tables."""
    conn = crowd.scene.connect("owner", autocommit=False)
    for table in tables:
        conn.execute(f"SELECT 1 FROM poolkeeper.{table} WHERE {where} FOR {lock}")
    yield conn
    conn.rollback()


@pytest.fixture
def busy(crowd: Crowd) -> Crowd:
    """Everything that time can move is due, and every connection says so rather than wait."""
    scene = crowd.scene
    for queue in QUEUES[:-1]:
        crowd.submit(queue, ordering_key="due")
    for worker in (crowd.worker, crowd.far):
        worker.conn.execute(WAITS)
    for kind in ("operator", "submitter", "person"):
        scene.actor(kind).execute(WAITS)
    return crowd


def isolating(crowd: Crowd, *queues: str) -> Worker:
    return crowd.scene.worker(pool="local/iso", queues=queues, types=("x.y", "a.b"), concurrency=20)


@pytest.mark.parametrize(
    "tables", [PLACES, LIMITERS, *((table,) for table in ("queue", "pool", "lane", "gate", "contact"))], ids=" ".join
)
def test_a_turn_waits_for_nobody(busy: Crowd, tables: tuple[str, ...]) -> None:
    """Q5, Q12: what is held is not there for it, and it comes again soon; what is not held goes on."""
    scene = busy.scene
    worker, apart = busy.worker, isolating(busy, PLAIN, BOUNDED)
    lost = busy.take(busy.far, PLAIN)
    assert lost.queue == f"default/{PLAIN}"
    busy.far.received = busy.far.turn_no - 2
    busy.submit(PLAIN, ordering_key="another")
    scene.owner.execute("UPDATE poolkeeper.pool SET isolating_session = %s WHERE name = 'local/p'", [worker.session.id])
    scene.advance(3)
    with held(busy, tables):
        for each in (worker, busy.far):
            answer = each.turn(want=50, sweep=True)
            queues = {claimed.queue for claimed in answer.claimed}
            if tables in (PLACES, LIMITERS, ("queue",), ("pool",)):
                limited = {f"default/{PLAIN}", f"default/{LIMITED}", "other/plain"}
                assert queues <= (limited if tables == ("queue",) else set())
            if tables == ("lane",):
                assert f"default/{BOUNDED}" not in queues
            if tables not in {PLACES, ("contact",)}:
                assert answer.come_again.total_seconds() <= 0.06
            run(each.conn, calls.renew(each.session, each.turn_no, [], complete=True))
        suspects = apart.claim(5, isolated=True)
        assert not suspects or "suspect" not in tables
        for queue in QUEUES:
            assert scene.verdict(queue=queue).code is None
    assert busy.worker.turn(want=5, sweep=True).claimed or tables == PLACES


def test_a_sweep_waits_for_nobody(busy: Crowd) -> None:
    """Q22: it moves nothing that is held, and all of it afterwards."""
    scene = busy.scene
    scene.owner.execute(
        "UPDATE poolkeeper.lease SET run_by = poolkeeper.clock(), run_why = 'max_run_time' WHERE queue_id = %s AND started_at IS NOT NULL",
        [busy.queue_ids[LIMITED]],
    )
    for table in ("ready", "later", "ordered", "suspect"):
        scene.owner.execute(
            f"UPDATE poolkeeper.{table} SET expires_at = poolkeeper.clock() WHERE queue_id = %s",
            [busy.queue_ids[PLAIN]],
        )
    soon = busy.submit(LIMITED, delay=timedelta(seconds=10))
    scene.advance(20)
    with held(busy, (*PLACES, *LIMITERS, "session")), busy.untouched():
        assert scene.sweep() == 0
    scene.advance(1)
    with held(busy, ("gate", "lane", "queue", "pool", "session", "backlog")):
        assert scene.sweep() > 20
    assert scene.state(soon) == "ready"
    scene.sweep()
    for table in ("ready", "later", "ordered", "suspect"):
        assert scene.rows(f"SELECT 1 FROM poolkeeper.{table} WHERE expires_at <= poolkeeper.clock()") == [], table
    assert scene.rows("SELECT 1 FROM poolkeeper.lease WHERE run_by <= poolkeeper.clock()") == []


def test_silent_sessions_end_unless_somebody_holds_them(busy: Crowd) -> None:
    """Q22: hours later, those that hold nothing."""
    scene = busy.scene
    for worker in (busy.worker, busy.twin, busy.far):
        worker.end()
    scene.owner.execute("UPDATE poolkeeper.session SET ended_at = NULL")
    scene.advance(3 * 3600)
    with held(busy, ("session",)), busy.untouched() as own:
        own.tables |= {"later", "ready", "event", "opening", "suspect", "ordered", "gate_due"}
        scene.sweep()
    scene.sweep()
    assert scene.rows("SELECT 1 FROM poolkeeper.session WHERE ended_at IS NULL") == []


@pytest.mark.parametrize(
    "tables", [("task", "dead", "task_key", "opening", "lane", "session", "dead_post"), ("instance",)], ids=" ".join
)
def test_the_upkeep_waits_for_nobody(busy: Crowd, tables: tuple[str, ...]) -> None:
    """Q52: it removes nothing that is held, and all that is old afterwards."""
    scene = busy.scene
    scene.queue(PLAIN, **SHORT)
    scene.ask("operator", calls.keep_post(busy.queue_ids[PLAIN], 1, {}))
    scene.advance(8 * 86400)
    scene.sweep()
    busy.worker.end()
    with held(busy, tables):
        upkeep = scene.ask("operator", calls.maintain())
        assert (
            upkeep.tasks,
            upkeep.payloads,
            upkeep.dead_letters,
            upkeep.checkpoints,
            upkeep.keys,
            upkeep.sessions,
        ) == (0,) * 6
        assert len(scene.rows("SELECT 1 FROM poolkeeper.dead_post")) == 1
    for _ in range(5):
        upkeep = scene.ask("operator", calls.maintain())
        scene.advance(200)
    left = scene.rows("SELECT 1 FROM poolkeeper.dead WHERE queue_id = %s", busy.queue_ids[PLAIN])
    assert left == scene.rows("SELECT 1 FROM poolkeeper.dead_post") == []


def test_a_renewal_waits_for_nobody(busy: Crowd) -> None:
    """Q20, Q21: signs of progress, limits and leases of lost answers, in rows that a handler's own transaction holds."""
    one = busy.take(busy.worker, LIMITED)
    busy.worker.turn_no += 1
    run(busy.worker.conn, calls.turn(busy.worker.session, busy.worker.turn_no, busy.worker.received, [], 0))
    stats = {"progress": [str(one.task_id)]}
    with held(busy, ("lease", "contact", "queue", "pool")), busy.untouched() as own:
        own.sessions.add(str(busy.worker.session.id))
        call = calls.renew(busy.worker.session, busy.worker.turn_no, [], complete=True, stats=stats)
        run(busy.worker.conn, call)


def test_a_new_policy_waits_for_no_lease(busy: Crowd) -> None:
    """Q21: what a handler's own transaction holds keeps the limits that it had."""
    scene, home = busy.scene, busy.queue_ids[PLAIN]
    with held(busy, ("lease",)), busy.untouched() as own:
        own.whole.add(home)
        scene.queue(PLAIN, max_run_time_seconds=60)


def test_bulk_letters_and_batches_pass_over_what_is_held(busy: Crowd) -> None:
    """Q29, O24."""
    scene = busy.scene
    with held(busy, ("dead",)), busy.untouched():
        person = scene.actor("person")
        for deed in ("requeue", "discard"):
            rows = person.execute(
                f"SELECT task_ids FROM poolkeeper.{deed}_matching('plain', '{{}}', 'ann', 'x')"
            ).fetchall()
            assert rows == [([],)]
        assert scene.ask("operator", calls.dead_batch(busy.queue_ids[PLAIN])) is None


def test_a_claim_is_apart_from_a_change_of_its_policy(busy: Crowd) -> None:
    """Q12: under the old limits nothing is claimed once the new ones are being written."""
    scene = busy.scene
    scene.queue(LIMITED, per_tenant_max=100)
    conn = scene.connect("operator", autocommit=False)
    for queue in (BOUNDED, LIMITED):
        run(
            conn,
            calls.apply_policy(
                "local", "default", "default", queue, {"per_tenant_max": 90, "concurrency_max": 90}, who="x"
            ),
        )
    answer = busy.worker.turn(want=50)
    assert {c.queue for c in answer.claimed} == {f"default/{PLAIN}", "other/plain"}
    assert answer.come_again.total_seconds() <= 0.06
    conn.rollback()


def test_one_queue_that_is_held_makes_a_turn_come_again(busy: Crowd) -> None:
    """Q12: whatever kinds of limits the others have; each is asked for once."""
    scene = busy.scene
    scene.queue(LIMITED, concurrency_max=100)
    scene.queue("lanes", per_tenant_max=100)
    for other in (BOUNDED, "lanes", PLAIN):
        worker = scene.worker(pool="local/two", queues=[other, LIMITED])
        with held(busy, ("queue",), "name = 'limited'"):
            answer = worker.turn(want=1)
            assert f"default/{LIMITED}" not in {claimed.queue for claimed in answer.claimed}
            assert answer.come_again.total_seconds() <= 0.06, other


def test_only_who_holds_a_limit_is_timed(busy: Crowd) -> None:
    """Q51: a turn in an open transaction has its session ended when it idles, if others wait for its queue, its pool or its lanes."""
    scene = busy.scene
    scene.queue("lanes", per_tenant_max=3)
    scene.queue("most", concurrency_max=3)
    for queue, most, timed in (
        (PLAIN, None, False),
        (LIMITED, None, False),
        ("lanes", None, True),
        ("most", None, True),
        (PLAIN, 5, True),
    ):
        pool = f"local/{queue}-{most}"
        conn = scene.connect("worker", autocommit=False)
        worker = scene.worker(pool=pool, queues=[queue], conn=conn)
        conn.commit()
        if most is not None:
            scene.ask("operator", calls.set_pool(pool, max_running=most))
        worker.turn(want=1)
        row = conn.execute("SELECT current_setting('idle_in_transaction_session_timeout') <> '0'").fetchone()
        assert row == (timed,), (queue, most)
        conn.rollback()


def test_room_is_not_waited_for(busy: Crowd) -> None:
    """Q27: whose pool is held by somebody else makes no room this time."""
    scene = busy.scene
    worker = isolating(busy, PLAIN)
    worker.conn.execute(WAITS)
    gone = scene.value("SELECT task_id FROM poolkeeper.suspect WHERE queue_id = %s", busy.queue_ids[PLAIN])
    scene.owner.execute("UPDATE poolkeeper.suspect SET expires_at = poolkeeper.clock() WHERE task_id = %s", [gone])
    busy.submit(PLAIN)
    assert len(worker.claim(1)) == 1
    scene.owner.execute("UPDATE poolkeeper.suspect SET expires_at = NULL")
    with held(busy, ("pool",)):
        assert worker.turn(want=1).isolate is False
    assert worker.turn(want=1).isolate is True


def test_a_wrong_token_is_stale_whoever_holds_the_lease(busy: Crowd) -> None:
    """Q18: the right one hears that a transaction has it in hand."""
    one, two = busy.take(busy.worker, PLAIN), busy.take(busy.worker, PLAIN)
    conn = busy.worker.conn
    with held(busy, ("lease",)), busy.untouched():
        assert run(conn, calls.checkpoint(one.task_id, two.token, 1, sequence=1)).code == "stale_token"
        assert run(conn, calls.checkpoint(one.task_id, one.token, 1, sequence=1)).code == "in_transaction"


def test_ending_extending_and_registering_wait_for_nobody(busy: Crowd) -> None:
    """Q5, Q20: not for what a handler's own transaction holds, nor for rows in which nothing is to be changed."""
    scene, worker = busy.scene, busy.worker
    again = calls.register_session("local/same", [PLAIN], ["a.b"], concurrency=1, info={"build": "b1"})
    conn = scene.connect("worker")
    conn.execute(WAITS)
    first = run(conn, again)
    one = busy.take(busy.far, PLAIN)
    run(busy.far.conn, calls.checkpoint(one.task_id, one.token, 1, sequence=1))
    with held(busy, ("pool", "session"), lock="NO KEY UPDATE"), busy.untouched(one.task_id) as own:
        extended = run(busy.far.conn, calls.extend(one.task_id, one.token, timedelta(seconds=60)))
        assert extended.code is None
        own.sessions.add(str(run(conn, again).id))
    with held(busy, ("lease",)), busy.untouched() as own:
        own.sessions.add(str(worker.session.id))
        assert worker.end() == 0
    run(conn, calls.end_session(first))
