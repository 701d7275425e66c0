"""The audit of a live store: names each broken invariant, sees everything once, raises no false alarm (Q61)."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fixtures.postgres import Database
from poolkeeper.audit import Audit
from poolkeeper.codes import Code
from poolkeeper.errors import Forbidden, PoolkeeperError
from poolkeeper.store import Call, Settle, calls, connect, run
from store.aging import dead, done
from store.conftest import broken_invariants
from store.scene import Scene, seconds
from store.test_plans import backlog, touching

NOBODY = "00000000-0000-7000-8000-000000000001"
BREAKS: dict[str, str] = {  # what a hand of the owner does; the tasks are those of `stocked`
    "every task is in exactly one place": "DELETE FROM poolkeeper.ready WHERE task_id = '{ready}'",
    "nothing is placed without its body": "DELETE FROM poolkeeper.task WHERE id = '{ready}'",
    "nothing was erased of a task that has not ended": "UPDATE poolkeeper.task SET payload_erased_at = now() WHERE id = '{ready}'",
    "no token repeats": "UPDATE poolkeeper.delivery SET token_hash = (SELECT token_hash FROM poolkeeper.lease LIMIT 1) WHERE task_id = '{ended}'",
    "deliveries of a task are numbered without gaps": "UPDATE poolkeeper.delivery SET delivery = 2 WHERE task_id = '{ended}'",
    "each ended delivery has an outcome, a next state and times in order": "UPDATE poolkeeper.delivery SET ended_at = claimed_at - interval '1 s' WHERE task_id = '{ended}'",
    "state versions are gapless": "UPDATE poolkeeper.lease SET state_version = state_version + 1 WHERE task_id = '{leased}'",
    "history replays to the present state": "UPDATE poolkeeper.ready SET state_version = state_version + 1 WHERE task_id = '{ready}'",
    "only the arrows of the state machine were taken": "UPDATE poolkeeper.delivery SET started_at = NULL WHERE task_id = '{ended}'",
    "counters add up to the history since the last requeue": "UPDATE poolkeeper.dead SET spent = spent + 1 WHERE task_id = '{dead}'",
    "a dead letter has a reason that the list explains": "ALTER TABLE poolkeeper.dead DROP CONSTRAINT dead_reason_fkey; UPDATE poolkeeper.dead SET reason = 'bad luck' WHERE task_id = '{dead}'",
    "an ended task keeps no cursor": "INSERT INTO poolkeeper.checkpoint VALUES ('{ended}', 1, 1, 1, '1', now())",
    "a task carries the gate of its ordering key wherever it is": "UPDATE poolkeeper.ready SET gate = 7 WHERE task_id = '{ready}'",
    "of an ordering key at most one task is under way": "UPDATE poolkeeper.ready SET gate = 7 WHERE task_id = '{ready}'; UPDATE poolkeeper.later SET gate = 7 WHERE task_id = '{later}'",
    "where an ordering key is free and a task waits for it, somebody will look": "DELETE FROM poolkeeper.gate_due",
    "a lane that could be served is open where tenants are bounded": "UPDATE poolkeeper.queue SET lanes_kept = true",
    "a key that knows an end has outlived its task": "UPDATE poolkeeper.task_key SET ended_at = now(), last_state = 'succeeded' WHERE task_id = '{ready}'",
    "the counter of lease expiries counts each expired delivery": "UPDATE poolkeeper.queue_count SET lease_expiries = 0",
}


@pytest.fixture
def own_scene(database: Database) -> Iterator[Scene]:
    """A database of the test's own, since it is broken."""
    with ExitStack() as stack:
        scene = Scene(database, stack)
        scene.queue()
        yield scene


def stocked(scene: Scene) -> dict[str, UUID]:
    """A task in each place, one of whose deliveries expired."""
    worker = scene.worker()
    found = {"ended": done(scene, worker), "dead": dead(scene, worker)}
    found["suspect"] = scene.submit()
    worker.take()
    scene.advance(3600)
    scene.sweep()
    found["canceled"] = scene.submit(delay=seconds(50))
    scene.ask("person", calls.cancel(found["canceled"], who="a", why="b"))
    scene.queue("other")  # where no suspect makes its worker wait
    worker = scene.worker(queues=["other"])
    found["leased"] = scene.submit(queue="other")
    worker.take()
    found["ready"] = scene.submit(key="k")
    found["later"] = scene.submit(delay=seconds(50))
    found["ordered"] = scene.submit(ordering_key="k")
    return found


def named(scene: Scene) -> set[str]:
    """Every invariant that the functions know, from their text."""
    text = scene.value(
        "SELECT string_agg(p.prosrc, '') FROM pg_proc AS p WHERE p.pronamespace = 'poolkeeper'::regnamespace"
        " AND p.proname IN ('broken_invariants', 'audit_keys', 'audit_counts')"
    )
    return {part.split("'")[0] for part in text.split("SELECT '")[1:]}


@pytest.mark.parametrize("invariant", list(BREAKS))
def test_an_invariant_that_is_broken_by_hand_is_named(own_scene: Scene, invariant: str) -> None:
    """Q61: nothing before; after it this one, with the task or queue; and each invariant has its case here."""
    tasks = stocked(own_scene)
    assert broken_invariants(own_scene.owner) == {}
    own_scene.owner.execute(BREAKS[invariant].format(**tasks).encode())
    found = broken_invariants(own_scene.owner)
    assert invariant in found
    assert set(found[invariant]) & {*map(str, tasks.values()), "queue 1"}
    assert named(own_scene) == set(BREAKS)


def walk(conn: psycopg.Connection, page: int, *, resume: bool = False) -> tuple[Audit, Counter[str]]:
    """A whole audit; with `resume` each page by an audit of its own, from the place that the last one wrote down."""
    audit, found, tasks, keys = Audit(), Counter[str](), 0, 0
    while not audit.done:
        for broken in audit.step(conn, page=page):
            found[broken.invariant] += broken.violations
            assert len(broken.first) == min(broken.violations, 20)
        if resume and not audit.done:
            tasks, keys = tasks + audit.looked_tasks, keys + audit.looked_keys
            audit = Audit.at(audit.place)
    audit.looked_tasks += tasks
    audit.looked_keys += keys
    return audit, found


@pytest.mark.parametrize("resume", [False, True])
def test_pages_see_everything_once(own_scene: Scene, resume: bool) -> None:
    """Q61: however small the page, and also where each is asked for by another process."""
    stocked(own_scene)
    tasks = [{"type": "a.b", "payload": n, "key": f"x{n}"} for n in range(300)]
    own_scene.ask("submitter", calls.submit_many("q", tasks))
    own_scene.owner.execute("DELETE FROM poolkeeper.task WHERE ('x' || right(id::text, 2))::bit(8)::int % 3 = 0")
    orphans = own_scene.value(
        "SELECT count(*) FROM poolkeeper.ready AS r WHERE NOT EXISTS (SELECT FROM poolkeeper.task AS t WHERE t.id = r.task_id)"
    )
    assert orphans > 30
    audit, found = walk(own_scene.owner, 10_000)
    small, same = walk(own_scene.owner, 7, resume=resume)
    assert [(a.looked_tasks, a.looked_keys) for a in (audit, small)] == [(308, 301)] * 2
    assert found == same
    assert found["nothing is placed without its body"] >= 2 * orphans, "as tasks, and as keys"


def test_the_counter_is_compared_with_the_sum_of_all_pages(own_scene: Scene) -> None:
    """Q61: a place carries what was counted so far."""
    tasks = stocked(own_scene)
    assert walk(own_scene.owner, 1, resume=True)[1] == {}
    own_scene.owner.execute(BREAKS["the counter of lease expiries counts each expired delivery"].encode())
    assert walk(own_scene.owner, 1, resume=True)[1] == {"the counter of lease expiries counts each expired delivery": 1}
    assert Audit.at(f"tasks:{tasks['ready']}:" + '{"1":2}').place == f"tasks:{tasks['ready']}:" + '{"1":2}'


@pytest.mark.parametrize(
    "place", ["", "x", "tasks:", "tasks:1", "keys:-1", "keys:x", "tasks:" + NOBODY + ":[", "over:1"]
)
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises((ValueError, AttributeError)):
        Audit.at(place)


@pytest.mark.parametrize("kind", ["operator", "reader", "person"])
@pytest.mark.parametrize("limits", [{"queues": ["default/q"]}, {"tenants": ["a"]}, {"tenants_except": ["a"]}])
def test_who_is_limited_may_not_audit(scene: Scene, kind: str, limits: dict[str, list[str]]) -> None:
    """Q51: ids of others are not for them; without limits the same login may."""
    conn = scene.connect(kind)
    assert walk(conn, 100)[1] == {}
    scene.allow(scene.database.login(kind), **limits)
    each: tuple[Call[Any], ...] = (calls.audit_tasks(), calls.audit_keys(), calls.audit_counts({}), calls.doctor())
    for call in each:
        with pytest.raises(Forbidden, match="no limits"):
            run(conn, call)


def test_an_audit_writes_nothing_and_ends_in_time(own_scene: Scene) -> None:
    """Q61: read-only by the server's word; a page that takes too long is asked for smaller, to one task at last."""
    own_scene.submit_many(3)
    with own_scene.without(
        "poolkeeper.broken_invariants(uuid[])",
        "RETURN QUERY SELECT 'nothing is placed",
        "PERFORM pg_sleep(CASE WHEN cardinality(_ids) > 1 THEN 60 ELSE 0 END); RETURN QUERY SELECT 'nothing is placed",
    ):
        audit = Audit()
        assert audit.step(own_scene.owner, page=4, timeout=0.5) == []
        assert audit.looked_tasks == 1
    with own_scene.without(
        "poolkeeper.broken_invariants(uuid[])",
        "RETURN QUERY SELECT 'nothing is placed",
        "PERFORM pg_sleep(60); RETURN QUERY SELECT 'nothing is placed",
    ):
        before = audit.place
        with pytest.raises(PoolkeeperError) as caught:
            audit.step(own_scene.owner, page=4, timeout=0.5)
        assert (caught.value.code, audit.place) == (Code.DATABASE_BUSY, before)
    with own_scene.owner.transaction(), pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        run(own_scene.owner, calls.only_look(1))
        own_scene.owner.execute("CREATE TEMP TABLE x AS SELECT 1; DELETE FROM poolkeeper.lease")


HISTORY = """
    INSERT INTO poolkeeper.delivery (task_id, delivery, queue_id, pool_id, session_id, ready_at, claimed_at, started_at, ended_at, outcome, next_state,
                                     token_hash, state_version)
    SELECT r.task_id, 1, 1, 1, gen_random_uuid(), now(), now(), now(), now(), 'succeeded', 'succeeded', uuid_send(gen_random_uuid()), 3
    FROM poolkeeper.ready AS r ORDER BY r.task_id LIMIT %s
"""


@pytest.mark.parametrize("statistics", ["none", "fresh"])
def test_a_page_costs_the_same_whatever_lies_around_it(scene: Scene, statistics: str) -> None:
    """Q61: each growing table is entered by an index, and no more than the page is read of it; also in the middle."""
    backlog(scene, 20_000)
    scene.owner.execute(HISTORY.encode(), [10_000])
    scene.owner.execute("DELETE FROM poolkeeper.ready AS r USING poolkeeper.delivery AS d WHERE d.task_id = r.task_id")
    if statistics == "fresh":
        scene.owner.execute("ANALYZE")
    middle = scene.value("SELECT task_id FROM poolkeeper.delivery ORDER BY task_id OFFSET 9950 LIMIT 1")
    conn = scene.connect("operator")
    run(conn, calls.audit_tasks(middle, 100))
    with touching(scene, conn) as touched:
        page = run(conn, calls.audit_tasks(middle, 100))
    assert (page.looked, page.broken) == (100, [])
    assert touched.scanned == set()
    assert max(entries for _, entries, _ in touched.by_name.values()) <= 20 * 100
    assert max(blocks for _, _, blocks in touched.by_name.values()) <= 60 * 100
    scene.owner.execute("TRUNCATE poolkeeper.task, poolkeeper.ready, poolkeeper.delivery")


def test_keys_are_read_block_by_block(scene: Scene) -> None:
    """Q61: a page reads its blocks of the table and no other."""
    tasks = [{"type": "a.b", "payload": n, "key": f"x{n}"} for n in range(3000)]
    scene.ask("submitter", calls.submit_many("q", tasks))
    conn = scene.connect("operator")
    blocks = scene.value("SELECT pg_relation_size('poolkeeper.task_key') / current_setting('block_size')::int")
    assert blocks > 20
    page = run(conn, calls.audit_keys(3, 2))
    assert page.next == 5
    assert 0 < page.looked < 300
    with touching(scene, conn) as touched:
        run(conn, calls.audit_keys(3, 2))
    assert touched.by_name["task_key"][0] == 0, "not from end to end"


def traffic(scene: Scene, dsns: dict[str, str], over: threading.Event, number: int) -> None:
    """Everything that can happen to tasks, as fast as it goes."""
    with ExitStack() as stack:
        ask = {kind: stack.enter_context(connect(dsn)) for kind, dsn in dsns.items()}
        worker = scene.worker(conn=ask["worker"], pool=f"local/p{number}", concurrency=30)
        rounds = 0
        while not over.is_set():
            rounds += 1
            tasks = [
                {
                    "type": "a.b",
                    "payload": n,
                    "key": f"k{number}.{rounds}.{n}",
                    "ordering_key": f"o{n}" if n % 3 == 0 else None,
                }
                for n in range(12)
            ]
            ids = [v.task_id for v in run(ask["submitter"], calls.submit_many("q", tasks))]
            held = worker.turn(want=10, isolated=rounds % 5 == 0).claimed
            outcomes = ["succeeded", "failed", "dead", "rejected", "snoozed", "handed_back", "canceled"]
            if rounds % 7:
                worker.turn([Settle(c.task_id, c.token, outcomes[n % 7]) for n, c in enumerate(held)], sweep=True)
            else:
                worker.end()  # its deliveries end with it
                worker = scene.worker(conn=ask["worker"], pool=f"local/p{number}", concurrency=30)
            for task_id in ids[:2]:
                if task_id is not None:
                    run(ask["person"], calls.cancel(task_id, who="a", why="b"))
            for letter in run(ask["person"], calls.dead_letters("q", 3)):
                call = calls.requeue if rounds % 2 else calls.discard
                run(ask["person"], call(letter.task_id, who="a", why="b"))
            run(ask["operator"], calls.maintain(50))


@pytest.mark.wide
def test_a_store_under_load_raises_no_alarm(scene: Scene) -> None:
    """Q61: claims, settles, deaths, cancels, requeues, sweeps and retention meanwhile; each page is of one moment."""
    scene.queue("q", max_deliveries=3, visibility_timeout="1 second", backoff_initial="1 ms", backoff_max="10 ms")
    scene.owner.execute(
        "UPDATE poolkeeper.queue SET retention_payload = '1 ms', retention_result = '1 ms', retention_events = '1 ms'"
    )
    over, seen, found = threading.Event(), 0, Counter[str]()
    auditor = scene.connect("reader")
    for kind in ("worker", "submitter", "person", "operator"):
        scene.actor(kind)
    dsns = {kind: scene.database.dsn_as(kind) for kind in ("worker", "submitter", "person", "operator")}
    with ThreadPoolExecutor(2) as pool:
        crowd = [pool.submit(traffic, scene, dsns, over, n) for n in range(2)]
        try:
            end = time.monotonic() + 15
            while time.monotonic() < end and not any(one.done() for one in crowd):
                audit, broken = walk(auditor, 200)
                seen += audit.looked_tasks
                found += broken
        finally:
            over.set()
        for one in crowd:
            one.result(60)
    assert found == {}
    assert seen > 1000
