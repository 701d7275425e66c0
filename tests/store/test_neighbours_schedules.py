"""What one schedule is told changes no other: of other namespaces, queues, tenants and names (Q34, Q51, quality 3)."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from poolkeeper.firing import planned
from poolkeeper.store import calls, run
from store.scene import Scene, await_blocked, meanwhile
from store.test_slots import whole

PLACES = [*product(("near/a", "near/b", "far/a"), ("default", "acme"), ("x", "y"))]


def put(scene: Scene, queue: str, tenant: str, name: str, **how: Any) -> Any:
    given: dict[str, Any] = {
        "cron": "*/10 * * * *",
        "zone": "UTC",
        "catch_up": "latest",
        "catch_up_limit": 100,
        "who": "ann",
        **how,
    }
    return scene.ask("person", calls.set_schedule(queue, name, task={"type": "a.b", "tenant": tenant}, **given))


@pytest.fixture
def many(bare_scene: Scene) -> Scene:
    """Two namespaces, three queues, two tenants, two names: all set, and counted once."""
    for queue in ("near/a", "near/b", "far/a"):
        namespace, name = queue.split("/")
        assert (
            bare_scene.ask("operator", calls.apply_policy("local", namespace, namespace, name, {}, who="t")).code
            is None
        )
    for place in PLACES:
        assert put(bare_scene, *place).created
    due = bare_scene.ask("operator", calls.due_schedules(None)).schedules
    assert {(one.queue, one.tenant, one.name) for one in due} == set(PLACES)
    bare_scene.ask("operator", calls.fire_schedules([planned(one) for one in due]))
    return bare_scene


def rows(scene: Scene) -> dict[tuple[str, str, str], Any]:
    query = "SELECT q.namespace || '/' || q.name AS queue, to_jsonb(s) AS row FROM poolkeeper.schedule AS s JOIN poolkeeper.queue AS q ON q.id = s.queue_id"
    return {(one.queue, one.row["tenant"], one.row["name"]): one.row for one in scene.rows(query)}


ACTS: dict[str, Callable[[Scene, str, str, str], Any]] = {
    "set": lambda scene, *place: put(scene, *place, cron="*/5 * * * *"),
    "set otherwise": lambda scene, *place: put(scene, *place, catch_up="skip"),
    "pause": lambda scene, queue, tenant, name: scene.ask("person", calls.pause_schedule(queue, name, True, tenant=tenant)),
    "remove": lambda scene, queue, tenant, name: scene.ask("person", calls.remove_schedule(queue, name, tenant=tenant)),
}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_one_is_changed_and_no_other(many: Scene, act: str) -> None:
    for place in (("near/a", "acme", "y"), ("far/a", "default", "x")):
        before = rows(many)
        assert ACTS[act](many, *place).code is None
        after = rows(many)
        assert {key for key in before if before[key] != after.get(key)} == {place}


def test_one_goes_on_and_no_other(many: Scene) -> None:
    for queue, tenant, name in PLACES:
        many.ask("person", calls.pause_schedule(queue, name, True, tenant=tenant))
    before = rows(many)
    many.ask("person", calls.pause_schedule("near/b", "x", False, tenant="acme"))
    after = rows(many)
    assert {key for key in before if before[key] != after[key]} == {("near/b", "acme", "x")}
    assert many.ask("person", calls.pause_schedule("near/b", "x", False, tenant="acme")).changed is False


def test_one_is_run_and_listed_where_it_is(many: Scene) -> None:
    task = many.ask("person", calls.run_schedule("near/b", "y", tenant="acme")).task_id
    found = many.rows(
        "SELECT q.namespace || '/' || q.name AS queue, t.tenant, t.labels FROM poolkeeper.task AS t JOIN poolkeeper.queue AS q ON q.id = t.queue_id WHERE t.id = %s",
        task,
    )
    assert [(one.queue, one.tenant, one.labels["poolkeeper.dev/schedule"]) for one in found] == [
        ("near/b", "acme", "y")
    ]
    listed = many.ask("reader", calls.schedules("near/a"))
    assert [(one.queue, one.tenant, one.name) for one in listed] == [
        ("near/a", tenant, name) for tenant in ("acme", "default") for name in "xy"
    ]
    assert len(many.ask("reader", calls.schedules())) == len(PLACES)


def test_what_is_due_is_of_the_queues_that_are_asked_for(many: Scene) -> None:
    """Not of others, nor of those that are paused; neither is the next slot."""
    many.owner.execute("UPDATE poolkeeper.schedule SET look_at = look_at + '1 hour', due_at = due_at + '1 hour'")
    many.owner.execute(
        "UPDATE poolkeeper.schedule SET look_at = poolkeeper.clock() WHERE queue_id = (SELECT id FROM poolkeeper.queue WHERE namespace = 'far') AND name = 'x'"
    )
    near, far = (many.ask("worker", calls.due_schedules([queue])) for queue in ("near/a", "far/a"))
    assert (near.schedules, whole(near.next_in) > 3000) == ([], True)
    assert [(one.queue, one.name) for one in far.schedules] == [("far/a", "x")] * 2
    assert whole(far.next_in) > 3000  # of what is not due yet
    slot_in = [many.worker(queues=[queue]).turn(sweep=True).slot_in for queue in ("near/a", "far/a")]
    assert [whole(one) > 3000 for one in slot_in] == [True, False]
    before = rows(many)
    fired = many.ask("worker", calls.fire_schedules([planned(far.schedules[0])]))
    assert [one.id for one in fired] == [far.schedules[0].id]
    after = rows(many)
    assert [row["id"] for key, row in before.items() if row != after[key]] == [far.schedules[0].id]


def test_a_plan_in_vain_changes_nothing(many: Scene) -> None:
    """Of a schedule that is not due, of an old version, of slots that were counted already, of a queue that is paused by now."""
    many.owner.execute("UPDATE poolkeeper.schedule SET look_at = poolkeeper.clock()")
    plans = [planned(one) for one in many.ask("operator", calls.due_schedules(None)).schedules]
    many.owner.execute("UPDATE poolkeeper.schedule SET look_at = look_at + '1 minute' WHERE id = %s", [plans[0]["id"]])
    plans[1]["version"] += 1
    early = many.value("SELECT counted_to FROM poolkeeper.schedule WHERE id = %s", plans[2]["id"]).replace(
        microsecond=0
    )
    plans[2]["slots"] = [early]
    plans[3]["upto"] = early
    many.owner.execute("UPDATE poolkeeper.queue SET paused = true WHERE namespace = 'far'")
    paused = {
        one["id"]
        for one in rows(many).values()
        if one["queue_id"] == many.value("SELECT id FROM poolkeeper.queue WHERE namespace = 'far'")
    }
    before = rows(many)
    fired = {one.id for one in many.ask("operator", calls.fire_schedules(plans))}
    assert fired == {plan["id"] for plan in plans[4:]} - paused
    after = rows(many)
    assert {row["id"] for key, row in before.items() if row != after[key]} == fired
    assert many.rows("SELECT 1 FROM poolkeeper.task") == []


def test_a_plan_with_a_problem_fires_none_of_its_slots(many: Scene) -> None:
    """Q34: whatever it names beside it; the others fire."""
    many.advance(3600)
    plans = [planned(one) for one in many.ask("operator", calls.due_schedules(None)).schedules]
    assert all(len(plan["slots"]) == 1 for plan in plans)
    plans[0]["problem"] = "no such zone"
    many.ask("operator", calls.fire_schedules(plans))
    assert many.value("SELECT count(*) FROM poolkeeper.task") == len(plans) - 1
    refused = {row["id"]: row["refused"] for row in rows(many).values() if row["refused"]}
    assert refused == {plans[0]["id"]: "no such zone"}


def test_two_that_set_one_at_once_leave_what_the_later_one_said(many: Scene) -> None:
    """The later one waits, and compares with what is there then."""
    place = ("near/a", "acme", "y")
    with many.connect("person", autocommit=False) as first:
        call = calls.set_schedule(
            place[0],
            place[2],
            cron="*/5 * * * *",
            zone="UTC",
            catch_up="latest",
            catch_up_limit=100,
            task={"type": "a.b", "tenant": "acme"},
            who="bob",
        )
        run(first, call)
        with meanwhile(lambda: put(many, *place)) as second:
            await_blocked(many)
            first.commit()
        assert second.result().changed is True
    assert rows(many)[place]["cron"] == "*/10 * * * *"


def test_a_login_without_a_queue_sets_lists_and_hears_nothing_of_it(many: Scene) -> None:
    """Q51: it is not there for it."""
    conn = many.connect("worker")
    many.allow(many.database.login("worker"), queues=["near/a"])
    assert {one.queue for one in run(conn, calls.schedules())} == {"near/a"}
    given: dict[str, Any] = {"cron": "* * * * *", "zone": "UTC", "catch_up": "skip", "catch_up_limit": 1, "who": "x"}
    assert run(conn, calls.set_schedule("far/a", "x", task={"type": "a.b"}, **given)).code == "unknown_queue"
    many.owner.execute(
        "UPDATE poolkeeper.schedule SET look_at = poolkeeper.clock() WHERE queue_id <> (SELECT id FROM poolkeeper.queue WHERE namespace = 'near' AND name = 'a')"
    )
    assert run(conn, calls.due_schedules(None)).schedules == []
    many.allow(many.database.login("worker"))
    assert len(run(conn, calls.due_schedules(None)).schedules) == 8
    many.allow(many.database.login("worker"), tenants=["acme"])
    assert {one.tenant for one in run(conn, calls.due_schedules(None)).schedules} == {"acme"}
    many.owner.execute("UPDATE poolkeeper.schedule SET look_at = look_at + '1 hour' WHERE tenant = 'acme'")
    assert whole(run(conn, calls.due_schedules(None)).next_in) > 60
    many.allow(many.database.login("worker"))


def test_a_schedule_is_told_where_it_is_paused(many: Scene) -> None:
    """The next slot of a paused one is none."""
    many.ask("person", calls.pause_schedule("near/a", "x", True))
    found = {one.paused: one.due_at for one in many.ask("reader", calls.schedules("near/a")) if one.tenant == "default"}
    assert (found[True], found[False] is None) == (None, False)


def test_those_that_nobody_fires_are_told(many: Scene) -> None:
    """Q61, O25: to the doctor, and queue by queue: late or refused, each once; not one that is paused, of a paused queue, or in time."""
    assert many.value("SELECT poolkeeper.doctor() -> 'schedules'") == {"late": 0, "refused": 0, "first": None}
    many.advance(3600)
    in_time = "UPDATE poolkeeper.schedule SET look_at = poolkeeper.clock(), refused = %s WHERE name = %s AND tenant = ANY (%s) AND queue_id = (SELECT q.id FROM poolkeeper.queue AS q WHERE q.namespace || '/' || q.name = %s)"
    many.owner.execute(in_time, [None, "x", ["default", "acme"], "near/a"])
    many.owner.execute(in_time, ["queue_full", "y", ["acme"], "near/b"])
    many.ask("person", calls.pause_schedule("near/a", "y", True, tenant="acme"))
    many.ask("person", calls.pause("far/a", True, who="ann"))
    assert many.value("SELECT poolkeeper.doctor() -> 'schedules'") == {"late": 4, "refused": 1, "first": "near/a y"}
    signs = {f"{q.namespace}/{q.name}": q.schedules for q in many.ask("operator", calls.stats(cluster=None)).queues}
    many.owner.execute("UPDATE poolkeeper.schedule SET refused = 'x' WHERE paused")
    assert many.value("SELECT poolkeeper.doctor() -> 'schedules' -> 'refused'") == 1
    again = {f"{q.namespace}/{q.name}": q.schedules for q in many.ask("operator", calls.stats(cluster=None)).queues}
    assert signs == again, "one that is paused is not refused"
    assert {name: (told.late, told.refused) for name, told in signs.items()} == {
        "near/a": (1, 0),
        "near/b": (3, 1),
        "far/a": (0, 0),
    }
