"""What people and operators do to one task, queue or pool changes nothing of its neighbours (Q1, Q29, Q39, O9, O24, O29)."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fixtures.neighbours import BOUNDED, FOREIGN, HOUR, LIMITED, ONES_OWN, PLAIN, QUEUES, Crowd
from poolkeeper.errors import Conflict, Forbidden
from poolkeeper.store import Call, calls, run
from store.scene import seconds

WHO: dict[str, Any] = {"who": "ann", "why": "x"}


def in_each_state(crowd: Crowd, queue: str) -> dict[str, UUID]:
    """One task in each state that a cancel can find it in."""
    worker = crowd.worker
    own = crowd.take
    found = {
        "running": own(worker, queue).task_id,
        "leased": own(worker, queue, slots=0).task_id,
        "scheduled": crowd.submit(queue, delay=HOUR),
        "ordered": crowd.submit(queue, ordering_key="k", tenant="t1"),
        "waiting": (snoozed := own(worker, queue)).task_id,
    }
    worker.settle(snoozed, "snoozed", retry_after=HOUR)
    died = own(worker, queue)
    worker.settle(died, "failed", error_class="process_died")
    found["suspect"] = died.task_id
    found["ready"] = crowd.submit(queue)
    return found


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED])
def test_a_cancel_is_of_one_task(crowd: Crowd, queue: str) -> None:
    """Q39: wherever it is, in every state; asked with a version that is not its own it changes nothing at all."""
    scene = crowd.scene
    tasks = in_each_state(crowd, queue)
    for state, task_id in tasks.items():
        with crowd.untouched():
            assert scene.ask("person", calls.cancel(task_id, **WHO, seen_version=77)).code == "stale_version", state
        with crowd.untouched(task_id) as own:
            own.queues.add(crowd.queue_ids[queue])
            done = scene.ask("person", calls.cancel(task_id, **WHO, seen_version=_version(crowd, task_id)))
        assert (done.code, done.state) == (None, state if state in {"running", "leased"} else "canceled"), state
        with crowd.untouched():
            again = scene.ask("person", calls.cancel(task_id, **WHO))
        assert again.code == (None if state in {"running", "leased"} else "already_ended"), state
    assert scene.value("SELECT count(*) FROM poolkeeper.event WHERE kind = 'cancel_requested'") == 2
    with crowd.untouched():
        assert scene.ask("person", calls.cancel(UUID(int=1), **WHO)).code == "unknown_task"


def _version(crowd: Crowd, task_id: UUID) -> int:
    view = crowd.scene.ask("reader", calls.task(task_id))
    assert view is not None
    return view.state_version


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED, LIMITED])
def test_requeue_and_discard_are_of_one_letter(crowd: Crowd, queue: str) -> None:
    """Q29: with the version that was seen, and not of what is no dead letter."""
    scene, worker, home = crowd.scene, crowd.worker, crowd.queue_ids[queue]
    for key in (None, "own-key"):
        one = crowd.take(worker, queue, ordering_key=key) if key is None else _first_of_key(crowd, queue, key)
        for call in (calls.requeue, calls.discard):
            with crowd.untouched():
                assert scene.ask("person", call(one.task_id, **WHO)).code == "not_dead"
        run(worker.conn, calls.checkpoint(one.task_id, one.token, 1, sequence=1))
        worker.settle(one, "dead")
        for call in (calls.requeue, calls.discard):
            with crowd.untouched():
                assert scene.ask("person", call(one.task_id, **WHO, seen_version=77)).code == "stale_version"
        with crowd.untouched(one.task_id) as own:
            own.queues.add(home)
            assert scene.ask("person", calls.requeue(one.task_id, **WHO)).code is None
        again = {c.task_id: c for c in crowd._until(worker, one.task_id, None)}[one.task_id]
        assert (again.checkpoint, again.deliveries_spent) == (1, 1)
        worker.settle(again, "dead")
        with crowd.untouched(one.task_id) as own:
            own.queues.add(home)
            assert scene.ask("person", calls.discard(one.task_id, **WHO)).code is None
        assert scene.state(one.task_id) == "canceled"
        assert scene.value("SELECT count(*) FROM poolkeeper.checkpoint WHERE task_id = %s", one.task_id) == 0


def _first_of_key(crowd: Crowd, queue: str, key: str) -> Any:
    task_id = crowd.submit(queue, ordering_key=key)
    crowd.scene.sweep()
    return {c.task_id: c for c in crowd._until(crowd.worker, task_id, None)}[task_id]


def test_letters_in_bulk_are_those_that_match(crowd: Crowd) -> None:
    """Q29: of the queue that is named, and of each part of the filter."""
    scene = crowd.scene

    def letters() -> set[tuple[Any, ...]]:
        return {tuple(row) for row in scene.rows("SELECT task_id, queue_id FROM poolkeeper.dead")}

    ones = [
        crowd.take(crowd.worker, queue, tenant=tenant)
        for queue, tenant in ((PLAIN, ONES_OWN), (BOUNDED, ONES_OWN), (PLAIN, "two"))
    ]
    for one in ones:
        crowd.worker.settle(one, "dead", error_class="E1")
    person = scene.actor("person")
    look = "SELECT task_id FROM poolkeeper.dead_matching('plain', %s) WHERE task_id IS NOT NULL"
    both = {ones[0].task_id, ones[2].task_id}
    for filter_, wanted in (
        ('{"tenant": "one"}', {ones[0].task_id}),
        ('{"error_class": "E1"}', both),
        ('{"type": "a.b", "error_class": "E1", "tenant": "two"}', {ones[2].task_id}),
        ('{"type": "a.c"}', set()),
        ('{"reason": "max_age"}', set()),
        ('{"error_class": "E1", "before": "2000-01-01T00:00:00Z"}', set()),
        ('{"error_class": "E1", "after": "2000-01-01T00:00:00Z"}', both),
    ):
        with crowd.untouched():
            assert {row[0] for row in person.execute(look, [filter_])} == wanted, filter_
    before = letters()
    with crowd.untouched(ones[0].task_id):
        person.execute("SELECT * FROM poolkeeper.requeue_matching('plain', '{\"tenant\": \"one\"}', 'ann', 'x')")
    with crowd.untouched(ones[2].task_id):
        person.execute("SELECT * FROM poolkeeper.discard_matching('plain', '{\"tenant\": \"two\"}', 'ann', 'x')")
    assert before - letters() == {(task_id, crowd.queue_ids[PLAIN]) for task_id in both}


def test_a_batch_of_letters_is_of_one_queue(crowd: Crowd) -> None:
    """O24: its number, its members and its confirmation."""
    scene, home = crowd.scene, crowd.queue_ids[PLAIN]
    mine = {row.task_id for row in scene.rows("SELECT task_id FROM poolkeeper.dead WHERE queue_id = %s", home)}
    with crowd.untouched(*mine) as own:
        own.whole.add(home)
        batch = scene.ask("operator", calls.dead_batch(home))
    assert batch is not None
    assert (batch.number, batch.count, batch.tenants) == (1, len(mine), 1)
    late = crowd.take(crowd.worker, PLAIN)
    crowd.worker.settle(late, "dead")
    other = scene.ask("operator", calls.dead_batch(crowd.queue_ids[BOUNDED]))
    assert other is not None
    with crowd.untouched():
        again = scene.ask("operator", calls.dead_batch(home))
        assert again == batch
        assert scene.ask("operator", calls.dead_batch_announced(home, 7)) is False
    with crowd.untouched(*mine):
        assert scene.ask("operator", calls.dead_batch_announced(home, batch.number)) is True
    with crowd.untouched():  # its number is none of those that wait for that
        assert scene.ask("operator", calls.dead_batch_announced(home, -batch.number)) is False
    with crowd.untouched(late.task_id) as own:
        own.whole.add(home)
        more = scene.ask("operator", calls.dead_batch(home))
    assert more is not None
    assert (more.number, more.count, more.first_task) == (2, 1, late.task_id)
    limited = {"queues": ["default/limited"]}
    for limits in (limited, {"tenants": ["t1"]}, {"tenants_except": ["t1"]}):
        scene.allow(scene.database.login("operator"), **limits)
        with crowd.untouched():
            assert scene.ask("operator", calls.dead_batch(home)) is None
            assert scene.ask("operator", calls.dead_batch_announced(home, more.number)) is False
    scene.allow(scene.database.login("operator"))
    with crowd.untouched(late.task_id):
        assert scene.ask("operator", calls.dead_batch_announced(home, more.number)) is True


def test_what_an_operator_says_of_a_pool_is_of_one_pool(crowd: Crowd) -> None:
    """P7, O11, O20: its limit, its sessions, its decisions."""
    scene, worker = crowd.scene, crowd.worker
    with crowd.untouched() as own:
        own.pools.add(crowd.pool_id())
        assert scene.ask("operator", calls.set_pool("local/p", max_running=3)) is True
        scene.ask("operator", calls.record_decision("local/p", {"n": 2}))
    with crowd.untouched():
        assert scene.ask("operator", calls.set_pool("local/p", max_running=3)) is False
    assert [decision for _, decision in scene.ask("operator", calls.decisions("local/p"))] == [
        {"n": 2},
        {"pool": "local/p"},
    ]
    with crowd.untouched() as own:
        own.sessions.add(str(worker.session.id))
        held = scene.value("SELECT count(*) FROM poolkeeper.lease WHERE session_id = %s", worker.session.id)
        assert scene.ask("operator", calls.mark_sessions("local/p", ["w-1", "w-3"], draining=True)) == {"w-1": held}
    with crowd.untouched() as own:
        own.sessions.add(str(worker.session.id))
        assert scene.ask("operator", calls.tell_grace("local/p", {"uid-w-1": 7.0, "uid-w-3": 7.0})) == 1
    with crowd.untouched():
        assert scene.ask("operator", calls.tell_grace("local/p", {"uid-w-1": 7.0})) == 0
    moment = scene.value("SELECT poolkeeper.clock()")
    with crowd.untouched() as own:
        own.sessions.add(str(worker.session.id))
        ends = [("uid-w-1", moment, "OOMKilled (exit 137)"), ("uid-w-3", moment, "Evicted")]
        assert scene.ask("operator", calls.report_crashes("local/p", ends)) == 1
    answer = crowd.twin.renew()
    assert (answer.draining, answer.grace) == (False, None)
    answer = worker.renew()
    assert (answer.draining, answer.grace) == (True, seconds(7))
    worker.end()
    with crowd.untouched():
        assert scene.ask("operator", calls.mark_sessions("local/p", ["w-1"], draining=False)) == {}
        assert scene.ask("operator", calls.tell_grace("local/p", {"uid-w-1": 8.0})) == 0


def test_leading_is_of_one_namespace_in_one_cluster(crowd: Crowd) -> None:
    """O29: a term is no term elsewhere."""
    scene = crowd.scene

    def lead(cluster: str, namespace: str, epoch: int = 1, holder: str = "me") -> UUID:
        return scene.ask(
            "operator", calls.lead(cluster, namespace, lease=f"{namespace}/{cluster}", epoch=epoch, holder=holder)
        )

    others = lead("c2", "other"), lead("c9", "default"), lead("local", "beside")
    policy = calls.apply_policy("local", "default", "default", "unled", {}, who="x")
    assert scene.ask("operator", policy).code is None  # who leads there in another cluster keeps nothing here
    term = lead("local", "default")
    with pytest.raises(Conflict):
        scene.ask("operator", policy)
    rows = scene.rows("SELECT cluster, namespace, term FROM poolkeeper.leader ORDER BY seen_at")
    assert {(row.cluster, row.namespace) for row in rows} == {
        ("c3", "elsewhere"),
        ("c2", "other"),
        ("c9", "default"),
        ("local", "beside"),
        ("local", "default"),
    }

    def seen() -> dict[Any, Any]:
        found = scene.rows("SELECT cluster, namespace, term, seen_at::text FROM poolkeeper.leader")
        return {(row.cluster, row.namespace): (row.term, row.seen_at) for row in found}

    before = seen()
    assert lead("local", "default") == term
    again = lead("local", "default", epoch=2, holder="you")
    assert again != term
    after = seen()
    assert {key for key in before if before[key] != after[key]} == {("local", "default")}
    for wrong in (term, others[0], UUID(int=3)):
        with crowd.untouched(), pytest.raises(Conflict):
            scene.ask("operator", calls.set_pool("default/p", max_running=3, term=wrong))
    assert scene.ask("operator", calls.resign(term)) is False
    assert seen() == after
    assert scene.ask("operator", calls.resign(again)) is True
    assert {key for key in after if after[key] != seen()[key]} == {("local", "default")}


def test_a_policy_is_of_one_queue(crowd: Crowd) -> None:
    """O1: its rules of tenants, its lanes, its keys and the limits of what runs there."""
    scene = crowd.scene
    for queue, policy in (
        (
            PLAIN,
            {
                "per_tenant_max": 3,
                "max_waiting": 7,
                "ordering": "skip",
                "suspended_tenants": ["t2"],
                "tenants": [{"name": "t1", "weight": 3}],
            },
        ),
        (BOUNDED, {}),
        (LIMITED, {"ordering": "block"}),
        (PLAIN, {"max_run_time_seconds": 60}),
    ):
        home = crowd.queue_ids[queue]
        bounded = "per_tenant_max" in policy  # what is held counts from now on; else the limits of what runs change
        held = scene.rows("SELECT task_id, started_at FROM poolkeeper.lease WHERE queue_id = %s", home)
        its_own = [row.task_id for row in held if queue != BOUNDED and (bounded or row.started_at)]
        with crowd.untouched(*its_own) as own:
            own.whole.add(home)
            scene.queue(queue, **policy)
        with crowd.untouched():
            scene.queue(queue, **policy)
    with crowd.untouched() as own:
        own.whole.add(crowd.queue_ids[PLAIN])
        scene.ask("person", calls.pause(PLAIN, True, who="ann"))
    assert [
        row.name for row in scene.rows("SELECT namespace || '/' || name AS name FROM poolkeeper.queue WHERE paused")
    ] == ["default/plain"]


def test_a_purge_is_of_one_queue(crowd: Crowd) -> None:
    """O9: all of it, to the last row of every table, and not one row of the others."""
    scene = crowd.scene
    when: dict[str, Any] = {
        "cron": "0 5 * * *",
        "zone": "UTC",
        "catch_up": "latest",
        "catch_up_limit": 1,
        "task": {"type": "a.b"},
    }
    for queue in QUEUES:
        scene.ask("person", calls.set_schedule(queue, "daily", **when, who="ann"))
    for queue, owner in (
        (FOREIGN, ("c2", "uid2", "other")),  # while another one has its name
        (PLAIN, ("local", "default", "default")),
        (BOUNDED, ("local", "default", "default")),
    ):
        home, name = crowd.queue_ids[queue], queue.split("/")[-1]
        mine = {row.id for row in scene.rows("SELECT id FROM poolkeeper.task WHERE queue_id = %s", home)}
        with crowd.untouched(*mine) as own:
            own.whole.add(home)
            cursor, removed = None, 0
            for _ in range(40):
                page = scene.ask("operator", calls.purge(*owner, name, who="test", cursor=cursor, most=20))
                assert page.code is None
                removed += page.removed
                cursor = page.cursor
                if cursor is None:
                    break
            assert cursor is None, "it comes to an end"
        assert removed == len(mine)
        assert [table for table, text in crowd.rows() if f'"queue_id": {home},' in text] == []
        assert not any(str(task) in text for _, text in crowd.rows() for task in mine)
    assert {row.id for row in scene.rows("SELECT id FROM poolkeeper.queue")} == {crowd.queue_ids[LIMITED]}


def test_a_sweep_moves_what_time_has_moved(crowd: Crowd) -> None:
    """Q22: what is due, too old, silent or over its limit, and nothing else."""
    scene = crowd.scene
    due = crowd.submit(PLAIN, delay=timedelta(seconds=5))
    aged = crowd.submit(PLAIN, max_age=timedelta(seconds=5), ordering_key=None)
    aged_later = crowd.submit(PLAIN, delay=timedelta(seconds=4), max_age=timedelta(seconds=4.5))
    scene.queue("short", max_run_time_seconds=5)
    scene.queue("brisk", visibility_timeout_seconds=5)
    behind = [crowd.submit(PLAIN, max_age=timedelta(seconds=5), ordering_key="k", tenant="t1")]
    silent = scene.worker(pool="local/silent", queues=["brisk"])
    crowd.submit("brisk")
    lost = silent.take()
    long = scene.worker(pool="local/long", queues=["short"])
    crowd.submit("short")
    over = long.take()
    ids = (due, aged, aged_later, *behind, lost.task_id, over.task_id)
    scene.advance(9)
    with crowd.untouched(*ids) as own:
        own.queues.add(crowd.queue_ids[PLAIN])
        own.whole |= {
            *(row.id for row in scene.rows("SELECT id FROM poolkeeper.queue WHERE name IN ('brisk', 'short')")),
        }
        assert scene.sweep() == len(ids)
    states = [scene.state(task) for task in ids]
    assert states == ["ready", "dead", "dead", "dead", "ready", "scheduled"]
    assert scene.value("SELECT count(*) FROM poolkeeper.suspect WHERE task_id = %s", lost.task_id) == 1


def test_a_pools_login_says_nothing_of_pools_and_queues(crowd: Crowd) -> None:
    """Q51, P7: neither of its own, nor of others, nor that it leads; whatever group roles it was given by mistake."""
    scene = crowd.scene
    batch = scene.ask("operator", calls.dead_batch(crowd.queue_ids[FOREIGN]))
    assert batch is not None
    deeds: tuple[Call[Any], ...] = (
        calls.set_pool("local/p", max_running=None),
        calls.mark_sessions("local/p", ["w-1"], draining=True),
        calls.tell_grace("local/p", {"uid-w-1": 1.0}),
        calls.report_crashes("local/p", []),
        calls.lead("c9", "default", lease="default/l", epoch=1, holder="p"),
        calls.purge("local", "default", "default", PLAIN, who="p"),
    )
    scene.allow(scene.database.login("operator"), pool="local/p")
    for deed in deeds:
        with crowd.untouched(), pytest.raises(Forbidden):
            scene.ask("operator", deed)
    for limits in ({"queues": [f"default/{LIMITED}"]}, {"tenants": ["t1"]}, {"tenants_except": ["t1"]}):
        scene.allow(scene.database.login("operator"), **limits)
        for deed in (deeds[-1], calls.apply_policy("local", "default", "default", PLAIN, {"paused": True}, who="x")):
            with crowd.untouched(), pytest.raises(Forbidden):
                scene.ask("operator", deed)
    scene.allow(scene.database.login("operator"), queues=["elsewhere/q"])
    with crowd.untouched(), pytest.raises(Forbidden):
        scene.ask("operator", deeds[4])
