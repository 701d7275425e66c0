"""Q7: how much may wait in a queue and of a tenant: who is refused, with which figures, and by how much a limit is passed."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Json

from poolkeeper.codes import Code
from poolkeeper.store import Verdict, calls, run
from store.scene import Scene, await_blocked, meanwhile, seconds

BIG = 1500
"""A limit that is read from the folded count; up to 1000 each submit counts for itself."""


def fill(scene: Scene, count: int, *, tenant: str = "default", **wishes: Any) -> list[Verdict]:
    """Submit so many in one call and return all verdicts."""
    tasks = [{"type": "a.b", "payload": n, "tenant": tenant, **wishes} for n in range(count)]
    return scene.ask("submitter", calls.submit_many("q", tasks))


def accepted(verdicts: list[Verdict]) -> int:
    return sum(verdict.code is None for verdict in verdicts)


def test_beyond_the_queues_limit_a_submit_is_refused_with_the_figures(scene: Scene) -> None:
    """Q7: a refusal is data; once a task has begun there is room again."""
    scene.queue(max_waiting=3)
    scene.submit_many(3)
    refused = scene.verdict()
    assert (refused.code, refused.limit, refused.current) == (Code.QUEUE_LIMIT, 3, 3)
    assert refused.retry_after is not None
    assert (refused.task_id, refused.created, refused.state) == (None, False, None)
    worker = scene.worker()
    delivery = worker.take()
    assert scene.verdict().code is None
    assert scene.verdict().code is Code.QUEUE_LIMIT
    worker.settle(delivery, "handed_back")
    assert worker.claim(2)
    assert scene.verdict().code is None


def test_everything_that_has_not_begun_waits(scene: Scene) -> None:
    """Q7: scheduled and snoozed tasks and suspects as well as ready ones; dead letters and running tasks do not."""
    scene.queue(max_waiting=4, max_waiting_per_tenant=4, max_deliveries=3)
    worker = scene.worker()
    scene.submit_many(4)
    snoozed, dying, running, dead = worker.claim(4)
    worker.settle(snoozed, "snoozed", retry_after=seconds(3600))
    worker.fail(dying, retry_after=seconds(3600))
    worker.settle(dead, "dead")
    assert running.task_id
    scene.advance(16)
    scene.sweep()  # running -> suspect
    scene.submit(delay=seconds(60))
    for _ in range(2):
        assert (scene.verdict().code, scene.verdict(tenant="other").code) == (
            Code.TENANT_QUEUE_LIMIT,
            Code.QUEUE_LIMIT,
        )
        scene.sweep()  # counted by others: the same
        scene.advance(2)


@pytest.mark.parametrize("bound", [5, BIG])
def test_a_tenant_has_a_limit_of_its_own(scene: Scene, bound: int) -> None:
    """Q7: the others submit on; an override counts in place of the rule for all."""
    scene.queue(max_waiting_per_tenant=bound, tenants=[{"name": "acme", "max_waiting": 2 * bound}])
    assert accepted(fill(scene, bound + 7, tenant="hog")) == bound
    scene.advance(2)
    scene.sweep()
    refused = scene.verdict(tenant="hog")
    assert (refused.code, refused.limit, refused.current) == (Code.TENANT_QUEUE_LIMIT, bound, bound)
    assert accepted(fill(scene, 2 * bound + 7, tenant="acme")) == 2 * bound
    assert scene.verdict(tenant="small").code is None


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("wish", [{"delay": 3600}, {"ordering_key": "k"}])
def test_a_small_limit_holds_behind_many_tasks_of_others(scene: Scene, wish: dict[str, Any], *, counted: bool) -> None:
    """Q7: passed by what is submitted between two counts, and not for ever, wherever its tasks are in the queue."""
    scene.queue(max_waiting_per_tenant=10, tenants=[{"name": "acme", "max_waiting": 50_000}])
    fill(scene, 2_100, tenant="acme", **(wish if "ordering_key" in wish else {"delay": 60}))
    took = []
    for _ in range(4):
        took.append(accepted(fill(scene, 10, tenant="hog", **wish)))
        scene.advance(2)
        if counted:
            scene.sweep()
    assert sum(took) == 10
    assert scene.verdict(tenant="small").code is None


def test_in_bulk_as_many_are_accepted_as_fit(scene: Scene) -> None:
    """Q5, Q7: in the order of the call, each with its own verdict."""
    scene.queue(max_waiting=6, max_waiting_per_tenant=3)
    tasks = [{"type": "a.b", "payload": n, "tenant": tenant} for n, tenant in enumerate("aaaabbbbc")]
    verdicts = scene.ask("submitter", calls.submit_many("q", [*tasks, {"type": "NO", "payload": 1}]))
    assert [verdict.code for verdict in verdicts] == [
        *[None] * 3, Code.TENANT_QUEUE_LIMIT, *[None] * 3, Code.TENANT_QUEUE_LIMIT, Code.QUEUE_LIMIT, Code.TYPE_INVALID
    ]  # fmt: skip
    assert (verdicts[3].limit, verdicts[8].limit) == (3, 6)


def test_a_known_key_is_answered_although_nothing_more_fits(scene: Scene) -> None:
    """Q6, Q7: a repeated submit is no new task, and takes no room from new ones; another payload is a conflict still."""
    scene.queue(max_waiting=3)
    first = scene.submit(key="k", payload=1)
    scene.submit(key="l", payload=1)
    again = [{"type": "a.b", "payload": 1, "key": key} for key in ("k", "l", "m", "m", "n")]
    codes = [(v.code, v.created) for v in scene.ask("submitter", calls.submit_many("q", again))]
    assert codes == [(None, False), (None, False), (None, True), (None, False), (Code.QUEUE_LIMIT, False)]
    repeated = scene.verdict(key="k", payload=1)
    assert (repeated.code, repeated.task_id) == (None, first)
    assert scene.verdict(key="k", payload=2).code is Code.KEY_CONFLICT
    scene.worker().take()
    assert scene.verdict(key="n").code is None  # its refusal took no key


def test_what_is_counted_is_read_not_counted_again(scene: Scene) -> None:
    """Q7: the overshoot: between two counts a large limit is passed by what is submitted meanwhile, and not after."""
    scene.queue(max_waiting=BIG)
    scene.sweep()
    for _ in range(4):
        assert accepted(fill(scene, BIG)) == BIG  # none of it is in the count of this second
    scene.advance(1.5)
    scene.sweep()
    refused = scene.verdict()
    assert (refused.code, refused.limit, refused.current) == (Code.QUEUE_LIMIT, BIG, BIG)


@pytest.mark.parametrize("who", ["turn", "operator"])
def test_claimers_and_sweeps_count(scene: Scene, who: str) -> None:
    """Q7, Q22: whoever comes next, and no more often than once a second."""
    scene.queue(max_waiting=BIG, max_waiting_per_tenant=BIG)
    worker = scene.worker()
    fill(scene, BIG)

    def come() -> Any:
        if who == "turn":
            worker.turn(sweep=True)
        else:
            scene.sweep()
        return scene.value("SELECT counted_at FROM poolkeeper.backlog")

    first = come()
    assert scene.value("SELECT waiting FROM poolkeeper.backlog") == BIG
    assert scene.value("SELECT waiting FROM poolkeeper.backlog_lane") == BIG
    assert come() == first
    scene.advance(1.1)
    assert come() > first


def test_while_nobody_counts_each_submit_does(scene: Scene) -> None:
    """Q7: no worker, no operator: the limit holds all the same, and nothing is written for it."""
    scene.queue(max_waiting=BIG, max_waiting_per_tenant=BIG)
    scene.sweep()
    scene.advance(60)
    assert accepted(fill(scene, BIG + 5)) == BIG
    assert scene.verdict().code is Code.TENANT_QUEUE_LIMIT
    assert scene.verdict(tenant="other").code is Code.QUEUE_LIMIT
    assert scene.value("SELECT waiting FROM poolkeeper.backlog") == 0


def test_a_changed_limit_counts_at_once(scene: Scene) -> None:
    """O1: what was counted for the old one does not answer for the new one."""
    scene.queue(max_waiting=BIG * 100, max_waiting_per_tenant=BIG * 100)
    fill(scene, BIG)
    scene.sweep()
    scene.queue(max_waiting_per_tenant=BIG)
    assert scene.verdict().code is Code.TENANT_QUEUE_LIMIT
    scene.queue()
    assert scene.verdict().code is None


def test_submitters_do_not_wait_for_each_other_nor_for_a_count(scene: Scene) -> None:
    """Q4, Q7: neither for an open submit nor for a fold that has not committed; and a second fold passes it over."""
    scene.queue(max_waiting=BIG, max_waiting_per_tenant=BIG)
    fill(scene, 10)
    folding = scene.connect("operator", autocommit=False)
    run(folding, calls.sweep())
    scene.advance(2)
    other, third = scene.connect("submitter", autocommit=False), scene.connect("submitter")
    for conn in (other, third):
        conn.execute("SET lock_timeout = '100ms'")
        assert run(conn, calls.submit("q", "a.b", 1)).code is None
    scene.sweep()
    folding.rollback()
    other.rollback()


def test_what_is_not_committed_is_not_counted(scene: Scene) -> None:
    """Q7: counts are of what is committed; what transactions hold open passes the limit when they commit."""
    scene.queue(max_waiting=2)
    conns = [scene.connect("submitter", autocommit=False) for _ in range(3)]
    for conn in conns:
        assert [run(conn, calls.submit("q", "a.b", 1)).code for _ in range(3)] == [None, None, Code.QUEUE_LIMIT]
    for conn in conns:
        conn.commit()
    assert scene.value("SELECT count(*) FROM poolkeeper.ready") == 6
    assert scene.verdict().code is Code.QUEUE_LIMIT


def test_side_by_side_a_limit_is_passed_by_what_is_under_way_alone(scene: Scene) -> None:
    """Q7: eight submitters one by one against a small limit: each has at most one submit that the others do not see."""
    scene.queue(max_waiting=100, max_waiting_per_tenant=100)

    def submits(conn: psycopg.Connection[Any]) -> int:
        return sum(run(conn, calls.submit("q", "a.b", 1)).code is None for _ in range(60))

    conns = [scene.connect("submitter") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        total = sum(pool.map(submits, conns))
    assert 100 <= total <= 107
    assert scene.value("SELECT count(*) FROM poolkeeper.ready") == total


def test_a_queue_without_limits_is_not_counted(scene: Scene) -> None:
    """Quality 3: who does not ask for it pays nothing."""
    fill(scene, 20)
    scene.worker().turn(want=1, sweep=True)
    scene.sweep()
    assert scene.value("SELECT count(*) FROM poolkeeper.backlog") == 0


def test_a_racing_key_is_waited_for_within_the_limit(scene: Scene) -> None:
    """Q6, Q7: the waiter gets the first task, which fills the queue."""
    scene.queue(max_waiting=1)
    first = scene.connect("submitter", autocommit=False)
    told = run(first, calls.submit("q", "a.b", 1, key="k"))
    with meanwhile(lambda: scene.verdict(key="k")) as second:
        await_blocked(scene)
        first.commit()
    assert (second.result().code, second.result().task_id) == (None, told.task_id)


def test_the_verdict_is_the_same_through_sql_alone(scene: Scene) -> None:
    """Contract 23: limit and current stand in their columns."""
    scene.queue(max_waiting=1)
    conn = scene.actor("submitter")
    statement = "SELECT code, \"limit\", current FROM poolkeeper.submit_many('q', %s::jsonb)"
    tasks = Json([{"type": "a.b", "payload": 1}] * 2)
    assert conn.execute(statement, [tasks]).fetchall() == [(None, None, None), ("queue_limit", 1, 0)]


def test_what_its_ordering_key_holds_back_waits(scene: Scene) -> None:
    """Q7, Q9: behind the head of a key, too; counted by the submit and by others alike."""
    scene.queue(max_waiting=5, max_waiting_per_tenant=4)
    worker = scene.worker()
    for _ in range(4):
        scene.submit(ordering_key="k")
    for _ in range(2):
        assert scene.verdict(ordering_key="k").code is Code.TENANT_QUEUE_LIMIT
        scene.sweep()
        scene.advance(2)
    scene.submit(tenant="other")
    assert scene.verdict(tenant="other").code is Code.QUEUE_LIMIT
    assert worker.claim(5)
    assert scene.verdict(ordering_key="k").code is None
