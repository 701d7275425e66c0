"""P1, Q10, Q49: the database goes away under load and comes back; nothing is lost, no worker is restarted."""

import os
import signal
from pathlib import Path

import psycopg
import pytest

from fixtures.workers import Stage, eventually
from lab.postgres import Server
from lab.process import Process


@pytest.mark.parametrize("how", ["fast", "kill"])
def test_a_restart_of_the_database_under_load_loses_nothing(own_stage: Stage, server: Server, how: str) -> None:
    """P1: compared by id before and after; a long task that runs meanwhile goes on in the same delivery or a later one."""
    workers = [own_stage.worker().ready(), own_stage.worker().ready()]
    long = own_stage.submit("t.hold", "go")
    own_stage.note("in", long)
    tasks = own_stage.submit_many("t.count", list(range(3000)))
    own_stage.note("done", count=200)
    if how == "fast":
        server.restart("fast")
    else:
        server.kill()
        server.start()
    own_stage.release("go")
    eventually(lambda: set(own_stage.states()) == {"succeeded"}, "every task has succeeded", timeout=90)
    assert own_stage.states() == {"succeeded": 3001}
    assert {note["task"] for note in own_stage.notes("done")} == {str(task) for task in tasks}
    for worker in workers:
        assert worker.process.poll() is None
        assert "trying again for ever" in worker.log
        assert "works again" in worker.log
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_worker_waits_for_a_database_that_is_away_and_stays_alive_and_ready(own_stage: Stage, server: Server) -> None:
    """Q49: /livez and /readyz do not fall with the database; the worker takes up work without a restart."""
    worker = own_stage.worker().ready()
    server.stop()
    eventually(lambda: "claim loop: failed" in worker.log or "renewal: failed" in worker.log, "the worker noticed")
    assert worker.get("/livez")[0] == 200
    assert worker.get("/readyz")[0] == 200
    server.start()
    own_stage.ends(own_stage.submit("t.count"))


def test_a_database_that_answers_nothing_is_given_up_and_tried_again(own_stage: Stage, server: Server) -> None:
    """Q20: frozen, not closed: the connections say nothing; the time-outs are the worker's own."""
    worker = own_stage.worker().ready()
    pids = _backends(server)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: "renewal: failed" in worker.log, "the renewal was given up")
    finally:
        for pid in pids:
            if Process.of(pid).alive():
                os.kill(pid, signal.SIGCONT)
    own_stage.ends(own_stage.submit("t.count"))


def _backends(server: Server) -> list[int]:
    """Process ids of all that this server started; the postmaster itself goes on and keeps the port open."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def test_threads_are_told_when_no_renewal_is_answered_for_the_length_of_the_lease(
    own_stage: Stage, server: Server
) -> None:
    """Q20: the whole server is frozen; the handler hears it from its context, and its task is done once the server thaws."""
    worker = own_stage.worker().ready()
    task = own_stage.submit("t.hold_thread", "go")
    own_stage.note("in", task)
    pids = [server.pid, *_backends(server)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert own_stage.note("told", task)["code"] == "lease_expired"
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
    own_stage.release("go")
    assert own_stage.ends(task).state == "succeeded"
    assert worker.process.poll() is None


def test_many_open_files_keep_no_worker_from_renewing(own_stage: Stage, server: Server) -> None:
    """Q20, Q23: more descriptors than select() knows: after a restart of the server it renews, is woken and works as before."""
    worker = own_stage.worker(app="crowded:app").ready()
    server.restart("immediate")
    held = own_stage.submit("t.hold", "go")
    own_stage.note("in", held)
    renewed = renewals(server)
    eventually(lambda: renewals(server) >= renewed + 3, "it renews")
    own_stage.release("go")
    assert own_stage.ends(held).deliveries == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    assert "Traceback" not in worker.log


def renewals(server: Server) -> int:
    """All that were answered."""
    with psycopg.connect(server.dsn()) as conn:
        row = conn.execute("SELECT sum(renewals) FROM poolkeeper.session").fetchone()
    assert row is not None
    return int(row[0])
