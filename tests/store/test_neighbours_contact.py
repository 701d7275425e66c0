"""What a gap in which nobody came gives is given once, to those who were alive before it and hold something (Q20-Q23)."""

from typing import Any

import pytest

from poolkeeper.store import Claimed, calls, run
from store.scene import Scene, Worker, await_blocked, meanwhile, seconds

GAP = 3600.0
LIMITS: dict[str, Any] = {"max_run_time_seconds": 200, "visibility_timeout_seconds": 600}


def soon(scene: Scene, after: float = 0.1) -> int:
    """A sweep just after the last one, which proves that the store could be reached."""
    scene.jump(after)
    return scene.ask("operator", calls.sweep(since=after))


def holder(scene: Scene, queue: str = "q", **policy: Any) -> tuple[Worker, Claimed]:
    """A process that runs one task of one queue."""
    if policy:
        scene.queue(queue, **policy)
    scene.submit(queue=queue)
    worker = scene.worker(queues=[queue])
    return worker, worker.take()


def test_who_was_dead_before_a_gap_by_its_own_queue_stays_so(scene: Scene) -> None:
    """Q22, Q23: however long the timeouts of others are."""
    (_, brisk), (_, other) = holder(scene, "brisk", visibility_timeout_seconds=2), holder(scene)
    scene.advance(10)
    scene.jump(GAP)
    scene.sweep()
    soon(scene)
    assert (scene.state(brisk.task_id), scene.state(other.task_id)) == ("ready", "running")


def test_a_gap_that_is_short_for_its_queue_gives_nothing(scene: Scene) -> None:
    """Q22, Q23: a session that renews every quarter of a minute has missed none in eight seconds."""
    _, slow = holder(scene, "slow", visibility_timeout_seconds=60)
    scene.advance(50)
    scene.jump(8)
    scene.sweep()
    soon(scene, 3)
    assert scene.state(slow.task_id) == "ready"


def test_what_is_extended_keeps_its_own_lease_over_a_gap(scene: Scene) -> None:
    """Q20, Q23: no other session, and none that said so too long ago."""
    (_, dead), (worker, alive) = holder(scene), holder(scene)
    (past, once) = holder(scene)
    assert run(past.conn, calls.extend(once.task_id, once.token, seconds(16))).code is None
    assert run(worker.conn, calls.extend(alive.task_id, alive.token, seconds(60))).code is None
    scene.advance(20)
    scene.jump(GAP)
    scene.sweep()
    soon(scene)
    assert [scene.state(each.task_id) for each in (dead, once, alive)] == ["ready", "ready", "running"]


def test_who_holds_nothing_is_not_heard_of_by_a_gap(scene: Scene) -> None:
    """O10, Q23: a process that has gone meanwhile is none of its pool's."""
    scene.worker(build="idle")
    _, held = holder(scene)
    scene.jump(GAP)
    scene.sweep()
    (pool,) = scene.ask("operator", calls.stats(cluster=None)).pools
    assert [session.build for session in pool.sessions] == ["b1"]
    assert scene.state(held.task_id) == "running"


@pytest.mark.parametrize("away", [GAP, -GAP], ids=["gap", "clock back"])
def test_what_had_run_too_long_before_is_ended_after(scene: Scene, away: float) -> None:
    """Q21, Q23: one timeout later, whatever the clock did; the time in which nobody could tell does not count."""
    scene.queue(max_run_time_seconds=60)
    over, runs = scene.submit_many(2)
    worker = scene.worker()

    def after(*times: float) -> tuple[str, str]:
        for time in times:
            scene.advance(time)
            worker.renew()
        return scene.state(over), scene.state(runs)

    worker.take()
    after(12, 12, 11)
    worker.take()
    assert after(14) == ("running", "running")
    scene.advance(12)  # the first is over now
    scene.jump(away)
    scene.sweep()
    assert after(8, 6) == ("running", "running")
    assert after(2) == ("scheduled", "running")
    assert after(8, 8) == ("scheduled", "running")
    assert after(3) == ("scheduled", "scheduled")


def test_what_was_extended_once_does_not_come_back_with_the_clock(scene: Scene) -> None:
    """Q20, Q23: a lease that has lived by its renewals since ends one timeout after the clock went back, not an hour."""
    worker, held = holder(scene)
    assert run(worker.conn, calls.extend(held.task_id, held.token, seconds(16))).code is None
    for _ in range(5):
        scene.advance(4)
        worker.renew(held.task_id)
    scene.jump(-GAP)
    scene.sweep()
    for _ in range(4):
        soon(scene, 4)
    assert scene.state(held.task_id) == "ready"


def test_two_who_find_one_gap_count_it_once(scene: Scene) -> None:
    """Q21, Q23: who read the last contact before the other one noted a later one gives nothing more, and notes nothing older."""
    worker, held = holder(scene, **LIMITS)
    look = "SELECT l.run_by, s.graces, c.seen_at FROM poolkeeper.lease AS l, poolkeeper.session AS s, poolkeeper.contact AS c"
    scene.actor("operator")
    for away in (GAP, 100.0):
        scene.jump(away)
        with scene.connect("owner", autocommit=False) as first:
            first.execute("LOCK TABLE poolkeeper.contact IN SHARE MODE")  # both may read it, one may note
            with meanwhile(scene.sweep) as later:
                await_blocked(scene)
                scene.jump(1)
                first.execute("SELECT poolkeeper.sweep()")
                noted = first.execute(look).fetchall()
                first.commit()
            assert later.result() == 0
        assert scene.rows(look) == noted
    assert worker.succeed(held).code is None


@pytest.mark.parametrize("table", ["session", "lease", "contact"])
@pytest.mark.parametrize("away", [100.0, GAP, -GAP], ids=["contact", "gap", "clock back"])
def test_whoever_comes_waits_for_nobody(scene: Scene, table: str, away: float) -> None:
    """Q5, Q21, Q23: somebody else notes the same, renews, or holds a lease in a transaction of its own; meanwhile nothing ends."""
    worker, held = holder(scene, **LIMITS)
    peer = scene.worker(conn=scene.connect("worker"))
    assert run(worker.conn, calls.extend(held.task_id, held.token, seconds(900))).code is None
    for conn in (scene.actor("operator"), peer.conn):
        conn.execute("SET lock_timeout = '2s'")
    scene.jump(away)
    with scene.connect("owner", autocommit=False) as other:
        where = f"id = '{worker.session.id}'" if table == "session" else "true"
        other.execute(f"SELECT 1 FROM poolkeeper.{table} WHERE {where} FOR UPDATE")
        peer.renew()
        if table != "session":  # whose holder comes just now
            assert scene.sweep() == 0
            peer.turn(sweep=True)
        other.rollback()
    assert worker.succeed(held).code is None


def test_who_was_silent_before_an_outage_proves_none(scene: Scene) -> None:
    """Q23, Q27: a process that has not come back is no sign that others could not."""
    scene.worker()
    _, held = holder(scene)
    scene.jump(45)
    scene.sweep()
    for _ in range(4):
        soon(scene, 5)
    assert scene.counters(held.task_id)["spent"] == 1


def test_who_came_back_and_left_proves_an_outage(scene: Scene) -> None:
    """Q23: its end, as in a rollout, takes nothing back: who could not come is not to blame."""
    peer = scene.worker()
    _, held = holder(scene)
    scene.jump(45)
    peer.renew()
    peer.end()
    for _ in range(4):
        soon(scene, 5)
    assert scene.counters(held.task_id)["spent"] == 0
