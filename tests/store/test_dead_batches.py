"""Dead letters as numbered batches: a number belongs to one batch for ever, and each dead letter to one batch (O24)."""

from typing import Any
from uuid import UUID

from poolkeeper.store import Settle, calls
from store.scene import Scene


def kill(scene: Scene, count: int, **wishes: Any) -> list[UUID]:
    ids = scene.submit_many(count, **wishes)
    worker = scene.worker(concurrency=count)
    dead = [Settle(d.task_id, d.token, "dead", error_class="E", error="gone") for d in worker.claim(count)]
    worker.turn(dead)
    return ids


def test_a_number_is_not_given_twice_even_if_its_batch_was_requeued_away(scene: Scene) -> None:
    """Its Event may have been posted before the operator was killed; the next batch would be taken for told."""
    queue_id = scene.queue()
    (task_id,) = kill(scene, 1)
    first = scene.ask("operator", calls.dead_batch(queue_id))
    assert first is not None
    scene.ask("person", calls.requeue(task_id, who="ann", why="x"))
    scene.worker().take()
    kill(scene, 1)
    second = scene.ask("operator", calls.dead_batch(queue_id))
    assert second is not None
    assert second.number == first.number + 1
    assert scene.ask("operator", calls.dead_batch_announced(queue_id, first.number)) is False
    assert scene.ask("operator", calls.dead_batch_announced(queue_id, second.number)) is True


def test_what_is_left_of_a_batch_keeps_its_number(scene: Scene) -> None:
    queue_id = scene.queue()
    ids = kill(scene, 3)
    first = scene.ask("operator", calls.dead_batch(queue_id))
    scene.ask("person", calls.requeue(ids[0], who="ann", why="x"))
    again = scene.ask("operator", calls.dead_batch(queue_id))
    assert first is not None
    assert again is not None
    assert (again.number, again.count) == (first.number, 2)


def test_the_reading_says_whether_there_is_something_to_announce(scene: Scene) -> None:
    """So an idle operator asks nothing, also after a restart."""
    queue_id = scene.queue()

    def unannounced() -> bool:
        (found,) = scene.ask("operator", calls.stats(cluster="local")).queues
        return found.dead_unannounced

    assert not unannounced()
    kill(scene, 2)
    assert unannounced()
    batch = scene.ask("operator", calls.dead_batch(queue_id))
    assert batch is not None
    assert unannounced()
    scene.ask("operator", calls.dead_batch_announced(queue_id, batch.number))
    assert not unannounced()


def test_a_flood_becomes_batches_whose_totals_are_right(scene: Scene) -> None:
    """C40: 50 tenants; no dead letter is in two batches or in none."""
    queue_id = scene.queue()
    for n in range(50):
        kill(scene, 4, tenant=f"t{n}")
    bound = "LIMIT 50000"
    counts, tenants = [], []
    with scene.without("poolkeeper.dead_batch(integer, uuid)", bound, "LIMIT 80"):
        while batch := scene.ask("operator", calls.dead_batch(queue_id)):
            counts.append(batch.count)
            tenants.append(batch.tenants)
            scene.ask("operator", calls.dead_batch_announced(queue_id, batch.number))
    assert counts == [80, 80, 40]
    assert tenants == [20, 20, 10]


def test_the_first_is_told_with_reason_class_and_error(scene: Scene) -> None:
    queue_id = scene.queue()
    kill(scene, 2)
    batch = scene.ask("operator", calls.dead_batch(queue_id))
    assert batch is not None
    assert (batch.first_reason, batch.first_error_class, batch.first_error) == ("permanent_error", "E", "gone")
