"""Q18, Q19: `poolkeeper.succeed` in a transaction of the caller's: what it refuses, for whom it is in the way."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from poolkeeper.codes import ALREADY_DONE, IN_TRANSACTION, Code
from poolkeeper.errors import Forbidden, LeaseLost, NotFound, Refused, Unavailable
from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, Worker, seconds


@pytest.fixture
def own(scene: Scene) -> psycopg.Connection[Any]:
    """A transaction of the application's own login, which is no worker."""
    return scene.connect("submitter", autocommit=False)


def refused(conn: psycopg.Connection[Any], delivery: Claimed, *, token: str | None = None, task: Any = None) -> Code:
    """The code by which it is refused; nothing of the transaction can be committed after it."""
    with pytest.raises((LeaseLost, NotFound)) as caught:
        run(conn, calls.succeed(task or delivery.task_id, token or delivery.token))
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    assert delivery.token not in str(caught.value)
    conn.rollback()
    return caught.value.code


def test_the_exact_reason_ends_the_transaction(scene: Scene, own: psycopg.Connection[Any]) -> None:
    """Q18: expired, canceled, handed over, never heard of."""
    worker = scene.worker()
    scene.submit_many(5)
    expired, canceled, failed, wrong, foreign = worker.claim(5)
    scene.ask("person", calls.cancel(canceled.task_id, who="ann", why="x"))
    worker.settle(canceled, "canceled")
    worker.fail(failed)
    assert refused(own, canceled) == Code.CANCELED
    assert refused(own, failed) == Code.STALE_TOKEN
    assert refused(own, wrong, token="pkt_" + "A" * 22) == Code.STALE_TOKEN
    assert refused(own, foreign, task=uuid4()) == Code.UNKNOWN_TASK
    assert refused(own, foreign, task=wrong.task_id) == Code.STALE_TOKEN
    scene.advance(16)
    scene.sweep()
    assert refused(own, expired) == Code.LEASE_EXPIRED
    assert scene.value("SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'succeeded'") == 0


def test_late_counts_while_the_lease_stands(scene: Scene, own: psycopg.Connection[Any]) -> None:
    """Q19: after its deadline, before a sweep; and a sweep leaves it alone while its transaction is open."""
    scene.submit()
    delivery = scene.worker().take()
    scene.advance(60)
    assert run(own, calls.succeed(delivery.task_id, delivery.token, {"late": True}))
    assert scene.sweep() == 0
    own.commit()
    assert scene.ask("reader", calls.task(delivery.task_id)).result == {"late": True}  # type: ignore[union-attr]


def test_a_success_wins_over_a_cancel_that_was_only_requested(scene: Scene, own: psycopg.Connection[Any]) -> None:
    """Q39: as when the worker settles it."""
    scene.submit()
    delivery = scene.worker().take()
    scene.ask("person", calls.cancel(delivery.task_id, who="ann", why="x"))
    assert run(own, calls.succeed(delivery.task_id, delivery.token))
    own.commit()
    assert scene.state(delivery.task_id) == "succeeded"


def test_what_is_claimed_ahead_and_not_started_cannot_have_succeeded(
    scene: Scene, own: psycopg.Connection[Any]
) -> None:
    """Q18."""
    scene.submit()
    (leased,) = scene.worker().claim(1, slots=0)
    assert refused(own, leased) == Code.STALE_TOKEN


def test_a_result_that_is_not_kept_is_refused_and_the_delivery_lives(
    scene: Scene, own: psycopg.Connection[Any]
) -> None:
    """Q8: too large, or nothing that every reader can read."""
    scene.submit()
    delivery = scene.worker().take()
    for result, code in (("x" * (1 << 20), Code.PAYLOAD_TOO_LARGE), (int("9" * 400), Code.PAYLOAD_INVALID)):
        with pytest.raises(Refused) as caught:
            run(own, calls.succeed(delivery.task_id, delivery.token, result))
        assert caught.value.code == code
        own.rollback()
    assert run(own, calls.succeed(delivery.task_id, delivery.token))
    own.rollback()
    assert scene.state(delivery.task_id) == "running"


def test_a_login_without_a_row_may_not(scene: Scene) -> None:
    """Q51: a token alone is not enough."""
    scene.submit()
    delivery = scene.worker().take()
    conn = scene.connect("submitter")
    scene.owner.execute("DELETE FROM poolkeeper.access WHERE role = %s", [scene.database.login("submitter")])
    with pytest.raises(Forbidden):
        run(conn, calls.succeed(delivery.task_id, delivery.token))
    scene.allow(scene.database.login("submitter"))
    assert run(conn, calls.succeed(delivery.task_id, delivery.token))


def settled(worker: Worker, *deliveries: Claimed, outcome: str = "succeeded") -> list[str | None]:
    settles = [Settle(c.task_id, c.token, outcome, result=1, own_transaction=n == 0) for n, c in enumerate(deliveries)]
    return [verdict.code for verdict in worker.turn(settles).verdicts]


@pytest.mark.parametrize("commit", [True, False])
def test_a_turn_waits_for_no_transaction_of_a_handler(
    scene: Scene, own: psycopg.Connection[Any], *, commit: bool
) -> None:
    """Q18, contract 20: its own settle is told to come again, the others count; renewals hear what is true."""
    scene.submit_many(3)
    worker = scene.worker(conn=scene.connect("worker"))
    worker.conn.execute("SET lock_timeout = '100ms'")
    first, second, third = worker.claim(3)
    run(own, calls.succeed(first.task_id, first.token))
    assert settled(worker, first, second) == [IN_TRANSACTION, None]
    assert settled(worker, first, third, outcome="failed") == [IN_TRANSACTION, None]
    assert worker.renew(first.task_id).lost == []
    (own.commit if commit else own.rollback)()
    assert worker.renew(first.task_id).lost == []
    assert settled(worker, first) == [ALREADY_DONE if commit else None]
    assert scene.state(first.task_id) == "succeeded"


@pytest.mark.parametrize("commit", [True, False])
def test_neither_a_checkpoint_nor_an_extension_waits_for_it(
    scene: Scene, own: psycopg.Connection[Any], *, commit: bool
) -> None:
    """Q18, Q30: that transaction may itself be waiting for the checkpoint, and a worker's turns wait behind it."""
    scene.submit()
    delivery = scene.worker(conn=scene.connect("worker")).take()
    beside = scene.connect("worker")
    beside.execute("SET statement_timeout = '30s'")
    run(own, calls.succeed(delivery.task_id, delivery.token))
    for _ in range(2):
        assert run(beside, calls.checkpoint(delivery.task_id, delivery.token, 1, sequence=1)).code == IN_TRANSACTION
        assert run(beside, calls.extend(delivery.task_id, delivery.token, seconds(60))).code == IN_TRANSACTION
    (own.commit if commit else own.rollback)()
    saved = run(beside, calls.checkpoint(delivery.task_id, delivery.token, 1, sequence=1))
    assert saved.code is (Code.STALE_TOKEN if commit else None)


def test_a_cancel_waits_for_it_within_a_bound(scene: Scene, own: psycopg.Connection[Any]) -> None:
    """Q18, Q39: a person is told to try again, however long the transaction stays open; then the answer is a real one."""
    scene.submit()
    delivery = scene.worker().take()
    cancel = calls.cancel(delivery.task_id, who="ann", why="x")
    run(own, calls.succeed(delivery.task_id, delivery.token))
    with (
        scene.without("poolkeeper.cancel(uuid, text, text, integer)", "'5s'", "'100ms'"),
        pytest.raises(Unavailable) as caught,
    ):
        scene.ask("person", cancel)
    assert caught.value.code is Code.DATABASE_BUSY
    own.rollback()
    assert scene.ask("person", cancel).state == "running"
    assert scene.value("SELECT count(*) FROM poolkeeper.event WHERE kind = 'cancel_requested'") == 1


def test_a_renewal_tells_loss_from_success(scene: Scene, own: psycopg.Connection[Any]) -> None:
    """Q20: a handler that goes on after its commit is not stopped; one whose lease was swept is."""
    scene.submit_many(2)
    worker = scene.worker()
    done, lost = worker.claim(2)
    run(own, calls.succeed(done.task_id, done.token))
    own.commit()
    scene.advance(16)
    scene.sweep()
    assert worker.renew(done.task_id, lost.task_id).lost == [lost.task_id]


def test_an_earlier_transactions_success_is_told_apart_from_this_ones(
    scene: Scene, own: psycopg.Connection[Any]
) -> None:
    """Q19: twice in one is once; in another it was done, and the rows of this one go."""
    scene.submit()
    delivery = scene.worker().take()
    call = calls.succeed(delivery.task_id, delivery.token)
    with own.transaction(), own.transaction(force_rollback=True):
        assert run(own, call)  # a savepoint that is rolled back takes it along
    assert [run(own, call), run(own, call)] == [True, True]
    own.commit()
    assert run(own, call) is False


def test_it_is_durable_whatever_the_application_says(scene: Scene, own: psycopg.Connection[Any]) -> None:
    """Q4: "done" that a crash could undo is none."""
    scene.submit()
    delivery = scene.worker().take()
    own.execute("SET synchronous_commit = off")
    run(own, calls.succeed(delivery.task_id, delivery.token))
    assert own.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_its_delivery_names_the_build_and_drops_the_checkpoint(scene: Scene, own: psycopg.Connection[Any]) -> None:
    """Q2: the same row of history as any success leaves."""
    scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    run(worker.conn, calls.checkpoint(delivery.task_id, delivery.token, 3, sequence=1))
    run(own, calls.succeed(delivery.task_id, delivery.token))
    own.commit()
    (row,) = scene.rows("SELECT outcome, next_state, build, session_id FROM poolkeeper.delivery")
    assert tuple(row) == ("succeeded", "succeeded", "b1", worker.session.id)
    assert scene.value("SELECT count(*) FROM poolkeeper.checkpoint") == 0
