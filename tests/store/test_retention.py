"""What has ended goes by its age, kind by kind, and nothing that has not ended ever does (Q52, Q6, contract 8)."""

import pytest

from poolkeeper.store import calls
from store.aging import DAY, HOUR, dead, done, keep, rows_of, upkeep
from store.scene import Scene, seconds

pytestmark = pytest.mark.usefixtures("this_month_again")


class TestEndedTasks:
    """`events`: the task with its whole history, from its end."""

    def test_an_ended_task_goes_with_its_history_and_not_before(self, scene: Scene) -> None:
        """Q52."""
        keep(scene, events="10h")
        task_id = done(scene, scene.worker())
        scene.advance(9 * HOUR)
        assert upkeep(scene).tasks == 0
        assert scene.state(task_id) == "succeeded"
        scene.advance(3 * HOUR)
        assert upkeep(scene).tasks == 1
        assert rows_of(scene, task_id) == {}

    def test_age_counts_from_the_end_and_not_from_the_submit(self, scene: Scene) -> None:
        """A task that took long is kept as long as any other."""
        keep(scene, events="10h")
        worker = scene.worker()
        task_id = scene.submit()
        scene.advance(100 * HOUR)
        assert upkeep(scene).tasks == 0  # the walk came by, and it was ready
        worker.renew()
        delivery = worker.take()
        scene.advance(HOUR)
        worker.renew(task_id)
        worker.succeed(delivery)
        for _ in range(9):
            scene.advance(HOUR)
            assert upkeep(scene).tasks == 0
        scene.advance(2 * HOUR)
        assert upkeep(scene).tasks == 1

    @pytest.mark.parametrize("ending", ["succeeded", "rejected", "canceled", "discarded"])
    def test_every_way_to_end_is_an_end(self, scene: Scene, ending: str) -> None:
        keep(scene, events="10h")
        worker = scene.worker()
        if ending == "canceled":
            task_id = scene.submit(delay=9999)
            scene.ask("person", calls.cancel(task_id, who="ann", why="x"))
        elif ending == "discarded":
            task_id = dead(scene, worker)
            scene.ask("person", calls.discard(task_id, who="ann", why="x"))
        else:
            task_id = scene.submit()
            worker.settle(worker.take(), ending)
        scene.advance(12 * HOUR)
        assert upkeep(scene).tasks == 1
        assert rows_of(scene, task_id) == {}

    def test_nothing_that_has_not_ended_is_touched_whatever_its_age(self, scene: Scene) -> None:
        """Q52: ten years later each of them is what it was, its payload and checkpoint too."""
        keep(scene, payload="1h", result="1h", checkpoint="1h", events="1h", deadLetters="87600h", keys="87600h")
        busy, waits = scene.worker(), scene.worker()
        made = {"running": scene.submit(payload="p", key="r")}
        running = busy.take()
        scene.ask("worker", calls.checkpoint(running.task_id, running.token, {"step": 1}, sequence=1))
        made["suspect"] = scene.submit(payload="p", type="c.d")
        dies = scene.worker(types=["c.d"])
        assert dies.take().task_id == made["suspect"]
        scene.advance(60)
        busy.renew(made["running"])
        waits.renew()
        scene.sweep()
        made["waiting"] = scene.submit(payload="p")
        waits.settle(waits.take(), "snoozed", retry_after=seconds(31_536_000))
        made["scheduled"] = scene.submit(payload="p", delay=10 * 365 * DAY)
        made["dead"] = dead(scene, waits, payload="p")
        made["ready"] = scene.submit(payload="p", key="k")
        for _ in range(10):
            scene.advance(200 * DAY)
            busy.renew(made["running"])
            upkeep(scene)
        states = {name: scene.state(task_id) for name, task_id in made.items()}
        assert states == {name: name for name in made} | {"suspect": "ready"}
        for task_id in made.values():
            view = scene.ask("reader", calls.task(task_id))
            assert view is not None
            assert view.payload == "p"
            assert set(view.erased) <= {"checkpoint"}
        running_now = scene.ask("reader", calls.task(made["running"]))
        assert running_now is not None
        assert running_now.checkpoint == {"step": 1}
        assert busy.succeed(running).code is None

    def test_each_queue_has_its_own_time(self, scene: Scene) -> None:
        """The shortest of all leads the walk; the others' tasks are noted, and go when it is their time."""
        scene.queue("long")
        keep(scene, events="10h")
        keep(scene, "long", events="500h")
        worker = scene.worker(queues=["q", "long"])
        short = [done(scene, worker) for _ in range(5)]
        long = [done(scene, worker, queue="long") for _ in range(5)]
        scene.advance(20 * HOUR)
        assert upkeep(scene, most=2).tasks == 5
        assert [rows_of(scene, task_id) for task_id in short] == [{}] * 5
        assert {scene.state(task_id) for task_id in long} == {"succeeded"}
        scene.advance(500 * HOUR)
        assert upkeep(scene, most=2).tasks == 5
        assert scene.value("SELECT count(*) FROM poolkeeper.retention_note") == 0

    def test_a_shorter_retention_counts_for_what_was_noted_before(self, scene: Scene) -> None:
        scene.queue("other")
        keep(scene, events="700h")
        keep(scene, "other", events="1h")  # so that the walk comes by early
        task_id = done(scene, scene.worker())
        scene.advance(20 * HOUR)
        assert upkeep(scene).tasks == 0
        keep(scene, events="10h")
        assert upkeep(scene).tasks == 1
        assert rows_of(scene, task_id) == {}

    def test_what_was_committed_behind_the_walk_is_found_by_the_next_one(self, scene: Scene) -> None:
        """A transaction that was open for longer than a retention: its ids are older than what the walk has passed."""
        keep(scene, payload="1h", result="1h", checkpoint="1h", events="1h")
        worker = scene.worker()
        late = scene.connect("submitter", autocommit=False)
        late.execute("SELECT * FROM poolkeeper.submit('q', 'a.b', '1')")
        done(scene, worker)
        scene.advance(3 * HOUR)
        worker.renew()
        assert upkeep(scene).tasks == 1
        late.commit()
        worker.succeed(worker.take())
        scene.advance(3 * HOUR)
        assert upkeep(scene).tasks == 0
        scene.advance(31 * DAY)
        upkeep(scene)
        assert upkeep(scene).tasks == 1

    def test_a_task_of_a_queue_that_is_gone_goes(self, scene: Scene) -> None:
        """An ended task that a late transaction left behind a purge."""
        scene.queue("gone")
        task_id = done(scene, scene.worker(queues=["gone"]), queue="gone")
        scene.owner.execute(
            "DELETE FROM poolkeeper.policy; DELETE FROM poolkeeper.queue_count; DELETE FROM poolkeeper.gate; DELETE FROM poolkeeper.queue WHERE name = 'gone'"
        )
        scene.advance(31 * DAY)
        upkeep(scene)
        assert rows_of(scene, task_id) == {}

    def test_a_settle_repeated_after_that_hears_that_there_is_no_such_task(self, scene: Scene) -> None:
        keep(scene, events="10h")
        worker = scene.worker()
        scene.submit()
        delivery = worker.take()
        worker.succeed(delivery)
        assert worker.succeed(delivery).code == "already_done"
        scene.advance(12 * HOUR)
        upkeep(scene)
        assert worker.succeed(delivery).code == "unknown_task"


class TestContents:
    """`payload` and `result` go earlier, and the task says so."""

    @pytest.mark.parametrize("kind", ["payload", "result"])
    def test_a_content_is_emptied_and_marked(self, scene: Scene, kind: str) -> None:
        keep(scene, **{"payload": "700h", "result": "700h", kind: "10h"})
        task_id = done(scene, scene.worker(), payload={"secret": "x"}, key="k")
        scene.advance(9 * HOUR)
        assert upkeep(scene).payloads + upkeep(scene).results == 0
        scene.advance(3 * HOUR)
        gone = upkeep(scene)
        assert (gone.payloads, gone.results, gone.tasks) == (kind == "payload", kind == "result", 0)
        view = scene.ask("reader", calls.task(task_id))
        assert view is not None
        assert (view.state, view.erased) == ("succeeded", [kind])
        assert (view.payload is None, view.result is None) == (kind == "payload", kind == "result")
        last = scene.ask("reader", calls.timeline(task_id))[-1]
        assert (last.what, last.reason, last.actor, last.state) == ("erased", kind, "poolkeeper", None)
        assert set(vars(upkeep(scene)).values()) == {0}  # once

    def test_a_repeat_of_the_submit_is_known_by_its_digest(self, scene: Scene) -> None:
        """Q6: the payload is gone, equal and unequal ones are told apart all the same."""
        keep(scene, payload="10h", result="10h")
        task_id = done(scene, scene.worker(), payload={"a": 1}, key="k")
        scene.advance(12 * HOUR)
        assert upkeep(scene).payloads == 1
        again = scene.verdict(payload={"a": 1.0}, key="k")
        assert (again.task_id, again.created, again.state, again.result) == (task_id, False, "succeeded", None)
        assert scene.verdict(payload={"a": 2}, key="k").code == "key_conflict"

    def test_a_task_without_a_result_is_not_said_to_have_lost_one(self, scene: Scene) -> None:
        keep(scene, result="10h")
        worker = scene.worker()
        task_id = scene.submit()
        worker.settle(worker.take(), "rejected")
        scene.advance(12 * HOUR)
        assert upkeep(scene).results == 0
        view = scene.ask("reader", calls.task(task_id))
        assert view is not None
        assert view.erased == []


class TestDeadLetters:
    """`checkpoint` and `deadLetters`, from the death."""

    def test_a_dead_letter_keeps_all_that_a_person_needs(self, scene: Scene) -> None:
        """Q29: its payload is not an ended task's."""
        keep(scene, payload="1h", result="1h", events="1h", checkpoint="2160h")
        task_id = dead(scene, scene.worker(), payload={"a": 1})
        scene.advance(1000 * HOUR)
        upkeep(scene)
        (letter,) = scene.ask("person", calls.dead_letters())
        assert (letter.task_id, letter.payload, letter.checkpoint) == (task_id, {"a": 1}, {"step": 3})

    def test_the_checkpoint_goes_first_and_the_task_says_so(self, scene: Scene) -> None:
        """Q52: a requeue begins anew; a letter that had none is not said to have lost one."""
        keep(scene, checkpoint="10h")
        worker = scene.worker()
        task_id = dead(scene, worker)
        bare = scene.submit()
        worker.settle(worker.take(), "dead")
        scene.advance(9 * HOUR)
        assert upkeep(scene).checkpoints == 0
        scene.advance(2 * HOUR)
        assert upkeep(scene).checkpoints == 1
        views = [scene.ask("reader", calls.task(one)) for one in (task_id, bare)]
        assert [(view.state, view.checkpoint, view.erased) for view in views if view] == [
            ("dead", None, ["checkpoint"]),
            ("dead", None, []),
        ]
        scene.ask("person", calls.requeue(task_id, who="ann", why="x"))
        worker.renew()
        assert worker.take().checkpoint is None

    def test_one_that_nobody_looked_at_is_discarded_and_its_history_says_so(self, scene: Scene) -> None:
        """Not silently: an event with who and why, counted in the answer; then it goes as any ended task does."""
        keep(scene, deadLetters="100h", events="50h", payload="10h", result="10h")
        task_id = dead(scene, scene.worker())
        scene.advance(99 * HOUR)
        assert upkeep(scene).dead_letters == 0
        assert scene.state(task_id) == "dead"
        scene.advance(2 * HOUR)
        assert upkeep(scene).dead_letters == 1
        assert scene.state(task_id) == "canceled"
        last = scene.ask("reader", calls.timeline(task_id))[-1]
        assert (last.what, last.actor, last.reason) == ("discarded", "poolkeeper", "older than retention.deadLetters")
        scene.advance(60 * HOUR)
        assert upkeep(scene).tasks == 1
        assert rows_of(scene, task_id) == {}

    def test_each_death_counts_for_itself(self, scene: Scene) -> None:
        """Requeued in time and dead again, it is kept from its new death on."""
        keep(scene, deadLetters="100h")
        worker = scene.worker()
        task_id = dead(scene, worker)
        scene.advance(90 * HOUR)
        scene.ask("person", calls.requeue(task_id, who="ann", why="x"))
        worker.renew()
        worker.settle(worker.take(), "dead")
        scene.advance(90 * HOUR)
        assert upkeep(scene).dead_letters == 0
        scene.advance(20 * HOUR)
        assert upkeep(scene).dead_letters == 1


class TestKeys:
    """`keys`: never shorter than the task, and long after it still the same answer (Q6)."""

    def test_a_key_answers_for_a_task_that_is_gone(self, scene: Scene) -> None:
        keep(scene, events="10h", keys="3000h")
        task_id = done(scene, scene.worker(), payload=1, key="k")
        scene.advance(100 * HOUR)
        assert upkeep(scene).tasks == 1
        assert rows_of(scene, task_id) == {"task_key": 1}
        again = scene.verdict(payload=1, key="k")
        assert (again.task_id, again.created, again.state, again.code) == (task_id, False, "succeeded", None)
        assert scene.verdict(payload=2, key="k").code == "key_conflict"
        scene.ask("operator", calls.apply_policy("local", "default", "default", "q", {"paused": True}, who="t"))
        assert scene.verdict(payload=1, key="k").task_id == task_id  # a repeat of what had been accepted

    def test_a_key_is_free_after_its_time(self, scene: Scene) -> None:
        keep(scene, events="10h", deadLetters="20h", keys="2000h")
        task_id = done(scene, scene.worker(), payload=1, key="k")
        for hours, free in ((1990, False), (20, True)):
            scene.advance(hours * HOUR)
            assert upkeep(scene).keys == free
        fresh = scene.verdict(payload=2, key="k")
        assert fresh.created
        assert fresh.task_id != task_id

    def test_the_key_of_a_task_that_took_long_counts_from_its_end(self, scene: Scene) -> None:
        """However old the key: while the task waits, and its own time after its end, it guards."""
        everything = {
            "payload": "10h",
            "result": "10h",
            "checkpoint": "10h",
            "events": "10h",
            "deadLetters": "10h",
            "keys": "10h",
        }
        keep(scene, **everything)
        worker = scene.worker()
        task_id = scene.submit(key="k")
        scene.advance(5000 * HOUR)
        assert upkeep(scene).keys == 0
        assert scene.verdict(key="k").task_id == task_id
        worker.renew()
        worker.succeed(worker.take())
        scene.advance(9 * HOUR)
        assert upkeep(scene).keys == 0
        assert not scene.verdict(key="k").created
        scene.advance(2 * HOUR)
        assert upkeep(scene).keys == 1
        assert scene.verdict(key="k").created

    @pytest.mark.parametrize("ending", ["succeeded", "rejected", "canceled"])
    def test_a_key_knows_how_its_task_ended(self, scene: Scene, ending: str) -> None:
        keep(scene, events="10h")
        worker = scene.worker()
        scene.submit(key="k")
        worker.settle(worker.take(), ending)
        before = scene.verdict(key="k").state
        scene.advance(12 * HOUR)
        assert upkeep(scene).tasks == 1
        assert scene.verdict(key="k").state == before == {"rejected": "failed"}.get(ending, ending)


def test_pages_are_bounded_and_say_that_there_is_more(scene: Scene) -> None:
    """Q52: bounded batches; the place is remembered by the store."""
    keep(scene, events="10h")
    worker = scene.worker()
    for task_id in scene.submit_many(10):
        (held,) = worker.claim(1)
        assert held.task_id == task_id
        worker.succeed(held)
    scene.advance(12 * HOUR)
    pages = [scene.ask("operator", calls.maintain(3)) for _ in range(5)]
    assert [page.tasks for page in pages] == [3, 3, 3, 1, 0]
    assert [page.more for page in pages] == [True, True, True, False, False]


@pytest.mark.parametrize("who", ["worker", "operator", "person"])
def test_whoever_tends_the_store_may_do_its_upkeep(scene: Scene, who: str) -> None:
    """Without Kubernetes too."""
    done(scene, scene.worker())
    scene.advance(31 * DAY)
    assert scene.ask(who, calls.maintain()).tasks == 1
