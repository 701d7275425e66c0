"""What is read of one queue, pool or task is of that one alone, beside a crowd of others (O10, O11, Q1, Q2, Q51)."""

from collections import Counter
from typing import Any

import pytest

from fixtures.neighbours import BOUNDED, FOREIGN, HOUR, LIMITED, PLAIN, QUEUES, Crowd
from poolkeeper.codes import Code
from poolkeeper.errors import NotFound
from poolkeeper.store import calls, run


def test_the_figures_of_a_queue_are_its_own(crowd: Crowd) -> None:
    """O10: counted by another way, from the tables, queue by queue; each has something that the others have not."""
    scene = crowd.scene
    for n, queue in enumerate(QUEUES):
        for _ in range(n):
            crowd.submit(queue)
            crowd.submit(queue, delay=HOUR)
            crowd.worker.settle(crowd.take(crowd.worker, queue, tenant="snoozing"), "snoozed", retry_after=HOUR)
            crowd.worker.settle(crowd.take(crowd.worker, queue, tenant="dying"), "dead")
            crowd.take(crowd.worker, queue, tenant="running")
            crowd.take(crowd.worker, queue, tenant="leased", slots=0)
    crowd.take(crowd.worker, PLAIN, tenant="expiring")
    scene.owner.execute("UPDATE poolkeeper.queue_count SET lease_expiries = 10 * queue_id")
    scene.owner.execute("UPDATE poolkeeper.dead SET batch = NULL")
    scene.owner.execute("UPDATE poolkeeper.dead SET batch = 1 WHERE queue_id = %s", [crowd.queue_ids[LIMITED]])
    with crowd.untouched():
        stats = scene.ask("operator", calls.stats(cluster=None))
    assert len(stats.queues) == len(QUEUES)
    for told in stats.queues:
        rows = {
            table: scene.rows(f"SELECT * FROM poolkeeper.{table} WHERE queue_id = %s", told.queue_id)
            for table in ("ready", "later", "suspect", "lease", "dead", "ordered")
        }
        assert told.ready == len(rows["ready"]) + len(rows["suspect"])
        assert told.scheduled == sum(row.wait_reason is None for row in rows["later"])
        assert told.waiting == sum(row.wait_reason is not None for row in rows["later"])
        assert told.leased == sum(row.started_at is None for row in rows["lease"])
        assert told.running == sum(row.started_at is not None for row in rows["lease"])
        assert (told.dead, told.dead_recent) == (len(rows["dead"]), len(rows["dead"]))
        assert told.suspects == len(rows["suspect"]) == 1
        assert told.lease_expiries == 10 * told.queue_id
        assert told.dead_unannounced == (told.name != LIMITED)
        assert told.policy_version == 1
        types = Counter(
            scene.value("SELECT type FROM poolkeeper.task WHERE id = %s", row.task_id) for row in rows["ready"]
        )
        found: Counter[str] = Counter()
        for each in told.types:
            found[each.type] += each.ready
        assert +found == types
    assert {f"{q.namespace}/{q.name}" for q in scene.ask("operator", calls.stats(cluster="c2")).queues} == {FOREIGN}
    assert len(scene.ask("reader", calls.queues())) == len(QUEUES)


def test_the_next_due_is_its_own(crowd: Crowd) -> None:
    """O10: the earliest of the queue, whatever others have; and so is the oldest that could run."""
    scene = crowd.scene
    soon = crowd.submit(PLAIN, delay=HOUR / 60)
    figures = {q.queue_id: q for q in scene.ask("operator", calls.stats(cluster=None)).queues}
    due = figures[crowd.queue_ids[PLAIN]].next_due
    assert due is not None
    assert due <= HOUR / 60
    others = [figures[crowd.queue_ids[name]].next_due for name in (BOUNDED, LIMITED, FOREIGN)]
    assert all(other is not None and other > HOUR / 60 for other in others)
    scene.ask("person", calls.cancel(soon, who="ann", why="x"))
    scene.queue("empty")
    (empty,) = [q for q in scene.ask("operator", calls.stats(cluster=None)).queues if q.name == "empty"]
    assert (empty.ready, empty.scheduled, empty.dead, empty.next_due, empty.oldest_runnable) == (0, 0, 0, None, None)
    assert (empty.running, empty.leased, empty.waiting, empty.suspects, empty.types) == (0, 0, 0, 0, [])
    assert empty.dead_unannounced is False


def test_the_figures_of_a_pool_are_its_own(crowd: Crowd) -> None:
    """O10: its sessions, each with its own leases, its drains, its builds."""
    scene = crowd.scene
    crowd.take(crowd.worker, PLAIN)
    crowd.take(crowd.far, PLAIN)
    pools = {p.pool: p for p in scene.ask("operator", calls.stats(cluster=None)).pools}
    assert set(pools) == {"local/p", "other/p", "local/doomed"}
    for name, pool in pools.items():
        held = scene.rows("SELECT session_id FROM poolkeeper.lease WHERE pool_id = %s", crowd.pool_id(name))
        assert pool.running == len(held)
        mine = {"local/p": {"w-1", "w-2"}, "other/p": {"w-3"}, "local/doomed": {"d-1"}}[name]
        assert {session.pod_name for session in pool.sessions} == mine
        by_session = Counter(row.session_id for row in held)
        assert {s.session_id: s.busy for s in pool.sessions} == {
            s.session_id: by_session[s.session_id] for s in pool.sessions
        }
        assert len(pool.drains) == (0 if name == "local/doomed" else 1)
        assert pool.max_running == {"local/p": 700, "other/p": 800, "local/doomed": 3}[name]
    crowd.twin.end()
    (again,) = [p for p in scene.ask("operator", calls.stats(cluster=None)).pools if p.pool == "local/p"]
    assert {session.pod_name for session in again.sessions} == {"w-1"}
    scene.allow(scene.database.login("operator"), pool="other/p")
    assert [p.pool for p in scene.ask("operator", calls.stats(cluster=None)).pools] == ["other/p"]
    assert scene.ask("operator", calls.decisions("local/p")) == []
    assert len(scene.ask("operator", calls.decisions("other/p"))) == 1


@pytest.mark.parametrize("limits", [{"tenants": ["t1"]}, {"tenants_except": ["t2"]}, {"queues": [f"default/{PLAIN}"]}])
def test_a_narrow_login_reads_no_figures_of_others(crowd: Crowd, limits: dict[str, Any]) -> None:
    """Q51: of whom it may not see it hears nothing, not even a number."""
    scene = crowd.scene
    mine = crowd.queue_ids[PLAIN]
    for kind in ("operator", "reader", "person"):
        scene.allow(scene.database.login(kind), **limits)
    whole = "queues" in limits
    assert [q.queue_id for q in scene.ask("operator", calls.stats(cluster=None)).queues] == ([mine] if whole else [])
    assert [q.queue_id for q in scene.ask("reader", calls.queues())] == ([mine] if whole else [])
    assert len(scene.ask("operator", calls.decisions("local/p"))) == whole
    letters = scene.ask("reader", calls.dead_letters())
    assert {(letter.tenant, letter.queue) for letter in letters} == ({("t2", f"default/{PLAIN}")} if whole else set())
    for row in scene.rows("SELECT t.id, t.queue_id, t.tenant FROM poolkeeper.task AS t"):
        seen = scene.ask("reader", calls.task(row.id)) is not None
        assert seen == (row.queue_id == mine if whole else row.tenant == "t1")
        assert bool(scene.ask("reader", calls.timeline(row.id))) == seen
    for queue in QUEUES[1:] if whole else QUEUES:
        with crowd.untouched(), pytest.raises(NotFound):
            scene.ask("person", calls.pause(queue, True, who="ann"))


def test_a_view_of_a_task_is_its_own(crowd: Crowd) -> None:
    """Q1, Q2: in every state; its checkpoint, its deliveries, its history."""
    scene = crowd.scene
    for row in scene.rows("SELECT t.id, t.type, t.tenant, t.payload, t.queue_id FROM poolkeeper.task AS t"):
        view = scene.ask("reader", calls.task(row.id))
        assert view is not None
        path = {f"{'' if '/' in name else 'default/'}{name}": queue_id for name, queue_id in crowd.queue_ids.items()}
        assert (view.id, view.type, view.tenant, view.payload, path[view.queue]) == (
            row.id,
            row.type,
            row.tenant,
            row.payload,
            row.queue_id,
        )
        saved = scene.rows("SELECT value FROM poolkeeper.checkpoint WHERE task_id = %s", row.id)
        assert view.checkpoint == (saved[0].value if saved else None)
        ended = scene.value("SELECT count(*) FROM poolkeeper.delivery WHERE task_id = %s", row.id)
        held = scene.value("SELECT count(*) FROM poolkeeper.lease WHERE task_id = %s", row.id)
        assert view.deliveries == ended + held
        assert not view.cancel_requested
        steps = scene.ask("reader", calls.timeline(row.id))
        assert [step.state_version for step in steps] == list(range(1, view.state_version + 1))
        assert steps[-1].state == view.state
    letters = scene.ask("reader", calls.dead_letters(PLAIN))
    assert {letter.task_id for letter in letters} == {
        row.task_id
        for row in scene.rows("SELECT task_id FROM poolkeeper.dead WHERE queue_id = %s", crowd.queue_ids[PLAIN])
    }
    assert all(letter.checkpoint == str(letter.task_id) for letter in letters if letter.checkpoint is not None)
    running = crowd.take(crowd.worker, PLAIN)
    scene.ask("person", calls.cancel(running.task_id, who="ann", why="x"))
    run(crowd.worker.conn, calls.checkpoint(running.task_id, running.token, 5, sequence=1))
    view = scene.ask("reader", calls.task(running.task_id))
    assert view is not None
    assert (view.cancel_requested, view.deliveries, view.state) == (True, 1, "running")


def test_a_foreign_queue_is_no_queue(crowd: Crowd) -> None:
    """Q51: a submit to it, also of nothing or of nonsense, is answered as one to a queue that is not there."""
    scene = crowd.scene
    scene.allow(scene.database.login("submitter"), queues=[f"default/{PLAIN}"])
    tasks: tuple[list[dict[str, Any]], ...] = (
        [{"type": "a.b", "payload": 1}],
        [{"type": "A B"}, {"type": "a.b", "key": "ready"}],
        [],
    )
    for given in tasks:
        with crowd.untouched():
            foreign, absent = (scene.ask("submitter", calls.submit_many(queue, given)) for queue in (BOUNDED, "absent"))
        assert foreign == absent
        assert {verdict.code for verdict in foreign} <= {Code.UNKNOWN_QUEUE}
    assert scene.verdict(queue=PLAIN).code is None


def test_sessions_and_builds_of_a_pool_are_those_that_live(crowd: Crowd) -> None:
    """O10: heard of within two minutes or holding something, not ended, of that pool; and what it ran last (Q11)."""
    scene = crowd.scene
    for build in ("quiet", "holding", "gone"):
        worker = scene.worker(pool="local/x", queues=[PLAIN], build=build)
        if build == "holding":
            crowd.take(worker, PLAIN)
    worker.end()
    scene.advance(121)
    scene.worker(pool="local/x", queues=[PLAIN], build="fresh")
    scene.worker(pool="local/x", queues=[PLAIN], build="ended").end()
    scene.worker(pool="local/y", queues=[PLAIN], build="other")
    pools = {p.pool: p for p in scene.ask("operator", calls.stats(cluster=None)).pools}
    assert sorted(str(session.build) for session in pools["local/x"].sessions) == ["fresh", "holding"]
    assert {build.build for build in pools["local/x"].builds} == {"fresh", "ended"}
    assert {build.build for build in pools["local/y"].builds} == {"other"}


def test_letters_of_the_last_minute_are_those(crowd: Crowd) -> None:
    """O10, O25: by when they died."""
    scene, home = crowd.scene, crowd.queue_ids[PLAIN]
    crowd.worker.settle(crowd.take(crowd.worker, PLAIN), "dead")
    scene.owner.execute(
        "UPDATE poolkeeper.dead SET died_at = died_at - interval '61 s' WHERE queue_id <> %s OR error_class IS NOT NULL",
        [home],
    )
    told = {q.queue_id: (q.dead, q.dead_recent) for q in scene.ask("operator", calls.stats(cluster=None)).queues}
    rows = Counter(row.queue_id for row in scene.rows("SELECT queue_id FROM poolkeeper.dead"))
    recent = scene.value("SELECT count(*) FROM poolkeeper.dead WHERE queue_id = %s AND error_class IS NULL", home)
    assert told == {
        queue_id: (rows[queue_id], recent if queue_id == home else 0) for queue_id in crowd.queue_ids.values()
    }


def test_what_retention_took_is_told_of_its_own_letter(crowd: Crowd) -> None:
    """Q52: a checkpoint that is erased, not one that never was."""
    scene = crowd.scene
    letters = [row.task_id for row in scene.rows("SELECT task_id FROM poolkeeper.dead ORDER BY task_id")]
    scene.owner.execute("UPDATE poolkeeper.dead SET checkpoint_erased = task_id = %s", [letters[0]])
    views = [scene.ask("reader", calls.task(task_id)) for task_id in letters]
    assert [view.erased if view else None for view in views] == [["checkpoint"], *[[] for _ in letters[1:]]]
