"""Tenants get their turns by weight, and nobody waits for more than one round (Q13, contract 22, P6)."""

from collections import Counter
from itertools import pairwise

import pytest

from poolkeeper.store import Settle
from store.scene import Scene

WEIGHTS = {"gold": 5, "silver": 2, "iron": 1, "tin": 1}
ROUND = sum(WEIGHTS.values())


def weigh(scene: Scene, *, bounded: bool) -> None:
    """Weights for the queue `q`; `bounded`: with bounds for tenants as well, which nobody reaches."""
    rules = [{"name": name, "weight": weight} for name, weight in WEIGHTS.items()]
    scene.queue(tenants=rules, per_tenant_max=10_000 if bounded else None)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("want", [1, 2, 4, 9, 10, 36])
def test_shares_follow_the_weights_whatever_is_asked_for_at_once(scene: Scene, want: int, bounded: bool) -> None:
    """Q13: to the task, over whole rounds; also with one free slot at a time."""
    weigh(scene, bounded=bounded)
    for tenant in WEIGHTS:
        scene.submit_many(300, tenant=tenant)
    worker = scene.worker(concurrency=100)
    rounds = 20
    got = Counter[str]()
    for _ in range(ROUND * rounds // want):
        held = worker.claim(want)
        assert len(held) == want
        got.update(c.tenant for c in held)
        worker.turn([Settle(c.task_id, c.token, "succeeded") for c in held])
    claims = sum(got.values())
    for tenant, weight in WEIGHTS.items():
        assert abs(got[tenant] - claims * weight / ROUND) <= weight, (want, got)


@pytest.mark.parametrize("bounded", [False, True])
def test_the_lightest_waits_for_one_round(scene: Scene, bounded: bool) -> None:
    """Q13: no weight starves anybody."""
    weigh(scene, bounded=bounded)
    for tenant in WEIGHTS:
        scene.submit_many(60, tenant=tenant)
    worker = scene.worker()
    seen = [worker.take().tenant for _ in range(4 * ROUND)]
    for tenant in WEIGHTS:
        places = [n for n, name in enumerate(seen) if name == tenant]
        assert max(b - a for a, b in pairwise(places)) <= ROUND


def test_what_a_heavy_tenant_does_not_use_goes_to_the_others(scene: Scene) -> None:
    """Q13: weights divide what is there to do, they keep nothing free."""
    weigh(scene, bounded=False)
    scene.submit_many(3, tenant="gold")
    scene.submit_many(50, tenant="iron")
    assert Counter(c.tenant for c in scene.worker(concurrency=100).claim(40)) == {"gold": 3, "iron": 37}


def test_rests_are_shared_out_evenly(scene: Scene) -> None:
    """Q13: more slots than tenants, and not a multiple of them: each one gets the odd one in its turn."""
    for tenant in "abc":
        scene.submit_many(200, tenant=tenant)
    worker = scene.worker()
    got = Counter[str]()
    for _ in range(30):
        held = worker.claim(4)
        got.update(c.tenant for c in held)
        worker.turn([Settle(c.task_id, c.token, "succeeded") for c in held])
    assert max(got.values()) - min(got.values()) <= 1, got


def test_several_sessions_share_by_weight_too(scene: Scene) -> None:
    """Q13: each by itself, so all together; also those that just began."""
    weigh(scene, bounded=False)
    for tenant in WEIGHTS:
        scene.submit_many(200, tenant=tenant)
    workers = [scene.worker() for _ in range(3)]
    got = Counter(worker.take().tenant for _ in range(2 * ROUND) for worker in workers)
    assert got == {tenant: 6 * weight for tenant, weight in WEIGHTS.items()}
