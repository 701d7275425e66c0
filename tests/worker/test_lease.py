"""Q20: leases are kept from a thread apart from user code."""

import signal
import time

import psycopg
import pytest

from fixtures.workers import LEASE, Stage, eventually


def test_a_handler_that_blocks_the_event_loop_for_three_leases_keeps_its_lease(stage: Stage) -> None:
    """Q20: time.sleep in a coroutine: one delivery, while another worker looks for expired leases all the time."""
    stage.worker(concurrency=1).ready()
    task = stage.submit("t.block", 3 * LEASE)
    started = stage.note("in", task)
    stage.worker().ready()
    ended = stage.note("out", task)
    assert ended["at"] - started["at"] >= 3 * LEASE
    assert stage.ends(task).deliveries == 1


def test_a_handler_in_a_thread_keeps_its_lease_and_the_loop_goes_on(stage: Stage) -> None:
    """Q20, Q46: a sync handler holds its slot for longer than a lease; coroutines run beside it."""
    stage.worker().ready()
    task = stage.submit("t.hold_thread", "go")
    started = stage.note("in", task)
    eventually(lambda: time.time() > started["at"] + 1.5 * LEASE, "the lease would have expired")
    beside = stage.submit("t.count")
    stage.ends(beside)
    stage.release("go")
    assert stage.ends(task).deliveries == 1


def test_no_more_tasks_run_at_once_than_there_are_slots(stage: Stage) -> None:
    """Q47: slots of one process are exact for coroutines and threads together."""
    stage.worker(concurrency=3).ready()
    tasks = [stage.submit(kind, "go") for kind in ("t.hold", "t.hold_thread") * 4]
    stage.note("in", count=3)
    stage.release("go")
    for task in tasks:
        stage.ends(task)
    running = most = 0
    for note in stage.notes():
        running += {"in": 1, "out": -1}[note["what"]]
        most = max(most, running)
    assert most == 3


def test_an_idle_workers_session_stays_and_new_work_is_heard_of(stage: Stage) -> None:
    """Q15: after several leases of idleness a task is picked up, by notification or by polling."""
    worker = stage.worker().ready()
    at = time.time()
    eventually(lambda: time.time() > at + 2 * LEASE, "two leases pass")
    stage.ends(stage.submit("t.count"))
    assert worker.process.poll() is None


def test_an_idle_workers_turns_renew_for_it_until_it_holds_something(stage: Stage) -> None:
    """Q20, F4: one turn claims, sweeps and renews; a lease is kept by the thread, as ever."""
    stage.worker().ready()
    with psycopg.connect(stage.dsn, autocommit=True) as conn:

        def seen() -> tuple[int, str]:
            """The session's renewals, and when its thread said something last."""
            row = conn.execute(
                "SELECT s.renewals, a.query_start::text FROM poolkeeper.session AS s, pg_stat_activity AS a "
                "WHERE a.datname = current_database() AND a.application_name = 'poolkeeper renewal'"
            ).fetchone()
            assert row is not None
            return row

        quiet = [seen()]

        def idle() -> bool:
            now = seen()
            if now[1] != quiet[0][1]:
                quiet[0] = now
            return now[0] >= quiet[0][0] + 6

        eventually(idle, "six renewals in a row were those of turns")
        task = stage.submit("t.hold", "go")
        at = stage.note("in", task)["at"]
        eventually(lambda: time.time() > at + 2 * LEASE, "the lease would have expired")
        assert seen()[1] != quiet[0][1]
    stage.worker().ready()
    stage.release("go")
    assert stage.ends(task).deliveries == 1


def test_what_was_granted_by_a_turn_that_came_late_runs_all_the_same(stage: Stage) -> None:
    """Q10, P1: a turn was given up, and reached the server when its successors had been answered: its worker never heard of the lease."""
    stage.worker().ready()
    with psycopg.connect(stage.dsn) as conn:
        row = conn.execute(
            "SELECT task_id FROM poolkeeper.submit('default/q', 't.count', '1', _notify => false)"
        ).fetchone()
        assert row is not None
        late = conn.execute(
            "SELECT c.task_id FROM poolkeeper.queue AS q, poolkeeper.session AS s,"
            " LATERAL poolkeeper.claim_queue(q, s, 1, 1, 1, NULL, NULL, poolkeeper.clock()) AS c WHERE c.kind = 'claimed'"
        ).fetchone()
        assert late == row
    stage.ends(row[0])
    assert stage.deliveries(row[0]) == ["returned", "succeeded"]


def test_a_queue_without_notifications_is_worked_off_by_polling(stage: Stage) -> None:
    """Q15: polling is the truth, a notification a hint."""
    stage.apply(wake_up="Poll")
    stage.worker().ready()
    stage.ends(stage.submit("t.count"))


def test_a_queue_that_did_not_exist_at_the_start_is_worked_off_once_it_does(stage: Stage) -> None:
    """Q11: the worker is not restarted for it, and says at the start that the queue is unknown."""
    worker = stage.worker(queues="default/q,default/later").ready()
    assert "unknown queues, worked off once they exist: default/later" in worker.log
    stage.apply("default/later")
    stage.ends(stage.submit("t.count", queue="default/later"))


def test_a_worker_whose_session_the_store_forgot_registers_a_new_one(stage: Stage) -> None:
    """Q24, Q49: as after a restore; no restart is needed."""
    worker = stage.worker().ready()
    with psycopg.connect(stage.dsn) as conn:
        conn.execute("DELETE FROM poolkeeper.session")
    eventually(lambda: "registering a new one" in worker.log, "the worker noticed")
    stage.ends(stage.submit("t.count"))
    assert worker.process.poll() is None


@pytest.mark.wide
def test_a_thread_that_goes_on_after_its_lease_was_lost_ends_its_worker(stage: Stage) -> None:
    """Q20: it costs its slot, then the process drains and exits; the task was done by another worker meanwhile."""
    workers = {
        worker.pid: worker
        for worker in (
            stage.worker({"POOLKEEPER_GRACE_PERIOD": "3", "POOLKEEPER_HAND_BACK_MARGIN": "1"}).ready() for _ in range(2)
        )
    }
    task = stage.submit("t.stubborn", "never")
    first = workers[stage.note("in", task)["pid"]]
    first.signal(signal.SIGSTOP)
    stage.note("in", task, count=2)
    first.signal(signal.SIGCONT)
    assert first.wait() == 0, first.log
    assert "its lease is lost" in first.log
    assert "ends to be rid of them" in first.log
    assert stage.view(task).state == "running"


def test_what_was_claimed_ahead_of_handlers_that_turn_out_long_goes_back_once(stage: Stage) -> None:
    """Q16: leased, never hoarded: the other worker does it, no delivery is spent, and it is not claimed over and over."""
    first = stage.worker(concurrency=2).ready()
    for task in stage.submit_many("t.count", list(range(300))):
        stage.ends(task)  # handlers are seen to be short
    held = [stage.submit("t.hold", "go") for _ in range(2)]
    for task in held:
        stage.note("in", task)
    tasks = stage.submit_many("t.count", list(range(200)))
    eventually(lambda: any(stage.deliveries(task) for task in tasks), "some went back unstarted")
    stage.worker(concurrency=2).ready()
    for task in tasks:
        stage.ends(task)
        assert stage.deliveries(task)[-1] == "succeeded"
        assert stage.deliveries(task).count("returned") <= 1
    stage.release("go")
    for task in held:
        stage.ends(task)
    assert first.process.poll() is None
