"""Removing a queue with all that is its own (O9), and taking over another's (contract 11)."""

from typing import Any
from uuid import UUID

import pytest

from poolkeeper.errors import Forbidden
from poolkeeper.store import calls
from store.scene import Scene, Worker, await_blocked, meanwhile
from store.test_slots import put

OWNER = ("local", "default", "default")
HOLD = (
    "task",
    "ready",
    "ordered",
    "gate_due",
    "later",
    "suspect",
    "lease",
    "dead",
    "delivery",
    "event",
    "checkpoint",
    "task_key",
)


def purge(scene: Scene, name: str = "q", most: int = 3, owner: tuple[str, str, str] = OWNER) -> int:
    """All pages; answers how many calls it took."""
    cursor: dict[str, Any] | None = None
    for count in range(1, 1000):
        page = scene.ask("operator", calls.purge(*owner, name, who="test", cursor=cursor, most=most))
        assert page.code is None
        assert page.removed <= most
        cursor = page.cursor
        if cursor is None:
            return count
    raise AssertionError("it does not end")


def rows(scene: Scene, queue_id: int) -> dict[str, int]:
    """What there is of a queue, in every table that has something of queues or their tasks."""
    found = {
        table: scene.value(f"SELECT count(*) FROM poolkeeper.{table} WHERE queue_id = %s", queue_id)
        for table in (*HOLD, "policy", "queue_count", "backlog", "backlog_lane", "gate", "schedule")
        if table != "checkpoint"
    }
    found["checkpoint"] = scene.value(
        "SELECT count(*) FROM poolkeeper.checkpoint AS c LEFT JOIN poolkeeper.task AS t ON t.id = c.task_id"
        " WHERE t.queue_id = %s OR t.id IS NULL",
        queue_id,
    )
    return {table: count for table, count in found.items() if count}


def one_of_each(scene: Scene, queue: str) -> tuple[Worker, dict[str, UUID]]:
    """A task in every state, with checkpoints, keys and a history."""
    worker = scene.worker(queues=[queue], concurrency=20)
    made = {"succeeded": scene.submit(queue=queue, key="s"), "dead": scene.submit(queue=queue, key="d", tenant="acme")}
    by_id = {delivery.task_id: delivery for delivery in worker.claim(10)}
    scene.ask("worker", calls.checkpoint(made["dead"], by_id[made["dead"]].token, {"step": 1}, sequence=1))
    worker.succeed(by_id[made["succeeded"]])
    worker.settle(by_id[made["dead"]], "dead", error_class="E", error="gone")
    made["running"] = scene.submit(queue=queue, key="r")
    (running,) = worker.claim(10)
    scene.ask("worker", calls.checkpoint(made["running"], running.token, {"step": 1}, sequence=1))
    made["scheduled"] = scene.submit(queue=queue, delay=3600)
    made["ready"] = scene.submit(queue=queue, key="x")
    scene.submit(queue=queue, ordering_key="k")  # ready too, behind its key
    put(scene, queue=queue)
    canceled = scene.submit(queue=queue)
    scene.ask("person", calls.cancel(canceled, who="ann", why="x"))
    return worker, {**made, "canceled": canceled}


class TestPurge:
    """Everything of the queue goes, nothing of another."""

    def test_everything_of_the_queue_goes_and_nothing_of_its_neighbours(self, scene: Scene) -> None:
        mine, theirs = scene.queue("mine"), scene.queue("theirs")
        one_of_each(scene, "mine")
        _, kept = one_of_each(scene, "theirs")
        before = rows(scene, theirs)
        assert (
            set(rows(scene, mine)) == set(before) >= {"task", "ready", "later", "lease", "dead", "delivery", "task_key"}
        )
        assert purge(scene, "mine") > 4  # pages of three
        assert rows(scene, mine) == {}
        assert rows(scene, theirs) == before
        assert {state: scene.state(task_id) for state, task_id in kept.items()} == {s: s for s in kept}
        assert scene.verdict(queue="mine").code == "unknown_queue"

    def test_suspects_go_as_well(self, scene: Scene) -> None:
        queue_id = scene.queue()
        scene.submit()
        scene.worker().take()
        scene.advance(60)
        scene.sweep()
        assert rows(scene, queue_id)["suspect"] == 1
        purge(scene)
        assert rows(scene, queue_id) == {}

    def test_it_pauses_before_it_removes(self, scene: Scene) -> None:
        """Between the pages nothing is accepted or claimed."""
        scene.queue()
        scene.submit()
        first = scene.ask("operator", calls.purge(*OWNER, "q", who="test"))
        assert (first.removed, first.cursor is None) == (0, False)
        assert scene.verdict().code == "queue_paused"
        assert scene.worker().claim() == []

    def test_a_policy_applied_again_after_a_purge_that_was_given_up_ends_the_pause(self, scene: Scene) -> None:
        """The way out: what is left is in force again as its policy says."""
        scene.queue()
        scene.submit()
        scene.ask("operator", calls.purge(*OWNER, "q", who="test"))
        scene.queue()
        assert len(scene.worker().claim()) == 1

    def test_a_queue_of_another_owner_is_never_touched(self, scene: Scene) -> None:
        queue_id = scene.queue()
        scene.submit()
        before = rows(scene, queue_id)
        for owner in (("other", "default", "default"), ("local", "new-namespace", "default")):
            page = scene.ask("operator", calls.purge(*owner, "q", who="test"))
            assert (page.code, page.removed, page.cursor) == ("queue_owned", 0, None)
        assert rows(scene, queue_id) == before
        assert scene.verdict().code is None

    def test_what_is_not_there_is_purged(self, scene: Scene) -> None:
        assert purge(scene, "nobody") == 1

    def test_from_any_place_again_after_a_crash(self, scene: Scene) -> None:
        """The place is the caller's: one who has forgotten it begins anew, and it ends the same."""
        queue_id = scene.queue()
        scene.submit_many(10)
        cursor = None
        for _ in range(3):
            cursor = scene.ask("operator", calls.purge(*OWNER, "q", who="test", cursor=cursor, most=2)).cursor
        assert 0 < rows(scene, queue_id)["task"] < 10
        purge(scene)
        assert rows(scene, queue_id) == {}

    def test_the_worker_of_what_ran_hears_that_it_lost_it(self, scene: Scene) -> None:
        """It writes nothing any more, not even a dead letter (P2)."""
        queue_id = scene.queue()
        scene.submit()
        worker = scene.worker()
        delivery = worker.take()
        purge(scene)
        assert worker.renew(delivery.task_id).lost == [delivery.task_id]
        assert worker.fail(delivery).code == "unknown_task"
        assert rows(scene, queue_id) == {}

    def test_many_keys_of_one_tenant_and_one_key_of_many(self, scene: Scene) -> None:
        queue_id, other = scene.queue(), scene.queue("other")
        tasks = [{"type": "a.b", "payload": 1, "key": f"k{n}", "tenant": "hog"} for n in range(10)]
        tasks += [{"type": "a.b", "payload": 1, "key": "k", "tenant": f"t{n}"} for n in range(10)]
        for queue in ("q", "other"):
            scene.ask("submitter", calls.submit_many(queue, tasks))
        for most in (1, 3):
            purge(scene, most=most)
            assert rows(scene, queue_id) == {}
            assert rows(scene, other)["task_key"] == 20
            queue_id = scene.queue()
            scene.ask("submitter", calls.submit_many("q", tasks))

    def test_a_submit_under_way_is_found_before_the_queue_goes(self, scene: Scene) -> None:
        """It had seen the queue unpaused, and commits while the pages are being removed."""
        queue_id = scene.queue()
        late = scene.connect("submitter", autocommit=False)
        late.execute("SELECT * FROM poolkeeper.submit('q', 'a.b', '1', '{\"key\": \"late\"}')")
        cursor = None
        for _ in range(3):
            cursor = scene.ask("operator", calls.purge(*OWNER, "q", who="test", cursor=cursor)).cursor
        late.commit()
        assert rows(scene, queue_id)["ready"] == 1
        while cursor is not None:
            cursor = scene.ask("operator", calls.purge(*OWNER, "q", who="test", cursor=cursor)).cursor
        assert rows(scene, queue_id) == {}

    def test_what_came_even_later_is_removed_by_the_upkeep(self, scene: Scene) -> None:
        queue_id, other = scene.queue(), scene.queue("other")
        scene.submit(queue="other", key="k")
        late = scene.connect("submitter", autocommit=False)
        late.execute("SELECT * FROM poolkeeper.submit('q', 'a.b', '1', '{\"key\": \"late\", \"ordering_key\": \"k\"}')")
        purge(scene)
        late.commit()
        assert set(rows(scene, queue_id)) == {"task", "ordered", "gate_due", "task_key"}
        before = rows(scene, other)
        scene.ask("operator", calls.maintain())
        assert rows(scene, queue_id) == {}
        assert rows(scene, other) == before

    def test_a_settle_in_progress_is_waited_for(self, scene: Scene) -> None:
        """A task that comes back from its worker at this very moment goes too: it does not slip between the tables."""
        queue_id = scene.queue()
        scene.submit()
        conn = scene.connect("worker", autocommit=False)
        worker = scene.worker(conn=conn)
        delivery = worker.take()
        conn.commit()
        worker.fail(delivery)  # lease -> later, not committed
        cursor = scene.ask("operator", calls.purge(*OWNER, "q", who="test")).cursor
        with meanwhile(lambda: scene.ask("operator", calls.purge(*OWNER, "q", who="test", cursor=cursor))) as page:
            await_blocked(scene)
            conn.commit()
        assert page.result().removed == 1
        assert rows(scene, queue_id).keys() <= {"policy", "queue_count", "gate"}

    def test_the_name_is_free_for_a_new_queue_with_numbers_of_its_own(self, scene: Scene) -> None:
        """An Event about the new queue's first batch must not have the name of one about the old one's (O24)."""
        old = scene.queue()
        purge(scene)
        assert scene.queue() != old
        assert scene.verdict().code is None

    def test_a_login_that_may_not_see_the_queue_may_not_remove_it(self, scene: Scene) -> None:
        """Q51."""
        scene.queue()
        scene.connect("operator")
        scene.allow(scene.database._logins["operator"], queues=["default/other"])
        with pytest.raises(Forbidden):
            scene.ask("operator", calls.purge(*OWNER, "q", who="test"))


class TestAdoption:
    """Contract 11: a new tenant must not inherit the old one's tasks, and nobody takes them back unasked."""

    def apply(self, scene: Scene, cluster: str, uid: str, adopt: str | None = None) -> Any:
        return scene.ask("operator", calls.apply_policy(cluster, uid, "default", "q", {}, who="b", adopt=adopt))

    @pytest.mark.parametrize("wish", [None, "", "true", "local", "other/default"])
    def test_only_who_names_the_present_owner_takes_over(self, scene: Scene, wish: str | None) -> None:
        scene.queue()
        refused = self.apply(scene, "other", "x", wish)
        assert (refused.code, refused.owner) == ("queue_owned", "local/default")
        adopted = self.apply(scene, "other", "x", refused.owner)
        assert (adopted.code, adopted.owner) == (None, "other/x")

    def test_two_that_once_adopted_do_not_take_it_from_each_other(self, scene: Scene) -> None:
        """The wish stays written in both clusters; each names an owner that is one no more."""
        scene.queue()
        assert self.apply(scene, "b", "x", "local/default").code is None
        assert self.apply(scene, "c", "y", "b/x").code is None
        again = self.apply(scene, "b", "x", "local/default")
        assert (again.code, again.owner) == ("queue_owned", "c/y")

    def test_the_tasks_come_along(self, scene: Scene) -> None:
        scene.queue()
        _, made = one_of_each(scene, "q")
        self.apply(scene, "b", "x", "local/default")
        assert {state: scene.state(task_id) for state, task_id in made.items()} == {s: s for s in made}
