"""A policy that begins to bound tenants and the upkeep of lanes and keys wait for nobody, and come back to what they passed over (Q5, Q12, Q14, Q52)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fixtures.neighbours import PLAIN, Crowd
from poolkeeper.store import calls
from store.scene import Scene
from store.test_neighbours_locks import SHORT

LANES = (
    "INSERT INTO poolkeeper.opening (queue_id, lane) SELECT q.id, l FROM poolkeeper.queue AS q, generate_series(1, 3) AS l WHERE NOT q.lanes_kept;"
    "INSERT INTO poolkeeper.lane SELECT q.id, l FROM poolkeeper.queue AS q, generate_series(1, 3) AS l"
)


@contextmanager
def held(scene: Scene, table: str) -> Iterator[None]:
    """Somebody holds every row of a table, and the operator does not wait."""
    scene.actor("operator").execute("SET lock_timeout = '2s'")
    with scene.connect("owner", autocommit=False) as other:
        other.execute(f"SELECT 1 FROM poolkeeper.{table} FOR UPDATE")
        yield
        other.rollback()


def test_a_policy_that_bounds_tenants_waits_for_no_lease(crowd: Crowd) -> None:
    """Q12, Q18: what a handler's own transaction holds ends all the same, and gives its lane back."""
    one = crowd.take(crowd.worker, PLAIN)
    with held(crowd.scene, "lease"), crowd.untouched() as own:
        own.whole.add(crowd.queue_ids[PLAIN])
        crowd.scene.queue(PLAIN, per_tenant_max=20)
    assert crowd.worker.succeed(one).code is None
    crowd.submit(PLAIN)
    assert crowd.worker.claim(100)


@pytest.mark.parametrize("table", ["opening", "lane"])
def test_the_upkeep_of_lanes_waits_for_nobody(crowd: Crowd, table: str) -> None:
    """Q14: it forgets what nobody holds, and the rest the next time."""
    scene = crowd.scene
    scene.owner.execute(LANES)
    idle = f"SELECT queue_id, lane FROM poolkeeper.{table} WHERE lane BETWEEN 1 AND 3"
    there = set(scene.rows(idle))
    with held(scene, table):
        for _ in range(20):  # it begins each time at another lane
            scene.ask("operator", calls.maintain())
        assert set(scene.rows(idle)) == there
    for _ in range(200):
        scene.ask("operator", calls.maintain())
        if not scene.rows(idle):
            break
    assert scene.rows(idle) == []


def test_the_upkeep_of_keys_waits_for_nobody(scene: Scene) -> None:
    """Q52: a key that a submit holds goes the next time."""
    scene.queue("q", **{**SHORT, "retention_keys_seconds": 5000})
    scene.submit(key="k")
    worker = scene.worker()
    worker.succeed(worker.take())
    scene.advance(400)
    upkeep = scene.ask("operator", calls.maintain())
    assert (upkeep.tasks, upkeep.keys) == (1, 0)
    scene.advance(5000)
    with held(scene, "task_key"):
        assert scene.ask("operator", calls.maintain()).keys == 0
    scene.advance(400)
    assert scene.ask("operator", calls.maintain()).keys == 1
