"""Q48, P5: the signal to end comes at a particular instant: whatever was in flight is brought to an answer or given back, exit 0.

Each instant is made by holding what the worker waits for, so that it lasts; the plain cases are in test_drain.py.
"""

import contextlib
import signal
import time
from collections.abc import Iterator

import psycopg
import pytest

from fixtures.proxy import Proxy
from fixtures.workers import Stage, Worker, eventually
from lab.postgres import Server

pytestmark = pytest.mark.wide

SHORT = {"POOLKEEPER_GRACE_PERIOD": "6", "POOLKEEPER_HAND_BACK_MARGIN": "3"}
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'poolkeeper%' AND wait_event_type = 'Lock'"


@contextlib.contextmanager
def held(stage: Stage, what: str) -> Iterator[None]:
    """Hold a lock until the worker waits for it and has been told to end, and a moment longer."""
    with psycopg.connect(stage.dsn) as blocker:
        blocker.execute(what.encode())
        yield
        time.sleep(0.5)
        blocker.commit()


def waits(stage: Stage) -> None:
    with psycopg.connect(stage.dsn, autocommit=True) as observer:
        eventually(lambda: observer.execute(WAITS).fetchone() != (0,), "the worker waits for the lock")


def told(worker: Worker) -> None:
    worker.signal(signal.SIGTERM)
    eventually(lambda: "draining" in worker.log, "the drain has begun")


def ended(worker: Worker, code: int = 0) -> None:
    assert worker.wait() == code, worker.log


def test_a_settle_in_flight_is_brought_to_its_answer(stage: Stage) -> None:
    """The handler has ended, its settle waits for a lock: it counts, once."""
    worker = stage.worker().ready()
    task = stage.submit("t.hold", "go")
    stage.note("in", task)
    with held(stage, "LOCK TABLE poolkeeper.delivery IN ACCESS EXCLUSIVE MODE"):
        stage.release("go")
        stage.note("out", task)
        waits(stage)
        told(worker)
    ended(worker)
    assert stage.ends(task).deliveries == 1
    assert len(stage.notes("out", task)) == 1


def test_a_settle_whose_answer_is_lost_is_asked_for_again(own_stage: Stage, server: Server) -> None:
    """The wire is cut between handler and answer, the signal comes, the wire is mended: settled once, exit 0."""
    proxy = Proxy(server.port)
    try:
        own_stage.apply(visibility_timeout="10s")
        through = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
        worker = own_stage.worker({"POOLKEEPER_DSN": through}).ready()
        task = own_stage.submit("t.hold", "go")
        own_stage.note("in", task)
        proxy.cut()
        own_stage.release("go")
        own_stage.note("out", task)
        told(worker)
        proxy.mend()
        ended(worker)
        assert own_stage.ends(task).deliveries == 1
    finally:
        proxy.close()


def test_a_drain_without_a_database_ends_in_its_grace_and_others_go_on(own_stage: Stage, server: Server) -> None:
    """Nothing can be handed back; the process ends all the same and says so (exit 5), and what it held comes back by itself."""
    worker = own_stage.worker(SHORT).ready()
    held_, done = own_stage.submit("t.hold", "go"), own_stage.submit("t.sleeps", 0.5)
    own_stage.note("in", held_)
    own_stage.note("in", done)
    server.stop("fast")
    told(worker)
    ended(worker, 5)
    own_stage.release("go")
    server.start()
    own_stage.worker().ready()
    for task in (held_, done):
        own_stage.ends(task)
    assert own_stage.dead_letters() == []


def test_a_drain_behind_a_wire_that_is_silent_ends_in_its_grace(own_stage: Stage, server: Server) -> None:
    """Q48: whoever connects is not answered either, for as long as the DSN allows; the process waits for nobody beyond its grace."""
    proxy = Proxy(server.port)
    try:
        through = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?connect_timeout=600"
        worker = own_stage.worker({"POOLKEEPER_DSN": through, **SHORT}).ready()
        task = own_stage.submit("t.hold", "go")
        own_stage.note("in", task)
        proxy.cut()
        told(worker)
        ended(worker, 5)
    finally:
        proxy.close()


def test_what_waits_for_its_next_try_is_left_to_others(stage: Stage) -> None:
    """A failed task backs off when the signal comes: nothing is spent, another worker has it."""
    stage.apply(backoff={"initial": "1s", "max": "1s"})
    worker = stage.worker().ready()
    task = stage.submit("t.until", "flag")
    eventually(lambda: stage.view(task).state == "scheduled", "it backs off")
    told(worker)
    ended(worker)
    spent = stage.view(task).deliveries
    assert set(stage.deliveries(task)) == {"failed"}
    stage.release("flag")
    stage.worker().ready()
    assert stage.ends(task).deliveries == spent + 1


def test_a_suspect_that_runs_apart_is_handed_back_and_stays_one(stage: Stage) -> None:
    """Q27: it killed a worker; the next one runs it in a process apart, and is told to end meanwhile."""
    first = stage.worker().ready()
    task = stage.submit("t.hold_thread", "go")
    stage.note("in", task)
    first.signal(signal.SIGKILL)
    second = stage.worker(SHORT).ready()
    apart = stage.note("in", task, count=2)
    assert apart["pid"] not in {first.pid, second.pid}
    told(second)
    ended(second)
    assert stage.deliveries(task) == ["expired", "handed_back"]
    view = stage.view(task)
    assert view.state == "ready"
    stage.release("go")
    third = stage.worker().ready()
    stage.ends(task)
    assert stage.notes("in", task)[-1]["pid"] != third.pid


def test_what_was_claimed_ahead_goes_back_unstarted(stage: Stage) -> None:
    """Q16: leased beyond the free slots; none of it begins after the signal, none of it costs a delivery."""
    worker = stage.worker(concurrency=2).ready()
    for _ in range(3):
        for task in stage.submit_many("t.count", list(range(100))):
            stage.ends(task)
    first = stage.submit_many("t.sleeps", [1.0, 1.0])
    rest = stage.submit_many("t.count", list(range(300)))
    stage.note("in", first[0])
    told(worker)
    ended(worker)
    begun = {note["task"] for note in stage.notes("done")}
    for task in rest:
        view = stage.view(task)
        assert view.state == ("succeeded" if str(task) in begun else "ready")
        assert set(stage.deliveries(task)) <= ({"succeeded"} if view.state == "succeeded" else {"returned"})
    stage.worker().ready()
    for task in rest:
        stage.ends(task)
    assert len(stage.notes("done")) == 600


def test_a_checkpoint_in_flight_is_saved_before_the_hand_back(stage: Stage) -> None:
    """Q30: it waits for a lock when the signal comes; the next delivery begins where it says."""
    worker = stage.worker(SHORT).ready()
    task = stage.submit("t.steps", 3)
    stage.note("saved", task)
    with held(stage, "LOCK TABLE poolkeeper.checkpoint IN ACCESS EXCLUSIVE MODE"):
        stage.release("step0")
        stage.note("step", task, count=2)
        waits(stage)
        told(worker)
    ended(worker)
    assert stage.deliveries(task) == ["handed_back"]
    stage.release("step1")
    stage.release("step2")
    stage.worker().ready()
    stage.ends(task)
    assert [note["step"] for note in stage.notes("step", task)] == [0, 1, 2]


def test_a_renewal_in_flight_does_not_hold_the_end_up(stage: Stage) -> None:
    """Q20: somebody holds the session's row when the signal comes."""
    worker = stage.worker().ready()
    task = stage.submit("t.hold", "go")
    stage.note("in", task)
    with held(stage, "SELECT 1 FROM poolkeeper.session FOR UPDATE"):
        waits(stage)
        told(worker)
        stage.release("go")
    ended(worker)
    assert stage.ends(task).deliveries == 1


def test_a_blocked_event_loop_ends_when_it_can(stage: Stage) -> None:
    """The handler holds the loop when the signal comes; it ends well, and so does the worker."""
    worker = stage.worker().ready()
    task = stage.submit("t.block", 1.5)
    stage.note("in", task)
    worker.signal(signal.SIGTERM)
    ended(worker)
    assert stage.ends(task).deliveries == 1
