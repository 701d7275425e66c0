"""Retention beside everything else: what somebody is using or changing at that moment is left alone (Q52, Q10, Q51)."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from poolkeeper.store import Claimed, Settle, calls, run
from store.aging import DAY, HOUR, dead, done, keep, rows_of, upkeep
from store.scene import Scene, await_blocked, meanwhile, seconds
from store.test_lock_order import impatient
from store.test_plans import STATISTICS, full, touching
from store.test_purge import purge

if TYPE_CHECKING:
    from uuid import UUID

pytestmark = pytest.mark.usefixtures("this_month_again")
SHORT = {"payload": "1h", "result": "1h", "checkpoint": "1h", "events": "1h", "deadLetters": "1h", "keys": "1h"}


def open_upkeep(scene: Scene) -> psycopg.Connection:
    """A pass that has done its work and not committed."""
    conn = scene.connect("operator", autocommit=False)
    run(conn, calls.maintain())
    return conn


class TestRequeue:
    """A person and the time, at one dead letter."""

    def test_a_requeue_under_way_keeps_the_letter(self, scene: Scene) -> None:
        keep(scene, checkpoint="10h", deadLetters="10h")
        worker = scene.worker()
        task_id = dead(scene, worker, key="k")
        scene.advance(50 * HOUR)
        person = scene.connect("person", autocommit=False)
        assert run(person, calls.requeue(task_id, who="ann", why="x")).code is None
        done_now = run(impatient(scene, "operator"), calls.maintain())  # waits for nobody
        assert (done_now.dead_letters, done_now.checkpoints) == (0, 0)
        person.commit()
        assert upkeep(scene).dead_letters == 0
        worker.renew()
        assert worker.take().checkpoint == {"step": 3}

    def test_a_requeue_that_comes_too_late_hears_so(self, scene: Scene) -> None:
        keep(scene, deadLetters="10h")
        task_id = dead(scene, scene.worker())
        scene.advance(50 * HOUR)
        operator = open_upkeep(scene)
        with meanwhile(lambda: scene.ask("person", calls.requeue(task_id, who="ann", why="x"))) as answer:
            await_blocked(scene)
            operator.commit()
        assert (answer.result().code, answer.result().state) == ("not_dead", "canceled")

    def test_a_requeued_task_is_not_judged_by_its_old_death(self, scene: Scene) -> None:
        """A pass that had seen it dead, and one that sees it ready, long after."""
        keep(scene, **SHORT | {"keys": "100h", "deadLetters": "100h"})
        task_id = dead(scene, scene.worker(), key="k")
        scene.advance(50 * HOUR)
        upkeep(scene)
        scene.ask("person", calls.requeue(task_id, who="ann", why="x"))
        for _ in range(5):
            scene.advance(500 * HOUR)
            upkeep(scene)
        assert scene.state(task_id) == "ready"
        assert scene.verdict(key="k").task_id == task_id


class TestSubmit:
    """A repeat of a submit, at the moment when the first task goes, or its key."""

    def test_a_repeat_beside_the_removal_of_the_task(self, scene: Scene) -> None:
        """Q6: whichever comes first, one task; nobody is told a wrong state."""
        keep(scene, events="10h")
        task_id = done(scene, scene.worker(), key="k")
        scene.advance(20 * HOUR)
        operator = open_upkeep(scene)
        with meanwhile(lambda: scene.verdict(key="k")) as answer:
            await_blocked(scene)  # the key is being told of the end
            operator.commit()
        again = answer.result()
        assert (again.task_id, again.created, again.state) == (task_id, False, "succeeded")
        assert rows_of(scene, task_id) == {"task_key": 1}

    def test_the_removal_of_the_task_beside_a_repeat(self, scene: Scene) -> None:
        """The other one is first: its transaction is open, and keeps nothing from going."""
        keep(scene, events="10h")
        task_id = done(scene, scene.worker(), key="k")
        scene.advance(20 * HOUR)
        submitter = scene.connect("submitter", autocommit=False)
        again = run(submitter, calls.submit("q", "a.b", 1, key="k"))
        assert (again.task_id, again.created, again.state) == (task_id, False, "succeeded")
        assert run(impatient(scene, "operator"), calls.maintain()).tasks == 1
        submitter.commit()
        assert scene.verdict(key="k").state == "succeeded"

    def test_a_repeat_beside_the_removal_of_the_key(self, scene: Scene) -> None:
        """It waits, finds the key free and makes a new task."""
        keep(scene, **SHORT)
        first = done(scene, scene.worker(), key="k")
        scene.advance(3 * HOUR)
        operator = open_upkeep(scene)  # the task goes and its key at once: as old as it must be
        with meanwhile(lambda: scene.verdict(payload=2, key="k")) as answer:
            await_blocked(scene)
            operator.commit()
        assert answer.result().created
        assert answer.result().task_id != first
        assert upkeep(scene).keys == 0
        assert not scene.verdict(payload=2, key="k").created

    def test_a_new_task_of_the_key_is_not_told_of_the_old_ones_end(self, scene: Scene) -> None:
        keep(scene, **SHORT)
        done(scene, scene.worker(), key="k")
        scene.advance(3 * HOUR)
        upkeep(scene)
        fresh = scene.submit(payload=2, key="k")
        scene.advance(100 * HOUR)
        upkeep(scene)
        again = scene.verdict(payload=2, key="k")
        assert (again.task_id, again.state) == (fresh, "ready")


class TestSettle:
    """The last settle of an old task, at that very moment."""

    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "dead", "rejected", "handed_back"])
    def test_a_task_that_is_just_being_settled_is_left_alone(self, scene: Scene, outcome: str) -> None:
        """Accepted long ago: judged by its end, which is now, and not visible before its commit."""
        keep(scene, **SHORT)
        task_id = scene.submit(key="k")
        scene.advance(1000 * HOUR)
        conn = scene.connect("worker", autocommit=False)
        worker = scene.worker(conn=conn)
        delivery = worker.take()
        conn.commit()
        assert worker.settle(delivery, outcome).code is None
        before = upkeep(scene)
        conn.commit()
        after = upkeep(scene)
        assert {before.tasks, before.keys, before.dead_letters, after.tasks, after.keys, after.dead_letters} == {0}
        state = {"rejected": {"failed"}, "failed": {"scheduled", "ready"}, "handed_back": {"ready"}}.get(
            outcome, {outcome}
        )
        assert scene.state(task_id) in state

    def test_a_settle_beside_an_open_pass_is_not_waited_for_by_either(self, scene: Scene) -> None:
        """Q10: a pass holds nothing that a worker needs."""
        keep(scene, **SHORT)
        worker = scene.worker(conn=impatient(scene))
        for _ in range(3):
            done(scene, worker, key=f"k{_}")
        scene.advance(3 * HOUR)
        # what a new month needs is a matter of its own: the month may turn within these hours
        scene.ask("operator", calls.maintain(1))
        worker.renew()
        old = scene.submit(key="old")
        delivery = worker.take()
        operator = open_upkeep(scene)
        assert worker.succeed(delivery).code is None
        scene.submit()
        answer = worker.turn(want=1, sweep=True)
        assert len(answer.claimed) == 1
        operator.commit()
        assert scene.state(old) == "succeeded"


class TestNeighbours:
    """Nobody waits for retention, and it waits for nobody."""

    @pytest.mark.parametrize("table", ["queue", "pool", "session", "ready", "later", "lease", "dead", "task"])
    def test_a_pass_waits_for_no_row_that_others_hold(self, scene: Scene, table: str) -> None:
        """Q51: what is locked is left for the next time, and found then."""
        keep(scene, events="10h", deadLetters="10h", checkpoint="10h")
        worker = scene.worker()
        task_id, letter = done(scene, worker), dead(scene, worker)
        scene.submit(delay=9_999_999)
        worker.end()
        scene.advance(9 * DAY)
        held = scene._stack.enter_context(psycopg.connect(scene.database.dsn))
        held.execute(f"SELECT 1 FROM poolkeeper.{table} FOR UPDATE".encode())
        run(impatient(scene, "operator"), calls.maintain())
        held.rollback()
        upkeep(scene)
        assert rows_of(scene, task_id) == {}
        assert scene.state(letter) == "canceled"
        assert scene.value("SELECT count(*) FROM poolkeeper.session") == 0

    def test_of_two_at_once_one_works(self, scene: Scene) -> None:
        keep(scene, events="10h")
        done(scene, scene.worker())
        scene.advance(20 * HOUR)
        operator = open_upkeep(scene)
        assert run(impatient(scene), calls.maintain()).tasks == 0
        operator.rollback()
        assert scene.ask("worker", calls.maintain()).tasks == 1

    def test_a_purge_beside_an_open_pass(self, scene: Scene) -> None:
        """Contract 19: both take the tasks first, so neither waits for the other in a circle."""
        keep(scene, events="10h")
        worker = scene.worker()
        for n in range(20):
            done(scene, worker, key=f"k{n}")
        scene.advance(20 * HOUR)
        cursor = scene.ask("operator", calls.purge("local", "default", "default", "q", who="t")).cursor
        open_one = scene.connect("operator", autocommit=False)
        assert run(open_one, calls.maintain(5)).tasks == 5
        page = calls.purge("local", "default", "default", "q", who="t", cursor=cursor)
        with meanwhile(lambda: scene.ask("operator", page)) as purged:
            await_blocked(scene)
            open_one.commit()
        assert purged.result().removed == 15
        purge(scene)
        assert scene.value("SELECT count(*) FROM poolkeeper.task_key") == 0

    def test_a_purge_beside_a_pass_that_is_half_way(self, scene: Scene) -> None:
        """Contract 19: with the tasks locked and their history still there, a circle of two would be a deadlock."""
        keep(scene, events="10h")
        done(scene, scene.worker())
        scene.advance(20 * HOUR)
        page = calls.purge(
            "local",
            "default",
            "default",
            "q",
            who="t",
            cursor=scene.ask("operator", calls.purge("local", "default", "default", "q", who="t")).cursor,
        )
        gate = "PERFORM set_config('lock_timeout', '20s', true); PERFORM pg_advisory_xact_lock(77); DELETE FROM poolkeeper.delivery"
        passing, purging = scene.connect("operator"), scene.connect("operator")
        with scene.without("poolkeeper.forget_ended(uuid[], timestamptz)", "DELETE FROM poolkeeper.delivery", gate):
            scene.owner.execute("SELECT pg_advisory_lock(77)")
            with meanwhile(lambda: run(passing, calls.maintain())) as removed:
                await_blocked(scene)
                with meanwhile(lambda: run(purging, page)) as purged:
                    await_blocked(scene, 2)
                    scene.owner.execute("SELECT pg_advisory_unlock(77)")
        assert (removed.result().tasks, purged.result().removed) == (1, 0)


_WITNESS = """
    CREATE TABLE public.gone (what text, task_id uuid, at timestamptz);
    CREATE FUNCTION public.note_gone() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF tg_table_name = 'task' THEN
            INSERT INTO public.gone VALUES ('removed', OLD.id, poolkeeper.clock());
        ELSIF tg_table_name LIKE 'event%%' THEN
            INSERT INTO public.gone SELECT 'end', OLD.task_id, OLD.at WHERE OLD.kind IN ('canceled', 'discarded');
        ELSE
            INSERT INTO public.gone SELECT 'end', OLD.task_id, OLD.ended_at WHERE OLD.next_state IN ('succeeded', 'failed', 'canceled');
        END IF;
        RETURN OLD;
    END $$;
    CREATE TRIGGER note_gone AFTER DELETE ON poolkeeper.task FOR EACH ROW EXECUTE FUNCTION public.note_gone();
    CREATE TRIGGER note_gone AFTER DELETE ON poolkeeper.event FOR EACH ROW EXECUTE FUNCTION public.note_gone();
    CREATE TRIGGER note_gone AFTER DELETE ON poolkeeper.delivery FOR EACH ROW EXECUTE FUNCTION public.note_gone();
"""


@pytest.fixture
def witness(scene: Scene) -> Iterator[None]:
    """Writes down what goes, and with which end in its history."""
    scene.owner.execute(_WITNESS.replace("%%", "%").encode())
    yield
    scene.owner.execute("DROP FUNCTION public.note_gone() CASCADE; DROP TABLE public.gone")


class Bustle:
    """Workers, people and time, each on a connection of its own."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.accepted: list[UUID] = []
        self.over = threading.Event()

    def work(self, seed: int) -> None:
        """What a worker holds is never removed: it would hear unknown_task."""
        rng, held = random.Random(seed), list[Claimed]()
        worker = self.scene.worker(conn=self.scene.connect("worker"))
        outcomes = ["succeeded", "failed", "dead", "rejected", "snoozed", "handed_back"]
        for _ in range(120):
            worker.renew()
            wait = seconds(rng.choice([0, 4000]))
            settles = [Settle(c.task_id, c.token, rng.choice(outcomes), retry_after=wait) for c in held]
            answer = worker.turn(settles, want=rng.randint(1, 5), sweep=rng.random() < 0.5)
            assert not any(v.code == "unknown_task" for v in answer.verdicts)
            held = answer.claimed or (worker.claim(1, isolated=True) if answer.isolate else [])

    def tend(self, seed: int) -> None:
        rng, conn = random.Random(seed), self.scene.connect("person")
        clock = self.scene._stack.enter_context(self.scene.database.connect())
        for n in range(150):
            verdict = run(conn, calls.submit("q", "a.b", 1, key=f"{seed}-{n // 2}"))
            assert verdict.task_id is not None
            assert verdict.state is not None
            self.accepted.append(verdict.task_id)
            verb = rng.choice([calls.cancel, calls.requeue, calls.requeue, calls.discard])
            run(conn, verb(rng.choice(self.accepted), who="ann", why="x"))
            run(conn, calls.sweep(20))
            clock.execute("UPDATE poolkeeper.clock_offset SET by = by + '5 min'")
            clock.execute("UPDATE poolkeeper.contact SET seen_at = poolkeeper.clock()")

    def keep_up(self) -> None:
        conn = self.scene.connect("operator")
        while not self.over.is_set():
            run(conn, calls.maintain(7))


@pytest.mark.wide
@pytest.mark.usefixtures("witness")
def test_nothing_that_has_not_ended_is_touched_under_any_interleaving(scene: Scene) -> None:
    """Q52: while everything happens at once, what goes has its end in its history, two hours ago at least."""
    keep(scene, **SHORT | {"keys": "30h", "deadLetters": "20h", "events": "2h"})
    for kind in ("person", "worker", "operator"):
        scene.connect(kind)  # logins are made by one at a time
    bustle = Bustle(scene)
    with ThreadPoolExecutor(7) as pool:
        upkeeps = [pool.submit(bustle.keep_up)]
        doings = [pool.submit(bustle.work, n) for n in range(3)] + [pool.submit(bustle.tend, n) for n in range(2)]
        try:
            for each in doings:
                each.result(120)
        finally:
            bustle.over.set()
        for each in upkeeps:
            each.result(120)
    scene.advance(100 * HOUR)
    scene.sweep()
    upkeep(scene)
    removed = scene.rows(
        "SELECT r.task_id, r.at - e.at AS after FROM public.gone AS r LEFT JOIN public.gone AS e ON e.task_id = r.task_id AND e.what = 'end'"
        " WHERE r.what = 'removed'"
    )
    assert len(removed) > 50
    assert [r for r in removed if r.after is None or r.after < timedelta(hours=2)] == []
    there = {r.id for r in scene.rows("SELECT id FROM poolkeeper.task")}
    assert set(bustle.accepted) == there | {r.task_id for r in removed}


class TestCost:
    """A pass costs what it removes and what grew old since the last one, not what is kept."""

    @pytest.mark.wide
    @pytest.mark.parametrize("statistics", ["fresh", "of empty tables"])
    def test_a_pass_reads_nothing_of_what_is_kept(self, scene: Scene, statistics: str) -> None:
        """Q52, Q14: 20 of 13,000 are due; the others, waiting, running, dead or ended, are not looked at."""
        STATISTICS[statistics](scene, full)
        keep(scene, events="100h", payload="100h", result="100h", checkpoint="100h")
        keep(scene, "big", events="700h", payload="700h", result="700h", checkpoint="700h")
        scene.advance(190 * HOUR)
        worker = scene.worker(concurrency=100)
        worker.turn([Settle(c.task_id, c.token, "succeeded", result=1) for c in worker.claim(20)])
        scene.advance(10 * HOUR)
        upkeep(scene)  # each is looked at once
        assert scene.value("SELECT count(*) FROM poolkeeper.retention_note") > 10_000
        conn = scene.connect("operator")
        with touching(scene, conn) as idle:
            assert run(conn, calls.maintain()).tasks == 0
        scene.advance(92 * HOUR)
        with touching(scene, conn) as busy:
            assert run(conn, calls.maintain()).tasks == 20
        for touched, entries in ((idle, 50), (busy, 50 * 20)):
            assert touched.scanned == set()
            assert (
                sum(
                    seen[1]
                    for name, seen in touched.by_name.items()
                    if "lease_" not in name and "later_queue" not in name
                )
                < entries
            )
            assert touched.excessive == {}
