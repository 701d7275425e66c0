"""Keys, limits and openings of a submit are of one tenant in one queue, one by one and in bulk (Q6, Q7, Q12)."""

from datetime import timedelta
from typing import Any

import pytest

from fixtures.neighbours import BOUNDED, FOREIGN, LIMITED, PLAIN, Crowd
from poolkeeper.codes import Code
from poolkeeper.store import Verdict, calls, run

MINE: dict[str, Any] = {"type": "a.c", "payload": 1, "tenant": "t1", "key": "ready"}
"""What the crowd has submitted to every queue, under this key."""


def submits(crowd: Crowd, queue: str, *tasks: dict[str, Any], bulk: bool) -> list[Verdict]:
    """All in one call, or each in one of its own."""
    if bulk:
        return crowd.scene.ask("submitter", calls.submit_many(queue, list(tasks)))
    return [verdict for task in tasks for verdict in crowd.scene.ask("submitter", calls.submit_many(queue, [task]))]


@pytest.mark.parametrize("bulk", [False, True])
def test_what_is_known_takes_no_room(crowd: Crowd, bulk: bool) -> None:
    """Q6, Q7: where nothing fits any more a repeat is known by its own tenant, queue and key, and nothing else is."""
    scene = crowd.scene
    scene.ask(
        "submitter", calls.submit_many(FOREIGN, [{"type": "a.c", "payload": 1, "tenant": "t1", "key": "elsewhere"}])
    )
    home = crowd.queue_ids[PLAIN]
    places = ("ready", "later", "suspect", "ordered")
    count = sum(scene.value(f"SELECT count(*) FROM poolkeeper.{place} WHERE queue_id = %s", home) for place in places)
    for tenant, policy, code in (
        ("t8", {"max_waiting": count + 1}, Code.QUEUE_LIMIT),
        ("t9", {"max_waiting_per_tenant": 1}, Code.TENANT_QUEUE_LIMIT),
    ):
        scene.queue(PLAIN, **policy)
        told = submits(
            crowd, PLAIN, {**MINE, "type": "A B", "key": "no"}, {**MINE, "key": "x" * 201}, {**MINE, "tenant": tenant, "key": code}, {**MINE, "tenant": tenant, "key": code}, bulk=bulk
        )  # fmt: skip
        assert [v.code for v in told] == [Code.TYPE_INVALID, Code.KEY_INVALID, None, None]
        assert told[2].task_id == told[3].task_id
        others = [{**MINE, "tenant": tenant}, {**MINE, "tenant": tenant, "key": "new"}]
        if code == Code.QUEUE_LIMIT:
            others += [{**MINE, "tenant": "t2"}, {**MINE, "key": "elsewhere"}, {**MINE, "key": "new"}]
        told = submits(crowd, PLAIN, MINE, *others, {**MINE, "payload": 2}, MINE, bulk=bulk)
        assert [v.code for v in told] == [None, *[code] * len(others), Code.KEY_CONFLICT, None]
        assert not any(v.created for v in told)


@pytest.mark.parametrize("bulk", [False, True])
def test_a_key_is_taken_for_one_tenant_in_one_queue(crowd: Crowd, bulk: bool) -> None:
    """Q6: whatever others have under it; twice in one call it is one task, and with another payload a conflict."""
    wishes: list[dict[str, Any]] = [
        {**MINE, "tenant": "t2"},
        {**MINE, "key": "other"},
        {**MINE, "tenant": "t2", "key": "other"},
        {**MINE, "key": None},
        {**MINE, "key": "other"},
        {**MINE, "key": "other", "payload": 3},
        MINE,
        {**MINE, "payload": 3},
        {**MINE, "key": "third", "type": "A B"},
        {**MINE, "key": "third", "payload": 4},
        {**MINE, "tenant": "t2"},
    ]
    for queue in (PLAIN, BOUNDED):
        (known,) = crowd.scene.rows(
            "SELECT task_id FROM poolkeeper.task_key WHERE queue_id = %s AND tenant = 't1' AND key = 'ready'",
            crowd.queue_ids[queue],
        )
        told = submits(crowd, queue, *wishes, bulk=bulk)
        assert [v.code for v in told] == [
            *[None] * 5,
            Code.KEY_CONFLICT,
            None,
            Code.KEY_CONFLICT,
            Code.TYPE_INVALID,
            None,
            None,
        ]
        assert [v.created for v in told] == [*[True] * 4, *[False] * 5, True, False]
        assert told[10].task_id == told[0].task_id
        assert (told[4].task_id, told[6].task_id) == (told[1].task_id, known.task_id)
        assert [v.state for v in told] == [*["ready"] * 5, None, "ready", None, None, "ready", "ready"]
        keys = crowd.scene.rows(
            "SELECT tenant, key, task_id FROM poolkeeper.task_key WHERE queue_id = %s", crowd.queue_ids[queue]
        )
        made = {(row.tenant, row.key): row.task_id for row in keys}
        assert [made["t2", "ready"], made["t1", "other"], made["t2", "other"], made["t1", "third"]] == [
            told[n].task_id for n in (0, 1, 2, 9)
        ]


def test_a_submit_opens_the_lanes_of_what_is_claimable(crowd: Crowd) -> None:
    """Q12, Q14: of what was accepted, is new and is not scheduled; of others nothing is looked at."""
    scene, home = crowd.scene, crowd.queue_ids[BOUNDED]
    known = scene.verdict(queue=BOUNDED, tenant="known", key="k")
    scene.owner.execute("DELETE FROM poolkeeper.opening")
    tasks = [
        {"type": "a.b", "payload": 1, "tenant": "new"},
        {"type": "a.b", "payload": 1, "tenant": "known", "key": "k"},
        {"type": "A B", "payload": 1, "tenant": "refused"},
        {"type": "a.b", "payload": 1, "tenant": "scheduled", "delay": timedelta(hours=1)},
    ]
    told = scene.ask("submitter", calls.submit_many(BOUNDED, tasks))
    assert [v.code for v in told] == [None, None, Code.TYPE_INVALID, None]
    assert told[1].task_id == known.task_id
    lanes = scene.rows("SELECT queue_id, lane FROM poolkeeper.opening")
    assert lanes == [(home, scene.value("SELECT poolkeeper.lane_key(%s, 'new')", home))]
    scene.sweep()


@pytest.mark.parametrize("bulk", [False, True])
def test_a_key_tells_the_end_of_its_own_task(crowd: Crowd, bulk: bool) -> None:
    """Q6, Q52: once that has gone by its age, whatever the same key knows of other tenants and queues."""
    scene = crowd.scene
    submits(crowd, PLAIN, {**MINE, "tenant": "t2"}, {**MINE, "key": "other"}, bulk=True)
    ids = [row.task_id for row in scene.rows("SELECT task_id FROM poolkeeper.task_key WHERE key IN ('ready', 'other')")]
    for table, column in (("ready", "task_id"), ("task", "id")):
        scene.owner.execute(f"DELETE FROM poolkeeper.{table} WHERE {column} = ANY (%s)", [ids])
    change = "UPDATE poolkeeper.task_key SET ended_at = poolkeeper.clock(), last_state = CASE WHEN {} THEN 'succeeded' ELSE 'failed' END WHERE key IN ('ready', 'other')"
    scene.owner.execute(change.format(f"queue_id = {crowd.queue_ids[PLAIN]} AND tenant = 't1' AND key = 'ready'"))
    (told, other, new) = submits(crowd, PLAIN, MINE, {**MINE, "key": "other"}, {**MINE, "key": "new"}, bulk=bulk)
    assert [(v.state, v.created) for v in (told, other, new)] == [
        ("succeeded", False),
        ("failed", False),
        ("ready", True),
    ]


def test_an_ordering_key_is_a_name(crowd: Crowd) -> None:
    """Contract 10: as keys are."""
    with crowd.untouched():
        told = submits(
            crowd, PLAIN, *({"type": "a.b", "ordering_key": key} for key in ("", "a\nb", "x" * 201)), bulk=True
        )
    assert {v.code for v in told} == {Code.KEY_INVALID}


def test_each_refusal_is_told_by_its_code(crowd: Crowd) -> None:
    """Q7: one by one and in bulk, each for its own task, and nothing of it is written."""
    scene = crowd.scene
    scene.queue(PLAIN, task_types=["a.b", "p.q"], suspended_tenants=["gone"], max_payload_bytes=100)
    scene.allow(scene.database.login("submitter"), tenants=["t1", "gone"])
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    tasks: list[tuple[dict[str, Any], Code]] = [
        ({"type": "a.b", "tenant": "t2"}, Code.ROLE_NOT_ALLOWED),
        ({"type": "a.b", "tenant": "gone"}, Code.TENANT_SUSPENDED),
        ({"type": "a.c"}, Code.UNKNOWN_TYPE),
        ({"type": "a.b", "payload": "x" * 101}, Code.PAYLOAD_TOO_LARGE),
        ({"type": "a.b", "max_age": 60, "delay": 0, "run_at": "2000-01-01T00:00:00Z"}, Code.MAX_AGE_PASSED),
        ({"type": "a.b", "tenant": "t2", "delay": "soon"}, Code.ROLE_NOT_ALLOWED),
        ({"type": "a.b", "delay": "soon"}, Code.OPTION_INVALID),
    ]
    wishes = [{"tenant": "t1", "payload": 1, **task} for task, _ in tasks]
    for bulk in (False, True):
        with crowd.untouched():
            told = submits(crowd, PLAIN, *wishes, bulk=bulk)
        assert [v.code for v in told] == [code for _, code in tasks]
        assert [(v.limit, v.current) for v in told if v.code == Code.PAYLOAD_TOO_LARGE] == [(100, 103)]
    scene.queue(PLAIN)
    with crowd.untouched():
        assert (
            submits(crowd, PLAIN, {"type": "a.b", "tenant": "t1", "payload": deep}, bulk=False)[0].code
            == Code.PAYLOAD_INVALID
        )
    scene.queue(PLAIN, paused=True)
    with crowd.untouched():
        assert submits(crowd, PLAIN, MINE | {"key": None}, bulk=False)[0].code == Code.QUEUE_PAUSED


def test_what_was_counted_is_of_the_own_queue(crowd: Crowd) -> None:
    """Q7: where so much may wait that a submit goes by the last count, of the queue and of the tenant there."""
    scene, home = crowd.scene, crowd.queue_ids[PLAIN]
    lane = scene.value("SELECT poolkeeper.lane_key(%s, 't1')", home)
    for policy, code in (
        ({"max_waiting": 5000}, Code.QUEUE_LIMIT),
        ({"max_waiting_per_tenant": 5000}, Code.TENANT_QUEUE_LIMIT),
    ):
        for full in (PLAIN, LIMITED):
            scene.queue(PLAIN, **policy)
            scene.owner.execute(
                "INSERT INTO poolkeeper.backlog SELECT q.id, CASE WHEN q.id = %s THEN 5000 ELSE 0 END, poolkeeper.clock(), '0' FROM poolkeeper.queue AS q"
                " ON CONFLICT (queue_id) DO UPDATE SET waiting = EXCLUDED.waiting, counted_at = EXCLUDED.counted_at, took = '0'",
                [crowd.queue_ids[full]],
            )
            scene.owner.execute("DELETE FROM poolkeeper.backlog_lane")
            scene.owner.execute(
                "INSERT INTO poolkeeper.backlog_lane SELECT q.id, %s, CASE WHEN q.id = %s THEN 5000 ELSE 2500 END FROM poolkeeper.queue AS q",
                [lane, crowd.queue_ids[full]],
            )
            assert scene.verdict(queue=PLAIN, tenant="t1").code == (code if full == PLAIN else None)


@pytest.mark.parametrize("bulk", [False, True])
def test_what_is_refused_takes_no_key(crowd: Crowd, bulk: bool) -> None:
    """Q6: beside others of the same call that are accepted; the key is there for who comes next."""
    fresh: dict[str, Any] = {"type": "a.b", "payload": 1, "key": "fresh"}
    refused: list[dict[str, Any]] = [
        {"type": "A B", "payload": 1, "key": "no"},
        {"type": "a.b", "payload": "x" * 2**20, "key": "large"},
    ]
    told = submits(crowd, PLAIN, fresh, *refused, bulk=bulk)
    assert [v.code for v in told] == [None, Code.TYPE_INVALID, Code.PAYLOAD_TOO_LARGE]
    assert [v.task_id is None for v in told] == [False, True, True]
    after = submits(crowd, PLAIN, fresh, *({**fresh, "key": each["key"]} for each in refused), bulk=bulk)
    assert [(v.code, v.created) for v in after] == [(None, False), (None, True), (None, True)]
    keys = crowd.scene.rows(
        "SELECT task_id FROM poolkeeper.task_key WHERE key IN ('fresh', 'no', 'large') ORDER BY key"
    )
    assert [row.task_id for row in keys] == [after[n].task_id for n in (0, 2, 1)]


@pytest.mark.parametrize("keys", [["new", "newer"], ["new", "ready"], ["ready", "new"]])
def test_how_long_a_caller_waits_for_locks_is_its_own(crowd: Crowd, keys: list[str]) -> None:
    """Q4: a submit in a caller's transaction leaves its limit as it was, whether or not each key was free."""
    conn = crowd.scene.connect("submitter", autocommit=False)
    conn.execute("SET lock_timeout = '7s'")
    told = run(conn, calls.submit_many(PLAIN, [{**MINE, "key": key} for key in keys]))
    assert [v.created for v in told] == [key != "ready" for key in keys]
    assert conn.execute("SHOW lock_timeout").fetchone() == ("7s",)
    conn.rollback()


def test_a_batch_opens_the_lanes_in_which_it_has_work_now(crowd: Crowd) -> None:
    """Q12, Q14: of no tenant whose task is known, refused or due later, so that no claim looks there in vain."""
    scene, home = crowd.scene, crowd.queue_ids[BOUNDED]
    before = scene.rows("DELETE FROM poolkeeper.opening RETURNING queue_id, lane")
    tasks: list[dict[str, Any]] = [
        {"type": "a.b", "payload": 1, "tenant": "now"},
        {"type": "a.b", "payload": 1, "tenant": "later", "delay": 60},
        {"type": "A B", "payload": 1, "tenant": "refused"},
        MINE,
    ]
    told = submits(crowd, BOUNDED, *tasks, bulk=True)
    assert [v.created for v in told] == [True, True, False, False]
    lanes = scene.rows("SELECT queue_id, lane FROM poolkeeper.opening")
    assert lanes == [(home, scene.value("SELECT poolkeeper.lane_key(%s, 'now')", home))]
    for row in before:
        scene.owner.execute("INSERT INTO poolkeeper.opening (queue_id, lane) VALUES (%s, %s)", row)


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED, LIMITED])
def test_one_submit_is_one_task(crowd: Crowd, queue: str) -> None:
    """Q1, Q6: whichever way it takes, one answer, one body and one place."""
    every = "SELECT id FROM poolkeeper.task WHERE queue_id = %s"
    placed = " UNION ALL ".join(f"SELECT task_id FROM poolkeeper.{place}" for place in ("ready", "later", "ordered"))
    wishes: tuple[dict[str, Any], ...] = ({}, {"priority": 1}, {"key": "own"}, {"delay": 60}, {"ordering_key": "own"})
    for wish in wishes:
        before = {row.id for row in crowd.scene.rows(every, crowd.queue_ids[queue])}
        (told,) = submits(crowd, queue, {"type": "a.b", "payload": 1, **wish}, bulk=True)
        assert {row.id for row in crowd.scene.rows(every, crowd.queue_ids[queue])} - before == {told.task_id}
        assert [row.task_id for row in crowd.scene.rows(placed)].count(told.task_id) == 1
