"""What a session does concerns its own queues, types, tenants, pool and leases, beside a crowd of others (Q11, Q12, Q20, Q51)."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fixtures.neighbours import BOUNDED, FOREIGN, LIMITED, ONES_OWN, PLAIN, QUEUES, Crowd
from poolkeeper.store import Call, Settle, calls, run
from store.scene import Worker


def ready(crowd: Crowd, queue: str, **where: Any) -> set[UUID]:
    """What is ready in a queue, by looking at the tables."""
    query = "SELECT r.task_id, t.type, t.tenant FROM poolkeeper.ready AS r JOIN poolkeeper.task AS t ON t.id = r.task_id WHERE r.queue_id = %s"
    rows = crowd.scene.rows(query, crowd.queue_ids[queue])
    return {row.task_id for row in rows if all(getattr(row, name) == value for name, value in where.items())}


def of_own(
    crowd: Crowd,
    queues: tuple[str, ...],
    *,
    types: tuple[str, ...] = ("a.b", "a.c"),
    pool: str = "local/new",
    **limits: Any,
) -> Worker:
    """A worker of a pool of its own."""
    call = calls.register_session(pool, queues, types, concurrency=50, info={"build": "b2"}, **limits)
    conn = crowd.scene.connect("worker")
    return Worker(conn, run(conn, call))


@pytest.mark.parametrize("queue", QUEUES)
def test_a_claim_takes_of_its_own_queue(crowd: Crowd, queue: str) -> None:
    """Q10, Q11: all that is ready there, of its types and tenants, and nothing else is moved."""
    crowd.scene.queue("lanes", per_tenant_max=9)
    for tenant in ("t1", "t2"):
        crowd.scene.submit("a.b", 5, queue=queue, tenant=tenant)
        crowd.scene.submit("a.b", 5, queue="lanes", tenant=tenant)
    home = crowd.queue_ids[queue]
    for how in ({"tenants": ["t2"]}, {"tenants_except": ["t1"]}):
        mine = ready(crowd, queue, type="a.b", tenant="t2")
        worker = of_own(crowd, (queue,), types=("a.b",), **how)  # type: ignore[arg-type]
        with crowd.untouched(*mine) as own:
            own.queues.add(home)
            claimed = worker.claim(40)
        assert {c.task_id for c in claimed} == mine
        assert len(mine) == 1
        worker.turn([Settle(c.task_id, c.token, "handed_back", started=False) for c in claimed])
    worker = of_own(crowd, (queue,))
    mine = ready(crowd, queue)
    with crowd.untouched(*mine) as own:
        own.queues.add(home)
        claimed = worker.claim(40)
    assert {c.task_id for c in claimed} == mine
    assert len(mine) == 5
    limits = crowd.scene.rows(
        "SELECT run_by, progress_by FROM poolkeeper.lease WHERE session_id = %s", worker.session.id
    )
    assert {None not in row for row in limits} == {queue == LIMITED}


def test_a_claim_for_one_takes_the_first_of_its_kind(crowd: Crowd) -> None:
    """Q10: one, of its type, from the front."""
    one = crowd.scene.submit("one.type", queue=PLAIN, tenant="t1")
    two = crowd.scene.submit("one.type", queue=PLAIN, tenant="t1")
    worker = of_own(crowd, (PLAIN,), types=("one.type",))
    for task_id in (one, two):
        with crowd.untouched(task_id):
            assert [c.task_id for c in worker.claim(1)] == [task_id]
    with crowd.untouched():
        assert worker.claim(1) == []


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED])
def test_whom_it_leaves_out_takes_nobodys_place(crowd: Crowd, queue: str) -> None:
    """Q11, Q51: a claim for one finds what is its own at once, however many others wait, one that it names and may not see among them."""
    mine = {crowd.submit(queue, tenant="kept") for _ in range(6)}
    for n in range(12):
        crowd.submit(queue, tenant="left" if n < 6 else f"other-{n}")
    worker = of_own(crowd, (queue,), tenants=["kept", "left"], tenants_except=["left"])
    got = [c.task_id for _ in mine for c in worker.claim(1)]
    assert len(got) == len(mine)
    assert set(got) == mine
    assert worker.claim(1) == []


def test_a_limit_counts_its_own(crowd: Crowd) -> None:
    """Q12: of a queue those of the queue, of a pool those of the pool, of a tenant those of the tenant in that queue."""
    scene = crowd.scene
    held = scene.rows("SELECT queue_id, lane, count(*) AS n FROM poolkeeper.lease GROUP BY 1, 2")
    in_bounded = sum(row.n for row in held if row.queue_id == crowd.queue_ids[BOUNDED])
    of_pool = scene.value("SELECT count(*) FROM poolkeeper.lease WHERE pool_id = %s", crowd.pool_id())
    scene.queue(BOUNDED, concurrency_max=in_bounded + 2)
    for _ in range(5):
        crowd.submit(BOUNDED)
    worker = of_own(crowd, (BOUNDED,), types=("a.b",))
    assert len(worker.claim(40)) == 2
    scene.queue(BOUNDED, per_tenant_max=4)
    assert len(worker.claim(40)) == 2
    assert worker.claim(40) == []
    scene.queue(BOUNDED)
    scene.ask("operator", calls.set_pool("local/p", max_running=of_pool + 1))
    again = crowd._worker(pod="w-9")
    assert len(again.claim(40)) == 1
    assert again.claim(40) == []


def test_a_turn_that_was_lost_gives_back_its_own(crowd: Crowd) -> None:
    """Q10: what it had brought, and nothing that earlier turns did, or other sessions."""
    mine = [crowd.submit(PLAIN, tenant="lost"), crowd.submit(LIMITED, tenant="lost")]
    worker = of_own(crowd, (PLAIN, LIMITED), tenants=["lost"])
    worker.turn()
    kept = worker.claim(1)
    assert crowd.scene.rows("SELECT 1 FROM poolkeeper.lease WHERE turn = %s", worker.turn_no + 1), "of others"
    lost = worker.turn(want=5, lost=True).claimed
    assert {c.task_id for c in kept + lost} == set(mine)
    with crowd.untouched(*(c.task_id for c in lost)):
        worker.turn()
    assert [crowd.scene.state(c.task_id) for c in kept + lost] == ["running", "ready"]
    again = worker.turn(want=5, lost=True).claimed
    assert {c.task_id for c in again} == {c.task_id for c in lost}
    late = worker.turn(want=5, lost=True)
    assert [c.delivery for c in late.claimed] == [3]
    worker.received = worker.turn_no
    with crowd.untouched(*(c.task_id for c in lost)) as own:
        own.sessions.add(str(worker.session.id))
        run(worker.conn, calls.renew(worker.session, worker.turn_no, [c.task_id for c in kept], complete=True))
    assert [crowd.scene.state(c.task_id) for c in kept + lost] == ["running", "ready"]


def test_a_turn_sent_again_takes_nothing_back(crowd: Crowd) -> None:
    """Q10: what the same turn, or a later one, has brought is no lost answer of an earlier one."""
    crowd.submit(PLAIN, tenant="lost")
    worker = of_own(crowd, (PLAIN,), tenants=["lost"])
    worker.turn()
    worker.turn()
    (one,) = worker.claim(1)
    for turn_no in (worker.turn_no, worker.turn_no - 1):
        with crowd.untouched():
            run(worker.conn, calls.turn(worker.session, turn_no, turn_no - 2, [], 0))
    assert crowd.scene.state(one.task_id) == "running"


def test_who_did_not_renew_in_time_claims_nothing(crowd: Crowd) -> None:
    """Q20: a lease of it would be born expired; where its queue gives it longer, it claims. Nor who has ended."""
    scene = crowd.scene
    scene.queue("slow", visibility_timeout_seconds=60)
    worker = of_own(crowd, (PLAIN, "slow"))
    held = crowd.take(worker, PLAIN, slots=0)
    crowd.submit("slow")
    scene.advance(16)
    with crowd.untouched(held.task_id):
        assert worker.turn(starts=[held]).refused == {held.task_id: "lease_expired"}
    assert {c.queue for c in worker.claim(50)} == {"default/slow"}
    worker.end()
    with crowd.untouched():
        assert worker.claim(50) == []


def test_renewing_is_for_one_session(crowd: Crowd) -> None:
    """Q20: no other session's time, and the answer names what this one holds in vain, each for its reason."""
    scene = crowd.scene
    worker = of_own(crowd, (PLAIN, LIMITED, BOUNDED), tenants=[ONES_OWN])
    kept, canceled, done, gone = (crowd.take(worker, queue) for queue in (PLAIN, LIMITED, BOUNDED, PLAIN))
    with crowd.untouched(canceled.task_id):
        scene.ask("person", calls.cancel(canceled.task_id, who="ann", why="x"))
    conn = scene.connect("worker")
    assert run(conn, calls.succeed(done.task_id, done.token))
    worker.settle(gone, "rejected")
    theirs = crowd.take(crowd.twin, PLAIN)
    crowd.twin.succeed(theirs)
    foreign = scene.value("SELECT task_id FROM poolkeeper.lease WHERE session_id = %s LIMIT 1", crowd.worker.session.id)
    held = [c.task_id for c in (kept, canceled, done, gone, theirs)]
    with crowd.untouched(kept.task_id, canceled.task_id) as own:
        own.sessions.add(str(worker.session.id))
        stats = {"finished": 3, "busy_seconds": 2.5, "progress": [str(task) for task in (*held, foreign)]}
        answer = run(worker.conn, calls.renew(worker.session, worker.received, [*held, foreign], stats=stats))
    assert answer.canceled == [canceled.task_id]
    assert set(answer.lost) == {gone.task_id, foreign, theirs.task_id}
    assert answer.visibility_timeout == timedelta(seconds=15)
    row = scene.rows(
        "SELECT finished, busy_seconds, idle_since FROM poolkeeper.session WHERE id = %s", worker.session.id
    )
    assert row == [(3, 2.5, None)]
    with crowd.untouched() as own:
        own.sessions.add(str(worker.session.id))
        assert (
            run(worker.conn, calls.renew(worker.session, worker.received, [kept.task_id, canceled.task_id])).lost == []
        )


def test_the_timeout_is_that_of_its_queues(crowd: Crowd) -> None:
    """Q20: the shortest of those, whatever others have."""
    crowd.scene.queue("slow", visibility_timeout_seconds=60)
    crowd.scene.queue("brisk", visibility_timeout_seconds=2)
    worker = of_own(crowd, ("slow", PLAIN))
    assert worker.session.visibility_timeout == timedelta(seconds=15)
    assert worker.renew().visibility_timeout == timedelta(seconds=15)
    assert of_own(crowd, ("slow",)).renew().visibility_timeout == timedelta(seconds=60)


def test_registering_makes_one_session_and_one_pool(crowd: Crowd) -> None:
    """Q11: and says which of its queues are not there; once they are, it alone picks them up."""
    before = {row.id for row in crowd.scene.rows("SELECT id FROM poolkeeper.session")}
    with crowd.untouched() as own:
        worker = of_own(crowd, (PLAIN, "later", FOREIGN), pool="local/new")
        own.sessions.add(str(worker.session.id))
        own.pools.add(crowd.pool_id("local/new"))
    assert worker.session.unknown_queues == ["default/later"]
    assert {row.id for row in crowd.scene.rows("SELECT id FROM poolkeeper.session")} - before == {worker.session.id}
    other = of_own(crowd, (PLAIN, "later"), pool="local/other")
    crowd.scene.queue("later")
    crowd.submit("later")
    with crowd.untouched() as own:
        own.sessions.add(str(worker.session.id))
        worker.turn(sweep=True)
    followed = crowd.scene.rows(
        "SELECT id, cardinality(queue_ids) AS n FROM poolkeeper.session WHERE pool_id >= %s ORDER BY n",
        crowd.pool_id("local/new"),
    )
    assert followed == [(other.session.id, 1), (worker.session.id, 3)]
    with crowd.untouched() as own:
        again = of_own(crowd, (LIMITED,), pool="local/new", types=("x.z",), tenants=["t1"])
        own.sessions.add(str(again.session.id))
        own.pools.add(crowd.pool_id("local/new"))


def test_ending_is_of_one_session(crowd: Crowd) -> None:
    """Q48: what it held goes back, its drain is its pool's, and others go on."""
    scene = crowd.scene
    worker = of_own(crowd, (PLAIN, BOUNDED), tenants=[ONES_OWN])
    one, two = crowd.take(worker, PLAIN, ordering_key="mine"), crowd.take(worker, BOUNDED, slots=0)
    scene.owner.execute(
        "UPDATE poolkeeper.pool SET isolating_session = %s WHERE name <> 'local/new'", [crowd.worker.session.id]
    )
    scene.owner.execute(
        "UPDATE poolkeeper.pool SET isolating_session = %s WHERE name = 'local/new'", [crowd.worker.session.id]
    )
    with crowd.untouched() as own:
        own.pools.add(crowd.pool_id("local/new"))
        own.sessions.add(str(worker.session.id))
        run(worker.conn, calls.report_drain(worker.session, {"duration_seconds": 1.5, "truncated": True}))
    (report,) = scene.rows("SELECT * FROM poolkeeper.drain_report WHERE session_id = %s", worker.session.id)
    assert (report.pool_id, report.seconds, report.truncated) == (crowd.pool_id("local/new"), 1.5, True)
    with crowd.untouched(one.task_id, two.task_id) as own:
        own.sessions.add(str(worker.session.id))
        own.queues.add(crowd.queue_ids[BOUNDED])
        assert worker.end() == 2
    ended = scene.rows("SELECT id FROM poolkeeper.session WHERE ended_at IS NOT NULL")
    assert [row.id for row in ended] == [worker.session.id]


def test_the_sessions_secret_is_its_own(crowd: Crowd) -> None:
    """Q51: another session's secret, another login, or none opens nothing."""
    worker, other = crowd.worker.session, crowd.twin.session
    crossed = type(worker)(
        worker.id, other.secret, worker.renew_every, worker.visibility_timeout, [], worker.instance_id
    )
    for session, conn in ((crossed, crowd.worker.conn), (worker, crowd.scene.connect("owner"))):
        theirs: tuple[Call[Any], ...] = (
            calls.turn(session, 99, 98, [], 5),
            calls.renew(session, 0, []),
            calls.end_session(session),
            calls.report_drain(session, {"duration_seconds": 1, "truncated": False}),
        )
        for call in theirs:
            with crowd.untouched(), pytest.raises(Exception, match="unknown session"):
                run(conn, call)


def test_when_to_come_again_is_told_by_its_own_queues(crowd: Crowd) -> None:
    """F4: how they wake, how long they give and what is due there; of sessions of its pool, whichever can expire first."""
    scene = crowd.scene
    scene.queue("slow", visibility_timeout_seconds=60)
    scene.queue("brisk", visibility_timeout_seconds=2, wake_up="poll")
    scene.advance(3)
    worker = of_own(crowd, ("slow",))

    def soon(of: Worker) -> float:
        return of.turn().come_again.total_seconds()

    assert soon(worker) == 5
    brisk = of_own(crowd, ("brisk",))
    assert soon(brisk) == 0.5
    assert 1 < soon(worker) <= 2.05
    brisk.end()
    assert soon(worker) == 5
    due = crowd.submit("slow", delay=timedelta(seconds=3))
    assert 2 < soon(worker) <= 3
    scene.ask("person", calls.cancel(due, who="ann", why="x"))
    crowd.submit(PLAIN, delay=timedelta(seconds=3))
    assert soon(worker) == 5
    one = crowd.take(of_own(crowd, (PLAIN,), tenants=[ONES_OWN]), PLAIN)
    assert soon(worker) == 5
    scene.owner.execute("UPDATE poolkeeper.lease SET run_by = NULL, progress_by = NULL")
    scene.owner.execute(
        "UPDATE poolkeeper.lease SET run_by = poolkeeper.clock() + interval '1 s' WHERE task_id = %s", [one.task_id]
    )
    assert 0.5 < soon(worker) <= 1
    assert soon(of_own(crowd, (PLAIN,))) <= 1


def test_a_session_comes_when_another_one_could_expire(crowd: Crowd) -> None:
    """Q22, F9: one of its own pool that lives; once more just after, for who did not sweep, and not for ever."""
    owner = crowd.scene.owner
    now = crowd.scene.value("SELECT poolkeeper.clock()")

    def told(silent: Worker, seconds: float) -> float:
        owner.execute("UPDATE poolkeeper.session SET renewed_at = %s", [now + timedelta(seconds=100)])
        owner.execute(
            "UPDATE poolkeeper.session SET renewed_at = %s WHERE id = %s",
            [now - timedelta(seconds=seconds), silent.session.id],
        )
        ask = "SELECT poolkeeper.come_again(s, false, %s) FROM poolkeeper.session AS s WHERE s.id = %s"
        found: float = crowd.scene.value(ask, now, crowd.worker.session.id)
        return found

    usual = 15 / 4
    assert [told(crowd.twin, gone) for gone in (0, 14, 15, 16, 16.2)] == [usual, 1.05, 0.25, 0.25, usual]
    assert [told(other, 14) for other in (crowd.worker, crowd.far)] == [usual] * 2
    owner.execute("UPDATE poolkeeper.session SET ended_at = %s WHERE id = %s", [now, crowd.twin.session.id])
    assert told(crowd.twin, 14) == usual


def test_a_session_comes_when_a_provider_of_its_pool_opens(crowd: Crowd) -> None:
    """Q40: the last of those that are closed; one that has opened keeps nobody busy."""
    owner = crowd.scene.owner
    now = crowd.scene.value("SELECT poolkeeper.clock()")
    owner.execute("UPDATE poolkeeper.session SET renewed_at = %s", [now + timedelta(seconds=100)])
    owner.execute(
        "INSERT INTO poolkeeper.provider (quota, cut, floor, recover) SELECT 'a/' || n, 50, 10, 5 FROM generate_series(1, 4) AS n"
    )
    for pool, names in (("local/p", "{a/1,a/2}"), ("other/p", "{a/3}")):
        owner.execute(
            "UPDATE poolkeeper.pool SET provider_ids = ARRAY(SELECT r.id FROM poolkeeper.provider AS r WHERE r.quota = ANY (%s::text[])) WHERE name = %s",
            [names, pool],
        )
    usual = 15 / 4
    for opens, wanted in (
        ({}, usual),
        ({"a/1": -1}, usual),
        ({"a/1": 0}, usual),
        ({"a/1": 2}, 2),
        ({"a/1": 1, "a/2": 2}, 2),
        ({"a/1": -2, "a/2": 1}, 1),
        ({"a/3": 1}, usual),
        ({"a/4": 1}, usual),
    ):
        owner.execute("UPDATE poolkeeper.provider SET retry_at = NULL")
        for quota, seconds in opens.items():
            retry_at = now + timedelta(seconds=seconds)
            owner.execute("UPDATE poolkeeper.provider SET retry_at = %s WHERE quota = %s", [retry_at, quota])
        ask = "SELECT poolkeeper.come_again(s, false, %s) FROM poolkeeper.session AS s WHERE s.id = %s"
        assert crowd.scene.value(ask, now, crowd.worker.session.id) == wanted, opens


def test_sessions_end_by_their_silence(crowd: Crowd) -> None:
    """Q22: after two hours those that hold nothing; what has ended before stays as it ended."""
    scene = crowd.scene
    crowd.twin.end()
    crowd.far.end()
    scene.owner.execute("UPDATE poolkeeper.lease SET extended_until = poolkeeper.clock() + interval '1 day'")
    idle, fresh = of_own(crowd, (PLAIN,)), of_own(crowd, (PLAIN,))
    scene.owner.execute("UPDATE poolkeeper.session SET ended_at = NULL WHERE id = %s", [crowd.far.session.id])
    scene.advance(3 * 3600)
    fresh.renew()
    ended = {
        row.id: row.ended_at
        for row in scene.rows("SELECT id, ended_at FROM poolkeeper.session WHERE ended_at IS NOT NULL")
    }
    assert set(ended) == {crowd.twin.session.id}
    scene.sweep()
    now = {
        row.id: row.ended_at
        for row in scene.rows("SELECT id, ended_at FROM poolkeeper.session WHERE ended_at IS NOT NULL")
    }
    assert now.keys() - ended.keys() >= {idle.session.id, crowd.far.session.id}
    assert not now.keys() & {fresh.session.id, crowd.worker.session.id}
    assert now[crowd.twin.session.id] == ended[crowd.twin.session.id]
