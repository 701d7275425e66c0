"""P1, P2, Q23, Q24: a server whose disk is full, whose clock moves, or which another one follows and replaces; under load."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fixtures.load import Load
from fixtures.places import Clock, fill, small_disk
from fixtures.workers import Stage, StageOn, Worker, eventually
from lab.errors import LabError
from lab.postgres import Server

pytestmark = pytest.mark.wide


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that the server's user may enter."""
    with tempfile.TemporaryDirectory(prefix="pk-trouble-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def two(stage: Stage) -> list[Worker]:
    return [worker.ready() for worker in (stage.worker(), stage.worker())]


def expired(stage: Stage) -> int:
    with psycopg.connect(stage.dsn) as conn:
        found = conn.execute("SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'expired'").fetchone()
    assert found is not None
    return int(found[0])


def test_a_full_disk_loses_nothing_that_was_acknowledged(public: Path, stage_on: StageOn) -> None:
    """P1: the server cannot write any more, and ends or refuses; with space again, and started if it had ended, all goes on."""
    settings = {"max_wal_size": "64MB", "min_wal_size": "32MB", "shared_buffers": "16MB"}
    with small_disk(public, 260) as place, Server(place=place, settings=settings) as server:
        stage = stage_on(server)
        workers = two(stage)
        with Load(stage) as load:
            ballast = fill(place)
            # nothing new can be acknowledged from some moment on
            with psycopg.connect(server.dsn(), autocommit=True) as conn, contextlib.suppress(psycopg.Error):
                conn.execute("CREATE TABLE hog AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
            eventually(lambda: "No space left on device" in server.log, "the disk is full", 60)
            time.sleep(3)
            ballast.unlink()
            with contextlib.suppress(LabError):
                server.stop("fast")
            server.start()
            load.flows("with space again")
        load.account()
        assert all(worker.process.poll() is None for worker in workers)


@pytest.mark.parametrize("by", [3600, -3600], ids=["forward", "back"])
def test_a_clock_that_moves_by_an_hour_expires_nothing(public: Path, stage_on: StageOn, by: int) -> None:
    """Q23: the server's own clock, by a library that lies about it; what runs goes on, nothing runs twice, nothing is a suspect."""
    clock = Clock(public)
    with Server(environment=clock.environment) as server:
        stage = stage_on(server)
        workers = two(stage)
        long = stage.submit("t.hold", "go")
        stage.note("in", long)
        with Load(stage) as load:
            with psycopg.connect(server.dsn(), autocommit=True) as conn:
                before = conn.execute("SELECT extract(epoch FROM poolkeeper.clock())").fetchone()
                clock.move(by)
                after = conn.execute("SELECT extract(epoch FROM poolkeeper.clock())").fetchone()
            assert before is not None
            assert after is not None
            assert abs(float(after[0] - before[0]) - by) < 60
            load.flows("after the clock moved", count=100)
            time.sleep(5)  # some leases long
            load.flows("for a while")
        stage.release("go")
        told = load.account()
        assert stage.deliveries(long) == ["succeeded"]
        assert (told["again"], expired(stage)) == (0, 0)
        assert all(worker.process.poll() is None for worker in workers)


def test_a_promoted_synchronous_standby_has_all_that_was_acknowledged(stage_on: StageOn) -> None:
    """P1, Q24: the server dies, its standby takes over under the workers' own DSN; nothing is held, nothing lost."""
    with Server() as first, Server(standby_of=first) as second:
        with psycopg.connect(first.dsn(), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            conn.execute("SELECT pg_reload_conf()")
            query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
            eventually(lambda: conn.execute(query).fetchone() == (1,), "the standby is synchronous")
        dsn = f"postgresql://postgres@127.0.0.1:{first.port},127.0.0.1:{second.port}/postgres?target_session_attrs=read-write"
        stage = stage_on(first, dsn)
        workers = two(stage)
        with Load(stage) as load:
            load.flows("before", count=100)
            first.kill()
            with psycopg.connect(second.dsn(), autocommit=True) as conn:
                conn.execute("SELECT pg_promote()")
                conn.execute("ALTER SYSTEM RESET synchronous_standby_names")
                conn.execute("SELECT pg_reload_conf()")
            load.flows("after the fail-over", count=100)
        load.account()
        assert all(worker.process.poll() is None for worker in workers)
        for worker in workers:
            os.kill(worker.pid, signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0, 0]
