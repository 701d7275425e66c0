"""Slots of tenants are never overshot, and tenants at their bound are in nobody's way (Q12, Q14, P7)."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event
from typing import Any
from uuid import UUID

import pytest

from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, Worker, await_blocked, meanwhile, seconds
from store.test_limits import open_worker
from store.test_plans import touching


def bounds(scene: Scene, per_tenant: int | None = None, **tenants: int) -> None:
    """Apply bounds for tenants to the queue `q`."""
    scene.queue(per_tenant_max=per_tenant, tenants=[{"name": n, "max_running": most} for n, most in tenants.items()])


def running(scene: Scene) -> dict[str, int]:
    rows = scene.rows(
        "SELECT t.tenant, count(*) AS n FROM poolkeeper.lease AS l JOIN poolkeeper.task AS t ON t.id = l.task_id GROUP BY t.tenant"
    )
    return {r.tenant: r.n for r in rows}


def settled(*held: Claimed) -> list[Settle]:
    return [Settle(c.task_id, c.token, "succeeded") for c in held]


def test_each_tenant_has_its_own_slots_and_gets_them_back_with_the_settle(scene: Scene) -> None:
    """Q12: one bound for all, another for one; a settle and its successor are one turn."""
    bounds(scene, 2, big=4)
    for tenant in ("a", "b", "big"):
        scene.submit_many(10, tenant=tenant)
    worker = scene.worker(concurrency=100)
    held = worker.claim(100)
    assert Counter(c.tenant for c in held) == {"a": 2, "b": 2, "big": 4}
    assert worker.claim(100) == []
    (first, *_) = [c for c in held if c.tenant == "a"]
    assert [c.tenant for c in worker.turn(settled(first), want=10).claimed] == ["a"]


@pytest.mark.parametrize("of", ["priority", "type"])
@pytest.mark.parametrize("more", [0, 1])
def test_a_lane_with_tasks_of_several_kinds_has_its_slots_once(scene: Scene, of: str, more: int) -> None:
    """Q10, Q12: whether it is the only lane or not; and no turn gets more than it asked for."""
    scene.queue(per_tenant_max=2)
    types = [f"a.b{n}" for n in range(5)]
    for n in range(5):
        for tenant in ("acme", "other")[: 1 + more]:
            wish: dict[str, Any] = {"priority": n} if of == "priority" else {}
            scene.submit_many(3, type=types[n if of == "type" else 0], tenant=tenant, **wish)
    worker = scene.worker(types=types)
    assert len(worker.claim(1)) == 1
    assert len(worker.claim(10)) == 1 + 2 * more
    assert worker.claim(10) == []


def test_only_the_tenant_that_is_named_is_bound(scene: Scene) -> None:
    """Q12: without perTenant the others have no bound."""
    bounds(scene, None, one=1)
    scene.submit_many(5, tenant="one")
    scene.submit_many(5, tenant="other")
    assert Counter(c.tenant for c in scene.worker().claim(10)) == {"one": 1, "other": 5}


def test_who_has_no_bound_is_claimed_side_by_side(scene: Scene) -> None:
    """Q12, F8: beside tenants that have one; of those only one claim at a time looks."""
    bounds(scene, None, one=2)
    scene.submit_many(2, tenant="one")
    scene.submit_many(4, tenant="other")
    first, second = open_worker(scene), open_worker(scene)
    assert Counter(c.tenant for c in first.claim(3)) == {"one": 1, "other": 2}
    assert Counter(c.tenant for c in second.claim(3)) == {"other": 2}
    for each in (first, second):
        each.conn.commit()
    assert running(scene) == {"one": 1, "other": 4}


def test_the_end_of_what_has_no_bound_writes_no_opening(scene: Scene) -> None:
    """F8: its lane was never full; the row of its submit stays for what is left, and goes when nothing is."""
    bounds(scene, None, one=1)
    scene.submit_many(3, tenant="other")
    worker = scene.worker()
    openings = "SELECT xmin::text FROM poolkeeper.opening"
    before = scene.rows(openings)
    held = worker.claim(1)
    for _ in range(2):
        held = worker.turn(settled(*held), want=1).claimed
        assert scene.rows(openings) == before
    assert worker.turn(settled(*held), want=1).claimed == []
    assert scene.rows(openings) == []


@pytest.mark.parametrize("how", ["handed_back", "snoozed", "failed", "expired"])
def test_what_has_no_bound_and_is_ready_again_is_found_without_a_sweep(scene: Scene, how: str) -> None:
    """Q14: its lane may have been shut meanwhile."""
    bounds(scene, None, one=1)
    scene.submit(tenant="other")
    worker, other = scene.worker(), scene.worker()
    held = worker.take()
    assert other.claim(1) == []
    assert scene.value("SELECT count(*) FROM poolkeeper.opening") == 0
    if how == "expired":
        scene.advance(3600)
        other.renew()
        other.turn(sweep=True)
        assert len(scene.worker().claim(1, isolated=True)) == 1
        return
    worker.settle(held, how, retry_after=seconds(5) if how in {"snoozed", "failed"} else None)
    scene.advance(6)
    other.renew()
    assert len(other.claim(1)) == 1


@pytest.mark.parametrize("how", ["succeeded", "handed_back"])
def test_a_bound_that_comes_while_it_runs_counts_it(scene: Scene, how: str) -> None:
    """Q12: the queue bounded others until now."""
    bounds(scene, None, one=1)
    scene.submit_many(3, tenant="other")
    worker = scene.worker()
    held = worker.take()
    bounds(scene, None, one=1, other=1)
    assert worker.claim(3) == []
    worker.settle(held, how)
    assert len(worker.claim(3)) == 1


@pytest.mark.parametrize("how", ["succeeded", "failed", "dead", "handed_back", "snoozed", "expired", "canceled"])
def test_however_a_delivery_ends_its_slot_is_free_again(scene: Scene, how: str) -> None:
    """Q12: a slot cannot leak, and no lane stays shut."""
    bounds(scene, 1)
    scene.submit_many(2)
    worker = scene.worker()
    held = worker.take()
    assert worker.claim(1) == []
    if how == "expired":
        scene.advance(16)
        scene.sweep()
        worker = scene.worker()
    elif how == "canceled":
        scene.ask("person", calls.cancel(held.task_id, who="ann", why="x"))
        worker.settle(held, "canceled")
    else:
        worker.settle(held, how, retry_after=seconds(500) if how in ("failed", "snoozed") else None)
    assert len(worker.claim(1, isolated=how == "expired")) == 1


@pytest.mark.parametrize("how", ["submitted", "due", "requeued", "rebound", "unbound"])
def test_however_a_task_becomes_claimable_its_lane_is_looked_at(scene: Scene, how: str) -> None:
    """Q12: after the lane was found empty, or full, and shut."""
    bounds(scene, 1)
    worker = scene.worker()
    first = scene.submit()
    held = worker.take()
    if how in ("rebound", "unbound"):
        scene.submit()
    elif how == "due":
        scene.submit(delay=seconds(30))
    worker.turn(settled(held) if how in ("submitted", "due") else [], want=1)
    if how == "requeued":
        worker.settle(held, "dead")
    assert worker.claim(1) == []
    assert scene.value("SELECT count(*) FROM poolkeeper.opening") == 0
    if how == "submitted":
        scene.submit()
    elif how == "due":
        scene.advance(31)
        worker.renew()
    elif how == "requeued":
        scene.ask("person", calls.requeue(first, who="ann", why="x"))
    else:
        bounds(scene, 2 if how == "rebound" else None)
    assert len(worker.claim(1)) == 1


def test_bounds_that_come_later_count_what_runs_already(scene: Scene) -> None:
    """Q12: and what was ready before is found."""
    for tenant in "ab":
        scene.submit_many(5, tenant=tenant)
    worker = scene.worker()
    held = worker.claim(4)
    assert running(scene) == {"a": 2, "b": 2}
    bounds(scene, 3)
    assert Counter(c.tenant for c in worker.claim(10)) == {"a": 1, "b": 1}
    worker.turn(settled(*held))
    assert len(worker.claim(10, sweep=True)) == 4


@pytest.mark.parametrize("how", ["succeeded", "handed_back", "snoozed"])
def test_what_ran_before_the_bounds_came_frees_its_slot_too(scene: Scene, how: str) -> None:
    """Q12: its successor, or itself, starts at once and not after the next sweep."""
    scene.submit()
    worker = scene.worker()
    held = worker.take()
    bounds(scene, 1)
    scene.submit()
    assert worker.claim(1) == []
    worker.settle(held, how, retry_after=seconds(500) if how == "snoozed" else None)
    assert len(worker.claim(1)) == 1


def test_bounds_of_one_queue_list_no_lanes_of_another(scene: Scene) -> None:
    """Q12, Q14: what runs elsewhere ends as before, without a row that nobody walks."""
    scene.queue("r")
    scene.submit(queue="r")
    worker = scene.worker(queues=("q", "r"))
    held = worker.take()
    bounds(scene, 1)
    worker.settle(held, "handed_back")
    assert scene.value("SELECT count(*) FROM poolkeeper.opening") == 0


def test_bounds_wait_for_no_transaction_of_a_handler(scene: Scene) -> None:
    """Q12, Q18: the slot of what that ends is found free by the sweep."""
    scene.submit()
    worker = scene.worker()
    held = worker.take()
    own = scene.connect("submitter", autocommit=False)
    run(own, calls.succeed(held.task_id, held.token))
    scene.actor("operator").execute("SET lock_timeout = '1s'")
    scene.submit()
    bounds(scene, 1)
    assert worker.claim(1) == []
    own.commit()
    assert len(worker.claim(1, sweep=True)) == 1


def test_a_task_accepted_while_the_bounds_were_coming_is_found_by_the_sweep(scene: Scene) -> None:
    """Q12: its transaction began under a policy that kept no list of open lanes."""
    late = scene.connect("submitter", autocommit=False)
    task_id = run(late, calls.submit("q", "a.b", 1)).task_id
    bounds(scene, 3)
    late.commit()
    worker = scene.worker()
    assert [c.task_id for c in worker.claim(1, sweep=True)] == [task_id]


def test_a_suspect_takes_its_tenants_slot(scene: Scene) -> None:
    """Q12, Q27: what runs apart counts too, and waits for a slot as others do."""
    bounds(scene, 1)
    scene.submit_many(2)
    scene.submit(tenant="other")
    scene.worker().claim(2)
    scene.advance(16)
    scene.sweep()
    worker = scene.worker()
    assert len(worker.claim(5, isolated=True)) == 2
    assert running(scene) == {"default": 1, "other": 1}
    other = scene.worker()
    assert other.claim(5, isolated=True) == []
    assert [c.tenant for c in other.claim(5)] == []


def test_many_suspects_of_one_tenant_never_pass_its_bound(scene: Scene) -> None:
    """Q12, Q27: although one turn takes several."""
    bounds(scene, 4)
    scene.submit_many(8)
    scene.worker().claim(4)
    scene.advance(16)
    scene.sweep()
    bounds(scene, 2)
    assert len(scene.worker(concurrency=16).claim(16, isolated=True)) == 2


def test_a_busy_lane_is_passed_over_not_waited_for(scene: Scene) -> None:
    """Q12: another tenant's tasks are taken meanwhile; who got nothing is told to come again soon."""
    bounds(scene, 2)
    scene.submit_many(5, tenant="a")
    first = open_worker(scene)
    assert len(first.claim(1)) == 1
    conn = scene.connect("worker")
    conn.execute("SET lock_timeout = '10s'")
    second = scene.worker(conn=conn)
    answer = second.turn(want=5)
    assert answer.claimed == []
    assert answer.come_again <= seconds(0.1)
    scene.submit_many(1, tenant="b")
    assert [c.tenant for c in second.claim(5)] == ["b"]
    first.conn.commit()
    assert [c.tenant for c in second.claim(5)] == ["a"]


def test_a_policy_waits_for_claims_in_progress(scene: Scene) -> None:
    """P7: once it is applied, no claim under the old bound is still on its way."""
    bounds(scene, 5)
    scene.submit_many(4)
    first = open_worker(scene)
    first.claim(2)
    operator = scene.connect("operator")
    call = calls.apply_policy("local", "default", "default", "q", {"per_tenant_max": 1}, who="test")
    with meanwhile(lambda: run(operator, call)) as applying:
        await_blocked(scene)
        assert not applying.done()
        first.conn.commit()


def test_thousands_of_capped_tenants_cost_the_others_nothing(scene: Scene) -> None:
    """Q14: neither index entries nor a place in the bounded walk; and a claim of one slot finds the one that can run."""
    bounds(scene, 1)
    crowd = 2000
    for _ in range(2):
        scene.ask(
            "submitter",
            calls.submit_many("q", [{"type": "a.b", "payload": 1, "tenant": f"t{n}"} for n in range(crowd)]),
        )
    hog = scene.worker(concurrency=crowd)
    while hog.claim(500):
        pass
    assert scene.value("SELECT count(*) FROM poolkeeper.lease") == crowd
    scene.submit(tenant="warm")
    worker = scene.worker(conn=scene.connect("worker"))
    worker.take()
    task_id = scene.submit(tenant="late")
    with touching(scene, worker.conn) as touched:
        assert worker.take().task_id == task_id
    assert touched.scanned == set()
    assert max(max(seen[1:]) for seen in touched.by_name.values()) < 100, touched.by_name


def hammer(scene: Scene, most: dict[str, int], *, workers: int = 6, per_tenant: int = 40) -> dict[str, int]:
    """Sessions side by side until all is done; answers the most that ran of each tenant at any committed moment."""
    tasks = per_tenant * len(most)
    wishes = [{"type": "a.b", "payload": n, "tenant": tenant} for n in range(per_tenant) for tenant in most]
    scene.ask("submitter", calls.submit_many("q", wishes))
    stop, peaks, finished = Event(), Counter[str](), list[UUID]()
    limit = time.monotonic() + 120

    def watch() -> None:
        with scene.database.connect() as conn:
            while not stop.is_set():
                for tenant, count in conn.execute(
                    "SELECT t.tenant, count(*) FROM poolkeeper.lease AS l JOIN poolkeeper.task AS t ON t.id = l.task_id GROUP BY 1"
                ):
                    peaks[tenant] = max(peaks[tenant], count)

    def work(worker: Worker) -> None:
        held: list[Claimed] = []
        while len(finished) < tasks and time.monotonic() < limit:
            answer = worker.turn(settled(*held), want=1 + worker.turn_no % 5)
            finished.extend(v.task_id for v in answer.verdicts if v.code is None)
            held = answer.claimed

    crew = [scene.worker(conn=scene.connect("worker")) for _ in range(workers)]
    with ThreadPoolExecutor(workers + 1) as pool:
        watching = pool.submit(watch)
        try:
            list(pool.map(work, crew))
        finally:
            stop.set()
        watching.result()
    assert len(set(finished)) == len(finished) == tasks
    return dict(peaks)


@pytest.mark.parametrize("queue_limit", [None, 6])
def test_many_workers_at_once_never_pass_a_tenants_bound(scene: Scene, queue_limit: int | None) -> None:
    """Q12, P7: six sessions hammer turns while every committed moment is counted; all the work gets done."""
    most = {"a": 1, "b": 2, "c": 3, "d": 3}
    rules = [{"name": name, "max_running": bound} for name, bound in most.items() if bound != 3]
    scene.queue(per_tenant_max=3, tenants=rules, concurrency_max=queue_limit)
    peaks = hammer(scene, most)
    assert all(1 <= peaks[name] <= bound for name, bound in most.items()), peaks


@pytest.mark.parametrize("guarded", [True, False])
def test_without_the_lock_a_bound_is_passed(scene: Scene, guarded: bool) -> None:
    """P7: the control of the test above: two claims at once, the first of them not committed when the second counts."""
    bounds(scene, 1)
    scene.submit_many(4)
    function = "poolkeeper.take_lanes(integer, bigint[], integer)"
    hole: Any = nullcontext() if guarded else scene.without(function, "FOR NO KEY UPDATE SKIP LOCKED", "")
    with hole:
        scene.worker().turn(settled(scene.worker().take()), want=0)  # the lane's limiter is there
        first, second = open_worker(scene), open_worker(scene)
        got = len(first.claim(1)) + len(second.claim(1))
        first.conn.commit()
        second.conn.commit()
    assert got == (1 if guarded else 2)
