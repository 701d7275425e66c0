"""Limits, ends and figures of what runs go by its own rows, beside others of its kind (Q18, Q21, O10, O12, O16)."""

import pytest

from fixtures.neighbours import BOUNDED, HOUR, LIMITED, PLAIN, Crowd
from poolkeeper.store import Settle, calls, run
from store.scene import Scene, seconds
from store.walks import Walks


def test_the_tenure_of_a_task_is_its_own(scene: Scene) -> None:
    """Q21: what others have run before takes nothing of it."""
    scene.queue(max_tenure_seconds=60)
    worker = scene.worker()
    long = scene.submit()
    worker.take()
    scene.advance(5)
    short = scene.submit()
    other = worker.take()
    scene.advance(5)
    assert worker.fail(other, retry_after=seconds(0)).state in {"ready", "scheduled"}
    assert other.task_id == short
    scene.sweep()
    worker.take()
    left = scene.rows(
        "SELECT extract(epoch FROM run_by - started_at)::integer AS left FROM poolkeeper.lease ORDER BY claimed_at"
    )
    assert ([row.left for row in left], scene.state(long)) == ([60, 55], "running")


def test_what_has_not_started_makes_no_progress(crowd: Crowd) -> None:
    """Q16, Q21: whoever speaks of it, no limit begins before it does."""
    ahead, runs = crowd.take(crowd.worker, LIMITED, slots=0), crowd.take(crowd.worker, LIMITED)
    with crowd.untouched(runs.task_id) as own:
        own.sessions.add(str(crowd.worker.session.id))
        stats = {"progress": [str(ahead.task_id), str(runs.task_id)]}
        run(crowd.worker.conn, calls.renew(crowd.worker.session, crowd.worker.received, [], stats=stats))


def test_each_start_is_refused_for_its_own_reason(crowd: Crowd) -> None:
    """Q16, Q18: one that was canceled goes back, one whose token is another's is stale, whatever else the call names."""
    one, two = (crowd.take(crowd.worker, PLAIN, slots=0) for _ in range(2))
    crowd.scene.ask("person", calls.cancel(one.task_id, who="ann", why="x"))
    crossed = two._replace(token=crowd.take(crowd.worker, PLAIN, slots=0).token)
    with crowd.untouched(one.task_id):
        told = crowd.worker.turn(starts=[one, crossed]).refused
    assert told == {one.task_id: "canceled", two.task_id: "stale_token"}


def test_a_renewal_gives_back_nothing_of_an_answer_that_is_under_way(crowd: Crowd) -> None:
    """Q10: what a turn brings that it has not heard of yet is no lost answer."""
    for tenant in ("early", "late"):
        crowd.submit(PLAIN, tenant=tenant)
    worker = crowd.scene.worker(queues=[PLAIN])
    (early,), (late,) = worker.turn(want=1).claimed, worker.turn(want=1, lost=True).claimed
    with crowd.untouched(early.task_id) as own:
        own.sessions.add(str(worker.session.id))
        run(worker.conn, calls.renew(worker.session, worker.received, [], complete=True))
    assert [crowd.scene.state(each.task_id) for each in (early, late)] == ["ready", "running"]


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED])
def test_an_end_in_an_own_transaction_is_known_when_it_is_told_again(crowd: Crowd, queue: str) -> None:
    """Q18: nobody holds what is gone, whatever else runs; and it was its own session that ended it."""
    apart = crowd.scene.worker(pool="local/apart", queues=[queue], build="b9", concurrency=100)
    for worker in (crowd.far, crowd.twin, crowd.worker, apart):
        one = crowd.take(worker, queue)
        assert run(worker.conn, calls.succeed(one.task_id, one.token, 1)) is True
        for outcome in ("succeeded", "failed"):
            (told,) = worker.turn(
                [Settle(one.task_id, one.token, outcome, own_transaction=True, retry_after=HOUR)]
            ).verdicts
            assert told.code == "already_done"
        by = crowd.scene.rows("SELECT session_id, build FROM poolkeeper.delivery WHERE task_id = %s", one.task_id)
        assert by == [(worker.session.id, "b9" if worker is apart else "b1")]


STATS = (
    "SELECT poolkeeper.queue_stats(q, poolkeeper.clock(), %s, %s, NULL, %s) FROM poolkeeper.queue AS q WHERE q.id = %s"
)


def test_what_nobody_can_run_makes_nothing_look_old(walks: Walks) -> None:
    """O12, Q13: neither among the retries nor among the suspects."""
    home = walks.queue_ids[PLAIN]
    retries = (
        "UPDATE poolkeeper.ready SET spent = (type_key = ANY (%s))::integer, failures = (type_key = ANY (%s))::integer"
    )
    walks.owner.execute(retries, [walks.types("a.c")] * 2)
    for known, retry in ((["a.b"], False), (["a.b", "a.c"], True), (["no.such"], False)):
        told = walks.scene.value(STATS, [], walks.types(*known), None, home)
        assert (told["oldest_retry"] is not None) == retry, known
    walks.owner.execute("DELETE FROM poolkeeper.ready; DELETE FROM poolkeeper.gate_due; DELETE FROM poolkeeper.ordered")
    for name, old in (("a.b", False), ("x.y", True)):
        told = walks.scene.value(STATS, [], walks.types(name), None, home)
        assert (told["oldest_runnable"] is not None, told["suspects"]) == (old, 1), name


def test_suspects_are_told_by_their_own_tenant(crowd: Crowd) -> None:
    """O12, Q11: where workers are for some tenants only."""
    for named in (["t3", "t1"], ["t1", "t3"]):
        told = crowd.scene.value(STATS, None, None, named, crowd.queue_ids[PLAIN])
        assert {each["tenant"] for each in told["types"] if each["suspects"]} == {"t1"}


def test_builds_of_a_pool_are_of_those_that_have_not_ended(scene: Scene) -> None:
    """O10, O16: and the last one that was seen."""
    scene.worker(build="ended").end()
    scene.worker(build="lives")
    scene.worker(build="last").end()
    (pool,) = scene.ask("operator", calls.stats(cluster=None)).pools
    assert {build.build for build in pool.builds} == {"lives", "last"}


def test_a_result_that_cannot_be_kept_is_no_success(crowd: Crowd) -> None:
    """Q8: the task is dead with the reason and keeps no result; another one of the same call succeeds."""
    large, small = crowd.take(crowd.worker, PLAIN), crowd.take(crowd.worker, PLAIN)
    settles = [
        Settle(each.task_id, each.token, "succeeded", result="x" * n) for each, n in ((large, 2**20), (small, 9))
    ]
    with crowd.untouched(large.task_id, small.task_id):
        told = crowd.worker.turn(settles).verdicts
    assert {(verdict.code, verdict.state) for verdict in told} == {(None, "dead"), (None, "succeeded")}
    for place in ("dead", "delivery"):
        ended = crowd.scene.rows(
            f"SELECT reason, error_class FROM poolkeeper.{place} WHERE task_id = %s", large.task_id
        )
        assert ended == [("permanent_error", "result_too_large")]
