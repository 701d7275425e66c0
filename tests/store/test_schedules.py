"""Setting, listing, pausing, removing schedules, and who may (Q34, Q51)."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Json

from poolkeeper.codes import Code
from poolkeeper.firing import planned
from poolkeeper.store import calls, run
from store.scene import Scene
from store.test_slots import at, fire, put, told


def answered(
    scene: Scene, schedule: Any, task: Any, *, queue: str = "q", name: str = "report", kind: str = "submitter"
) -> str | None:
    """The code that SQL alone answers."""
    row = scene.actor(kind).execute(
        "SELECT code FROM poolkeeper.set_schedule(%s, %s, %s::jsonb, %s::jsonb, 'ann')", [queue, name, Json(schedule), Json(task)]
    ).fetchone()  # fmt: skip
    assert row is not None
    code: str | None = row[0]
    return code


def test_the_same_again_changes_nothing(scene: Scene) -> None:
    """Q34: a program says its schedules at each start; a deploy neither doubles a slot nor moves one, nor wakes what is paused."""
    assert (put(scene).created, put(scene).changed) == (True, False)
    fire(scene)
    before = scene.rows("SELECT * FROM poolkeeper.schedule")
    assert put(scene).changed is False
    assert put(scene, task={"type": "a.b", "payload": 1.0, "tenant": "default"}).changed is False
    assert scene.rows("SELECT * FROM poolkeeper.schedule") == before
    scene.ask("person", calls.pause_schedule("q", "report", True))
    changed = put(scene, task={"type": "a.b", "payload": 2})
    assert (changed.created, changed.changed, told(scene).paused, told(scene).due_at) == (False, True, True, None)


def test_what_is_asked_for_is_listed(scene: Scene) -> None:
    put(scene, "30 2 * * 1-5", zone="Europe/Berlin", catch_up="all", catch_up_limit=7,
        task={"type": "a.b", "payload": {"x": 1}, "priority": 7, "max_age": timedelta(hours=1), "labels": {"team": "a"}, "ordering_key": "k"})  # fmt: skip
    found = told(scene)
    assert (found.queue, found.tenant, found.cron, found.zone) == (
        "default/q",
        "default",
        "30 2 * * 1-5",
        "Europe/Berlin",
    )
    assert (found.catch_up, found.catch_up_limit, found.set_by, found.paused) == ("all", 7, "ann", False)
    assert found.task == {
        "tenant": "default",
        "type": "a.b",
        "payload": {"x": 1},
        "priority": 7,
        "max_age": 3600.0,
        "labels": {"team": "a"},
        "ordering_key": "k",
    }
    assert (found.fired_at, found.missed_at, found.refused) == (None, None, None)
    scene.ask("submitter", calls.remove_schedule("q", "report"))
    assert scene.ask("reader", calls.schedules("q")) == []
    assert scene.ask("submitter", calls.remove_schedule("q", "report")).code is Code.UNKNOWN_SCHEDULE


NO_SCHEDULES: list[Any] = [
    {}, {"cron": ""}, {"cron": "x" * 201}, {"cron": "a\nb"}, {"cron": "x", "zone": ""}, {"cron": "x", "catch_up": "some"}, {"cron": "x", "catch_up_limit": 0},
    {"cron": "x", "catch_up_limit": 1001}, {"cron": "x", "catch_up_limit": 1.5}, [], None,
]  # fmt: skip
NO_NAMES = ["", "-a", "a b", "a/b", "x" * 101, "ä", "a:b"]
NO_TASKS: list[tuple[Any, str]] = [
    ({}, "type_invalid"), ({"type": "A"}, "type_invalid"), ({"type": "a.b", "payload": "x" * 70_000}, "payload_too_large"), ({"type": "a.b", "labels": {"a": 1}}, "labels_invalid"),
    ({"type": "a.b", "labels": {"a": "x" * 4050}}, "labels_invalid"), ({"type": "a.b", "labels": "x"}, "labels_invalid"), ({"type": "a.b", "tenant": ""}, "tenant_invalid"),
    ({"type": "a.b", "max_age": -1}, "max_age_passed"), ({"type": "a.b", "priority": "high"}, "option_invalid"), ({"type": "a.b", "key": "k"}, "option_invalid"),
    ({"type": "a.b", "run_at": "2027-01-01T00:00:00Z"}, "option_invalid"), ({"type": "a.b", "delay": 1}, "option_invalid"), ([], "option_invalid"), (None, "option_invalid"),
]  # fmt: skip


def test_what_cannot_be_is_refused_when_it_is_set(scene: Scene) -> None:
    """Contract 9, Q7: by its code, at once and not at two in the morning; also what no submit would take. Nothing is stored."""
    good = {"cron": "* * * * *"}
    for schedule in NO_SCHEDULES:
        assert answered(scene, schedule, {"type": "a.b"}) == "schedule_invalid", schedule
    for name in NO_NAMES:
        assert answered(scene, good, {"type": "a.b"}, name=name) == "schedule_invalid", name
    for task, code in NO_TASKS:
        assert answered(scene, good, task) == code, task
    assert scene.ask("reader", calls.schedules()) == []


def test_a_paused_queue_can_be_given_its_schedules(scene: Scene) -> None:
    scene.queue(paused=True, task_types=["a.b"])
    assert answered(scene, {"cron": "* * * * *"}, {"type": "a.b"}) is None
    assert answered(scene, {"cron": "* * * * *"}, {"type": "c.d"}) == "unknown_type"
    assert answered(scene, {"cron": "* * * * *"}, {"type": "a.b"}, queue="nowhere") == "unknown_queue"


def test_a_schedule_is_run_by_hand_outside_of_its_slots(scene: Scene) -> None:
    """Q34: as often as somebody asks; the slots stay as they are."""
    put(scene)
    fire(scene)
    before = told(scene)
    verdicts = [scene.ask("person", calls.run_schedule("q", "report")) for _ in range(2)]
    assert [v.code for v in verdicts] == [None, None]
    assert verdicts[0].task_id != verdicts[1].task_id
    assert scene.worker().take().labels == {"poolkeeper.dev/schedule": "report"}
    assert told(scene) == before
    assert scene.ask("person", calls.run_schedule("q", "other")).code is Code.UNKNOWN_SCHEDULE
    scene.queue(paused=True)
    assert scene.ask("person", calls.run_schedule("q", "report")).code is Code.QUEUE_PAUSED


class TestTenants:
    """Q51: a schedule belongs to a tenant; another's does not exist."""

    @pytest.fixture
    def acme(self, scene: Scene) -> psycopg.Connection:
        """A submitter's login of one tenant."""
        for tenant in ("acme", "other"):
            put(scene, task={"type": "a.b", "payload": tenant, "tenant": tenant})
        conn = scene.connect("submitter")
        scene.allow(scene.database.login("submitter"), tenants=["acme"])
        return conn

    def test_a_login_sees_and_changes_those_of_its_tenants(self, scene: Scene, acme: psycopg.Connection) -> None:
        assert [one.tenant for one in run(acme, calls.schedules())] == ["acme"]
        for tenant, code in (("acme", None), ("other", Code.UNKNOWN_SCHEDULE)):
            assert run(acme, calls.pause_schedule("q", "report", True, tenant=tenant)).code is code
            assert run(acme, calls.run_schedule("q", "report", tenant=tenant)).code is code
            assert run(acme, calls.remove_schedule("q", "report", tenant=tenant)).code is code
        given: dict[str, Any] = {
            "cron": "* * * * *",
            "zone": "UTC",
            "catch_up": "latest",
            "catch_up_limit": 1,
            "who": "ann",
        }
        for tenant, code in (("acme", None), ("other", Code.ROLE_NOT_ALLOWED)):
            assert (
                run(acme, calls.set_schedule("q", "report", task={"type": "a.b", "tenant": tenant}, **given)).code
                is code
            )
        assert len(scene.ask("reader", calls.schedules())) == 2

    @pytest.mark.usefixtures("acme")
    def test_a_worker_fires_those_of_its_tenants_and_queues(self, scene: Scene) -> None:
        """The operator fires the others; a plan for what is another's is passed over."""
        scene.queue("secret")
        put(scene, queue="secret")
        conn = scene.connect("worker")
        scene.allow(scene.database.login("worker"), queues=["default/q"], tenants=["acme"])
        due = run(conn, calls.due_schedules(None)).schedules
        assert [(one.queue, one.tenant) for one in due] == [("default/q", "acme")]
        everything = scene.ask("operator", calls.due_schedules(None)).schedules
        assert len(everything) == 3
        plans = [{"id": one.id, "version": one.version, "problem": "no"} for one in everything]
        assert [one.id for one in run(conn, calls.fire_schedules(plans))] == [due[0].id]
        scene.allow(scene.database.login("worker"))


LATER, NOW = "2090-01-01T00:00:00Z", "2027-01-01T07:55:00Z"
NO_PLANS: list[Any] = [
    {"id": 1}, {"id": "x"}, {"upto": LATER, "next": "2091-01-01T00:00:00Z"}, {"upto": NOW, "next": NOW}, {"upto": NOW, "next": LATER, "slots": ["2027-01-01T08:00:00Z"]},
    {"upto": NOW, "next": LATER, "slots": ["2027-01-01T07:00:00.5Z"]}, {"upto": NOW, "next": LATER, "slots": ["2027-01-01T07:00:00Z"] * 2},
    {"upto": NOW, "next": LATER, "slots": [None]}, {"upto": NOW, "next": LATER, "slots": [f"2027-01-01T07:{n // 60:02}:{n % 60:02}Z" for n in range(1001)]},
    {"upto": NOW, "next": "2999-01-01T00:00:00Z"}, {"upto": "2027-01-01 07:55", "next": LATER}, 5, None,
]  # fmt: skip


@pytest.mark.usefixtures("this_month_again")
def test_a_plan_that_makes_no_sense_is_misuse(scene: Scene) -> None:
    """Contract 9: PK400 with the remedy, and nothing is fired or moved."""
    at(scene, "06:00")
    put(scene)
    at(scene, "07:56")
    before = scene.rows("SELECT * FROM poolkeeper.schedule")
    which = {"id": before[0].id, "version": before[0].version}
    for plan in NO_PLANS:
        given = {**which, **plan} if isinstance(plan, dict) else plan
        with pytest.raises(psycopg.Error) as refused:
            scene.actor("worker").execute("SELECT * FROM poolkeeper.fire_schedules(%s::jsonb)", [Json([given])])
        assert (refused.value.sqlstate, bool(refused.value.diag.message_hint)) == ("PK400", True), plan
    assert scene.rows("SELECT * FROM poolkeeper.schedule") == before
    assert scene.rows("SELECT FROM poolkeeper.task") == []


def test_two_plans_of_one_schedule_are_misuse(scene: Scene) -> None:
    put(scene)
    plans = [planned(one) for one in scene.ask("worker", calls.due_schedules(None)).schedules] * 2
    with pytest.raises(psycopg.Error, match="two plans of one schedule"):
        scene.ask("worker", calls.fire_schedules(plans))
