"""Tokens and who may settle (Q17, Q18, Q19, P2)."""

import base64
import hashlib
import logging
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from poolkeeper.codes import ALREADY_DONE
from poolkeeper.store import Settle, calls, run
from store.scene import Scene, seconds

OUTCOMES = ["succeeded", "failed", "rejected", "dead", "snoozed", "handed_back", "canceled"]


def test_a_token_is_16_random_bytes_that_secret_scanners_know(scene: Scene) -> None:
    """Q17, contract 5: prefix pkt_, base64url; at least 122 bits of them random."""
    scene.submit_many(50)
    tokens = [c.token for c in scene.worker().claim(50)]
    raw = [base64.urlsafe_b64decode(t.removeprefix("pkt_") + "==") for t in tokens]
    assert all(t.startswith("pkt_") for t in tokens)
    assert {len(r) for r in raw} == {16}
    assert len(set(raw)) == 50
    ones = [0] * 128
    for r in raw:
        for bit in range(128):
            ones[bit] += int.from_bytes(r) >> bit & 1
    assert sum(0 < n < 50 for n in ones) >= 122


def test_the_store_keeps_the_hash_alone(scene: Scene) -> None:
    """Q17: neither the lease nor the history nor any other table holds the token."""
    scene.submit_many(2)
    worker = scene.worker()
    a, b = worker.claim(2)
    worker.succeed(a)
    stored = {
        bytes(r[0])
        for r in scene.rows("SELECT token_hash FROM poolkeeper.lease UNION SELECT token_hash FROM poolkeeper.delivery")
    }
    assert stored == {hashlib.sha256(c.token.encode()).digest() for c in (a, b)}
    tables = scene.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'poolkeeper'::regnamespace AND relkind = 'r'"
    )
    for (table,) in tables:
        for secret in (a.token, b.token, worker.session.secret):
            assert not scene.rows(f"SELECT 1 FROM poolkeeper.{table} AS t WHERE t::text LIKE %s", f"%{secret}%")


def test_a_token_is_in_no_representation(scene: Scene) -> None:
    """Q17: what a log line would show of a delivery, a settle or a session has neither token nor secret."""
    scene.submit(payload={"card": "4111"})
    worker = scene.worker()
    delivery = worker.take()
    shown = repr(delivery) + repr(Settle(delivery.task_id, delivery.token, "succeeded")) + repr(worker.session)
    assert "pkt_" not in shown
    assert "4111" not in shown


def test_a_token_is_in_no_error(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Q17: neither in the error of a settle that cannot be nor in what the driver logs."""
    scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    with caplog.at_level(logging.DEBUG), pytest.raises(psycopg.Error) as caught:
        worker.settle(delivery, "no such outcome")
    assert delivery.token not in f"{caught.value}{caught.value.diag.message_detail}{caplog.text}"
    assert worker.session.secret not in f"{caught.value}{caught.value.diag.message_detail}{caplog.text}"


def test_every_delivery_has_a_new_token(scene: Scene) -> None:
    """Q17: also of the same task, by every way back."""
    task_id = scene.submit()
    worker = scene.worker()
    tokens = []
    for outcome in ("handed_back", "handed_back", "failed", "snoozed"):
        delivery = worker.take()
        tokens.append(delivery.token)
        worker.settle(delivery, outcome, retry_after=seconds(0))
    assert scene.counters(task_id)["delivery"] == 4
    assert len(set(tokens)) == 4


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_wrong_token_changes_nothing(scene: Scene, outcome: str) -> None:
    """Q18: whatever it wants to end with."""
    task_id = scene.submit()
    worker = scene.worker()
    worker.take()
    (verdict,) = worker.turn([Settle(task_id, "pkt_" + "A" * 22, outcome)]).verdicts
    assert verdict.code == "stale_token"
    assert scene.state(task_id) == "running"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_unknown_task_is_unknown(scene: Scene, outcome: str) -> None:
    """Q18: exact refusals."""
    (verdict,) = scene.worker().turn([Settle(uuid4(), "pkt_x", outcome)]).verdicts
    assert verdict.code == "unknown_task"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_after_the_sweep_is_too_late(scene: Scene, outcome: str) -> None:
    """Q19: lease_expired, and nothing changes."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    scene.advance(16)
    scene.sweep()
    before = scene.counters(task_id)
    assert worker.settle(delivery, outcome).code == "lease_expired"
    assert scene.counters(task_id) == before


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "rejected", "dead"])
def test_late_but_uncontested_is_accepted(scene: Scene, outcome: str) -> None:
    """Q19: after the deadline, while the lease row still stands."""
    scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    scene.advance(3600)
    assert worker.settle(delivery, outcome).code is None


def test_a_turn_does_not_sweep_away_what_it_settles(scene: Scene) -> None:
    """Q19: a worker that was away for longer than its lease settles and sweeps in one turn; its work counts."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    scene.advance(3600)
    answer = worker.turn([Settle(task_id, delivery.token, "succeeded", "made it")], want=1, sweep=True)
    assert answer.verdicts[0].code is None
    assert scene.state(task_id) == "succeeded"


@pytest.mark.parametrize("outcome", [o for o in OUTCOMES if o != "canceled"])
def test_a_repeated_settle_is_already_done(scene: Scene, outcome: str) -> None:
    """Q19: the answer was lost, the settle is sent again, and again; the first one stands."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    assert worker.settle(delivery, outcome).code is None
    state = scene.state(task_id)
    for again in (outcome, "succeeded", "failed"):
        assert worker.settle(delivery, again).code == ALREADY_DONE
    assert scene.state(task_id) == state


def test_an_old_delivery_cannot_settle_a_newer_one(scene: Scene) -> None:
    """P2: each of both hears its own verdict, in one turn as well, and in either order."""
    for order in (1, -1):
        task_id = scene.submit()
        worker = scene.worker()
        old = worker.take()
        worker.settle(old, "handed_back")
        new = worker.take()
        settles = [Settle(task_id, old.token, "succeeded", "old"), Settle(task_id, new.token, "succeeded", "new")]
        codes = [v.code for v in worker.turn(settles[::order]).verdicts][::order]
        assert codes == [ALREADY_DONE, None]
        view = scene.ask("reader", calls.task(task_id))
        assert view is not None
        assert view.result == "new"


def test_the_same_settle_twice_in_one_turn_is_one(scene: Scene) -> None:
    """Q19: as it would be in two turns, without an error."""
    for outcome in ("succeeded", "failed"):
        scene.submit()
        worker = scene.worker()
        delivery = worker.take()
        settle = Settle(delivery.task_id, delivery.token, outcome)
        assert [v.code for v in worker.turn([settle, settle]).verdicts] == [None, None]


def test_tokens_of_other_tasks_end_nothing(scene: Scene) -> None:
    """Q18: two valid tokens, exchanged, are misuse that leaves both leases as they are."""
    scene.submit_many(2)
    worker = scene.worker()
    a, b = worker.claim(2)
    for outcome in ("succeeded", "failed"):
        with pytest.raises(psycopg.Error):
            worker.turn([Settle(a.task_id, b.token, outcome), Settle(b.task_id, a.token, outcome)])
    assert scene.value("SELECT count(*) FROM poolkeeper.lease") == 2
    worker.received = worker.turn_no
    assert [worker.succeed(x).code for x in (a, b)] == [None, None]


@pytest.mark.parametrize("outcome", ["expired", "returned", "", "SUCCEEDED"])
def test_a_worker_cannot_end_a_delivery_as_only_the_store_may(scene: Scene, outcome: str) -> None:
    """Q1: outcomes that are the sweep's own are misuse; nothing changes."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    with pytest.raises(psycopg.Error):
        worker.settle(delivery, outcome)
    assert scene.state(task_id) == "running"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "rejected", "dead", "snoozed"])
def test_what_never_started_cannot_have_ended_so(scene: Scene, outcome: str) -> None:
    """Q1: leased leaves by start, expiry, hand-back and cancel alone."""
    task_id = scene.submit()
    worker = scene.worker()
    worker.turn_no = worker.received = 1
    (ahead,) = run(worker.conn, calls.turn(worker.session, 1, 0, [], 1, slots=0)).claimed
    assert worker.settle(ahead, outcome).code == "stale_token"
    assert scene.state(task_id) == "leased"
    assert worker.settle(ahead, "handed_back", started=False).code is None


def test_a_batch_has_a_verdict_for_each(scene: Scene) -> None:
    """Q10, Q19: good, stale, repeated and unknown ones in one turn, in the order asked."""
    scene.submit_many(4)
    worker = scene.worker()
    a, b, c, d = worker.claim(4)
    worker.fail(d)
    settles = [
        Settle(a.task_id, a.token, "succeeded"),
        Settle(b.task_id, "pkt_wrong", "succeeded"),
        Settle(uuid4(), "pkt_x", "failed"),
        Settle(c.task_id, c.token, "rejected"),
        Settle(d.task_id, d.token, "failed"),
    ]
    verdicts = worker.turn(settles).verdicts
    assert [v.code for v in verdicts] == [None, "stale_token", "unknown_task", None, ALREADY_DONE]
    assert [v.task_id for v in verdicts] == [s.task_id for s in settles]


@pytest.mark.parametrize("value", [None, {"a": [1, 2.5, "ü", None, {}]}, "", [], 0, False])
def test_results_come_back_as_they_went(scene: Scene, value: Any) -> None:
    """Q8: a result is a JSON value."""
    task_id = scene.submit()
    worker = scene.worker()
    worker.succeed(worker.take(), value)
    view = scene.ask("reader", calls.task(task_id))
    assert view is not None
    assert view.result == value


def test_errors_are_bounded(scene: Scene) -> None:
    """Q54: however long a traceback is."""
    task_id = scene.submit()
    worker = scene.worker()
    worker.settle(worker.take(), "dead", error_class="E" * 5000, error="x" * 100_000)
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert letter.task_id == task_id
    assert letter.error is not None
    assert letter.error_class is not None
    assert (len(letter.error), len(letter.error_class)) == (4000, 200)


def test_tokens_of_one_claim_tell_nothing_of_each_other(scene: Scene) -> None:
    """Q17: they come from a seed that is new for each claim, so the same task has another token the next time."""
    scene.submit_many(2)
    worker = scene.worker()
    claimed = worker.claim(2)
    first = {c.task_id: c.token for c in claimed}
    for delivery in claimed:
        worker.settle(delivery, "handed_back")
    second = {c.task_id: c.token for c in worker.claim(2)}
    assert first.keys() == second.keys()
    assert len({*first.values(), *second.values()}) == 4
