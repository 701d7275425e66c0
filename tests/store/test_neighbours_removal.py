"""Whatever removes something removes that and nothing beside it, to the last row of every table; and a policy is of its queue (O1, O9, Q52)."""

import json
from typing import Any

import pytest

from fixtures.neighbours import BOUNDED, FOREIGN, LIMITED, PLAIN, QUEUES, Crowd
from poolkeeper.errors import Conflict
from poolkeeper.store import calls
from store.walks import FEW, Walks

PLACES = ("ready", "ordered", "later", "suspect", "dead", "lease")
NOTES = "INSERT INTO poolkeeper.retention_note (task_id, kind, queue_id, since) SELECT t.id, 'payload', t.queue_id, now() FROM poolkeeper.task AS t ON CONFLICT DO NOTHING"


def of_queue(walks: Walks, queue_id: int, *places: str) -> set[Any]:
    return {
        row
        for place in places
        for (row,) in walks.answers(f"SELECT task_id FROM poolkeeper.{place} WHERE queue_id = %s", queue_id)
    }


def test_tasks_go_with_all_that_is_theirs(walks: Walks) -> None:
    """O9: some of each place, of two queues; neither their neighbours there nor their keys, which go by themselves."""
    walks.owner.execute(NOTES)
    ids = [
        min(of_queue(walks, walks.queue_ids[queue], place))
        for queue in (PLAIN, BOUNDED)
        for place in (*PLACES, "delivery")
    ]
    for queue_id in walks.queue_ids.values():
        assert walks.answers("SELECT poolkeeper.tasks_in(%s, %s)", queue_id, FEW) == [
            (sorted(of_queue(walks, queue_id, *PLACES)),)
        ]
    with walks.untouched(*ids):
        assert walks.answers("SELECT poolkeeper.forget_tasks(%s)", ids) == [(len(set(ids)),)]
    left = [table for table, text in walks.rows() if table != "task_key" and any(str(task) in text for task in ids)]
    assert left == []


def test_keys_go_as_many_as_are_asked_for(walks: Walks) -> None:
    """O9: of one queue, tenant by tenant."""
    home, found = walks.queue_ids[PLAIN], "SELECT tenant, queue_id, key FROM poolkeeper.task_key"
    walks.owner.execute(
        "INSERT INTO poolkeeper.task_key (tenant, queue_id, key, task_id, digest, created_at) SELECT t, q.id, k, gen_random_uuid(), '', now()"
        " FROM poolkeeper.queue AS q, unnest('{t1,t2,t7}'::text[]) AS t, unnest('{ready,x,y}'::text[]) AS k ON CONFLICT DO NOTHING"
    )
    before = set(walks.answers(found))
    mine = sorted(row for row in before if row[1] == home)
    assert walks.answers("SELECT poolkeeper.forget_keys(%s, '', 1)", home) == [("",)]
    gone = before - set(walks.answers(found))
    assert gone == {mine[0]}
    assert walks.answers("SELECT poolkeeper.forget_keys(%s, '', 4)", home)[0][0] in {"", "t1"}
    assert len(before - set(walks.answers(found))) <= 5
    place: str | None = ""
    for _ in range(20):
        place = walks.answers("SELECT poolkeeper.forget_keys(%s, %s, 3)", home, place)[0][0]
        if place is None:
            break
    else:
        raise AssertionError("it does not come to an end")
    assert before - set(walks.answers(found)) == set(mine)


def test_strays_are_what_a_purged_queue_left(walks: Walks) -> None:
    """O9, Q52: its tasks, keys and reasons to look; of no queue that is there."""
    home = walks.queue_ids[PLAIN]
    walks.owner.execute(NOTES)
    walks.owner.execute("INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT q.id, 5 FROM poolkeeper.queue AS q")
    for table in ("policy", "tenant_rule", "gate", "queue_count", "backlog"):
        walks.owner.execute(f"DELETE FROM poolkeeper.{table} WHERE queue_id = %s", [home])
    walks.owner.execute("DELETE FROM poolkeeper.queue WHERE id = %s", [home])
    mine = of_queue(walks, home, *PLACES)
    others = set(walks.answers("SELECT * FROM poolkeeper.task_key WHERE queue_id <> %s", home))
    with walks.untouched(*mine) as own:
        own.queues.add(home)
        own.whole.add(home)
        assert walks.answers("SELECT poolkeeper.forget_strays(%s)", FEW) == [(len(mine),)]
    assert of_queue(walks, home, *PLACES) == set()
    assert walks.answers("SELECT 1 FROM poolkeeper.gate_due WHERE queue_id = %s", home) == []
    assert set(walks.answers("SELECT * FROM poolkeeper.task_key WHERE queue_id <> %s", home)) == others


def test_a_purge_leaves_what_was_counted_and_noted_of_others(crowd: Crowd) -> None:
    """O9: counts, notes and reasons to look, which change by themselves else."""
    scene, home = crowd.scene, crowd.queue_ids[PLAIN]
    scene.queue(PLAIN, max_waiting=500, max_waiting_per_tenant=300, tenants=[{"name": "t1", "weight": 2}])
    tables = (
        "backlog",
        "backlog_lane",
        "gate_due",
        "retention_note",
        "opening",
        "lane",
        "tenant_rule",
        "policy",
        "gate",
        "queue_count",
    )
    scene.owner.execute(NOTES)
    for insert in (
        "backlog_lane SELECT q.id, 5, 5",
        "backlog SELECT q.id, 5, now(), '0'",
        "lane SELECT q.id, 5",
        "opening (queue_id, lane) SELECT q.id, 5",
        "gate_due (queue_id, gate) SELECT q.id, 5",
    ):
        scene.owner.execute(f"INSERT INTO poolkeeper.{insert} FROM poolkeeper.queue AS q ON CONFLICT DO NOTHING")

    def rows() -> dict[str, set[Any]]:
        return {
            table: {
                tuple(row)
                for row in scene.rows(f"SELECT queue_id, to_jsonb(x)::text AS row FROM poolkeeper.{table} AS x")
            }
            for table in tables
        }

    before, cursor = rows(), None
    for _ in range(40):
        page = scene.ask(
            "operator", calls.purge("local", "default", "default", PLAIN, who="test", cursor=cursor, most=50)
        )
        cursor = page.cursor
        if cursor is None:
            break
    assert rows() == {table: {row for row in found if row[0] != home} for table, found in before.items()}
    scene.sweep()


def test_a_policy_says_of_tenants_what_it_says_there(crowd: Crowd) -> None:
    """O1: weights and bounds of its own tenants only; and a pause keeps the rest of its own policy."""
    scene = crowd.scene
    scene.queue(PLAIN, tenants=[{"name": "a", "weight": 1}, {"name": "b"}])
    scene.queue(LIMITED, tenants=[{"name": "a", "weight": 3, "max_waiting": 7}])
    told = {
        row.name: tuple(row[1:])
        for row in scene.rows(
            "SELECT name, weighted, tenant_max_waiting FROM poolkeeper.queue WHERE namespace = 'default'"
        )
    }
    lane = scene.value("SELECT poolkeeper.lane_key(%s, 'a')", crowd.queue_ids[LIMITED])
    assert told == {
        PLAIN: (False, {}),
        BOUNDED: (True, {str(scene.value("SELECT poolkeeper.lane_key(%s, 't2')", crowd.queue_ids[BOUNDED])): 500}),
        LIMITED: (True, {str(lane): 7}),
    }
    spec = "SELECT p.spec FROM poolkeeper.policy AS p JOIN poolkeeper.queue AS q ON q.id = p.queue_id AND q.policy_version = p.version WHERE q.id = %s"
    for queue in QUEUES:
        before = scene.value(spec, crowd.queue_ids[queue])
        for paused in (True, False):
            if queue != FOREIGN:
                scene.ask("person", calls.pause(queue, paused, who="ann"))
            wanted = before if queue == FOREIGN else {**before, "paused": paused}
            assert json.loads(json.dumps(scene.value(spec, crowd.queue_ids[queue]))) == wanted
    with crowd.untouched(), pytest.raises(Conflict):
        scene.ask("person", calls.pause(FOREIGN, True, who="ann"))


@pytest.mark.parametrize(("namespace", "name"), [("default", "Upper"), ("-a", "q"), ("default", "a" * 64)])
def test_a_name_that_is_none_is_told_as_such(crowd: Crowd, namespace: str, name: str) -> None:
    """Contract 10: by a code, before anything is written."""
    with crowd.untouched():
        applied = crowd.scene.ask("operator", calls.apply_policy("local", "default", namespace, name, {}, who="x"))
    assert applied.code == "name_invalid"
