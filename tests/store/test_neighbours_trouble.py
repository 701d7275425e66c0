"""Signs of trouble are of their own queue, and how a process ended is said of its own deliveries, beside others that ended so (O25, O26)."""

from typing import Any
from uuid import UUID

import pytest

from fixtures.neighbours import PLAIN, Crowd
from poolkeeper.store import calls, run
from poolkeeper.store.signs import Expired
from store.scene import Scene, Worker, await_blocked, meanwhile
from store.test_crash_evidence import OOM, expire, holding, now, report, told
from store.test_trouble import queue_of

SEGV = "SIGSEGV (exit 139)"


def three(scene: Scene, **wishes: Any) -> list[UUID]:
    """Three pods' processes, each with a task that it runs."""
    return [holding(scene, uid=uid, **wishes)[1][0] for uid in ("u-1", "u-2", "u-3")]


@pytest.mark.parametrize("late", [(), ("u-1",), ("u-1", "u-2"), ("u-1", "u-2", "u-3")])
def test_each_delivery_has_how_its_own_process_ended(scene: Scene, late: tuple[str, ...]) -> None:
    """O26: whichever of them is known in time, and which only later."""
    tasks, died = three(scene), now(scene)
    causes = [("u-1", died, OOM), ("u-2", died, SEGV), ("u-3", died, "Evicted: disk")]
    for at in ("early", "late"):
        known = [each for each in causes if (each[0] in late) == (at == "late")]
        assert scene.ask("operator", calls.report_crashes("local/p", known)) == len(known)
        if at == "early":
            expire(scene)
    assert scene.ask("operator", calls.report_crashes("local/p", causes)) == len(causes), "told again"
    for task, (uid, _, cause) in zip(tasks, causes, strict=True):
        assert told(scene, task) == [("explained" if uid in late else "ended", cause)]


def test_a_letter_has_the_error_of_the_delivery_that_made_it_one(scene: Scene) -> None:
    """O26, Q29: not of another task's, nor of one before."""
    first, second, _ = three(scene, max_deliveries=1)
    died = now(scene)
    expire(scene)
    _, (third,) = holding(scene, uid="u-4")
    later = now(scene)
    expire(scene)
    apart = scene.worker(pod_uid="u-5")
    apart.settle(apart.alone(), "dead")
    assert report(scene, died) == 1
    assert report(scene, later, uid="u-4") == 1
    errors = {letter.task_id: letter.error for letter in scene.ask("person", calls.dead_letters("q"))}
    assert (errors[first], errors[second], errors[third]) == (OOM, None, None)
    assert told(scene, third) == [("explained", OOM)]


def test_how_a_process_ended_is_said_once_and_by_its_own_pool(scene: Scene) -> None:
    """O26: the first word stays; another one's is not counted; who was heard of afterwards, in whatever pool, has not ended."""
    worker, (task,) = holding(scene)
    scene.submit("c.d")
    lives = scene.worker(types=("c.d",), pod_uid="u-2")
    other = scene.worker(pool="local/other", pod_uid="u-1", pod_name="u-1")
    died = now(scene)
    scene.advance(10)
    lives.renew()
    assert report(scene, died, SEGV, pool="local/other") == 1
    assert report(scene, died, uid="u-2") == 0
    assert report(scene, died) == 1
    assert report(scene, died, "Error (exit 1)") == 1
    expire(scene)
    assert told(scene, task) == [("ended", OOM)]
    crashes = {row.id: row.crash for row in scene.rows("SELECT id, crash FROM poolkeeper.session")}
    assert crashes == {worker.session.id: OOM, lives.session.id: None, other.session.id: SEGV}


def test_who_ends_well_while_a_crash_is_told_has_ended_well(scene: Scene) -> None:
    """O26: nothing is said of a session that is being ended, once it is."""
    holding(scene)
    died = now(scene)
    scene.actor("operator")
    with scene.connect("owner", autocommit=False) as first:
        first.execute("UPDATE poolkeeper.session SET ended_at = poolkeeper.clock()")
        with meanwhile(lambda: report(scene, died)) as later:
            await_blocked(scene)
            first.commit()
    assert later.result() == 0
    assert scene.rows("SELECT 1 FROM poolkeeper.session WHERE crash IS NOT NULL") == []


def test_notes_of_expiries_that_somebody_holds_are_passed_over(scene: Scene) -> None:
    """O26, Q52: by who tells how a process ended, and by the upkeep; the next time they are there."""
    _, (task,) = holding(scene)
    died = now(scene)
    expire(scene)
    scene.actor("operator").execute("SET lock_timeout = '2s'")
    for _ in range(2):
        with scene.connect("owner", autocommit=False) as other:
            other.execute("SELECT 1 FROM poolkeeper.expiry FOR UPDATE")
            assert report(scene, died) == 1
            scene.ask("operator", calls.maintain())
            other.rollback()
        scene.advance(3700)
    assert told(scene, task) == []
    report(scene, died)
    assert told(scene, task) == [("explained", OOM)]
    scene.ask("operator", calls.maintain())
    assert scene.rows("SELECT 1 FROM poolkeeper.expiry") == []


def test_only_what_ran_and_could_have_renewed_counts_as_an_expiry(scene: Scene) -> None:
    """O25, Q23: not what was claimed ahead, nor what an outage ended; in its own queue."""
    scene.queue("other")
    scene.submit(queue="other")
    ahead = scene.worker(queues=["other"])
    assert len(ahead.claim(1, slots=0)) == 1
    scene.submit()
    scene.worker().take()
    scene.advance(16)
    scene.sweep()
    assert [queue_of(scene, name).expired for name in ("q", "other")] == [Expired(live=0, dead=1), Expired()]
    scene.advance(700)
    scene.submit(queue="other")
    peer = scene.worker(queues=["other"])
    scene.worker(queues=["other"]).take()
    scene.jump(45)
    peer.renew()
    for _ in range(4):
        scene.jump(5)
        scene.ask("operator", calls.sweep(since=5))
    assert scene.value("SELECT reason FROM poolkeeper.delivery ORDER BY ended_at DESC LIMIT 1") == "outage"
    assert queue_of(scene, "other").expired == Expired()


def test_letters_are_as_old_as_those_of_their_queue(crowd: Crowd) -> None:
    """O25: whatever others have."""
    scene = crowd.scene
    scene.owner.execute("UPDATE poolkeeper.dead SET died_at = poolkeeper.clock() - queue_id * interval '1 hour'")
    for queue in scene.ask("operator", calls.stats(cluster=None)).queues:
        assert queue.dead_oldest is not None
        assert round(queue.dead_oldest.total_seconds() / 3600) == queue.queue_id
        assert queue.dead_lately == 0
    home, ago = crowd.queue_ids[PLAIN], "poolkeeper.clock() - interval '100 s'"
    scene.owner.execute(f"UPDATE poolkeeper.dead SET died_at = {ago} WHERE queue_id = %s", [home])
    told = {queue.queue_id: queue for queue in scene.ask("operator", calls.stats(cluster=None)).queues}
    assert told[home].dead > 0
    assert {queue_id: queue.dead_lately for queue_id, queue in told.items() if queue.dead_lately} == {
        home: told[home].dead
    }


def test_an_idle_turn_renews_its_own_session(crowd: Crowd) -> None:
    """Q20: no other one that rests as well; and it comes by the number of those that live in its own pool."""
    scene = crowd.scene
    for _ in range(9):
        scene.worker(pool="local/idle", queues=["plain"])  # not heard of since
    scene.advance(61)
    scene.sweep()
    idle = [scene.worker(pool="local/idle", queues=["plain"], types=("no.such",)) for _ in range(4)]
    for _ in range(9):
        scene.worker(pool="local/idle", queues=["plain"]).end()
        scene.worker(pool="local/another", queues=["plain"])
    scene.advance(5)
    with crowd.untouched() as own:
        own.sessions.add(str(idle[0].session.id))
        first = idle[0].turn(want=1, idle=True)
    assert first.position is not None
    assert first.come_again.total_seconds() <= 5
    _passed_over(scene, idle[0])


def _passed_over(scene: Scene, worker: Worker) -> None:
    """Nobody waits for whoever holds the session's row."""
    worker.conn.execute("SET lock_timeout = '2s'")
    with scene.connect("owner", autocommit=False) as other:
        other.execute("SELECT 1 FROM poolkeeper.session WHERE id = %s FOR UPDATE", [worker.session.id])
        assert run(worker.conn, calls.turn(worker.session, 9, worker.received, [], 0, idle=True)).position is None
        other.rollback()
