"""A session that takes some tenants' tasks only: offered no others, at no cost, and told so (Q11, Q51)."""

from typing import Any

import pytest

from poolkeeper.store import calls, run
from poolkeeper.store.rows import QueueStats
from store.scene import Scene, Worker
from store.test_plans import touching
from store.test_stats import queue_of


def register(scene: Scene, *types: str, pool: str = "local/p", **tenants: Any) -> Worker:
    """A session that asks for some tenants."""
    call = calls.register_session(pool, ["q"], types or ("a.b",), concurrency=50, info={"build": "b1"}, **tenants)
    conn = scene.actor("worker")
    return Worker(conn, run(conn, call))


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize(
    ("login", "asked", "offered"),
    [
        ({}, {}, "abc"),
        ({"tenants": ["a", "b"]}, {}, "ab"),
        ({"tenants_except": ["a"]}, {}, "bc"),
        ({"tenants": ["a", "b"], "tenants_except": ["b"]}, {}, "a"),
        ({"tenants": []}, {}, ""),
        ({}, {"tenants": ["c"]}, "c"),
        ({}, {"tenants_except": ["c"]}, "ab"),
        ({"tenants": ["a", "b"]}, {"tenants": ["b", "c"]}, "b"),
        ({"tenants": ["a"]}, {"tenants": ["c"]}, ""),
        ({"tenants_except": ["a"]}, {"tenants_except": ["b"]}, "c"),
        ({"tenants": ["a", "b"]}, {"tenants_except": ["a"]}, "b"),
    ],
)
def test_only_its_tenants_tasks_are_offered(
    scene: Scene, login: dict[str, Any], asked: dict[str, Any], offered: str, bounded: bool
) -> None:
    """Q11, Q51: what the login may see, narrowed by what the process asks for; apart or not."""
    if bounded:
        scene.queue(per_tenant_max=2)
    for tenant in "abc":
        scene.submit_many(2, tenant=tenant)
    scene.worker()
    scene.allow(scene.database.login("worker"), **login)
    worker = register(scene, **asked)
    held = [c for _ in range(4) for c in worker.claim(2)]
    assert sorted(c.tenant for c in held) == sorted(offered * 2)
    assert worker.claim(5) == []
    scene.allow(scene.database.login("worker"))
    other = register(scene)
    other.claim(20)
    scene.advance(16)
    scene.sweep()
    scene.allow(scene.database.login("worker"), **login)
    again = register(scene, **asked)
    assert again.turn(want=1).isolate is bool(offered)
    apart = [c for _ in range(6) for c in again.claim(30, isolated=True)]
    assert {c.tenant for c in apart} == set(offered)


@pytest.mark.parametrize(
    ("limits", "offered"),
    [
        ({"tenants": ["a", "c"]}, "ac"),
        ({"tenants_except": ["a"]}, "bc"),
        ({"tenants": []}, ""),
        ({"queues": ["default/other"]}, ""),
        ({"queues": ["default/q"]}, "abc"),
        ({"pool": "local/other"}, ""),
        ({"pool": "local/p"}, "abc"),
    ],
    ids=str,
)
@pytest.mark.parametrize("asked", [{}, {"tenants": ["a", "b", "c"]}, {"tenants_except": ["d"]}], ids=str)
def test_a_login_that_is_limited_later_takes_its_sessions_along(
    scene: Scene, limits: dict[str, Any], offered: str, asked: dict[str, Any]
) -> None:
    """Q51: from its next turn on; what it holds it may renew, start and settle; widened again, the session is offered all it had."""
    for tenant in "abc":
        scene.submit_many(3, tenant=tenant)
    scene.worker()
    worker = register(scene, **asked)
    held = worker.claim(3)
    scene.allow(scene.database.login("worker"), **limits)
    more = [c for _ in range(3) for c in worker.claim(2)]
    assert {c.tenant for c in more} == set(offered)
    worker.renew(*[c.task_id for c in held])
    assert [worker.settle(c, "succeeded").code for c in held] == [None] * 3
    scene.allow(scene.database.login("worker"))
    rest = [c for _ in range(9) for c in worker.claim(2)]
    assert len({c.task_id for c in held + more + rest}) == 9


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("how", [{"tenants": ["mine"]}, {"tenants_except": ["hog"]}])
def test_tasks_of_other_tenants_cost_no_scan(scene: Scene, how: dict[str, Any], bounded: bool) -> None:
    """Q11, Q14: thousands of another tenant's, of many kinds; and its own are found among thousands of lanes."""
    if bounded:
        scene.queue(per_tenant_max=5000)
    wishes = [{"type": f"x.t{n % 40}", "payload": 1, "priority": n % 10, "tenant": "hog"} for n in range(4000)]
    if "tenants" in how:
        wishes += [{"type": "a.b", "payload": 1, "tenant": f"t{n}"} for n in range(1500)]
    scene.ask("submitter", calls.submit_many("q", wishes))
    worker = register(scene, "a.b", *[f"x.t{n}" for n in range(40)], **how)
    scene.submit(tenant="mine")
    worker.take()
    task_id = scene.submit(tenant="mine")
    with touching(scene, worker.conn) as touched:
        assert worker.take().task_id == task_id
    assert touched.scanned == set()
    assert max(max(seen[1:]) for seen in touched.by_name.values()) < 100, touched.by_name


def kinds(stats: QueueStats) -> dict[tuple[str, str | None], tuple[int, bool, bool]]:
    return {(t.type, t.tenant): (t.ready, t.live, t.known) for t in stats.types}


def test_tasks_of_tenants_that_nobody_takes_have_no_capable_worker(scene: Scene) -> None:
    """Q11: told in the figures, by tenant, and in the task's view; remembered when the session has gone."""
    nobody, mine = scene.submit(tenant="b"), scene.submit(tenant="a")
    scene.submit(tenant="c")
    worker = register(scene, tenants=["a"])
    stats = queue_of(scene)
    assert (stats.ready, stats.no_capable_worker) == (3, 2)
    assert kinds(stats) == {("a.b", "a"): (1, True, True), ("a.b", None): (2, False, False)}
    views = [scene.ask("reader", calls.task(task)) for task in (nobody, mine)]
    assert [view.reason for view in views if view] == ["no_capable_worker", None]
    worker.end()
    assert queue_of(scene).no_capable_worker == 2
    register(scene, pool="local/rest", tenants_except=["a", "c"])
    stats = queue_of(scene)
    assert stats.no_capable_worker == 1
    assert kinds(stats)[("a.b", None)] == (1, True, True)
    register(scene, pool="local/all")
    assert queue_of(scene).no_capable_worker == 0
