"""A pool's login changes under load: no task is lost, no delivery, and the login before goes when nobody uses it (O5)."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from fixtures.logins import POOL, Logins
from fixtures.workers import Stage, Worker, eventually
from poolkeeper.store import calls, connect
from poolkeeper.store.logins import Slot, dsn_as

pytestmark = pytest.mark.wide
OTHER: dict[Slot, Slot] = {"a": "b", "b": "a"}


class Secret:
    """A file as the kubelet mounts it: replaced whole."""

    def __init__(self, path: Path, dsn: str) -> None:
        self.path = path
        self.write(dsn)

    def write(self, dsn: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(dsn)
        fresh.replace(self.path)


def worker_by(stage: Stage, secret: Secret) -> Worker:
    env = {"POOLKEEPER_DSN": "", "POOLKEEPER_DSN_FILE": str(secret.path), "POOLKEEPER_POOL": POOL}
    return stage.worker(env, queues="team/mail").ready()


@contextlib.contextmanager
def silent() -> Iterator[tuple[int, Callable[[], int]]]:
    """A port that takes connections and says nothing; and how many there were."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as kept:
        listener.setblocking(False)
        came: list[socket.socket] = []

        def asked() -> int:
            with contextlib.suppress(BlockingIOError):
                while True:
                    came.append(kept.enter_context(listener.accept()[0]))
            return len(came)

        yield listener.getsockname()[1], asked


def renewed(stage: Stage) -> object:
    with connect(stage.dsn) as conn:
        return conn.execute("SELECT renewed_at FROM poolkeeper.session WHERE ended_at IS NULL").fetchone()


@pytest.fixture
def stage(logins: Logins, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(logins.database.dsn, tmp_path)
    made.apply("team/mail")
    yield made
    made.close()


def gone(logins: Logins, slot: Slot) -> bool:
    return bool(logins.ask(calls.retire_pool_login(POOL, slot)).state == "gone")


def test_three_rotations_under_load_lose_nothing_and_run_nothing_twice(
    stage: Stage, logins: Logins, tmp_path: Path
) -> None:
    """O5: with tasks that end all the while, and one that lasts from the first login to the last."""
    secret = Secret(tmp_path / "dsn", logins.make("a"))
    workers = [worker_by(stage, secret) for _ in range(2)]
    long = stage.submit("t.hold", "end", queue="team/mail")
    stage.note("in", long)
    slot: Slot = "a"
    submitted = []
    for _ in range(3):
        before, slot = slot, OTHER[slot]
        secret.write(logins.make(slot))

        def moved() -> bool:
            submitted.extend(stage.submit_many("t.count", [1] * 20, queue="team/mail"))
            return gone(logins, before)

        eventually(moved, f"login {before} is used by nobody and gone")
        assert logins.seen().keys() == {(POOL, slot)}
    stage.release("end")
    assert stage.ends(long).deliveries == 1
    for task in submitted:
        stage.ends(task)
        assert stage.deliveries(task) == ["succeeded"]
    assert stage.deliveries(long) == ["succeeded"]
    assert all(each.process.poll() is None for each in workers)
    assert "unknown session" not in "".join(each.log for each in workers)
    assert len(stage.notes("done")) == len(submitted)


def test_a_new_dsn_that_does_not_work_changes_nothing(stage: Stage, logins: Logins, tmp_path: Path) -> None:
    """O5: the connections that work are kept, and the leases with them; the next one that works is taken up."""
    good = logins.make("a")
    secret = Secret(tmp_path / "dsn", good)
    worker = worker_by(stage, secret)
    task = stage.submit("t.hold", "end", queue="team/mail")
    stage.note("in", task)
    secret.write(dsn_as(good, "nobody_at_all", "wrong"))
    for what in ("turns", "renewal"):
        eventually(lambda: f"{what}: the DSN has changed, and does not work" in worker.log, what)
    secret.path.unlink()
    for _ in range(3):
        stage.ends(stage.submit("t.count", 1, queue="team/mail"))
    secret.write(good)
    stage.release("end")
    stage.ends(task)
    assert stage.deliveries(task) == ["succeeded"]
    assert logins.seen() == {(POOL, "a"): (True, 2)}


def test_a_new_dsn_that_answers_nothing_holds_nobody_up(stage: Stage, logins: Logins, tmp_path: Path) -> None:
    """O5, Q20: a lease is renewed and turns are taken while the attempt lasts, however long; so is the next DSN; and the drain ends."""
    good = logins.make("a")
    secret = Secret(tmp_path / "dsn", good)
    worker = worker_by(stage, secret)
    task = stage.submit("t.hold", "end", queue="team/mail")
    stage.note("in", task)
    with silent() as (port, asked):
        secret.write(make_conninfo(good, port=port, connect_timeout=600))
        eventually(lambda: asked() == 2, "both connections try it")
        for _ in range(3):
            stage.ends(stage.submit("t.count", 1, queue="team/mail"))
        for _ in range(2):  # renewed by the connection that there is
            seen = renewed(stage)
            eventually(lambda: renewed(stage) != seen, "a renewal is answered")
        secret.write(logins.make("b"))
        eventually(lambda: logins.seen()[POOL, "b"][1] == 2, "both connections are the other login's")
        secret.write(make_conninfo(good, port=port, connect_timeout=600))
        eventually(lambda: asked() == 4, "both connections try that once more")
        stage.release("end")
        stage.ends(task)
        assert stage.deliveries(task) == ["succeeded"]
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log
    eventually(lambda: gone(logins, "a"), "no connection is left")


def test_who_is_between_two_connections_goes_on_with_the_other_login(
    stage: Stage, logins: Logins, tmp_path: Path
) -> None:
    """O5, Q17: the server ends all connections just when the Secret has changed: same session, same delivery."""
    secret = Secret(tmp_path / "dsn", logins.make("a"))
    worker = worker_by(stage, secret)
    task = stage.submit("t.hold", "end", queue="team/mail")
    stage.note("in", task)
    secret.write(logins.make("b"))
    with connect(logins.database.dsn) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE 'poolkeeper\\_pool\\_%'"
        )
    eventually(lambda: logins.seen()[POOL, "b"][1] == 2, "both connections are the other login's")
    eventually(lambda: gone(logins, "a"), "the first one goes")
    stage.release("end")
    stage.ends(task)
    assert stage.deliveries(task) == ["succeeded"]
    assert "unknown session" not in worker.log
    os.kill(worker.pid, 0)
