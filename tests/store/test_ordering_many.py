"""Many ordering keys beside each other, beside tasks without one, and beside the bounds of tenants and queues (Q7, Q9, Q12, Q14)."""

from typing import Any

import pytest

from poolkeeper.store import Settle, calls
from store.scene import Scene, seconds
from store.test_ordering import chain


def test_a_blocked_key_is_in_nobodys_way(scene: Scene) -> None:
    """Q14: 2,000 tasks behind one key; the others of the same lane are claimed as if they were not there."""
    scene.submit_many(2000, ordering_key="k")
    worker = scene.worker(concurrency=200)
    (head,) = worker.claim(1)
    plain = scene.submit_many(20)
    keyed = [scene.submit(ordering_key=f"other {n}") for n in range(20)]
    assert sorted(c.task_id for c in worker.claim(100)) == sorted(plain + keyed)
    worker.succeed(head)
    assert len(worker.claim(100)) == 1


def test_a_thousand_keys_go_side_by_side(scene: Scene) -> None:
    """Q9, Q12: a page lets many through at once; three of each, in order."""
    tasks = [{"type": "a.b", "payload": n, "ordering_key": f"k{n % 1000}"} for n in range(3000)]
    scene.ask("submitter", calls.submit_many("q", tasks))
    worker = scene.worker(concurrency=1000)
    orders: dict[int, list[int]] = {}
    turns, settles = 0, list[Settle]()
    while sum(map(len, orders.values())) < 3000:
        turns += 1
        assert turns < 100
        claimed = worker.turn(settles, want=1000).claimed
        for one in claimed:
            orders.setdefault(one.payload % 1000, []).append(one.payload)
        settles = [Settle(c.task_id, c.token, "succeeded") for c in claimed]
    worker.turn(settles)
    assert orders == {n: [n, n + 1000, n + 2000] for n in range(1000)}
    assert turns <= 6


def test_a_page_of_the_gate_is_bounded_and_the_rest_follows(scene: Scene) -> None:
    """Q22: a turn lets at most a page through, and says that it would come again at once."""
    tasks = [{"type": "a.b", "payload": n, "ordering_key": f"k{n}"} for n in range(250)]
    scene.ask("submitter", calls.submit_many("q", tasks))
    answer = scene.worker().turn(want=1)
    assert (len(answer.claimed), answer.come_again) == (1, seconds(0.01))
    assert scene.value("SELECT count(*) FROM poolkeeper.ready") == 99


def test_keys_and_bounds_of_tenants_hold_together(scene: Scene) -> None:
    """Q12: the lane opens with what is let through, by a turn, a sweep or a requeue."""
    scene.queue(per_tenant_max=2)
    ids = [*chain(scene, 2, "a"), *chain(scene, 2, "b"), *chain(scene, 2, "c")]
    worker = scene.worker()
    first, second = worker.claim(10)
    assert [first.task_id, second.task_id] == [ids[0], ids[2]]
    (third,) = worker.turn([Settle(first.task_id, first.token, "succeeded")], want=10).claimed
    assert third.task_id == ids[4]
    worker.turn([Settle(c.task_id, c.token, "dead") for c in (second, third)])
    (fourth,) = worker.claim(10)
    assert fourth.task_id == ids[1]
    worker.succeed(fourth)
    assert worker.claim(10) == []
    for letter in (second, third):
        scene.ask("person", calls.requeue(letter.task_id, who="ann", why="mended"))
    assert [c.task_id for c in worker.claim(10)] == [ids[2], ids[4]]


@pytest.mark.parametrize("bound", [{"max_waiting": 3}, {"max_waiting_per_tenant": 3}])
def test_what_waits_behind_a_key_counts_as_waiting(scene: Scene, bound: dict[str, Any]) -> None:
    """Q7: a key is no way around the bounds of admission."""
    scene.queue(**bound)
    chain(scene, 3)
    assert scene.verdict().code in {"queue_limit", "tenant_queue_limit"}
    worker = scene.worker()
    worker.take()
    assert scene.verdict().code is None
    assert scene.verdict().code in {"queue_limit", "tenant_queue_limit"}


@pytest.mark.parametrize("place", ["ready", "scheduled", "waiting", "suspect", "leased", "running"])
def test_whoever_looks_at_a_key_that_is_taken_lets_nobody_through(scene: Scene, place: str) -> None:
    """Q9: each submit makes somebody look; wherever the head is, the next stays held back."""
    head = scene.submit(ordering_key="k")
    scene.sweep()
    worker = scene.worker()
    if place == "leased":
        worker.turn(want=1, slots=0)
    elif place != "ready":
        delivery = worker.take()
        if place == "suspect":
            scene.advance(16)
            scene.sweep()
        elif place != "running":
            worker.settle(delivery, "failed" if place == "scheduled" else "snoozed", retry_after=seconds(60))
    behind = scene.submit(ordering_key="k")
    scene.sweep()
    view = scene.ask("reader", calls.task(behind))
    assert view is not None
    assert (view.state, view.reason) == ("ready", "ordering")
    assert scene.value("SELECT count(*) FROM poolkeeper.gate_due") == 0, "somebody has looked"
    assert scene.state(head) == ("ready" if place == "suspect" else place)
