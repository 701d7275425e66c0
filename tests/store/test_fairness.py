"""Tenants take turns: lanes first, equal weights (Q13 at its simplest, contract 22, P6)."""

from collections import Counter
from typing import Any

import pytest

from poolkeeper.store import calls
from store.scene import Scene

HOG = 3000


@pytest.fixture
def crowd(scene: Scene) -> Scene:
    """One tenant with thousands of tasks, then twenty with two each."""
    scene.submit_many(HOG, tenant="hog")
    for n in range(20):
        scene.submit_many(2, tenant=f"small{n}")
    return scene


def test_each_small_tenant_is_served_in_the_first_rounds(crowd: Scene) -> None:
    """Q13: a hog that came first delays nobody by more than one round over the lanes."""
    worker = crowd.worker()
    first = [c.tenant for _ in range(21) for c in worker.claim(1)]
    assert len(set(first)) == 21
    second = Counter(c.tenant for _ in range(21) for c in worker.claim(1))
    assert all(second[f"small{n}"] == 1 for n in range(20))


def test_a_wide_claim_is_shared_out_evenly(crowd: Scene) -> None:
    """Q13: one turn for many slots gives every lane its share and the rest to whoever has work."""
    got = Counter(c.tenant for c in crowd.worker(concurrency=100).claim(100))
    assert all(got[f"small{n}"] == 2 for n in range(20))
    assert got["hog"] == 60


def test_more_lanes_than_asked_for_are_all_reached(crowd: Scene) -> None:
    """Q13: the session's cursor goes on over the turns; nobody is starved, the first lane of the index or the last."""
    worker = crowd.worker()
    got = [c.tenant for _ in range(11) for c in worker.claim(4)]
    counts = Counter(got)
    assert len(counts) == 21
    assert all(counts[f"small{n}"] == 2 for n in range(20))


def test_lanes_of_several_kinds_count_once(scene: Scene) -> None:
    """Q13: a tenant gets no larger share for using many types and priorities."""
    kinds = [(t, p) for t in ("a.b", "c.d") for p in range(5)]
    scene.ask(
        "submitter",
        calls.submit_many(
            "q", [{"type": t, "payload": 1, "priority": p, "tenant": "many"} for t, p in kinds for _ in range(20)]
        ),
    )
    for n in range(9):
        scene.submit_many(20, tenant=f"plain{n}")
    worker = scene.worker(types=["a.b", "c.d"])
    got = Counter(c.tenant for _ in range(10) for c in worker.claim(5))
    assert max(got.values()) - min(got.values()) <= 1


def test_one_session_after_another_serves_the_small_ones(crowd: Scene) -> None:
    """Q13: sessions do not share a cursor; each one's first turns still serve many lanes."""
    for _ in range(2):
        worker = crowd.worker()
        assert len({c.tenant for _ in range(4) for c in worker.claim(2)}) == 8


def test_a_lane_that_comes_later_waits_one_round_at_most(crowd: Scene) -> None:
    """Q13: whatever the cursor says when it arrives."""
    worker = crowd.worker()
    for _ in range(7):
        worker.claim(3)
    late = crowd.submit(tenant="late")
    assert late in {c.task_id for _ in range(8) for c in worker.claim(3)}


@pytest.mark.parametrize(
    "at", [["x", 1], [1e30, 1], [10**19, 1], [-(10**19), 1], [1, "x"], [1, -1], [1], {}, "x", None]
)
def test_a_cursor_that_no_turn_has_told_begins_anew(scene: Scene, at: Any) -> None:
    """Q13, contract 9: what a worker sends back is not believed."""
    worker = scene.worker()
    scene.submit()
    worker.session.cursor[str(scene.value("SELECT id FROM poolkeeper.queue"))] = at
    assert worker.take()
