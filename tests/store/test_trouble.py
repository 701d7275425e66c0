"""Signs of trouble in the operator's reading: leases of living workers that expire, dead letters by age, slots, vacuum (O25)."""

from datetime import timedelta
from typing import Any

import psycopg

from poolkeeper.store import calls
from poolkeeper.store.rows import QueueStats
from poolkeeper.store.signs import Expired
from store.scene import Scene, seconds


def queue_of(scene: Scene, name: str = "q") -> QueueStats:
    (found,) = [q for q in scene.ask("operator", calls.stats(cluster="local")).queues if q.name == name]
    return found


def silence(scene: Scene, count: int = 1, kind: str = "a.b") -> Any:
    """A worker that takes so many tasks and is not heard of for longer than the visibility timeout."""
    scene.submit_many(count, type=kind)
    silent = scene.worker(types=(kind,))
    assert len(silent.claim(count)) == count
    scene.advance(16)
    scene.sweep()
    return silent


def test_an_expired_lease_counts_for_a_dead_worker_until_that_is_heard_of(scene: Scene) -> None:
    """O25: whoever renews after its lease was lost was alive; who does not was not. Ten minutes later neither counts."""
    frozen = silence(scene, 3)
    assert queue_of(scene).expired == Expired(live=0, dead=3)
    frozen.renew()
    assert queue_of(scene).expired == Expired(live=3, dead=0)
    silence(scene, 2, "c.d")
    assert queue_of(scene).expired == Expired(live=3, dead=2)
    scene.advance(590)
    assert queue_of(scene).expired == Expired(live=0, dead=2)
    scene.advance(20)
    assert queue_of(scene).expired == Expired()


def test_what_ends_for_another_reason_is_no_expiry(scene: Scene) -> None:
    """O25: a failure, a run that took too long, and what was claimed ahead and never started, say nothing of leases."""
    scene.queue("short", max_run_time_seconds=5)
    worker = scene.worker(queues=("q", "short"))
    scene.submit()
    worker.fail(worker.take())
    scene.submit(queue="short")
    held = worker.take()
    scene.advance(6)
    worker.renew(held.task_id)
    assert scene.rows("SELECT 1 FROM poolkeeper.delivery WHERE reason = 'max_run_time'"), "its run time is over"
    assert [queue_of(scene, name).expired for name in ("q", "short")] == [Expired(), Expired()]


def test_a_gap_in_which_nobody_could_renew_counts_for_nobody(scene: Scene) -> None:
    """O25, Q23: sessions that were given a further lease, and did not come back, were not alive."""
    scene.submit()
    scene.worker().take()
    scene.jump(60)
    scene.sweep()  # finds the gap, and gives a further visibility timeout
    scene.advance(16)
    scene.sweep()
    assert queue_of(scene).expired.live == 0


def test_what_a_proven_outage_ended_is_no_expiry_of_a_worker_s(scene: Scene) -> None:
    """O25, Q23: another one came back from the gap, so there was one; who did not is not said to have died."""
    scene.submit()
    scene.worker().take()
    other = scene.worker()
    scene.jump(60)
    other.renew()
    scene.advance(16)
    other.renew()
    scene.sweep()
    assert [row.reason for row in scene.rows("SELECT reason FROM poolkeeper.delivery")] == ["outage"]
    assert queue_of(scene).expired == Expired()


def test_a_further_lease_after_a_gap_is_no_sign_of_life(scene: Scene) -> None:
    """O25, Q23: it lost one lease, and was given time for another by a gap; it did not renew by itself."""
    scene.queue("long", visibility_timeout_seconds=600)
    worker = scene.worker(queues=("q", "long"))
    scene.submit()
    worker.take()
    scene.submit(queue="long")
    worker.take()
    scene.advance(16)
    scene.sweep()
    assert queue_of(scene).expired == Expired(live=0, dead=1)
    scene.jump(60)
    scene.sweep()
    assert scene.rows("SELECT 1 FROM poolkeeper.session WHERE graces = 1"), "it was given time"
    assert queue_of(scene).expired == Expired(live=0, dead=1)


def test_dead_letters_tell_their_age_and_the_last_five_minutes(scene: Scene) -> None:
    """O2, O25: the oldest one's age, and how many died lately."""
    worker = scene.worker()
    assert (queue_of(scene).dead_oldest, queue_of(scene).dead_lately) == (None, 0)
    for _ in range(2):
        scene.submit()
        worker.settle(worker.take(), "dead")
    scene.advance(200)
    scene.submit()
    worker = scene.worker()
    worker.settle(worker.take(), "dead")
    stats = queue_of(scene)
    assert stats.dead_oldest is not None
    assert seconds(200) <= stats.dead_oldest < seconds(210)
    assert (stats.dead, stats.dead_recent, stats.dead_lately) == (3, 1, 3)
    scene.advance(150)
    assert queue_of(scene).dead_lately == 1


def test_slots_that_are_late_or_refused_are_told_with_the_first_one(scene: Scene) -> None:
    """Q34, O25: late after two minutes that nobody fires; none of a paused queue; refused with the reason."""
    for name in ("b", "a"):
        call = calls.set_schedule(
            "q",
            name,
            cron="*/5 * * * *",
            zone="UTC",
            catch_up="latest",
            catch_up_limit=1,
            task={"type": "a.b"},
            who="x",
        )
        assert scene.ask("submitter", call).code is None
    assert (queue_of(scene).schedules.late, queue_of(scene).schedules.refused) == (0, 0)
    scene.owner.execute("UPDATE poolkeeper.schedule SET look_at = poolkeeper.clock() - interval '119 seconds'")
    assert queue_of(scene).schedules.late == 0
    scene.owner.execute("UPDATE poolkeeper.schedule SET look_at = look_at - interval '5 seconds' WHERE name = 'b'")
    assert (queue_of(scene).schedules.late, queue_of(scene).schedules.first_late) == (1, "b")
    scene.owner.execute("UPDATE poolkeeper.schedule SET refused = 'queue_limit (10)' WHERE name = 'a'")
    told = queue_of(scene).schedules
    assert (told.refused, told.first_refused, told.why) == (1, "a", "queue_limit (10)")
    scene.owner.execute("UPDATE poolkeeper.schedule SET refused = 'queue_limit (10)'")
    scene.ask("person", calls.pause_schedule("q", "a", True))
    scene.owner.execute("UPDATE poolkeeper.schedule SET refused = 'queue_limit (10)'")
    told = queue_of(scene).schedules
    assert (told.refused, told.first_refused) == (1, "b"), "a schedule that is paused fires nothing"
    scene.owner.execute("UPDATE poolkeeper.schedule SET refused = NULL")
    scene.ask("person", calls.pause_schedule("q", "a", False))
    scene.owner.execute("UPDATE poolkeeper.schedule SET refused = 'queue_limit (10)' WHERE name = 'a'")
    scene.queue("q", paused=True)
    assert (queue_of(scene).schedules.late, queue_of(scene).schedules.refused) == (0, 1)


def vacuum(scene: Scene) -> dict[str, Any] | None:
    return scene.ask("operator", calls.stats(cluster="local")).vacuum


def test_who_keeps_vacuum_back_is_told_after_a_minute(scene: Scene) -> None:
    """O25: kind, pid, user and application of the oldest; a login that keeps some queues only hears no names."""
    with psycopg.connect(scene.database.dsn, application_name="forgotten") as holder:
        holder.execute("SELECT pg_current_xact_id()")
        pid = str(holder.info.backend_pid)
        assert vacuum(scene) is None
        scene.advance(120)
        told = vacuum(scene)
        assert told is not None
        assert (told["kind"], told["name"], told["application"]) == ("session", pid, "forgotten")
        assert timedelta(seconds=told["seconds"]) >= seconds(120)
        scene.allow(scene.database.login("operator"), queues=["default/q"])
        told = vacuum(scene)
        assert told is not None
        assert (told["kind"], told["name"], told["user"], told["application"]) == ("session", None, None, None)
    assert vacuum(scene) is None


def test_what_was_noted_goes_after_an_hour_and_with_its_queue(scene: Scene) -> None:
    """Q52, O9: the notes of expiries are kept for an hour; those of a purged queue go with it."""
    silence(scene, 2)
    count = "SELECT count(*) FROM poolkeeper.expiry"
    scene.ask("operator", calls.maintain())
    assert scene.value(count) == 2
    scene.advance(3601)
    scene.ask("operator", calls.maintain())
    assert scene.value(count) == 0
    scene.queue("gone")
    worker = scene.worker(queues=("gone",))
    scene.submit(queue="gone")
    worker.take()
    scene.advance(16)
    scene.sweep()
    assert scene.value(count) == 1
    cursor: Any = None
    for _ in range(20):
        page = scene.ask("operator", calls.purge("local", "default", "default", "gone", who="test", cursor=cursor))
        cursor = page.cursor
        if cursor is None:
            break
    assert scene.value(count) == 0


def test_the_notes_are_few(scene: Scene) -> None:
    """O25: a row for a delivery that expired, none for any other."""
    worker = scene.worker()
    for _ in range(5):
        scene.submit()
        worker.succeed(worker.take())
    assert scene.value("SELECT count(*) FROM poolkeeper.expiry") == 0
