"""How long a task may run is said by its own queue, its own history and its own session (Q21)."""

from datetime import datetime, timedelta
from typing import Any

from fixtures.neighbours import BOUNDED, FOREIGN, LIMITED, PLAIN
from store.walks import Walks

BOUNDS: dict[str, tuple[int | None, int | None, int | None]] = {
    PLAIN: (None, None, None),
    BOUNDED: (100, 50, None),
    LIMITED: (100, 200, 30),
    FOREIGN: (None, 70, None),
}
"""Queue -> seconds of a run, of all runs together, without progress."""
TIMEOUT = timedelta(seconds=15)


def limited(walks: Walks) -> datetime:
    """Every queue has other limits, every lease none yet; half of them began ten seconds ago. Answers the time."""
    now: datetime = walks.scene.value("SELECT poolkeeper.clock()")
    for queue, (run, tenure, progress) in BOUNDS.items():
        walks.owner.execute(
            "UPDATE poolkeeper.queue SET max_run_time = make_interval(secs => %s), max_tenure = make_interval(secs => %s), progress_timeout = make_interval(secs => %s) WHERE id = %s",
            [run, tenure, progress, walks.queue_ids[queue]],
        )
    walks.owner.execute("UPDATE poolkeeper.lease SET run_by = NULL, run_why = NULL, progress_by = NULL, delivery = 1")
    walks.owner.execute(
        "UPDATE poolkeeper.lease AS l SET started_at = %s - make_interval(secs => 10 * (x.n %% 2)) FROM (SELECT k.task_id, row_number() OVER (PARTITION BY k.queue_id, k.session_id) AS n"
        " FROM poolkeeper.lease AS k WHERE k.started_at IS NOT NULL) AS x WHERE x.task_id = l.task_id",
        [now],
    )
    return now


def ends(walks: Walks, row: Any) -> tuple[Any, ...]:
    """What a lease should say, by hand."""
    name = next(queue for queue, queue_id in walks.queue_ids.items() if queue_id == row.queue_id)
    run, tenure, progress = (None if each is None else timedelta(seconds=each) for each in BOUNDS[name])
    least = min((each for each in (run, tenure) if each is not None), default=None)
    why = "max_tenure" if tenure is not None and tenure <= (run or timedelta.max) else "max_run_time"
    return (
        None if least is None or row.started_at is None else row.started_at + least,
        why,
        None if progress is None else progress + TIMEOUT / 2,
    )


LEASES = "SELECT ctid::text AS place, * FROM poolkeeper.lease"


def test_limits_are_noted_for_what_a_session_has_started(walks: Walks) -> None:
    """Q21: since then, by the limits of each queue; nothing is written where there are none."""
    now, session = limited(walks), walks.worker.session.id
    before = {row.task_id: row.place for row in walks.scene.rows(LEASES)}
    walks.answers("SELECT poolkeeper.limit_runs(%s, %s)", session, now - timedelta(seconds=5))
    changed = 0
    for row in walks.scene.rows(LEASES):
        run_by, why, progress = ends(walks, row)
        if row.session_id == session and row.started_at == now and (run_by or progress):
            progress_by = None if progress is None else row.started_at + progress
            assert (row.run_by, row.run_why, row.progress_by) == (run_by, why, progress_by)
            changed += 1
        else:
            assert row.place == before[row.task_id]
    assert 0 < changed < len(before)


def test_a_new_policys_limits_are_noted_for_what_runs_there(walks: Walks) -> None:
    """Q21: from its start, but for progress, which counts from now."""
    for queue in (LIMITED, BOUNDED):
        now, home = limited(walks), walks.queue_ids[queue]
        walks.answers("SELECT poolkeeper.limit_running(q) FROM poolkeeper.queue AS q WHERE q.id = %s", home)
        for row in walks.scene.rows(LEASES):
            run_by, why, progress = ends(walks, row)
            if row.queue_id == home and row.started_at is not None:
                assert (row.run_by, row.run_why) == (run_by, why)
                assert (row.progress_by is None) == (progress is None)
                assert progress is None or now + progress <= row.progress_by <= now + progress + timedelta(minutes=1)
            else:
                assert (row.run_by, row.progress_by) == (None, None)


def test_tenure_is_used_up_by_its_own_runs_since_its_own_requeue(walks: Walks) -> None:
    """Q21: not by what never started, nor before it was requeued, nor by others."""
    limited(walks)
    row = next(row for row in walks.scene.rows(LEASES) if row.started_at and row.queue_id == walks.queue_ids[BOUNDED])
    earlier = (
        "INSERT INTO poolkeeper.delivery OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(d, jsonb_build_object('task_id', %s::text, 'delivery', %s, 'state_version', %s,"
        " 'started_at', %s::timestamptz, 'ended_at', %s::timestamptz, 'no', 1000000 + %s))).* FROM poolkeeper.delivery AS d LIMIT 1"
    )
    for delivery, version, seconds in ((11, 10, 20), (12, 30, 7), (13, 31, 3), (14, 32, None)):
        began = None if seconds is None else row.started_at - timedelta(seconds=seconds)
        walks.owner.execute(earlier, [str(row.task_id), delivery, version, began, row.started_at, delivery])
    event = "INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version) VALUES (%s, %s, now(), %s, %s)"
    other = next(each.task_id for each in walks.scene.rows(LEASES) if each.task_id != row.task_id)
    for task, kind, version in ((row.task_id, "requeued", 20), (row.task_id, "woke", 40), (other, "requeued", 50)):
        walks.owner.execute(event, [task, row.queue_id, kind, version])
    walks.owner.execute(earlier, [str(other), 16, 60, row.started_at - timedelta(seconds=9), row.started_at, 16])
    ask = "SELECT poolkeeper.tenure_end(l, q) FROM poolkeeper.lease AS l JOIN poolkeeper.queue AS q ON q.id = l.queue_id WHERE l.task_id = %s"
    assert walks.answers(ask, row.task_id) == [(row.started_at + timedelta(seconds=50),)]  # its first: no look
    walks.owner.execute("UPDATE poolkeeper.lease SET delivery = 15 WHERE task_id = %s", [row.task_id])
    assert walks.answers(ask, row.task_id) == [(row.started_at + timedelta(seconds=50 - 7 - 3),)]


def test_progress_is_of_the_leases_that_are_named(walks: Walks) -> None:
    """Q21: of that session, where its queue asks for it."""
    now, session = limited(walks), walks.worker.session.id
    walks.owner.execute("UPDATE poolkeeper.lease SET progress_by = %s WHERE started_at = %s", [now, now])
    rows = walks.scene.rows(LEASES)
    named = [row.task_id for n, row in enumerate(rows) if n % 3]
    walks.answers("SELECT poolkeeper.progressed(%s, %s, %s)", named, session, now)
    places = {row.task_id: (row.place, row.progress_by) for row in walks.scene.rows(LEASES)}
    for row in rows:
        mine = (
            row.task_id in named
            and row.session_id == session
            and row.progress_by
            and row.queue_id == walks.queue_ids[LIMITED]
        )
        assert (places[row.task_id][0] != row.place) == bool(mine)
        assert places[row.task_id][1] == (now + timedelta(seconds=30) + TIMEOUT / 2 if mine else row.progress_by)


def test_why_a_lease_was_lost_is_told_by_its_own_last_delivery(walks: Walks) -> None:
    """Q21: of this task in this session; else it has expired."""
    limited(walks)
    rows = walks.scene.rows("SELECT task_id, session_id, delivery FROM poolkeeper.delivery ORDER BY task_id, delivery")
    walks.owner.execute("UPDATE poolkeeper.delivery SET reason = 'max_tenure'")
    one, theirs = rows[0], next(row for row in rows if row.session_id != rows[0].session_id)
    assert walks.answers("SELECT poolkeeper.lost_by(%s, %s)", theirs.task_id, one.session_id) == [("lease_expired",)]
    walks.owner.execute("UPDATE poolkeeper.delivery SET reason = 'rejected' WHERE task_id = %s", [one.task_id])
    ask = "SELECT poolkeeper.lost_by(%s, %s)"
    other = next(row for row in rows if row.session_id != one.session_id)
    assert walks.answers(ask, one.task_id, one.session_id) == [("lease_expired",)]
    assert walks.answers(ask, other.task_id, other.session_id) == [("max_tenure",)]
    assert walks.answers(ask, other.task_id, one.session_id) == [("lease_expired",)]


def test_a_run_ends_by_the_limit_that_comes_first_and_by_its_own_queue(walks: Walks) -> None:
    """Q21, Q23: not right after a gap, which is as long as its own queue's timeout."""
    now = limited(walks)
    rows = [row for row in walks.scene.rows(LEASES) if row.started_at]
    picked = {
        queue: next(row.task_id for row in rows if row.queue_id == queue_id)
        for queue, queue_id in walks.queue_ids.items()
    }
    hour = now + timedelta(hours=1)
    for queue, (run_by, why, progress_by, told) in {
        PLAIN: (now, "max_run_time", None, "max_run_time"),
        BOUNDED: (hour, "max_tenure", now, "progress_timeout"),
        LIMITED: (now - timedelta(seconds=1), "max_tenure", now, "max_tenure"),
        FOREIGN: (None, None, now, "progress_timeout"),
    }.items():
        walks.owner.execute(
            "UPDATE poolkeeper.lease SET run_by = %s, run_why = %s, progress_by = %s WHERE task_id = %s",
            [run_by, why, progress_by, picked[queue]],
        )
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute(
                "UPDATE poolkeeper.lease SET run_by = NULL, progress_by = NULL WHERE task_id <> %s", [picked[queue]]
            )
            walks.owner.execute("UPDATE poolkeeper.contact SET gap_from = NULL, gap_to = NULL")
            assert walks.answers("SELECT poolkeeper.sweep_limits(100, %s)", now) == [(1,)]
            ((reason,),) = walks.answers(
                "SELECT reason FROM poolkeeper.delivery WHERE task_id = %s ORDER BY delivery DESC LIMIT 1",
                picked[queue],
            )
            assert reason == told
    walks.owner.execute(
        "UPDATE poolkeeper.queue SET visibility_timeout = '5 s' WHERE id = %s", [walks.queue_ids[PLAIN]]
    )
    for ago, ended in ((3, 0), (10, 1), (20, len(picked)), (-20, len(picked))):
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute(
                "UPDATE poolkeeper.contact SET gap_from = %s, gap_to = %s",
                [now - timedelta(minutes=1), now - timedelta(seconds=ago)],
            )
            assert walks.answers("SELECT poolkeeper.sweep_limits(100, %s)", now) == [(ended,)], ago
