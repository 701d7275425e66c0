"""Slots of schedules: each gets one task, whoever fires, however many at once; catch-up, refusals, clocks (Q34)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Json

from poolkeeper.firing import planned
from poolkeeper.store import calls, run
from poolkeeper.store.recurring import Schedule
from store.scene import Scene, meanwhile

NAME = "report"


def put(scene: Scene, cron: str = "*/10 * * * *", name: str = NAME, *, queue: str = "q", **how: Any) -> Any:
    """Set a schedule that must be accepted."""
    given = {"zone": "UTC", "catch_up": "latest", "catch_up_limit": 100, "task": {"type": "a.b", "payload": 1}, **how}
    answer = scene.ask("person", calls.set_schedule(queue, name, cron=cron, who="ann", **given))
    assert answer.code is None, answer
    return answer


def fire(scene: Scene, conn: psycopg.Connection | None = None, kind: str = "worker") -> int:
    """A round of whoever fires; answers how many slots were fired."""
    conn = conn or scene.actor(kind)
    due = run(conn, calls.due_schedules(None))
    return sum(one.fired for one in run(conn, calls.fire_schedules([planned(each) for each in due.schedules])))


def at(scene: Scene, clock: str) -> None:
    """Set the store's clock: a day in January, or a moment."""
    moment = datetime.fromisoformat(clock if "-" in clock else f"2027-01-01T{clock}+00:00")
    scene.advance((moment - scene.value("SELECT poolkeeper.clock()")).total_seconds())


def slots(scene: Scene) -> list[str]:
    """The slots that have a task, in their order."""
    query = "SELECT labels ->> 'poolkeeper.dev/slot' AS slot FROM poolkeeper.task WHERE labels ? 'poolkeeper.dev/slot' ORDER BY 1"
    return [row.slot[11:16] for row in scene.rows(query)]


def whole(after: timedelta | None) -> int:
    """Seconds, rounded."""
    assert after is not None
    return round(after.total_seconds())


def told(scene: Scene, name: str = NAME) -> Schedule:
    (one,) = [each for each in scene.ask("reader", calls.schedules()) if each.name == name]
    return one


@pytest.fixture
def begun(scene: Scene, this_month_again: None) -> Scene:
    """Five to eight, one schedule for each ten minutes, counted once."""
    at(scene, "07:55")
    put(scene)
    assert fire(scene) == 0
    return scene


class TestFiring:
    def test_a_slot_becomes_one_task_that_knows_its_slot(self, begun: Scene) -> None:
        """Q34: submitted as any other, at the slot and not before, once however often somebody looks."""
        at(begun, "07:59:59")
        assert (fire(begun), slots(begun)) == (0, [])
        at(begun, "08:00")
        assert (fire(begun), fire(begun), slots(begun)) == (1, 0, ["08:00"])
        delivery = begun.worker().take()
        assert (delivery.type, delivery.payload) == ("a.b", 1)
        assert delivery.labels == {"poolkeeper.dev/schedule": NAME, "poolkeeper.dev/slot": "2027-01-01T08:00:00Z"}
        at(begun, "08:10")
        assert (fire(begun), slots(begun)) == (1, ["08:00", "08:10"])
        is_now = told(begun)
        assert (is_now.due_at, is_now.fired_at) == (
            datetime(2027, 1, 1, 8, 20, tzinfo=UTC),
            datetime(2027, 1, 1, 8, 10, tzinfo=UTC),
        )
        assert begun.state(is_now.fired_task) == "ready"

    def test_the_next_slot_is_known_without_looking_at_the_others(self, begun: Scene) -> None:
        at(begun, "07:56")
        due = begun.ask("worker", calls.due_schedules(["q", "nowhere"]))
        assert (due.schedules, whole(due.next_in)) == ([], 240)
        assert whole(begun.worker().turn(want=1, sweep=True).slot_in) == 240
        assert begun.worker().turn(want=1).slot_in is None
        assert whole(begun.worker().renew().slot_in) == 240
        assert whole(begun.ask("operator", calls.stats(cluster=None)).queues[0].next_slot) == 240

    def test_many_at_once_fire_each_slot_once(self, begun: Scene) -> None:
        """Q34: no leader; thirty schedules, four firers, ten slots each."""
        for n in range(30):
            put(begun, name=f"s{n}", task={"type": "a.b", "payload": n})
        fire(begun)
        conns = [begun.connect("worker") for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for n in range(10):
                begun.owner.execute("UPDATE poolkeeper.clock_offset SET by = by + '10 min'")
                fired = list(pool.map(lambda conn: fire(begun, conn) + fire(begun, conn), conns))
                assert sum(fired) == 31, (n, fired)
        counts = begun.rows(
            "SELECT labels ->> 'poolkeeper.dev/schedule' AS name, count(*) AS n, count(DISTINCT key) AS keys FROM poolkeeper.task GROUP BY 1"
        )
        assert {(row.n, row.keys) for row in counts} == {(10, 10)}
        assert len(counts) == 31

    def test_a_firer_that_dies_in_its_transaction_has_done_nothing(self, begun: Scene) -> None:
        """Q34: neither a task nor a slot that counts as fired; another one fires it."""
        at(begun, "08:00")
        with begun.connect("worker", autocommit=False) as dying:
            assert fire(begun, dying) == 1
            assert fire(begun) == 0  # it waits for nobody
            pid = dying.info.backend_pid
            dying.close()
        while begun.rows("SELECT FROM pg_stat_activity WHERE pid = %s", pid):
            pass  # the server has not noticed yet
        assert (fire(begun), slots(begun)) == (1, ["08:00"])

    def test_a_plan_that_is_late_changes_nothing(self, begun: Scene) -> None:
        """Q34: counted before somebody else fired, or before the schedule was changed, paused, removed."""
        changes = (
            lambda: fire(begun),
            lambda: put(begun, task={"type": "a.b", "payload": 2}),
            lambda: begun.ask("person", calls.pause_schedule("q", NAME, True)),
            lambda: begun.ask("person", calls.remove_schedule("q", NAME)),
        )
        for n, change in enumerate(changes):
            at(begun, f"08:{n}0")
            old = [planned(one) for one in begun.ask("worker", calls.due_schedules(None)).schedules]
            change()
            before = begun.rows("SELECT * FROM poolkeeper.schedule"), slots(begun)
            assert begun.ask("worker", calls.fire_schedules(old)) == []
            assert (begun.rows("SELECT * FROM poolkeeper.schedule"), slots(begun)) == before

    def test_a_clock_that_steps_back_doubles_nothing(self, begun: Scene) -> None:
        """Q34: not what is there already, not by counting anew, not by a schedule made again."""
        at(begun, "08:00")
        fire(begun)
        at(begun, "07:30")
        assert (fire(begun), told(begun).due_at) == (0, datetime(2027, 1, 1, 8, 10, tzinfo=UTC))
        put(begun, cron="0 8 * * *")
        begun.ask("person", calls.pause_schedule("q", NAME, True))
        begun.ask("person", calls.pause_schedule("q", NAME, False))
        assert begun.ask("worker", calls.due_schedules(None)).schedules == []  # nobody looks in vain until then
        at(begun, "08:00:30")
        assert (fire(begun), slots(begun)) == (0, ["08:00"])
        begun.ask("person", calls.remove_schedule("q", NAME))
        at(begun, "07:30")
        put(begun)
        at(begun, "08:00:30")
        fire(begun)
        assert slots(begun) == ["08:00"]
        assert told(begun).fired_at == datetime(2027, 1, 1, 8, tzinfo=UTC)

    def test_a_changed_expression_is_counted_from_now_on(self, begun: Scene) -> None:
        """Q34: no burst, neither of the old slots nor of the new ones that would have been."""
        at(begun, "09:05")
        put(begun, cron="*/2 * * * *", catch_up="all")
        assert (fire(begun), slots(begun), told(begun).due_at) == (0, [], datetime(2027, 1, 1, 9, 6, tzinfo=UTC))
        at(begun, "09:06")
        put(begun, cron="*/2 * * * *", catch_up="all", task={"type": "a.b", "payload": 2})
        assert (fire(begun), slots(begun)) == (1, ["09:06"])

    def test_a_change_at_the_moment_of_a_slot_loses_none(self, begun: Scene) -> None:
        """Q34: a deploy that sets another expression before anybody has fired; once, whoever comes afterwards. What is older is told as missed."""
        at(begun, "08:00:02")
        old = [planned(one) for one in begun.ask("worker", calls.due_schedules(None)).schedules]
        put(begun, cron="*/20 * * * *")
        assert (slots(begun), begun.ask("worker", calls.fire_schedules(old)), fire(begun)) == (["08:00"], [], 0)
        assert (told(begun).fired_at, told(begun).missed_at) == (datetime(2027, 1, 1, 8, 0, tzinfo=UTC), None)
        at(begun, "08:25")
        put(begun)
        assert (fire(begun), slots(begun), told(begun).missed_at) == (
            0,
            ["08:00"],
            datetime(2027, 1, 1, 8, 20, tzinfo=UTC),
        )
        at(begun, "08:30:02")
        begun.queue(paused=True)
        put(begun, cron="*/20 * * * *")
        assert (slots(begun), told(begun).missed_at) == (["08:00"], datetime(2027, 1, 1, 8, 30, tzinfo=UTC))
        begun.queue()
        fire(begun)
        at(begun, "08:40:02")
        begun.ask("person", calls.pause_schedule("q", NAME, True))
        put(begun)
        assert slots(begun) == ["08:00"]

    @pytest.mark.usefixtures("this_month_again")
    @pytest.mark.parametrize(
        ("zone", "cron", "begin", "fired"),
        [
            ("Europe/Berlin", "30 2 * * *", "2027-03-27T12:00+00:00", ["2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]),
            ("Europe/Berlin", "30 2 * * *", "2027-10-30T12:00+00:00", ["2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"]),
            ("America/New_York", "30 1 * * *", "2027-11-06T12:00+00:00", ["2027-11-07T05:30:00Z", "2027-11-08T06:30:00Z"]),
            ("Australia/Lord_Howe", "0 */12 * * *", "2027-04-03T02:00+00:00", ["2027-04-03T13:00:00Z", "2027-04-04T01:30:00Z", "2027-04-04T13:30:00Z"]),
        ],
    )  # fmt: skip
    def test_days_on_which_the_clock_changes_have_their_slots(
        self, scene: Scene, zone: str, cron: str, begin: str, fired: list[str]
    ) -> None:
        """C56: minute by minute or late, by a firer that comes every hour."""
        at(scene, begin)
        put(scene, cron, zone=zone, catch_up="all")
        for _ in range(50):
            fire(scene)
            scene.advance(3600)
        query = "SELECT labels ->> 'poolkeeper.dev/slot' AS slot FROM poolkeeper.task ORDER BY 1"
        assert [row.slot for row in scene.rows(query)][: len(fired)] == fired


class TestCatchUp:
    @pytest.mark.parametrize(
        ("catch_up", "limit", "made", "missed"),
        [("skip", 100, [], 50), ("latest", 100, ["08:50"], 40), ("all", 100, ["08:00", "08:10", "08:20", "08:30", "08:40", "08:50"], None), ("all", 2, ["08:40", "08:50"], 30)],
    )  # fmt: skip
    def test_missed_slots_are_made_up_for_as_the_policy_says(
        self, begun: Scene, catch_up: str, limit: int, made: list[str], missed: int | None
    ) -> None:
        """Q34: nobody was there for an hour; what is left out is told."""
        put(begun, catch_up=catch_up, catch_up_limit=limit)
        at(begun, "08:55")
        assert (fire(begun), slots(begun)) == (len(made), made)
        found = told(begun)
        assert (found.missed_at and found.missed_at.minute, found.due_at) == (
            missed,
            datetime(2027, 1, 1, 9, 0, tzinfo=UTC),
        )
        at(begun, "09:00")
        assert (fire(begun), slots(begun)) == (1, [*made, "09:00"])

    def test_a_late_slot_is_no_task_that_would_be_too_old(self, begun: Scene) -> None:
        """Q34, Q7: age counts from the slot: those beyond max_age are left out and told, the others made up for."""
        put(begun, catch_up="all", task={"type": "a.b", "max_age": timedelta(minutes=20)})
        at(begun, "08:55")
        assert (fire(begun), slots(begun)) == (2, ["08:40", "08:50"])
        assert told(begun).missed_at == datetime(2027, 1, 1, 8, 30, tzinfo=UTC)
        left = [
            row.left
            for row in begun.rows("SELECT expires_at - poolkeeper.clock() AS left FROM poolkeeper.task ORDER BY 1")
        ]
        assert [round(one.total_seconds() / 60) for one in left] == [5, 15]

    def test_a_paused_schedule_makes_up_for_nothing(self, begun: Scene) -> None:
        put(begun, catch_up="all")
        for paused in (True, False):
            begun.ask("person", calls.pause_schedule("q", NAME, paused))
            at(begun, "08:55")
            assert (fire(begun), told(begun).paused) == (0, paused)
        at(begun, "09:00")
        assert (fire(begun), slots(begun)) == (1, ["09:00"])


class TestRefused:
    def test_a_paused_queue_fires_when_it_goes_on(self, begun: Scene) -> None:
        """Q34, Q7: nobody asks in vain meanwhile, and the catch-up policy decides about what was missed."""
        begun.queue(paused=True)
        at(begun, "08:25")
        due = begun.ask("worker", calls.due_schedules(None))
        assert (due.schedules, due.next_in, begun.worker().turn(sweep=True).slot_in) == ([], None, None)
        stats = begun.ask("operator", calls.stats(cluster=None))
        assert (begun.worker().renew().slot_in, stats.queues[0].next_slot) == (None, None)
        begun.queue()
        assert (fire(begun), slots(begun)) == (1, ["08:20"])

    def test_a_full_queue_gets_it_later(self, begun: Scene) -> None:
        """Q34, Q7: it is tried again, ever more seldom, and said why; several slots go as far as there is room."""
        begun.queue(max_waiting=2)
        put(begun, catch_up="all")
        at(begun, "08:35")
        assert (fire(begun), slots(begun)) == (2, ["08:00", "08:10"])
        assert (told(begun).refused, told(begun).due_at) == ("queue_limit (2)", datetime(2027, 1, 1, 8, 20, tzinfo=UTC))
        waits = []
        for _ in range(8):
            waits.append(whole(begun.ask("worker", calls.due_schedules(None)).next_in))
            begun.advance(waits[-1])
            assert fire(begun) == 0
        assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
        begun.queue(max_waiting=1000)
        begun.advance(300)
        fire(begun)
        assert slots(begun) == ["08:00", "08:10", "08:20", "08:30", "08:40", "08:50"]
        assert told(begun).refused is None

    def test_what_cannot_be_counted_is_told_and_tried_again(self, begun: Scene) -> None:
        """Q34: set by SQL alone, where nobody knows cron; another firer may know the zone."""
        statement = "SELECT code FROM poolkeeper.set_schedule('q', %s, %s::jsonb, '{\"type\": \"a.b\"}', 'ann')"
        for name, cron, zone in (("minute", "61 * * * *", "UTC"), ("zone", "0 0 * * *", "Mars/Crater")):
            assert begun.actor("person").execute(statement, [name, Json({"cron": cron, "zone": zone})]).fetchone() == (
                None,
            )
        assert fire(begun) == 0
        assert 'cron expression "61 * * * *" cannot be read (Bad minute); give minute' in str(
            told(begun, "minute").refused
        )
        assert 'time zone "Mars/Crater" is not known here; give one' in str(told(begun, "zone").refused)
        begun.advance(5)
        assert {one.name for one in begun.ask("worker", calls.due_schedules(None)).schedules} == {"minute", "zone"}
        begun.actor("person").execute(statement, ["zone", Json({"cron": "0 0 * * *"})])
        fire(begun)
        assert (told(begun, "zone").refused, told(begun, "zone").due_at) == (None, datetime(2027, 1, 2, tzinfo=UTC))

    def test_nothing_is_fired_while_the_installation_is_held(self, begun: Scene) -> None:
        """Q34, Q24: a copy and its original would both do it."""
        at(begun, "08:00")
        old = [planned(one) for one in begun.ask("worker", calls.due_schedules(None)).schedules]
        begun.owner.execute("UPDATE poolkeeper.contact SET held_since = now(), held_why = 'another_system'")
        assert (fire(begun), begun.ask("worker", calls.fire_schedules(old)), slots(begun)) == (0, [], [])
        begun.ask("person", calls.accept_installation("ann", "x"))
        assert (fire(begun), slots(begun)) == (1, ["08:00"])


class TestIdle:
    def test_ten_thousand_schedules_that_wait_are_not_looked_at(self, begun: Scene) -> None:
        """Q34: a turn, a round and a reading touch as few of their rows as of one."""
        begun.owner.execute(
            "INSERT INTO poolkeeper.schedule (queue_id, tenant, name, cron, zone, catch_up, catch_up_limit, task, set_by, set_at, counted_to, due_at, look_at)"
            " SELECT queue_id, 't' || n, name, cron, zone, catch_up, catch_up_limit, task, set_by, set_at, counted_to, due_at + n * interval '1 s', look_at + n * interval '1 s'"
            " FROM poolkeeper.schedule, generate_series(1, 10000) AS n"
        )
        begun.owner.execute("ANALYZE poolkeeper.schedule")
        worker = begun.worker()
        acts = {
            "turn": lambda: worker.turn(want=1, sweep=True),
            "round": lambda: begun.ask("worker", calls.due_schedules(None)),
            "reading": lambda: begun.ask("operator", calls.stats(cluster=None)),
        }
        for name, act in acts.items():
            assert touched(begun, act) <= 4, name
        assert touched(begun, lambda: worker.turn(want=1)) == 0  # a turn that does not sweep pays nothing


def touched(scene: Scene, act: Any) -> int:
    """Rows and index entries of schedules that were read."""
    query = (
        "SELECT s.seq_tup_read + coalesce(s.idx_tup_fetch, 0) + (SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes AS i WHERE i.relid = s.relid)"
        " FROM pg_stat_user_tables AS s WHERE s.relid = 'poolkeeper.schedule'::regclass"
    )
    before = counted(scene, query)
    act()
    return counted(scene, query) - before


def counted(scene: Scene, query: str) -> int:
    """Statistics as of now, of all connections of this test."""
    for kind in ("worker", "operator"):
        scene.actor(kind).execute("SELECT pg_stat_force_next_flush()")
    return int(scene.value(query))


class TestNeighbours:
    def test_a_firer_that_sits_in_its_transaction_keeps_nobody_waiting(self, begun: Scene) -> None:
        """Q51: others pass over; a person who changes the schedule waits within a bound; the login is ended by its own time-out."""
        put(begun, name="other")
        fire(begun)
        at(begun, "08:00")
        with begun.connect("worker", autocommit=False) as held:
            (mine,) = [one for one in run(held, calls.due_schedules(None)).schedules if one.name == NAME]
            run(held, calls.fire_schedules([planned(mine)]))
            assert held.execute("SELECT current_setting('idle_in_transaction_session_timeout')").fetchone() == ("1min",)
            assert fire(begun) == 1
            with meanwhile(lambda: begun.ask("person", calls.pause_schedule("q", NAME, True))) as paused:
                held.rollback()
            assert paused.result().code is None
        assert slots(begun) == ["08:00"]
