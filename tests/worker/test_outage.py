"""The database cannot be reached, by all at once, for longer than leases last: nothing runs twice, nothing runs apart (Q23)."""

import os
import signal
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures.proxy import Proxy
from fixtures.workers import LEASE, Stage, eventually
from lab.postgres import Server
from lab.process import Process

pytestmark = pytest.mark.wide


def once(stage: Stage, count: int) -> None:
    """All that ran was delivered once and ran beside others, and the workers have ended well."""
    for task in {note["task"] for note in stage.notes("in")}:
        assert len([note for note in stage.notes("in") if note["task"] == task]) == 1
    with psycopg.connect(stage.dsn) as conn:
        query = "SELECT count(*), count(*) FILTER (WHERE outcome = 'succeeded'), count(*) FILTER (WHERE suspect) FROM poolkeeper.delivery"
        assert conn.execute(query.encode()).fetchone() == (count, count, 0)
        assert conn.execute("SELECT count(*) FROM poolkeeper.suspect").fetchone() == (0,)


def held(stage: Stage, count: int = 6) -> None:
    """Two workers, one of them with a free slot, hold so many tasks."""
    stage.submit_many("t.hold", ["go"] * count)
    stage.note("in", count=count)


def finish(stage: Stage, count: int = 6) -> None:
    """Long enough afterwards for whatever would have expired, let them end."""
    end = time.monotonic() + 2 * LEASE  # real leases on real time: what would expire does so meanwhile
    while time.monotonic() < end:
        assert len(stage.notes("in")) == count
        time.sleep(0.1)
    stage.release("go")
    eventually(lambda: stage.states() == {"succeeded": count}, "all have succeeded", 60)
    once(stage, count)


def test_a_network_that_is_away_for_three_leases(own_stage: Stage, server: Server) -> None:
    """Q23: the database runs all the while, nobody reaches it; whoever is first afterwards does not end the others' work."""
    proxy = Proxy(server.port)
    try:
        through = make_conninfo(own_stage.dsn, port=proxy.port)
        for _ in range(2):
            own_stage.worker({"POOLKEEPER_DSN": through}).ready()
        held(own_stage)
        proxy.cut()
        time.sleep(3 * LEASE)
        proxy.mend()
        finish(own_stage)
    finally:
        proxy.close()


def test_a_server_that_is_frozen_for_three_leases(own_stage: Stage, server: Server) -> None:
    """Q23: all of its processes stand still, in the midst of whatever they did, and go on together."""
    for _ in range(2):
        own_stage.worker().ready()
    held(own_stage)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    pids = [server.pid, *(int(pid) for pid in children.split())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(3 * LEASE)
    finally:
        for pid in reversed(pids):
            if Process.of(pid).alive():
                os.kill(pid, signal.SIGCONT)
    finish(own_stage)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_moved_by_an_hour(own_stage: Stage, hours: int) -> None:
    """Q23, contract 7: under live workers, in either direction."""
    with psycopg.connect(own_stage.dsn, autocommit=True) as conn:
        for _ in range(2):
            own_stage.worker().ready()
        held(own_stage)
        conn.execute(
            "CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
            f" AS $$ SELECT clock_timestamp() + interval '{hours} hours' $$".encode()
        )
    finish(own_stage)
