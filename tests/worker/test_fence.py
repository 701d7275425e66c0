"""A copy, a restore, a fail-over: what lost commits is held until a person accepts it, what lost none goes on (Q24)."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fixtures.workers import Stage, eventually
from lab.postgres import Server
from poolkeeper.store import calls, connect, run

pytestmark = pytest.mark.wide
Standby = Callable[[Server], Server]


@pytest.fixture
def standby() -> Iterator[Standby]:
    """Streaming standbys of a server; closed at the end."""
    made: list[Server] = []

    def make(primary: Server) -> Server:
        made.append(Server(standby_of=primary))
        return made[-1].start()

    yield make
    for each in made:
        each.close()


def ask(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def held(dsn: str) -> str | None:
    return ask(dsn, "SELECT held_why FROM poolkeeper.contact")  # type: ignore[no-any-return]


def promote(primary: Server, replica: Server, *, caught_up: bool) -> None:
    """End the primary as a power cut would, and let the standby be the primary, on the old one's port."""
    if caught_up:
        end = ask(primary.dsn(), "SELECT pg_current_wal_insert_lsn()")
        eventually(lambda: ask(replica.dsn(), f"SELECT pg_last_wal_replay_lsn() >= '{end}'"), "the standby has it all")
    port = primary.port
    primary.kill()
    replica.stop("immediate")
    (replica.folder / "standby.signal").unlink()
    (
        replica.folder / "recovery.signal"
    ).touch()  # recovery as of a restore: to the end of what is here, then a new timeline
    with (replica.folder / "postgresql.auto.conf").open("a") as conf:
        conf.write("restore_command = 'false'\nprimary_conninfo = ''\n")
    replica.port = port
    replica.start()
    eventually(lambda: not ask(replica.dsn(), "SELECT pg_is_in_recovery()"), "it is promoted")


def accept(dsn: str) -> None:
    argv = [sys.executable, "-m", "poolkeeper", "db", "accept", "--why", "the other one is gone", "--dsn", dsn]
    assert "accepted" in subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    assert held(dsn) is None
    assert ask(dsn, "SELECT why FROM poolkeeper.acceptance") == "the other one is gone"


def test_a_promotion_without_loss_goes_on(own_stage: Stage, server: Server, standby: Standby) -> None:
    """Q23, Q24: the task that runs meanwhile is delivered once, by a worker that nobody touched."""
    own_stage.worker().ready()
    replica = standby(server)
    task = own_stage.submit("t.hold", "go")
    own_stage.note("in", task)
    promote(server, replica, caught_up=True)
    own_stage.ends(own_stage.submit("t.count"))
    own_stage.release("go")
    assert own_stage.ends(task).deliveries == 1
    assert held(own_stage.dsn) is None


def test_a_fail_over_that_lost_commits_is_held_until_it_is_accepted(
    own_stage: Stage, server: Server, standby: Standby
) -> None:
    """Q24: a worker remembers what was acknowledged; what it did in the lost part is refused and delivered again."""
    worker = own_stage.worker().ready()
    replica = standby(server)
    task = own_stage.submit("t.hold", "go")
    own_stage.note("in", task)
    before = ask(server.dsn(), "SELECT sum(renewals) FROM poolkeeper.session")
    eventually(lambda: ask(replica.dsn(), "SELECT sum(renewals) FROM poolkeeper.session") >= before, "it follows")
    receiver = ask(replica.dsn(), "SELECT pid FROM pg_stat_wal_receiver")
    os.kill(receiver, signal.SIGSTOP)  # the network between the two
    seen = ask(replica.dsn(), "SELECT sum(renewals) FROM poolkeeper.session")
    own_stage.release("go")
    own_stage.ends(task)
    eventually(lambda: ask(server.dsn(), "SELECT sum(renewals) FROM poolkeeper.session") > seen + 2, "it goes on")
    promote(server, replica, caught_up=False)
    eventually(lambda: held(own_stage.dsn), "it is held", 60)
    assert held(own_stage.dsn) == "lost_commits"
    waits = own_stage.submit("t.count")
    eventually(lambda: "db accept" in worker.log, "the worker says so")
    assert own_stage.view(waits).state == "ready"
    accept(own_stage.dsn)
    own_stage.ends(waits)
    own_stage.ends(task)


def test_an_older_copy_of_the_files_is_held(own_stage: Stage, server: Server, tmp_path: Path) -> None:
    """Q24: the same system, the same timeline, less in it."""
    own_stage.worker().ready()
    server.stop()
    subprocess.run(["cp", "-a", server.folder, tmp_path / "copy"], check=True)
    server.start()
    task = own_stage.submit("t.count")
    own_stage.ends(task)
    renewals = ask(own_stage.dsn, "SELECT sum(renewals) FROM poolkeeper.session")
    eventually(lambda: ask(own_stage.dsn, "SELECT sum(renewals) FROM poolkeeper.session") > renewals + 2, "it knows")
    server.stop()
    shutil.rmtree(server.folder)
    subprocess.run(["cp", "-a", tmp_path / "copy", server.folder], check=True)
    server.start()
    eventually(lambda: held(own_stage.dsn), "it is held", 60)
    assert held(own_stage.dsn) == "older_copy"
    accept(own_stage.dsn)
    own_stage.ends(own_stage.submit("t.count"))


def test_a_clone_in_the_same_server_is_held(own_stage: Stage, server: Server) -> None:
    """Q24: another database of the same server, whichever way it was copied; nothing of the original is touched."""
    own_stage.submit("t.count")
    server.restart()
    with psycopg.connect(server.dsn("template1"), autocommit=True) as conn:
        conn.execute("CREATE DATABASE clone TEMPLATE postgres")
    dsn = server.dsn("clone")
    with connect(dsn) as conn:
        session = run(conn, calls.register_session("default/pool", ["default/q"], ["t.count"], concurrency=1, info={}))
        assert held(dsn) == "another_database"
        run(conn, calls.renew(session, 0, []))
        assert run(conn, calls.turn(session, 1, 0, [], 1)).claimed == []
        accept(dsn)
        run(conn, calls.renew(session, 1, []))
        assert len(run(conn, calls.turn(session, 2, 1, [], 1)).claimed) == 1
    assert held(own_stage.dsn) is None


def test_a_logical_copy_on_another_server_is_held(own_stage: Stage, server: Server) -> None:
    """Q24: by pg_dump, where the copy knows no system but the old one's."""
    dump = server.binaries.folder / "pg_dump"
    own_stage.submit("t.count")
    text = subprocess.run([dump, "--dbname", server.dsn()], check=True, capture_output=True).stdout
    with Server() as other:
        with connect(other.dsn()) as conn:
            from poolkeeper.store import migrate

            migrate.apply(conn, say=lambda _line: None)  # the group roles belong to the server
            conn.execute("DROP SCHEMA poolkeeper CASCADE")
        psql = server.binaries.folder / "psql"
        subprocess.run([psql, "-v", "ON_ERROR_STOP=1", "-q", other.dsn()], input=text, check=True, capture_output=True)
        with connect(other.dsn()) as conn:
            run(conn, calls.register_session("default/pool", ["default/q"], ["t.count"], concurrency=1, info={}))
        assert held(other.dsn()) == "another_system"
