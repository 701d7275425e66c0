"""Stages for retention: policies by what they keep, ended tasks, dead letters, and the whole of an upkeep."""

from typing import Any
from uuid import UUID

from poolkeeper.policy import read_policy
from poolkeeper.store import calls
from poolkeeper.store.tending import Upkeep
from store.scene import Scene, Worker

HOUR = 3600
DAY = 24 * HOUR
OF_A_TASK = ("task", "delivery", "event", "checkpoint", "retention_note", "expiry")


def keep(scene: Scene, queue: str = "q", **retention: str) -> None:
    """Apply a policy that differs by this retention only, as a user writes it."""
    stored = read_policy({"retention": retention}, what="q").to_store()
    assert scene.ask("operator", calls.apply_policy("local", "default", "default", queue, stored, who="t")).code is None


def upkeep(scene: Scene, most: int = 1000) -> Upkeep:
    """All pages that there are; the sum of what they removed."""
    total: dict[str, int] = {}
    for _ in range(200):
        page = scene.ask("operator", calls.maintain(most))
        assert page.tasks <= most
        total = {name: total.get(name, 0) + value for name, value in vars(page).items()}
        if not page.more:
            return Upkeep(**{name: count for name, count in total.items() if name != "more"}, more=False)
    raise AssertionError("it does not end")


def done(scene: Scene, worker: Worker, **wishes: Any) -> UUID:
    """A task that has succeeded, with a result."""
    task_id = scene.submit(**wishes)
    assert worker.succeed(worker.take(), {"answer": 42}).code is None
    return task_id


def dead(scene: Scene, worker: Worker, **wishes: Any) -> UUID:
    """A dead letter with a checkpoint."""
    task_id = scene.submit(**wishes)
    delivery = worker.take()
    scene.ask("worker", calls.checkpoint(task_id, delivery.token, {"step": 3}, sequence=1))
    worker.settle(delivery, "dead", error_class="E", error="gone")
    return task_id


def rows_of(scene: Scene, task_id: UUID) -> dict[str, int]:
    """In which tables something of a task is left."""
    column = {"task": "id"}
    found = {
        table: scene.value(
            f"SELECT count(*) FROM poolkeeper.{table} WHERE {column.get(table, 'task_id')} = %s", task_id
        )
        for table in (*OF_A_TASK, "ready", "later", "suspect", "lease", "dead", "task_key")
    }
    return {table: count for table, count in found.items() if count}
