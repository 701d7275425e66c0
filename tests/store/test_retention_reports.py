"""Ended sessions, old decisions and drain reports, and months of the history that have passed (Q52, O20, P8, contract 8)."""

import pytest

from poolkeeper.store import calls
from store.aging import DAY, HOUR, done, upkeep
from store.scene import Scene

pytestmark = pytest.mark.usefixtures("this_month_again")


class TestReports:
    """Ended sessions, decisions and drain reports."""

    def test_sessions_that_ended_a_week_ago_go(self, scene: Scene) -> None:
        ended, silent, live = scene.worker(), scene.worker(), scene.worker()
        ended.end()
        scene.advance(3 * HOUR)
        live.renew()
        scene.sweep()  # ends the one that fell silent
        scene.advance(6 * DAY)
        assert upkeep(scene).sessions == 0
        scene.advance(2 * DAY)
        assert upkeep(scene).sessions == 2
        live.renew()
        assert {r.id for r in scene.rows("SELECT id FROM poolkeeper.session")} == {live.session.id}
        assert silent.session.id != live.session.id

    def test_a_session_that_holds_a_lease_stays(self, scene: Scene) -> None:
        """Whatever it says of itself: its delivery has yet to be told who had it."""
        scene.submit()
        worker = scene.worker()
        worker.take()
        scene.owner.execute("UPDATE poolkeeper.session SET ended_at = poolkeeper.clock()")
        scene.advance(9 * DAY)
        assert upkeep(scene).sessions == 0
        scene.sweep()
        assert upkeep(scene).sessions == 1

    def test_the_last_decisions_of_a_pool_stay(self, scene: Scene) -> None:
        """P8: a pool that was quiet for a year still explains its size."""
        for n in range(50):
            scene.ask("operator", calls.record_decision("local/quiet", {"n": n}))
            scene.ask("operator", calls.record_decision("local/busy", {"n": n}))
        scene.advance(40 * DAY)
        for n in range(50, 75):
            scene.ask("operator", calls.record_decision("local/busy", {"n": n}))
        assert upkeep(scene, most=7).decisions == 80
        last = {pool: scene.ask("operator", calls.decisions(pool, 1000)) for pool in ("local/quiet", "local/busy")}
        assert [d["n"] for _, d in last["local/quiet"]] == list(range(49, 29, -1))
        assert [d["n"] for _, d in last["local/busy"]] == list(range(74, 49, -1))

    def test_drain_reports_that_nobody_reads_go(self, scene: Scene) -> None:
        """O20: the grace is computed from 14 days."""
        worker = scene.worker()
        for days in (0, 20, 15, 10):
            scene.advance(days * DAY)
            scene.ask("worker", calls.report_drain(worker.session, {"duration_seconds": float(days)}))
        assert upkeep(scene).drains == 1
        (pool,) = scene.ask("operator", calls.stats(cluster=None)).pools
        assert [d.seconds for d in pool.drains] == [10.0, 15.0]
        assert scene.value("SELECT count(*) FROM poolkeeper.drain_report") == 3

    def test_of_many_pools_each_has_its_turn(self, scene: Scene) -> None:
        scene.owner.execute("INSERT INTO poolkeeper.pool (name) SELECT 'local/' || n FROM generate_series(1, 250) AS n")
        scene.owner.execute(
            "INSERT INTO poolkeeper.drain_report (pool_id, session_id, at, seconds, truncated, report)"
            " SELECT p.id, gen_random_uuid(), poolkeeper.clock() - interval '31 days', 1, false, '{}' FROM poolkeeper.pool AS p"
        )
        assert upkeep(scene).drains == 250


class TestMonths:
    """Contract 8: partitions of months that have passed go when nothing of them is left."""

    def these(self, scene: Scene) -> set[str]:
        """The partitions of the month in which this test is made."""
        month = "to_char(now() AT TIME ZONE 'UTC', 'YYYYMM')"
        return {
            r[0]
            for r in scene.rows(
                f"SELECT relname FROM pg_class WHERE relname ~ ('^(delivery|event)_standard_' || {month} || '$')"
            )
        }

    def test_a_month_that_has_passed_is_dropped_when_nothing_of_it_is_left(self, scene: Scene) -> None:
        upkeep(scene)
        assert len(self.these(scene)) == 2
        kept = scene.submit(delay=400 * DAY)
        done(scene, scene.worker())
        scene.advance(70 * DAY)
        assert upkeep(scene).tasks == 1
        assert len(self.these(scene)) == 2  # one of its tasks is still to come
        scene.ask("person", calls.cancel(kept, who="ann", why="x"))
        for days in (-70, 70):  # what is left of others keeps those
            task = scene.submit(delay=400 * DAY)
            moved = scene.value("SELECT poolkeeper.id_floor(now() + make_interval(days => %s))", days)
            for table, column in (("task", "id"), ("later", "task_id")):
                scene.owner.execute(f"UPDATE poolkeeper.{table} SET {column} = %s WHERE {column} = %s", [moved, task])
        for table in ("delivery", "event"):
            names = scene.rows("SELECT m.name FROM poolkeeper.months(%s, now() + interval '200 days') AS m", table)
            assert {row.name.split("_")[0] for row in names} == {table}
        scene.advance(70 * DAY)
        assert upkeep(scene).tasks == 1
        assert self.these(scene) == set()

    def test_one_that_somebody_reads_is_left_for_the_next_time(self, scene: Scene) -> None:
        """Q51: the upkeep neither waits for long nor fails."""
        upkeep(scene)
        scene.advance(70 * DAY)
        upkeep(scene)
        scene.advance(70 * DAY)
        reader = scene._stack.enter_context(scene.database.connect())
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM poolkeeper.delivery")
        task = scene.submit()
        assert scene.ask("operator", calls.maintain()).dropped >= 1  # of the events
        assert scene.state(task) == "ready"
        reader.execute("ROLLBACK")
        assert upkeep(scene).dropped >= 1
