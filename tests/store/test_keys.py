"""Idempotency keys (Q6)."""

from typing import Any

import pytest
from psycopg.types.json import Json

from poolkeeper.codes import Code
from poolkeeper.store import calls, run
from store.scene import Scene, await_blocked, meanwhile


def test_the_same_key_and_payload_is_the_first_task(scene: Scene) -> None:
    """Q6: one task; the second caller is told which."""
    first = scene.verdict(key="k")
    again = scene.verdict(key="k")
    assert (first.created, again.created) == (True, False)
    assert first.task_id == again.task_id
    assert scene.value("SELECT count(*) FROM poolkeeper.task") == 1


def test_the_result_comes_with_the_key_once_there_is_one(scene: Scene) -> None:
    """Q6: also after the task has ended, and its failure as well."""
    scene.submit(key="k")
    worker = scene.worker()
    worker.succeed(worker.take(), {"order": 7})
    again = scene.verdict(key="k")
    assert (again.state, again.result, again.created) == ("succeeded", {"order": 7}, False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"x": [1.50, {"y": 0.0}]}, {"x": [1.5, {"y": 0}]}),
        (1e2, 100),
    ],
)
def test_equality_is_of_the_json_value(scene: Scene, one: Any, other: Any) -> None:
    """Q6: 1 is 1.0 and the order of keys is nothing, at any depth."""
    assert scene.verdict(payload=one, key="k").task_id == scene.verdict(payload=other, key="k").task_id


@pytest.mark.parametrize(
    ("one", "other"), [(1, 2), ("1", 1), (None, False), ([1, 2], [2, 1]), ({"a": None}, {}), ("", None), ([[]], [])]
)
def test_another_value_conflicts_and_reveals_nothing(scene: Scene, one: Any, other: Any) -> None:
    """Q6: neither the task nor a word of its payload."""
    scene.submit(payload=one, key="k")
    verdict = scene.verdict(payload=other, key="k")
    assert verdict.code is Code.KEY_CONFLICT
    assert (verdict.task_id, verdict.state, verdict.result, verdict.created) == (None, None, None, False)


def test_the_digest_is_keyed_by_the_installation(make_database: Any) -> None:
    """Q6: equal payloads have other digests elsewhere, so a stored digest cannot be guessed from a payload."""

    def digest() -> bytes:
        with make_database().connect() as conn:
            conn.execute("UPDATE poolkeeper.instance SET digest_inner = digest_inner || uuid_send(gen_random_uuid())")
            row = conn.execute("SELECT poolkeeper.payload_digest('1')").fetchone()
            assert row is not None
            return bytes(row[0])

    assert digest() != digest()


def test_keys_are_scoped_by_tenant_and_queue(scene: Scene) -> None:
    """Q6: the same key elsewhere is another key."""
    scene.queue("r")
    ids = {scene.submit(key="k"), scene.submit(key="k", tenant="acme"), scene.submit(key="k", queue="r")}
    assert len(ids) == 3


def test_keys_are_compared_as_bytes(scene: Scene) -> None:
    """Contract 10: composed and decomposed characters are two keys."""
    assert scene.submit(key="\u00e9") != scene.submit(key="e\u0301")


def test_a_racing_key_waits_and_gets_the_committed_task(scene: Scene) -> None:
    """Q6: the second submit waits for the first one's commit and then answers with its task."""
    first = scene.connect("submitter", autocommit=False)
    task_id = run(first, calls.submit("q", "a.b", 1, key="k")).task_id
    with meanwhile(lambda: scene.verdict(key="k")) as racing:
        await_blocked(scene)
        first.commit()
        verdict = racing.result(30)
    assert (verdict.task_id, verdict.created) == (task_id, False)


def test_nobody_is_told_duplicate_of_what_was_rolled_back(scene: Scene) -> None:
    """Q6: after the first one's rollback the second has a task of its own."""
    first = scene.connect("submitter", autocommit=False)
    lost = run(first, calls.submit("q", "a.b", 1, key="k")).task_id
    with meanwhile(lambda: scene.verdict(key="k")) as racing:
        await_blocked(scene)
        first.rollback()
        verdict = racing.result(30)
    assert verdict.created
    assert verdict.task_id != lost


def test_a_racing_key_with_another_payload_conflicts_after_the_commit(scene: Scene) -> None:
    """Q6: real answer, other payload."""
    first = scene.connect("submitter", autocommit=False)
    run(first, calls.submit("q", "a.b", 1, key="k"))
    with meanwhile(lambda: scene.verdict(payload=2, key="k")) as racing:
        await_blocked(scene)
        first.commit()
        assert racing.result(30).code is Code.KEY_CONFLICT


def test_a_key_held_for_too_long_is_in_flight_and_nothing_else_is_lost(scene: Scene) -> None:
    """Q6: the wait has a bound (5 s, shortened here); the rest of the batch is accepted and the setting restored."""
    first = scene.connect("submitter", autocommit=False)
    run(first, calls.submit("q", "a.b", 1, key="k"))
    second = scene.connect("submitter", autocommit=False)
    second.execute("SET lock_timeout = '77s'")
    with scene.without("poolkeeper.take_keys(integer, poolkeeper.candidate[], timestamptz)", "'5s'", "'50ms'"):
        wishes = [{"type": "a.b", "payload": 1, "key": key} for key in ("j", "k", "l")]
        verdicts = run(second, calls.submit_many("q", wishes))
    assert [v.code for v in verdicts] == [None, Code.KEY_IN_FLIGHT, None]
    assert verdicts[1].retry_after is not None
    assert second.execute("SHOW lock_timeout").fetchone() == ("77s",)
    second.commit()
    first.rollback()
    assert scene.verdict(key="k").created


def test_many_threads_with_one_key_make_one_task(scene: Scene) -> None:
    """Q6: eight racing submitters, one task, one of them created it."""
    from concurrent.futures import ThreadPoolExecutor

    conns = [scene.connect("submitter") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for key in "abcde":
            verdicts = list(pool.map(lambda c, k=key: run(c, calls.submit("q", "a.b", 1, key=k)), conns))
            assert len({v.task_id for v in verdicts}) == 1
            assert [v.created for v in verdicts].count(True) == 1


def test_batches_with_the_same_keys_in_other_orders_do_not_deadlock(scene: Scene) -> None:
    """Q5: keys are taken in order, whatever the order of the batch."""
    from concurrent.futures import ThreadPoolExecutor

    wishes = [{"type": "a.b", "payload": 1, "key": f"k{n}"} for n in range(40)]
    conns = [scene.connect("submitter") for _ in range(4)]
    orders = [wishes, wishes[::-1], wishes[20:] + wishes[:20], wishes[::2] + wishes[1::2]]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda c, w: run(c, calls.submit_many("q", w)), conns, orders))
    assert all(v.code is None for verdicts in answers for v in verdicts)
    assert scene.value("SELECT count(*) FROM poolkeeper.task") == 40


def test_one_key_twice_in_a_batch_is_one_task(scene: Scene) -> None:
    """Q6: also within one call."""
    wishes = [{"type": "a.b", "payload": p, "key": "k"} for p in (1, 1, 2)]
    one, same, other = scene.ask("submitter", calls.submit_many("q", wishes))
    assert (one.created, same.created, same.task_id) == (True, False, one.task_id)
    assert other.code is Code.KEY_CONFLICT


def test_a_refused_submit_does_not_take_its_key(scene: Scene) -> None:
    """Q6, Q7: the same key is free for the next try."""
    scene.ask("person", calls.pause("q", True, who="ann"))
    assert scene.verdict(key="k").code is Code.QUEUE_PAUSED
    scene.ask("person", calls.pause("q", False, who="ann"))
    assert scene.verdict(key="k").created


def test_a_repeated_submit_finds_its_task_although_the_queue_refuses_new_ones(scene: Scene) -> None:
    """Q6: what was accepted stays accepted; a repeat after a lost answer is told so even while new tasks are refused."""
    task_id = scene.submit(payload="x" * 20, key="k", type="old.type")
    scene.queue(paused=True, task_types=["new.type"], max_payload_bytes=5)
    again = scene.verdict(payload="x" * 20, key="k", type="old.type")
    assert (again.code, again.task_id, again.created) == (None, task_id, False)
    assert scene.verdict(payload="y" * 20, key="k").code is Code.QUEUE_PAUSED


def test_a_key_whose_holder_goes_between_the_two_looks_is_free(scene: Scene) -> None:
    """C18: its row was there when the insert met it and is gone when it is read; the caller gets a new task, not an error."""
    scene.submit(key="k")
    submitter, holder = scene.connect("submitter"), scene.database.connect()
    holder.execute("SELECT pg_advisory_lock(18)")
    looks = ("SELECT k.* INTO", "PERFORM pg_advisory_xact_lock_shared(18); SELECT k.* INTO")
    with (
        scene.without("poolkeeper.take_keys(integer, poolkeeper.candidate[], timestamptz)", *looks),
        meanwhile(lambda: run(submitter, calls.submit("q", "a.b", 1, key="k"))) as racing,
    ):
        await_blocked(scene)
        scene.owner.execute("DELETE FROM poolkeeper.task_key")
        holder.execute("SELECT pg_advisory_unlock(18)")
        verdict = racing.result(30)
    holder.close()
    assert (verdict.code, verdict.created) == (None, True)
    assert scene.verdict(key="k").task_id == verdict.task_id


def test_a_hundred_submits_at_once_with_one_key(scene: Scene) -> None:
    """C18: one id for all of one payload; of two payloads one wins, and the others hear nothing but the conflict."""
    from concurrent.futures import ThreadPoolExecutor

    conns = [scene.connect("submitter") for _ in range(100)]
    written = ['{"a": 1, "b": [2, 3]}', '{ "b":[2 , 3.0],\n "a":1.00}']
    query = "SELECT task_id, code, created, \"limit\", current, state, result FROM poolkeeper.submit('q', 'a.b', %s::jsonb, %s::jsonb)"

    def submit(number: int, texts: list[str], key: str) -> tuple[Any, ...]:
        row = conns[number].execute(query, [texts[number % len(texts)], Json({"key": key})]).fetchone()
        assert row is not None
        return row

    with ThreadPoolExecutor(100) as pool:
        same = list(pool.map(lambda n: submit(n, written, "same"), range(100)))
        mixed = list(pool.map(lambda n: submit(n, [written[0], '"secret"'], "mixed"), range(100)))
    assert len({row[0] for row in same}) == 1
    assert [row[2] for row in same].count(True) == 1
    won = [row for row in mixed if row[1] is None]
    lost = {row for row in mixed if row[1] is not None}
    assert (len({row[0] for row in won}), len(won)) == (1, 50)
    assert lost == {(None, "key_conflict", False, None, None, None, None)}
    assert scene.value("SELECT count(*) FROM poolkeeper.task") == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": [1.50, {"b": "x.0 y", "c": 1e2}]}', '{"a": [1.5, {"c": 100.0, "b": "x.0 y"}]}', True),
        ('{"a": 10.10, "b": null, "é": [true, []]}', '{"é": [true, []], "b": null, "a": 10.1}', True),
        ('{"b": "1.0"}', '{"b": "1"}', False),
        ('{"b": ".0"}', '{"b": ".00"}', False),
        ("-0.0", "0", True),
        ("0.10", "0.01", False),
        ('["a, b"]', '["a", "b"]', False),
    ],
)
def test_equal_values_have_one_digest_however_they_are_written(scene: Scene, one: str, other: str, same: bool) -> None:
    """Q6: also where one of them is digested as it stands and the other has to be rewritten."""
    query = "SELECT poolkeeper.payload_digest(%s::jsonb) = poolkeeper.payload_digest(%s::jsonb)"
    assert scene.value(query, one, other) is same


def test_a_batch_knows_its_keys_and_takes_the_others(scene: Scene) -> None:
    """Q5, Q6: known, conflicting, new and doubled ones side by side, each with its own answer."""
    known = [scene.submit(payload=n, key=f"k{n}") for n in range(3)]
    wishes = [{"type": "a.b", "payload": n, "key": f"k{n}"} for n in range(40)]
    wishes[1]["payload"] = "other"
    wishes += [{"type": "a.b", "payload": 7, "key": "k7"}, {"type": "NO", "payload": 0, "key": "k0"}]
    verdicts = scene.ask("submitter", calls.submit_many("q", wishes))
    assert [v.code for v in verdicts[:4]] == [None, Code.KEY_CONFLICT, None, None]
    assert [v.task_id for v in verdicts[:3]] == [known[0], None, known[2]]
    assert sum(v.created for v in verdicts) == 37
    assert (verdicts[40].created, verdicts[40].task_id) == (False, verdicts[7].task_id)
    assert (verdicts[41].code, verdicts[41].task_id) == (None, known[0])
    again = scene.ask("submitter", calls.submit_many("q", wishes))
    assert [(v.code, v.task_id, v.created) for v in again] == [(v.code, v.task_id, False) for v in verdicts]
    assert scene.value("SELECT count(*) FROM poolkeeper.task") == 40


def test_ids_are_of_version_7_and_rise_with_time(scene: Scene) -> None:
    """Contract: partitions and walks go by the time in them; 74 bits are chance, also within one call."""
    first, second = scene.submit_many(300), scene.submit_many(300)
    assert {(task_id.version, task_id.variant) for task_id in first} == {(7, "specified in RFC 4122")}
    assert len(set(first + second)) == 600
    assert max(task_id.int >> 80 for task_id in first) <= min(task_id.int >> 80 for task_id in second)
    now = scene.value("SELECT extract(epoch FROM clock_timestamp()) * 1000")
    assert abs(int(now) - (second[0].int >> 80)) < 60_000
