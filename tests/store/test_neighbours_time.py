"""Submits, limits and the upkeep beside a crowd: each key, each count and each age is its own (Q6, Q7, Q12, Q52)."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fixtures.neighbours import BOUNDED, LIMITED, PLAIN, Crowd
from poolkeeper.codes import Code
from poolkeeper.store import calls, run
from store.scene import Scene

SHORT = {
    "retention_payload_seconds": 100,
    "retention_result_seconds": 200,
    "retention_checkpoint_seconds": 100,
    "retention_events_seconds": 400,
    "retention_dead_letters_seconds": 300,
    "retention_keys_seconds": 600,
}


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED])
def test_a_submit_makes_one_task(crowd: Crowd, queue: str) -> None:
    """Q4, Q6: in its queue, under its key, which is its tenant's there; alone and in bulk."""
    scene, home = crowd.scene, crowd.queue_ids[queue]
    seen: set[UUID] = set()
    for wishes in (
        {},
        {"key": "ready"},
        {"delay": timedelta(seconds=60)},
        {"ordering_key": "k"},
        {"ordering_key": "k", "delay": timedelta(seconds=60)},
    ):
        before = {row.id for row in scene.rows("SELECT id FROM poolkeeper.task")}
        call = calls.submit(queue, "a.b", 0, tenant="one", **wishes)
        with crowd.untouched() as own:
            own.queues.add(home)
            own.tables |= {"task", "ready", "later", "ordered", "task_key"}
            verdict = scene.ask("submitter", call)
        after = {row.id for row in scene.rows("SELECT id FROM poolkeeper.task")}
        assert after - before == {verdict.task_id}
        assert (verdict.created, verdict.code) == (True, None)
        assert verdict.task_id is not None
        assert verdict.task_id not in seen
        seen.add(verdict.task_id)
        places = [
            scene.value(f"SELECT count(*) FROM poolkeeper.{table} WHERE task_id = %s", verdict.task_id)
            for table in ("ready", "later", "ordered")
        ]
        keyed, delayed = "ordering_key" in wishes, "delay" in wishes
        assert places == [not keyed and not delayed, not keyed and delayed, keyed]
    with crowd.untouched():
        again = scene.ask("submitter", calls.submit(queue, "a.b", 0, tenant="one", key="ready"))
        assert (again.created, again.code) == (False, None)
        assert again.task_id in seen
        other = scene.ask("submitter", calls.submit(queue, "a.b", 1, tenant="one", key="ready"))
        assert (other.task_id, other.code) == (None, Code.KEY_CONFLICT)
    known = scene.rows(
        "SELECT task_id FROM poolkeeper.task_key WHERE queue_id = %s AND tenant = 't1' AND key = 'scheduled'", home
    )
    tasks: list[dict[str, Any]] = [
        {"type": "a.c", "payload": 1, "tenant": "t1", "key": "scheduled"},
        {"type": "a.c", "payload": 1, "tenant": "one", "key": "scheduled"},
        {"type": "a.c", "payload": 2, "tenant": "t1", "key": "scheduled"},
        {"type": "a.c", "payload": 1, "tenant": "t1"},
        {"type": "A C", "payload": 1, "tenant": "t1", "key": "never"},
        {"type": "a.c", "payload": 1, "tenant": "one", "key": "scheduled"},
    ]
    verdicts = scene.ask("submitter", calls.submit_many(queue, tasks))
    assert [v.code for v in verdicts] == [None, None, Code.KEY_CONFLICT, None, Code.TYPE_INVALID, None]
    assert [v.created for v in verdicts] == [False, True, False, True, False, False]
    assert (verdicts[0].task_id, verdicts[0].state) == (known[0].task_id, "scheduled")
    assert verdicts[5].task_id == verdicts[1].task_id
    assert scene.rows("SELECT 1 FROM poolkeeper.task_key WHERE key = 'never'") == []


def test_what_waits_is_counted_for_its_queue_and_tenant(crowd: Crowd) -> None:
    """Q7: in all its places, no others'; a limit that fits exactly is met exactly."""
    scene, home = crowd.scene, crowd.queue_ids[PLAIN]
    waits = "SELECT (SELECT count(*) FROM poolkeeper.ready WHERE queue_id = %s) + (SELECT count(*) FROM poolkeeper.later WHERE queue_id = %s)"
    waits += " + (SELECT count(*) FROM poolkeeper.suspect WHERE queue_id = %s) + (SELECT count(*) FROM poolkeeper.ordered WHERE queue_id = %s)"
    count = scene.value(waits, home, home, home, home)
    for policy, tenant, code in (
        ({"max_waiting": count + 2}, "one", Code.QUEUE_LIMIT),
        ({"max_waiting_per_tenant": 2}, "two", Code.TENANT_QUEUE_LIMIT),
        ({"tenants": [{"name": "three", "max_waiting": 2}]}, "three", Code.TENANT_QUEUE_LIMIT),
    ):
        scene.queue(PLAIN, **policy)
        for delay in (None, timedelta(seconds=60)):
            assert scene.verdict(queue=PLAIN, tenant=tenant, delay=delay).code is None
        last = scene.verdict(queue=PLAIN, tenant=tenant)
        assert last.code == code
        scene.sweep()
        assert scene.verdict(queue=PLAIN, tenant=tenant).code == code
    scene.queue(PLAIN, max_waiting_per_tenant=2000)
    scene.sweep()
    noted = scene.rows("SELECT * FROM poolkeeper.backlog_lane WHERE queue_id = %s", home)
    assert noted == []


def test_the_upkeep_takes_what_is_old_in_its_queue(crowd: Crowd) -> None:
    """Q52: first payloads, checkpoints and results, then letters, tasks and keys; nothing that goes on, nothing of other queues."""
    scene = crowd.scene
    scene.queue(PLAIN, **SHORT)
    home = crowd.queue_ids[PLAIN]
    tasks = scene.rows("SELECT id FROM poolkeeper.task WHERE queue_id = %s", home)
    ended = {row.id for row in tasks if scene.state(row.id) in {"succeeded", "failed", "canceled"}}
    dead = {row.task_id for row in scene.rows("SELECT task_id FROM poolkeeper.dead WHERE queue_id = %s", home)}
    with_result = {
        row.task_id
        for row in scene.rows(
            "SELECT task_id FROM poolkeeper.delivery WHERE queue_id = %s AND result IS NOT NULL", home
        )
    }
    assert ended
    assert dead
    assert with_result

    def keep_up(advance: int, *mine: UUID) -> Any:
        scene.advance(advance)
        with crowd.untouched(*mine) as own:
            own.queues.add(home)
            own.tables |= {"retention_note"}
            return scene.ask("operator", calls.maintain())

    first = keep_up(150, *ended, *dead)
    assert (first.payloads, first.results, first.tasks, first.dead_letters) == (len(ended), 0, 0, 0)
    assert {row.id for row in scene.rows("SELECT id FROM poolkeeper.task WHERE payload_erased_at IS NOT NULL")} == ended
    assert first.checkpoints == len(dead)
    again = keep_up(1)
    assert (again.payloads, again.checkpoints) == (0, 0)
    second = keep_up(100, *with_result)
    assert (second.results, second.tasks, second.dead_letters) == (len(with_result), 0, 0)
    third = keep_up(100, *dead)
    assert (third.dead_letters, third.tasks) == (len(dead), 0)
    assert {scene.state(task) for task in dead} == {"canceled"}
    fourth = keep_up(150, *ended, *dead)
    assert (fourth.tasks, fourth.payloads) == (len(ended), len(dead))
    left = {row.id for row in scene.rows("SELECT id FROM poolkeeper.task WHERE queue_id = %s", home)}
    assert left == {row.id for row in tasks} - ended


def test_reports_of_a_pool_go_by_their_age(bare_scene: Scene) -> None:
    """Q52: the last twenty decisions of each pool stay, whatever other pools have; drains go after 30 days."""
    scene = bare_scene
    for n in range(25):
        for pool in ("local/a", "local/b"):
            if pool == "local/a" or n < 3:
                scene.ask("operator", calls.record_decision(pool, {"n": n}))
    scene.advance(31 * 86400)
    upkeep = scene.ask("operator", calls.maintain())
    assert upkeep.decisions == 5
    assert len(scene.ask("operator", calls.decisions("local/a", 100))) == 20
    assert len(scene.ask("operator", calls.decisions("local/b", 100))) == 3


def test_limits_of_a_run_are_of_one(crowd: Crowd) -> None:
    """Q21: a policy's new limits hold for what runs there; a sign of progress is its own."""
    scene = crowd.scene
    one = crowd.take(crowd.worker, LIMITED)
    foreign = scene.value(
        "SELECT task_id FROM poolkeeper.lease WHERE session_id = %s AND progress_by IS NOT NULL LIMIT 1",
        crowd.twin.session.id,
    )
    with crowd.untouched(one.task_id) as own:
        own.sessions.add(str(crowd.worker.session.id))
        stats = {"progress": [str(one.task_id), str(foreign)]}
        run(crowd.worker.conn, calls.renew(crowd.worker.session, crowd.worker.received, [one.task_id], stats=stats))
    ran = scene.rows(
        "SELECT task_id FROM poolkeeper.lease WHERE queue_id = %s AND started_at IS NOT NULL", crowd.queue_ids[PLAIN]
    )
    with crowd.untouched(*(row.task_id for row in ran)) as own:
        own.whole.add(crowd.queue_ids[PLAIN])
        scene.queue(PLAIN, max_run_time_seconds=50)
    limited = scene.rows(
        "SELECT run_by, run_why, started_at FROM poolkeeper.lease WHERE queue_id = %s", crowd.queue_ids[PLAIN]
    )
    assert {row.run_by is not None for row in limited if row.started_at} == {True}
    assert {row.run_by is not None for row in limited if not row.started_at} == {False}
