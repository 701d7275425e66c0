"""Behind a real pgbouncer in transaction mode, with five connections to the server (field case C20, Q15)."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fixtures.poolers import pooled
from fixtures.workers import Stage, Worker, eventually
from lab.pgbouncer import Pooler
from lab.postgres import Server
from poolkeeper import Client
from poolkeeper.store import calls

pytestmark = pytest.mark.wide

TRANSACTION = {"POOLKEEPER_POOLER": "transaction"}

STATED = timedelta(seconds=5)
"""After this a worker that hears nothing looks by itself at the latest, as docs/how-to/run-behind-a-pooler.md says."""

READ_ONLY = "the database is read-only (a standby?); point the DSN at the primary"


@pytest.fixture
def behind(own_stage: Stage) -> Iterator[tuple[Stage, Pooler]]:
    """A stage all of whose calls go through the pooler: submits, commands, workers and the test's own questions."""
    with pooled(own_stage.dsn) as (dsn, pooler):
        own_stage.dsn = dsn
        yield own_stage, pooler


def ask(server: Server, query: str, *params: Any) -> Any:
    """One value, past the pooler."""
    with psycopg.connect(server.dsn()) as conn:
        row = conn.execute(query.encode(), params).fetchone()
    assert row is not None
    return row[0]


def complaints(server: Server, pooler: Pooler, workers: list[Worker]) -> list[str]:
    """Whatever server, pooler and workers found wrong."""
    return [
        *(line for line in server.log.splitlines() if any(word in line for word in ("ERROR:", "WARNING:", "FATAL:"))),
        *(line for line in pooler.log.splitlines() if " WARNING " in line or " ERROR " in line),
        *(line for worker in workers for line in worker.log.splitlines() if " info " not in line),
    ]


def test_a_client_prepares_nothing_through_a_pooler(behind: tuple[Stage, Pooler]) -> None:
    """C20: its statement would now and then be another client's; where the backend is its own it is prepared (test_connections)."""
    stage, _ = behind
    stage.apply()
    with Client(dsn=stage.dsn) as client:
        for n in range(30):
            client.submit("default/q", "t.count", n)
            assert client._own is not None
            assert client._own.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


@pytest.mark.parametrize("processes", [5, pytest.param(20, marks=[pytest.mark.deep, pytest.mark.timeout(600)])])
def test_a_load_through_the_pooler_is_done_once_each_and_without_an_error(
    behind: tuple[Stage, Pooler], server: Server, processes: int
) -> None:
    """C20: 2,000 tasks, a limit, checkpoints and retries, more connections than the pooler has; nobody complains of them."""
    stage, pooler = behind
    stage.apply(visibility_timeout="30s", concurrency={"max": 10 * processes - 5})
    workers = [stage.worker(TRANSACTION, concurrency=10) for _ in range(processes)]
    for worker in workers:
        worker.ready()
    for _ in range(19):
        stage.submit_many("t.sleeps", [0.15] * 100)
    stage.submit_many("t.saves", [[1]] * 100)
    done = "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'succeeded'"
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        eventually(lambda: conn.execute(done.encode()).fetchone() == (2000,), "all are done", 300)
    assert ask(server, "SELECT count(*) FROM poolkeeper.delivery") == 2100, "those that asked to be retried had two"
    assert Counter(note["what"] for note in stage.notes()) == {"in": 1900, "out": 1900, "saved": 200}
    assert len({note["task"] for note in stage.notes()}) == 2000
    assert len({note["pid"] for note in stage.notes()}) == processes
    for worker in workers:
        worker.process.terminate()
    assert [worker.wait() for worker in workers] == [0] * processes
    found = complaints(server, pooler, workers)
    assert len(found) == 100, found
    assert all("failed: retry after 0 s" in line for line in found)


def test_a_pooler_that_goes_away_under_load_and_comes_back_costs_no_second_delivery(
    behind: tuple[Stage, Pooler], server: Server
) -> None:
    """C20: what was claimed, settled or renewed in that moment and never answered is neither lost nor run again."""
    stage, pooler = behind
    stage.apply(visibility_timeout="60s")
    for worker in [stage.worker(TRANSACTION, concurrency=10) for _ in range(3)]:
        worker.ready()
    stage.submit_many("t.sleeps", [0.05] * 900)
    for count in (100, 400):
        stage.note("out", count=count)
        pooler.close()
        pooler.start()
    done = "SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'succeeded'"
    eventually(lambda: ask(server, done) == 900, "all are done", 120)
    assert Counter(note["what"] for note in stage.notes()) == {"in": 900, "out": 900}
    assert all("works again" in worker.log for worker in stage.workers)
    others = "SELECT count(*) FROM poolkeeper.delivery WHERE outcome NOT IN ('succeeded', 'returned')"
    assert ask(server, others) == 0


def test_a_worker_behind_the_pooler_looks_by_itself_and_says_nothing_of_it(
    behind: tuple[Stage, Pooler], server: Server
) -> None:
    """C20: without a direct way nothing wakes it; it comes at the latest after the time stated."""
    stage, pooler = behind
    stage.apply(visibility_timeout="30s")
    worker = stage.worker(TRANSACTION).ready()
    for _ in range(4):
        stage.ends(stage.submit("t.count"))
    session = stage.ask(calls.register_session("default/pool", ["default/q"], ["t.count"], concurrency=1, info={}))
    answer = stage.ask(calls.turn(session, 1, 0, [], 1))
    assert (answer.claimed, answer.come_again <= STATED) == ([], True), "what every worker is told"
    assert ask(server, "SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'listen%%'") == 0
    assert complaints(server, pooler, [worker]) == []


def test_with_a_direct_way_it_is_woken(behind: tuple[Stage, Pooler], server: Server) -> None:
    """C20: turns through the pooler, LISTEN past it: what comes is begun at once."""
    stage, pooler = behind
    stage.apply(visibility_timeout="30s")
    worker = stage.worker({**TRANSACTION, "POOLKEEPER_DIRECT_DSN": server.dsn()}).ready()
    for _ in range(9):
        stage.ends(stage.submit("t.count"))
    waited = (
        "SELECT min(claimed_at - ready_at) FROM (SELECT * FROM poolkeeper.delivery ORDER BY ended_at OFFSET 1) AS d"
    )
    assert ask(server, waited) < 0.3 * STATED, "who looks by itself, looks not before half of that time is over"
    assert complaints(server, pooler, [worker]) == []


def test_a_pooler_that_nobody_told_of_is_noticed_and_causes_no_errors(own_stage: Stage, server: Server) -> None:
    """C20: one that passes over startup options: prepared statements would clash now and then, and nothing would say why."""
    stage = own_stage
    stage.apply(visibility_timeout="30s")
    with pooled(stage.dsn, ignore_startup_parameters="options") as (stage.dsn, pooler):
        workers = [stage.worker().ready() for _ in range(4)]
        stage.submit_many("t.count", list(range(1000)))
        eventually(lambda: stage.states() == {"succeeded": 1000}, "all are done", 120)
        for _ in range(
            20
        ):  # a backend that listened for somebody would tell them to the pooler, which has nobody to tell
            ask(server, "SELECT poolkeeper.wake()")
            time.sleep(0.1)
        found = complaints(server, pooler, workers)
        for words in (
            "is in between; set POOLKEEPER_POOLER=transaction",
            "nothing wakes this worker; set POOLKEEPER_DIRECT",
        ):
            told = [line for line in found if words in line]
            assert len(told) == len(workers), found
            found = [line for line in found if words not in line]
        assert found == []


def test_a_pooler_that_refuses_what_a_worker_asks_for_is_named_with_the_remedy(own_stage: Stage) -> None:
    """C20: the real words; it works as soon as the pooler is told of."""
    stage = own_stage
    with pooled(stage.dsn) as (stage.dsn, _):
        worker = stage.worker()
        eventually(lambda: "POOLKEEPER_POOLER=transaction" in worker.log, "the worker says what to set")
        assert "unsupported startup parameter: options" in worker.log
        stage.worker(TRANSACTION)
        stage.ends(stage.submit("t.count"))


def poolkeeper(*argv: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "poolkeeper", *argv], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_migrations_go_through_the_pooler_also_two_at_once() -> None:
    """C20: one transaction with a lock of that transaction; the second one waits for it and finds nothing to do."""
    with Server() as server, pooled(server.dsn()) as (dsn, pooler):
        both = [poolkeeper("migrate", "--apply", "--dsn", dsn) for _ in range(2)]
        said = sorted(one.communicate()[0] for one in both)
        assert [one.returncode for one in both] == [0, 0], said
        assert said[1] == "schema is up to date\n"
        assert "applying functions" in said[0]
        check = poolkeeper("migrate", "--check", "--dsn", dsn)
        assert "this program works with it" in check.communicate()[0]
        assert complaints(server, pooler, []) == []


@pytest.mark.parametrize(
    ("settings", "argv", "code", "status", "remedy"),
    [
        ({"pool_mode": "statement"}, ("migrate", "--apply"), "dsn_invalid", 2, "in transaction or session mode"),
        ({"max_client_conn": "1"}, ("migrate", "--check"), "connections_exhausted", 5, "raise its limit"),
        ({"default_pool_size": "1", "query_wait_timeout": "1"}, ("migrate", "--check"), "database_unreachable", 5, "raise its size"),
    ],
)  # fmt: skip
def test_what_a_pooler_refuses_is_one_sentence_with_its_remedy(
    server: Server, settings: dict[str, str], argv: tuple[str, ...], code: str, status: int, remedy: str
) -> None:
    """C20: not as if the database were away."""
    with pooled(server.dsn(), **settings) as (dsn, _), psycopg.connect(dsn, autocommit="pool_mode" in settings) as held:
        held.execute("SELECT 1")
        asked = poolkeeper(*argv, "--dsn", dsn)
        said = asked.communicate()[0]
        assert asked.returncode == status, said
        assert said.startswith(f"error: {code}: ")
        assert remedy in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("through", ["the pooler", "no pooler"])
def test_a_replica_is_refused_at_once_and_used_when_it_is_the_primary(
    own_stage: Stage, server: Server, through: str
) -> None:
    """C20: a streaming standby: code and remedy in the first answer; promoted, it serves the same worker."""
    with psycopg.connect(server.dsn()) as conn:
        conn.execute("UPDATE poolkeeper.functions SET checksum = 'of an earlier release'")
    with Server(standby_of=server) as standby, pooled(standby.dsn()) as (dsn, _):
        replica = dsn if through == "the pooler" else standby.dsn()
        for argv in (["submit", "q", "t.count", "1"], ["queue", "pause", "q"], ["migrate", "--apply"]):
            asked = poolkeeper(*argv, "--dsn", replica)
            said = asked.communicate()[0]
            assert asked.returncode == 5, said
            assert said.splitlines()[-1].startswith(f"error: database_read_only: {READ_ONLY}"), said
        worker = own_stage.worker({**(TRANSACTION if replica == dsn else {}), "POOLKEEPER_DSN": replica})
        eventually(lambda: "failed, trying again" in worker.log, "it says why it waits")
        assert READ_ONLY in worker.log
        assert worker.get("/readyz")[0] != 200
        ask(standby, "SELECT pg_promote()")
        own_stage.dsn = replica
        own_stage.ends(own_stage.submit("t.count"))


def test_a_replica_for_listening_is_refused_before_anything_is_claimed(own_stage: Stage, server: Server) -> None:
    """C20: renewals take the same way, and what nobody renews would be delivered twice."""
    stage = own_stage
    with Server(standby_of=server) as standby:
        task = stage.submit("t.count")
        worker = stage.worker({**TRANSACTION, "POOLKEEPER_DIRECT_DSN": standby.dsn()})
        eventually(lambda: "renewal: failed" in worker.log, "it says why it waits")
        assert READ_ONLY in worker.log
        held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'poolkeeper worker'"
        eventually(lambda: ask(server, held) == 1, "it is connected all the same")
        assert stage.view(task).deliveries == 0
        assert worker.get("/readyz")[0] != 200
