"""Submitting: in whose transaction, which refusals, which wishes (Q4, Q7, Q9)."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from poolkeeper.codes import Code
from poolkeeper.store import calls, run
from store.scene import Scene, seconds


def test_an_accepted_task_is_ready_and_says_what_was_asked(scene: Scene) -> None:
    """Q4, Q9: what submit acknowledged can be looked up, field by field."""
    task_id = scene.submit("mail.send", {"to": [1, "ü", None]}, tenant="acme", priority=7, labels={"team": "x"})
    view = scene.ask("reader", calls.task(task_id))
    assert view is not None
    assert (view.queue, view.type, view.tenant, view.priority) == ("default/q", "mail.send", "acme", 7)
    assert (view.state, view.state_version, view.payload, view.labels) == (
        "ready",
        1,
        {"to": [1, "ü", None]},
        {"team": "x"},
    )


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_in_the_callers_transaction_the_task_lives_exactly_if_it_commits(scene: Scene, ending: str) -> None:
    """Q4: the task is part of the caller's transaction, invisible before its commit."""
    conn = scene.connect("submitter", autocommit=False)
    verdict = run(conn, calls.submit("q", "a.b", 1))
    assert verdict.code is None
    worker = scene.worker()
    assert worker.claim(5) == []
    getattr(conn, ending)()
    assert len(worker.claim(5)) == (1 if ending == "commit" else 0)


def test_a_refusal_leaves_the_callers_transaction_usable(scene: Scene) -> None:
    """Q7: a refusal is an answer, not an error."""
    conn = scene.connect("submitter", autocommit=False)
    assert run(conn, calls.submit("nowhere", "a.b", 1)).code is Code.UNKNOWN_QUEUE
    assert run(conn, calls.submit("q", "a.b", 1)).code is None
    conn.commit()


@pytest.mark.parametrize("level", ["off", "local", "remote_write"])
def test_submit_raises_durability_for_its_transaction(scene: Scene, level: str) -> None:
    """Q4: a session with weaker commits gets at least `on` from the submit to the end of its transaction, no longer."""
    conn = scene.connect("submitter", autocommit=False)
    conn.execute(f"SET synchronous_commit = {level}")
    conn.commit()
    run(conn, calls.submit("q", "a.b", 1))
    assert conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
    conn.commit()
    assert conn.execute("SHOW synchronous_commit").fetchone() == (level,)


def test_a_stronger_durability_stays(scene: Scene) -> None:
    """Q4: at least `on`."""
    conn = scene.connect("submitter", autocommit=False)
    conn.execute("SET synchronous_commit = remote_apply")
    run(conn, calls.submit("q", "a.b", 1))
    assert conn.execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)
    conn.rollback()


def test_an_unknown_queue_is_refused(scene: Scene) -> None:
    """Q7, contract 11: no queue comes to be by a typing error."""
    verdict = scene.verdict(queue="team/typo")
    assert (verdict.code, verdict.task_id, verdict.created) == (Code.UNKNOWN_QUEUE, None, False)


def test_a_paused_queue_refuses_with_the_time_to_come_back(scene: Scene) -> None:
    """Q7: and takes tasks again once resumed."""
    scene.ask("person", calls.pause("q", True, who="ann"))
    verdict = scene.verdict()
    assert verdict.code is Code.QUEUE_PAUSED
    assert verdict.retry_after is not None
    scene.ask("person", calls.pause("q", False, who="ann"))
    assert scene.verdict().code is None


def test_a_payload_above_the_bound_is_refused_with_both_sizes(scene: Scene) -> None:
    """Q7: at the bound it passes, one byte above it does not."""
    scene.queue(max_payload_bytes=10)
    assert scene.verdict(payload="x" * 8).code is None
    verdict = scene.verdict(payload="x" * 9)
    assert (verdict.code, verdict.limit, verdict.current) == (Code.PAYLOAD_TOO_LARGE, 10, 11)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("[" * 200 + "]" * 200, True),
        ('{"a":' * 150 + "1" + "}" * 150, True),
        ("[" * 100 + "]" * 100, False),
        ("[" + "[1]," * 2000 + "1]", False),
        ("1e400", True),
        ('{"a": [-1e5000]}', True),
        ("1e308", False),
        ('"' + "1" * 5000 + '"', False),
        ("1e-400", False),
    ],
)
def test_what_a_reader_would_choke_on_is_refused(scene: Scene, text: str, refused: bool) -> None:
    """Q8: the store is the backstop for submitters in other languages: one such payload would take a whole turn with it."""
    conn = scene.actor("submitter")
    row = conn.execute("SELECT code FROM poolkeeper.submit('q', 'a.b', %s::jsonb)", [text]).fetchone()
    assert row == ("payload_invalid" if refused else None,)
    assert len(scene.worker().claim(1)) == (0 if refused else 1)


def test_a_queue_that_lists_types_refuses_others(scene: Scene) -> None:
    """Q7: `taskTypes` empty means any."""
    assert scene.verdict("any.thing").code is None
    scene.queue(task_types=["a.b"])
    assert scene.verdict("a.c").code is Code.UNKNOWN_TYPE
    assert scene.verdict("a.b").code is None


def test_a_task_that_would_be_too_old_at_once_is_refused(scene: Scene) -> None:
    """Q7: max_age counts from run_at."""
    past = datetime.now(UTC) - timedelta(hours=1)
    assert scene.verdict(run_at=past, max_age=timedelta(minutes=30)).code is Code.MAX_AGE_PASSED
    assert scene.verdict(run_at=past, max_age=timedelta(hours=2)).code is None
    assert scene.verdict(max_age=timedelta(0)).code is Code.MAX_AGE_PASSED


def test_refusals_of_a_batch_stand_beside_what_was_accepted(scene: Scene) -> None:
    """Q5, Q7: one verdict per row, in order."""
    scene.queue(max_payload_bytes=10)
    wishes = [{"type": "a.b", "payload": p} for p in (1, "x" * 50, 2)]
    verdicts = scene.ask("submitter", calls.submit_many("q", wishes))
    assert [v.code for v in verdicts] == [None, Code.PAYLOAD_TOO_LARGE, None]
    assert scene.value("SELECT count(*) FROM poolkeeper.task") == 2


def test_a_delayed_task_is_scheduled_until_its_time(scene: Scene) -> None:
    """Q9: by delay or by run_at; nobody gets it before."""
    soon = scene.submit(delay=seconds(10))
    later = scene.submit(run_at=datetime.now(UTC) + seconds(100))
    worker = scene.worker()
    assert (scene.state(soon), scene.state(later)) == ("scheduled", "scheduled")
    assert worker.claim(5, sweep=True) == []
    scene.advance(10.1)
    worker.renew()
    assert [c.task_id for c in worker.claim(5)] == [soon]
    scene.advance(100)
    worker.renew(soon)
    assert [c.task_id for c in worker.claim(5)] == [later]


def test_delay_adds_to_run_at(scene: Scene) -> None:
    """Q9: both given, both count."""
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    task_id = scene.submit(run_at=moment, delay=seconds(60))
    view = scene.ask("reader", calls.task(task_id))
    assert view is not None
    assert view.run_at == moment + seconds(60)


def test_the_shorter_max_age_of_task_and_queue_counts(scene: Scene) -> None:
    """Q9: a task cannot live longer than its queue allows."""
    scene.queue(max_age_seconds=60)

    def age(**wishes: Any) -> timedelta:
        view = scene.ask("reader", calls.task(scene.submit(**wishes)))
        assert view is not None
        assert view.expires_at is not None
        return view.expires_at - view.run_at

    assert age() == seconds(60)
    assert age(max_age=seconds(30)) == seconds(30)
    assert age(max_age=seconds(90), delay=seconds(500)) == seconds(60)


def test_what_is_too_old_takes_nobodys_place(scene: Scene) -> None:
    """Q14: before any sweep has come by, a claim of one finds the one that may start, in whatever lane it is."""
    for tenant in "abcdefghijklmnopqrstuvwxyABCDEFGHIJKLMNOPQRSTUVWXYZ":
        scene.submit(tenant=tenant, max_age=seconds(5))
    worker = scene.worker()
    scene.advance(6)
    fresh = scene.submit(tenant="z")
    assert worker.take().task_id == fresh
    assert worker.claim() == []


def test_a_task_past_its_max_age_is_not_claimed_and_becomes_a_dead_letter(scene: Scene) -> None:
    """Q9, P4: from ready, from scheduled and, when nobody claims, by the sweep alone."""
    waiting = scene.submit(max_age=seconds(10))
    fresh = scene.submit()
    worker = scene.worker()
    scene.advance(11)
    worker.renew()
    assert [c.task_id for c in worker.claim(5)] == [fresh]
    scene.sweep()
    assert scene.state(waiting) == "dead"
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert (letter.task_id, letter.reason, letter.deliveries) == (waiting, "max_age", 0)


def test_max_deliveries_of_a_task_stays_within_the_queues_bound(scene: Scene) -> None:
    """Q9: lower is honoured, higher is not."""
    low, high = scene.submit(max_deliveries=2), scene.submit(max_deliveries=50)
    got = {c.task_id: c.max_deliveries for c in scene.worker().claim(2)}
    assert got == {low: 2, high: 5}


def test_priority_is_kept_within_the_policys_range(scene: Scene) -> None:
    """Q9: the nearest allowed one."""
    scene.queue(priority_min=2, priority_max=6, priority_default=3)
    ids = [scene.submit(priority=p) for p in (0, 4, 99)] + [scene.submit()]
    assert [scene.value("SELECT priority FROM poolkeeper.task WHERE id = %s", i) for i in ids] == [2, 4, 6, 3]


@pytest.mark.parametrize("column", ["type", "tenant"])
def test_the_table_itself_takes_no_name_out_of_bounds(scene: Scene, column: str) -> None:
    """Contract 10: so no function can let a wrong one pass."""
    scene.submit()
    with pytest.raises(psycopg.errors.CheckViolation):
        scene.owner.execute(f"UPDATE poolkeeper.task SET {column} = repeat('x', 201)")


def test_ids_are_uuid_version_7_in_the_order_of_time(scene: Scene) -> None:
    """Contract 2: the time in the id is what partitions the history."""
    first = scene.submit()
    scene.rows("SELECT pg_sleep(0.003)")  # the id counts milliseconds
    second = scene.submit()
    assert first.version == second.version == 7
    assert first < second
    now = datetime.now(UTC).timestamp() * 1000
    assert abs((second.int >> 80) - now) < 60_000


def test_an_unknown_task_is_nothing(scene: Scene) -> None:
    """Looking up what is not there answers None and an empty timeline."""
    assert scene.ask("reader", calls.task(uuid4())) is None
    assert scene.ask("reader", calls.timeline(uuid4())) == []


@pytest.mark.parametrize("payload", [1, None, {"n": [1, None]}, "ü"])
@pytest.mark.parametrize("wishes", [{}, {"tenant": "acme"}, {"labels": {"team": "x"}, "traceparent": "00-1-2-03"}])
@pytest.mark.parametrize("policy", [{}, {"max_age": seconds(60), "priority_default": 7}])
def test_one_task_is_written_like_one_of_many(
    scene: Scene, payload: Any, wishes: dict[str, Any], policy: dict[str, Any]
) -> None:
    """Q4, F2: what comes alone and has no wish takes a shorter way, to the same rows."""
    for name, value in policy.items():
        scene.owner.execute(f"UPDATE poolkeeper.queue SET {name} = %s", [value])
    task = {"type": "a.b", "payload": payload, **wishes}
    (alone,) = scene.ask("submitter", calls.submit_many("q", [task]))
    first, second = scene.ask("submitter", calls.submit_many("q", [task, task]))
    same = {field: value for field, value in asdict(first).items() if field not in {"task_id", "ordinal"}}
    assert {field: value for field, value in asdict(alone).items() if field not in {"task_id", "ordinal"}} == same
    rows = [
        [
            scene.value(
                f"SELECT to_jsonb(x) - %s::text[] FROM poolkeeper.{table} AS x WHERE {key} = %s",
                [key, "seq", "accepted_at", "run_at", "ready_at", "expires_at"],
                verdict.task_id,
            )
            for table, key in (("task", "id"), ("ready", "task_id"))
        ]
        for verdict in (alone, first, second)
    ]
    assert rows[0] == rows[1] == rows[2]
    ages = (
        "SELECT count(DISTINCT expires_at - run_at), count(*) FILTER (WHERE run_at <> accepted_at) FROM poolkeeper.task"
    )
    assert scene.owner.execute(ages).fetchone() == (1 if policy else 0, 0)


MANY: list[dict[str, Any]] = [
    {"type": "a.b", "payload": 1},
    {"type": "a.b", "payload": None, "tenant": "acme", "labels": {"team": "x"}, "traceparent": "00-1-2-03"},
    {"type": "NO", "payload": 1},
    {"type": "a.b", "payload": "x" * 2000},
    {"type": "a.b", "payload": 1, "priority": 3, "max_deliveries": 2, "max_age": seconds(30)},
    {"type": "a.b", "payload": 1, "delay": seconds(30)},
    {"type": "a.b", "payload": 1, "run_at": "2100-01-01T00:00:00Z"},
    {"type": "a.b", "payload": 1, "max_age": seconds(0)},
    {"type": "a.b", "payload": 1, "tenant": "\u202e"},
]


@pytest.mark.parametrize("spoilt", [[], [{"type": "a.b", "payload": 1, "run_at": "tomorrow"}]], ids=["", "unreadable"])
def test_many_are_written_alike_with_and_without_a_bound(scene: Scene, spoilt: list[dict[str, Any]]) -> None:
    """Q4, Q7, F2: where no key is given and no bound can be met the way is shorter: the same verdicts, the same rows."""
    scene.owner.execute("UPDATE poolkeeper.queue SET max_payload_bytes = 1000")
    told, rows = [], []
    for bound in (None, 1000):
        scene.owner.execute("UPDATE poolkeeper.queue SET max_waiting = %s", [bound])
        verdicts = scene.ask("submitter", calls.submit_many("q", MANY + spoilt))
        told.append([{name: value for name, value in asdict(v).items() if name != "task_id"} for v in verdicts])
        accepted = [v.task_id for v in verdicts if v.code is None]
        assert all(v.task_id is None for v in verdicts if v.code is not None)
        rows.append(
            [
                scene.value(
                    "SELECT jsonb_build_array(t.type, t.tenant, t.priority, t.max_deliveries, t.payload, t.labels, t.traceparent, t.submitted_by,"
                    " date_trunc('second', t.run_at - t.accepted_at) > interval '1 year', t.expires_at - t.run_at, r.lane, r.type_key, r.priority,"
                    " r.expires_at = t.expires_at, l.lane, l.type_key, l.priority, l.due_at = t.run_at, l.expires_at = t.expires_at)"
                    " FROM poolkeeper.task AS t LEFT JOIN poolkeeper.ready AS r ON r.task_id = t.id LEFT JOIN poolkeeper.later AS l ON l.task_id = t.id"
                    " WHERE t.id = %s",
                    task_id,
                )
                for task_id in accepted
            ]
        )
    assert told[0] == told[1]
    assert rows[0] == rows[1]
    assert [entry["code"] for entry in told[0]][:4] == [None, None, "type_invalid", "payload_too_large"]


def test_ids_of_one_call_are_version_7_and_neighbours(scene: Scene) -> None:
    """Q6: each once, in the order of the call; two calls do not meet."""
    ids = scene.submit_many(300)
    steps = {(later.int - before.int) % 2**48 for before, later in pairwise(ids)}
    assert steps == {1}
    assert len({*ids, *scene.submit_many(300)}) == 600
    assert {each.version for each in ids} == {7}
    assert {each.int >> 48 for each in ids} == {ids[0].int >> 48}


def test_ids_count_on_past_the_last_number(scene: Scene) -> None:
    """What follows the last of 48 bits is their first, beside the same stem."""
    last = scene.value("SELECT poolkeeper.id_at('01a22d9e-70e7-768f-9d52-', 281474976710655)")
    assert str(last) == "01a22d9e-70e7-768f-9d52-ffffffffffff"
    assert scene.value("SELECT poolkeeper.id_count(%s)", last) == 281474976710655
    beyond = scene.value("SELECT poolkeeper.id_at(poolkeeper.id_stem(%s), poolkeeper.id_count(%s) + 1)", last, last)
    assert str(beyond) == "01a22d9e-70e7-768f-9d52-000000000000"
