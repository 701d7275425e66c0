"""Pauses of a part of a queue: a tenant, a type of task (Q7, Q12, Q16, Q27)."""

from collections.abc import Sequence

import pytest

from poolkeeper.codes import Code
from poolkeeper.store import calls, run
from poolkeeper.store.rows import HeldBack
from store.scene import Scene, seconds
from store.test_stats import queue_of


def stop(scene: Scene, *, tenants: Sequence[str] = (), types: Sequence[str] = ()) -> None:
    """Suspend these tenants and pause these types in the queue `q`, and no others."""
    scene.queue(suspended_tenants=list(tenants), paused_task_types=list(types))


@pytest.mark.parametrize("what", ["tenant", "type"])
def test_what_runs_may_end_and_what_waits_goes_on_when_the_pause_ends(scene: Scene, what: str) -> None:
    """Q12: a pause stops claims, not work; its end is a reason to look."""
    scene.submit_many(3, tenant="t")
    scene.submit("c.d", tenant="other")
    worker = scene.worker(types=["a.b", "c.d"])
    held = [c for c in worker.claim(2) if c.tenant == "t"]
    stop(scene, tenants=["t"] if what == "tenant" else [], types=["a.b"] if what == "type" else [])
    assert all(c.tenant == "other" for c in worker.claim(10))
    assert worker.succeed(held[0]).code is None
    assert worker.claim(10) == []
    stop(scene)
    assert len(worker.claim(10)) == 3 - len(held)


def test_a_suspended_tenant_is_refused_and_others_of_the_same_call_are_not(scene: Scene) -> None:
    """Q7: the refusal is data, with a code, and when to come again; a key that was accepted before finds its task."""
    first = scene.submit(tenant="t", key="k")
    stop(scene, tenants=["t"])
    wishes = [{"type": "a.b", "payload": 1, "tenant": name} for name in ("t", "u")]
    refused, accepted = scene.ask("submitter", calls.submit_many("q", wishes))
    assert (refused.code, refused.retry_after, accepted.code) == (Code.TENANT_SUSPENDED, seconds(5), None)
    again = scene.verdict(tenant="t", key="k")
    assert (again.code, again.task_id) == (None, first)


@pytest.mark.parametrize("what", ["tenant", "type"])
def test_a_start_of_what_was_stopped_meanwhile_is_refused_and_costs_nothing(scene: Scene, what: str) -> None:
    """Q16: of what was claimed ahead; others of the same turn start."""
    stopped, other = scene.submit("c.d", tenant="t"), scene.submit()
    worker = scene.worker(types=["a.b", "c.d"])
    ahead = run(worker.conn, calls.turn(worker.session, 1, 0, [], 2, slots=0)).claimed
    stop(scene, tenants=["t"] if what == "tenant" else [], types=["c.d"] if what == "type" else [])
    answer = run(worker.conn, calls.turn(worker.session, 2, 1, [], 0, starts=ahead))
    assert answer.refused == {stopped: "tenant_suspended" if what == "tenant" else "queue_paused"}
    assert (scene.state(stopped), scene.counters(stopped)["spent"], scene.state(other)) == ("ready", 0, "running")


@pytest.mark.parametrize("what", ["tenant", "type"])
def test_suspects_wait_as_others_do_and_make_nobody_stop(scene: Scene, what: str) -> None:
    """Q12, Q27: no worker makes room for one that may not run."""
    scene.submit("c.d", tenant="t")
    scene.worker(types=["a.b", "c.d"]).take()
    scene.advance(16)
    scene.sweep()
    stop(scene, tenants=["t"] if what == "tenant" else [], types=["c.d"] if what == "type" else [])
    scene.submit()
    worker = scene.worker(types=["a.b", "c.d"])
    answer = worker.turn(want=1)
    assert (len(answer.claimed), answer.isolate) == (1, False)
    assert worker.claim(1, isolated=True) == []
    stats = queue_of(scene)
    assert (stats.suspects, stats.held_back.total) == (0, 1)
    stop(scene)
    assert len(scene.worker(types=["c.d"]).claim(1, isolated=True)) == 1


def test_what_is_held_back_is_counted_and_looks_like_no_work(scene: Scene) -> None:
    """O10, O12: by its reason; it makes nothing old, and asks for no pods."""
    for tenant in ("capped", "stopped"):
        scene.submit_many(4, tenant=tenant)
    scene.submit_many(2, type="c.d")
    scene.advance(60)
    scene.queue(
        tenants=[{"name": "capped", "max_running": 3}], suspended_tenants=["stopped"], paused_task_types=["c.d"]
    )
    assert [c.tenant for c in scene.worker().claim(1)] == ["capped"]
    stats = queue_of(scene)
    assert (stats.ready, stats.held_back) == (9, HeldBack(tenant_limit=1, tenant_suspended=4, type_paused=2))
    assert {t.type: t.ready for t in stats.types} == {"a.b": 2, "c.d": 0}
    assert stats.oldest_runnable is not None
    assert stats.oldest_runnable >= seconds(60)
    assert len(scene.worker().claim(5)) == 2
    stats = queue_of(scene)
    assert (stats.held_back.tenant_limit, stats.oldest_runnable) == (1, None)
