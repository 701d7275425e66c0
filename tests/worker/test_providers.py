"""What handlers tell of a provider reaches all workers, by the provider's own log (Q40, O15)."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from examples.demo import model
from psycopg.conninfo import make_conninfo

from fixtures.calls import Calls
from fixtures.proxy import Proxy
from fixtures.workers import Stage, eventually
from lab.postgres import Server
from poolkeeper.store import calls
from poolkeeper.store.signs import ProviderStats

QUOTA = 8
CALL = 0.2


class Strict(model.Server):
    """Refuses the one call that a test chooses."""

    refuse_after = -1
    _came = 0

    def admits(self, call: dict[str, Any]) -> bool:
        """Whether this is another call than the chosen one."""
        del call
        with self._lock:
            self._came += 1
            return self._came != self.refuse_after


@contextmanager
def provider(log: Path, refuse_after: int) -> Iterator[Calls]:
    """A provider that refuses its so manieth call."""
    log.touch()
    with Strict(("127.0.0.1", 0), model.Log(log), per_second=0) as server:
        server.refuse_after = refuse_after
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield Calls(f"http://127.0.0.1:{server.server_address[1]}/", log)
        finally:
            server.shutdown()
            thread.join()


def use(stage: Stage, most: int = QUOTA) -> None:
    """What an operator tells of the pool."""
    entry: dict[str, str | int] = {"name": "api", "quota": "platform/api", "cut": 50, "floor": 10, "recover": 1}
    stage.ask(calls.set_pool("default/pool", max_running=most))
    stage.ask(calls.set_providers("default/pool", [entry]))


def known(stage: Stage) -> ProviderStats:
    (found,) = stage.ask(calls.stats(cluster=None)).providers
    return found


def flights(model_log: Calls, begin: float, end: float = float("inf")) -> int:
    """The most calls in flight at once of those that began in this time."""
    now = most = 0
    mine: set[int] = set()
    for line in model_log.lines():
        if line["what"] == "began" and begin <= line["at"] < end:
            mine.add(line["call"])
            now += 1
        elif line["what"] in {"answered", "cut off"} and line["call"] in mine:
            now -= 1
        most = max(most, now)
    return most


@pytest.mark.wide
def test_after_a_refusal_nothing_begins_before_retry_after_and_then_half(stage: Stage, tmp_path: Path) -> None:
    """Q40: two workers, one hears the 429, both keep to it; calls in flight never pass the quota, nor its half afterwards."""
    use(stage)
    with provider(tmp_path / "provider.log", refuse_after=20) as served:
        stage.submit_many("t.asks", [CALL] * 60)
        for _ in range(2):
            stage.worker({"MODEL_URL": served.url}, concurrency=6, app="providing:app").ready()
        refused = eventually(
            lambda: next((note for note in stage.notes("told") if note["status"] == 429), None), "one is refused"
        )
        assert refused is not None
        assert refused["taken"] is True
        found = known(stage)
        assert found.cut_at is not None
        assert found.retry_at is not None
        heard, opens = refused["at"], found.retry_at.timestamp()
        assert opens - found.cut_at.timestamp() == pytest.approx(model.RETRY_AFTER)
        eventually(lambda: stage.states() == {"succeeded": 60}, "all is done, without a hand")
    with psycopg.connect(stage.dsn) as conn:
        query = "SELECT extract(epoch FROM started_at)::float8 FROM poolkeeper.delivery ORDER BY 1"
        starts = [row[0] for row in conn.execute(query).fetchall()]
    assert [at for at in starts if heard < at < opens] == [], "started while it was closed"
    assert flights(served, 0) <= QUOTA
    assert flights(served, opens) <= QUOTA // 2
    found = known(stage)
    assert (found.ok, found.throttled, found.tokens) == (60, 1, 6100)


COUNT_LEASES = """
CREATE TABLE public.counted (leases integer NOT NULL);
CREATE FUNCTION public.count_leases() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.counted SELECT count(*) FROM poolkeeper.lease; RETURN NULL; END $$;
CREATE TRIGGER counts AFTER INSERT ON poolkeeper.lease FOR EACH STATEMENT EXECUTE FUNCTION public.count_leases()
"""
"""Whatever claims is counted in its own transaction, what the same turn settled no more."""


def test_a_pool_with_providers_claims_nothing_ahead_of_its_free_slots(stage: Stage) -> None:
    """Q16, Q40: however short its handlers, for what waits in a worker would start after a refusal; without providers it does."""
    slots = 4

    def most_at_once(tasks: int) -> int:
        with psycopg.connect(stage.dsn, autocommit=True) as conn:
            conn.execute("TRUNCATE public.counted")
            stage.submit_many("t.count", [1] * tasks)
            eventually(lambda: stage.states().keys() == {"succeeded"}, "all is done")
            row = conn.execute("SELECT max(leases) FROM public.counted").fetchone()
        assert row is not None
        return int(row[0])

    with psycopg.connect(stage.dsn, autocommit=True) as conn:
        conn.execute(COUNT_LEASES)
    stage.ask(calls.set_pool("default/pool", max_running=1000))
    stage.worker(concurrency=slots).ready()
    assert most_at_once(400) > slots, "the handlers are short enough to be claimed ahead"
    use(stage, most=1000)
    assert most_at_once(400) == slots


def test_reports_come_from_threads_and_from_processes_of_their_own(stage: Stage) -> None:
    """Q46: taken, or not and the handler goes on; what cannot be is said before anything is sent."""
    use(stage)
    worker = stage.worker(app="providing:app").ready()
    thread = stage.ends(stage.submit("t.tells_thread")).result
    assert thread[:2] == [True, False]
    assert ["name" in thread[2][0], "HTTP" in thread[2][1], "seconds" in thread[2][2]] == [True] * 3
    child = stage.ends(stage.submit("t.tells_child")).result
    assert child[:3] == thread
    assert child[3] != worker.pid
    assert known(stage).ok == 2
    assert stage.ends(stage.submit("t.tells_child_async")).result == [True, False]
    found = known(stage)
    assert (found.throttled, found.tokens, found.cut_to) == (1, 7, 50)
    assert worker.log.count('provider "nobody"') == 1, "said once in a while"
    assert "spec.providers of the WorkerPool" in worker.log


@pytest.mark.wide
def test_a_report_that_cannot_be_told_fails_nobody(own_stage: Stage, server: Server) -> None:
    """Q40: the store is away; the handler goes on with False, within seconds, and its success is kept for later."""
    use(own_stage)
    proxy = Proxy(server.port)
    try:
        through = make_conninfo(own_stage.dsn, port=proxy.port)
        worker = own_stage.worker({"POOLKEEPER_DSN": through}, app="providing:app").ready()
        task = own_stage.submit("t.tells_later", "go")
        own_stage.note("in", task)
        proxy.cut()
        own_stage.release("go")
        eventually(lambda: 'provider "api": a report' in worker.log, "the worker says that it was not taken")
        proxy.mend()
        assert own_stage.ends(task).result == [False]
    finally:
        proxy.close()
    assert known(own_stage).throttled == 0
    assert own_stage.deliveries(task) == ["succeeded"]
