"""P1, P2, P4, Q49: whatever is wrong with the database, under load: nothing lost, rows compared by id, and no hand is needed.

Each trouble lasts a while in the midst of submits and runs; afterwards the same workers work, and have said what was wrong.
Restarts with the dead being recovered are in test_field_cases_database.py, poolers in test_pooler.py.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from fixtures.layers import cannot_run
from fixtures.load import Load
from fixtures.workers import Stage, StageOn, Worker, eventually
from lab import postgres_binaries
from lab.postgres import Server
from poolkeeper.store import calls, connect, run

pytestmark = pytest.mark.wide

Trouble = Callable[[Server], contextlib.AbstractContextManager[None]]
Felt = Callable[[list[Worker], Load], bool]
HELD = 3.0  # seconds that a trouble lasts; longer than a lease
SMALLER_QUEUE = 17  # the Postgres from which on max_notify_queue_pages is there


def both(stage: Stage) -> list[Worker]:
    """Two workers that are ready."""
    stage.apply(max_deliveries=20)
    return [worker.ready() for worker in (stage.worker(), stage.worker())]


def logs(*words: str) -> Felt:
    """It was felt when some worker has said one of these."""
    return lambda workers, _: any(word in worker.log for worker in workers for word in words)


def refuses(_: list[Worker], load: Load) -> bool:
    """It was felt when a submit was refused."""
    return bool(load.errors)


def stands_still(_: list[Worker], load: Load) -> bool:
    """It was felt when no task comes to its end."""
    before = load.ran()
    time.sleep(1)
    return load.ran() == before


def whole(workers: list[Worker]) -> None:
    """The same processes are there, and end in order."""
    assert all(worker.process.poll() is None for worker in workers), [worker.log[-2000:] for worker in workers]
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0, 0]


@contextlib.contextmanager
def setting(server: Server, name: str, value: str, *, kick: bool = True) -> Iterator[None]:
    """A setting of the whole server for a while; `kick`: also for connections that are there."""

    def change(command: str) -> None:
        with psycopg.connect(server.dsn(), autocommit=True, options="-c statement_timeout=0 -c lock_timeout=0") as conn:
            conn.execute(command.encode())
            conn.execute("SELECT pg_reload_conf()")
            if kick:
                conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'poolkeeper%'"
                )

    change(f"ALTER SYSTEM SET {name} = {value}")
    try:
        yield
    finally:
        change(f"ALTER SYSTEM RESET {name}")


@contextlib.contextmanager
def failing(server: Server, sqlstate: str, table: str) -> Iterator[None]:
    """Three of four statements that write to a table are ended by an error of the server's own."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(
            f"CREATE FUNCTION public.trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF random() < 0.75 THEN"
            f" RAISE EXCEPTION 'trouble' USING ERRCODE = '{sqlstate}'; END IF; RETURN NULL; END $$;"
            f" CREATE TRIGGER trouble AFTER INSERT ON poolkeeper.{table} FOR EACH STATEMENT EXECUTE FUNCTION public.trouble()".encode()
        )
        try:
            yield
        finally:
            conn.execute(f"DROP TRIGGER trouble ON poolkeeper.{table}; DROP FUNCTION public.trouble()".encode())


@contextlib.contextmanager
def locked(server: Server, table: str) -> Iterator[None]:
    """Somebody holds a whole table, as a schema change would."""
    with psycopg.connect(server.dsn()) as conn:
        conn.execute(f"LOCK TABLE poolkeeper.{table} IN ACCESS EXCLUSIVE MODE".encode())
        yield


@contextlib.contextmanager
def full(server: Server) -> Iterator[None]:
    """No connection is left, and those that are ours were lost."""
    taken: list[psycopg.Connection] = []
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        kick = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'poolkeeper%'"
        try:
            while True:
                conn.execute(kick)
                with contextlib.suppress(psycopg.OperationalError):
                    while True:
                        taken.append(psycopg.connect(server.dsn(), connect_timeout=5))
                if conn.execute(kick).fetchone() == (0,):
                    break
            yield
        finally:
            for each in taken:
                each.close()


@contextlib.contextmanager
def _both(*troubles: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for trouble in troubles:
            stack.enter_context(trouble)
        yield


@contextlib.contextmanager
def _restarted(server: Server, how: str) -> Iterator[None]:
    server.stop(how)
    yield
    server.start()


TROUBLES: dict[str, tuple[Trouble, Felt]] = {
    "statements that take too long": (
        lambda server: setting(server, "statement_timeout", "'1ms'"),
        logs("statement timeout", "took too long"),
    ),
    "locks that are not had in time": (
        lambda server: _both(setting(server, "lock_timeout", "'20ms'"), locked(server, "lease")),
        logs("holds a lock for too long"),
    ),
    "a table held for longer than a lease": (lambda server: locked(server, "lease"), stands_still),
    "a queue's row held": (lambda server: locked(server, "queue"), stands_still),
    "deadlocks": (lambda server: failing(server, "40P01", "delivery"), logs("trouble", "deadlock")),
    "serialisation failures": (lambda server: failing(server, "40001", "lease"), logs("trouble", "serial")),
    "no disk space for a row": (lambda server: failing(server, "53100", "delivery"), logs("trouble", "disk")),
    "no memory": (lambda server: failing(server, "53200", "lease"), logs("trouble", "memory")),
    "a broken page": (lambda server: failing(server, "XX001", "delivery"), logs("trouble")),
    "submits that fail": (lambda server: failing(server, "53100", "task"), refuses),
    "read only": (
        lambda server: setting(server, "default_transaction_read_only", "on"),
        logs("read-only", "read only", "database_read_only"),
    ),
    "no connection left": (full, logs("connections_exhausted", "too many", "no connection")),
    "restarted in order": (lambda server: _restarted(server, "fast"), logs("trying again for ever")),
    "stopped at once": (lambda server: _restarted(server, "immediate"), logs("trying again for ever")),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_passes_without_a_loss_and_without_a_hand(own_stage: Stage, server: Server, name: str) -> None:
    """P1, P2, Q49: before, meanwhile and after; what was acknowledged has succeeded once, by id."""
    trouble, felt = TROUBLES[name]
    workers = both(own_stage)
    with Load(own_stage) as load:
        with trouble(server):
            time.sleep(HELD)
            eventually(lambda: felt(workers, load), "the trouble is felt")
        load.flows("afterwards")
    print(load.account())  # noqa: T201 - shown where it fails
    whole(workers)


def test_a_snapshot_that_is_held_and_a_caller_that_sits_in_a_transaction_stop_nobody(own_stage: Stage) -> None:
    """Q4, Q14: others go on; what the caller submitted exists when it commits, and only then."""
    workers = both(own_stage)
    with connect(own_stage.dsn, autocommit=False) as old, connect(own_stage.dsn, autocommit=False) as sitting:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM poolkeeper.task")
        inside = run(sitting, calls.submit("default/q", "t.count", "inside", key="inside")).task_id
        assert inside is not None
        with Load(own_stage) as load:
            load.flows("meanwhile", count=200)
        load.account()
        assert own_stage.view(inside) is None
        sitting.commit()
        own_stage.ends(inside)
    whole(workers)


def test_a_full_notification_queue_fails_no_submit_and_stops_no_worker(
    stage_on: StageOn,
) -> None:
    """Q15: somebody listens and sits in a transaction until the queue is full; hints are left out, polling is the truth."""
    if postgres_binaries.find().major < SMALLER_QUEUE:
        cannot_run("before Postgres 17 the notification queue holds 8 GB and cannot be made smaller")
    with Server(settings={"max_notify_queue_pages": "64"}) as server:
        stage = stage_on(server)
        workers = both(stage)
        with connect(server.dsn(), autocommit=True) as listener, connect(server.dsn()) as noise, Load(stage) as load:
            listener.execute("LISTEN elsewhere")
            listener.execute("BEGIN")
            listener.execute("SELECT 1")
            with pytest.raises(psycopg.Error, match="too many notifications"):
                while True:
                    noise.execute(
                        "SELECT count(pg_notify('elsewhere', n || repeat('x', 7000))) FROM generate_series(1, 10) AS n"
                    )
            load.flows("with a full queue", count=100)
            assert not load.errors
        load.account()
        whole(workers)
