"""What is done to one task changes nothing of its neighbours, whatever state they are in and whoever holds them (P2, Q17-Q19)."""

from datetime import timedelta
from typing import Any

import pytest
from psycopg.errors import NotNullViolation

from fixtures.neighbours import BOUNDED, FOREIGN, HOUR, LIMITED, ONES_OWN, PLAIN, QUEUES, Crowd
from poolkeeper.errors import LeaseLost
from poolkeeper.store import Claimed, Settle, calls, run

OUTCOMES = {
    "succeeded": ("succeeded", None),
    "failed": ("scheduled", "later"),
    "rejected": ("failed", None),
    "dead": ("dead", "dead"),
    "snoozed": ("waiting", "later"),
    "handed_back": ("ready", "ready"),
    "canceled": ("canceled", None),
}


REASONS = {
    "succeeded": None,
    "failed": "retry_after",
    "rejected": "rejected",
    "dead": "permanent_error",
    "snoozed": "snoozed",
}


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED, LIMITED])
def test_a_settle_ends_one_delivery(crowd: Crowd, queue: str) -> None:
    """Q18: in each of its ways, by a worker that holds others of the queue, of its tenants and types."""
    scene, home = crowd.scene, crowd.queue_ids[queue]
    for outcome, (state, place) in OUTCOMES.items():
        one = crowd.take(crowd.worker, queue)
        run(crowd.worker.conn, calls.checkpoint(one.task_id, one.token, {"at": 1}, sequence=1))
        with crowd.untouched(one.task_id) as own:
            own.queues |= {home} if queue == BOUNDED else set()  # a slot of its tenant is free
            verdict = crowd.worker.settle(one, outcome, retry_after=HOUR if outcome in {"failed", "snoozed"} else None)
        assert (verdict.code, verdict.state) == (None, state)
        (ended,) = scene.rows("SELECT * FROM poolkeeper.delivery WHERE task_id = %s", one.task_id)
        assert (ended.queue_id, ended.session_id, ended.outcome) == (home, crowd.worker.session.id, outcome)
        assert (ended.build, ended.reason) == ("b1", REASONS.get(outcome, ended.reason))
        kept = place is not None
        assert scene.value("SELECT count(*) FROM poolkeeper.checkpoint WHERE task_id = %s", one.task_id) == kept
        for table in ("ready", "later", "suspect", "lease", "dead", "ordered"):
            there = scene.value(f"SELECT count(*) FROM poolkeeper.{table} WHERE task_id = %s", one.task_id)
            assert there == (table == place), table
        if place is not None:
            with crowd.untouched(one.task_id):
                if state == "dead":
                    scene.ask("person", calls.discard(one.task_id, who="ann", why="x"))
                else:
                    scene.ask("person", calls.cancel(one.task_id, who="ann", why="x"))
        assert scene.state(one.task_id) == ("canceled" if kept else state)


def test_one_call_settles_each_by_its_own_token(crowd: Crowd) -> None:
    """Q18: a wrong token beside the right one of the same task, a right one beside another task, and one twice."""
    for right in ("succeeded", "failed", "handed_back"):
        one, two = crowd.take(crowd.worker, PLAIN), crowd.take(crowd.worker, PLAIN)
        mine, wrong = [Settle(one.task_id, token, right, retry_after=HOUR) for token in (one.token, "x" * 43)]
        crossed = Settle(two.task_id, one.token, right, retry_after=HOUR)
        with crowd.untouched(one.task_id):
            told = crowd.worker.turn([mine, wrong, mine, crossed]).verdicts
        assert [v.code for v in told] == [None, "stale_token", None, "stale_token"]


def test_the_time_of_its_failures_is_its_own(crowd: Crowd) -> None:
    """Q26, Q29: it begins with the task, or with its own last requeue, whatever others were requeued or it was told else."""
    scene = crowd.scene
    scene.queue(PLAIN, backoff_max_elapsed_seconds=10)
    other = crowd.take(crowd.worker, PLAIN)
    crowd.worker.settle(other, "dead")
    late = crowd.submit(PLAIN, delay=timedelta(seconds=1))
    one, asked = crowd.take(crowd.worker, PLAIN), crowd.take(crowd.worker, PLAIN)
    scene.advance(12)
    crowd.worker.renew(one.task_id, asked.task_id)
    scene.ask("person", calls.requeue(other.task_id, who="ann", why="x"))
    crowd.worker.turn(sweep=True)
    found = {c.task_id: c for c in crowd.worker.claim(100)}
    for delivery in (one, found[late]):
        assert crowd.worker.fail(delivery).state == "dead"
    assert crowd.worker.fail(found[other.task_id]).state == "scheduled"


def _settles(crowd: Crowd, task: Any, token: str) -> Any:
    return {
        v.code for how in OUTCOMES for v in crowd.worker.turn([Settle(task, token, how, retry_after=HOUR)]).verdicts
    }


def _saves(crowd: Crowd, task: Any, token: str) -> Any:
    return {run(crowd.worker.conn, calls.checkpoint(task, token, 2, sequence=9)).code}


def _extends(crowd: Crowd, task: Any, token: str) -> Any:
    return {run(crowd.worker.conn, calls.extend(task, token, timedelta(seconds=60))).code}


def _starts(crowd: Crowd, task: Any, token: str) -> Any:
    named = [Claimed("leased", task, token, 1, "q", "a.b", "t", 1, None, None, None, None, None, 0, 1, 5, False)]  # type: ignore[arg-type]
    return set(crowd.worker.turn(starts=named).refused.values())


def _succeeds(crowd: Crowd, task: Any, token: str) -> Any:
    with pytest.raises(LeaseLost) as told:
        run(crowd.worker.conn, calls.succeed(task, token, 1))
    return {told.value.code}


def test_a_token_is_of_one_task(crowd: Crowd) -> None:
    """Q17, Q18: beside another task's id it is stale, for both of them, and nothing changes."""
    leased = crowd.take(crowd.worker, PLAIN, slots=0)
    one, two = crowd.take(crowd.worker, PLAIN), crowd.take(crowd.twin, BOUNDED)
    for mine, other in ((one, two), (two, one), (leased, one), (one, leased), (leased, two)):
        for call in (_settles, _saves, _extends, _starts, _succeeds):
            with crowd.untouched():
                assert call(crowd, mine.task_id, other.token) == {"stale_token"}, call


def test_two_tokens_in_one_call_are_each_of_its_task(crowd: Crowd) -> None:
    """Q18: both are known, but each is beside the other's task: no worker sends that, and nothing is done."""
    one, two = crowd.take(crowd.worker, PLAIN), crowd.take(crowd.worker, BOUNDED)
    for outcome in OUTCOMES:
        crossed = [Settle(a.task_id, b.token, outcome, retry_after=HOUR) for a, b in ((one, two), (two, one))]
        with crowd.untouched(), pytest.raises(NotNullViolation):
            crowd.worker.turn(crossed)


def test_a_settle_of_what_has_not_started_changes_nothing(crowd: Crowd) -> None:
    """Q16: leased ahead it cannot have succeeded, failed or snoozed; it can be handed back."""
    one = crowd.take(crowd.worker, PLAIN, slots=0)
    for outcome in ("succeeded", "failed", "rejected", "dead", "snoozed"):
        with crowd.untouched():
            assert crowd.worker.settle(one, outcome).code == "stale_token"
    with crowd.untouched(one.task_id):
        assert crowd.worker.settle(one, "handed_back").state == "ready"


def test_a_settle_twice_is_known_by_its_own_token(crowd: Crowd) -> None:
    """Q18: already_done is said of the delivery that it names, of no other of the task and of no other task."""
    one, other = crowd.take(crowd.worker, PLAIN), crowd.take(crowd.worker, PLAIN)
    crowd.worker.fail(one, retry_after=timedelta(0))
    (again,) = [c for c in crowd._until(crowd.worker, one.task_id, None) if c.task_id == one.task_id]
    crowd.worker.succeed(other)
    with crowd.untouched():
        assert crowd.worker.succeed(one).code == "already_done"
        assert crowd.worker.settle(one, "failed").code == "already_done"
        assert _settles(crowd, one.task_id, other.token) == {"stale_token"}
        assert _settles(crowd, other.task_id, one.token) == {"stale_token"}
    with crowd.untouched(one.task_id):
        assert crowd.worker.succeed(again).code is None


def test_a_start_starts_one(crowd: Crowd) -> None:
    """Q16: beside others that the same session has leased ahead."""
    for queue in (PLAIN, BOUNDED, LIMITED):
        one = crowd.take(crowd.worker, queue, slots=0)
        with crowd.untouched(one.task_id):
            assert crowd.worker.turn(starts=[one]).refused == {}
        assert crowd.scene.state(one.task_id) == "running"
        with crowd.untouched():
            assert crowd.worker.turn(starts=[one]).refused == {}
        limits = crowd.scene.rows("SELECT run_by, progress_by FROM poolkeeper.lease WHERE task_id = %s", one.task_id)
        assert [None not in row for row in limits] == [queue == LIMITED]


def test_a_refused_start_gives_back_one(crowd: Crowd) -> None:
    """Q16: its cancel is its own, and those that may start do so."""
    scene = crowd.scene
    one, two = (crowd.take(crowd.worker, PLAIN, slots=0) for _ in range(2))
    with crowd.untouched(one.task_id):
        assert scene.ask("person", calls.cancel(one.task_id, who="ann", why="x")).state == "leased"
    with crowd.untouched(one.task_id, two.task_id):
        assert crowd.worker.turn(starts=[one, two]).refused == {one.task_id: "canceled"}
    assert (scene.state(one.task_id), scene.state(two.task_id)) == ("canceled", "running")


def test_saving_and_extending_are_for_one(crowd: Crowd) -> None:
    """Q20, Q30: no other checkpoint, no other lease, no other session."""
    scene = crowd.scene
    for queue in (PLAIN, LIMITED):
        one = crowd.take(crowd.worker, queue)
        for sequence in (1, 2):
            with crowd.untouched(one.task_id):
                assert (
                    run(crowd.worker.conn, calls.checkpoint(one.task_id, one.token, sequence, sequence=sequence)).code
                    is None
                )
        with crowd.untouched(one.task_id):  # what is older is no sign of anything but progress
            assert run(crowd.worker.conn, calls.checkpoint(one.task_id, one.token, 1, sequence=1)).code is None
        scene.owner.execute("UPDATE poolkeeper.session SET graces = 1")
        with crowd.untouched(one.task_id) as own:
            own.sessions.add(str(crowd.worker.session.id))
            assert run(crowd.worker.conn, calls.extend(one.task_id, one.token, HOUR)).code is None
        graces = scene.rows("SELECT id FROM poolkeeper.session WHERE graces = 0")
        assert [row.id for row in graces] == [crowd.worker.session.id]
        assert scene.value("SELECT value FROM poolkeeper.checkpoint WHERE task_id = %s", one.task_id) == 2


def test_the_bounds_of_a_checkpoint_are_its_queues(crowd: Crowd) -> None:
    """Q30: its size and its rate, whatever others may save."""
    scene = crowd.scene
    for n, queue in enumerate(QUEUES[:3], 1):
        scene.queue(queue, checkpoint_max_bytes=100 * n, checkpoint_max_per_second=n)
    for n, queue in enumerate(QUEUES[:3], 1):
        one = crowd.take(crowd.worker, queue)
        for size, code in ((100 * n - 2, None), (100 * n - 1, "checkpoint_too_large")):
            told = run(crowd.worker.conn, calls.checkpoint(one.task_id, one.token, "x" * size, sequence=1))
            assert (told.code, told.per_second) == (code, n)


def test_succeeding_in_an_own_transaction_ends_one(crowd: Crowd) -> None:
    """Q18: and twice it is known, in this transaction and in a later one."""
    for queue in (PLAIN, BOUNDED):
        one, other = crowd.take(crowd.worker, queue), crowd.take(crowd.worker, queue)
        conn = crowd.scene.connect("worker", autocommit=False)
        with crowd.untouched(one.task_id) as own:
            own.queues.add(crowd.queue_ids[queue])
            assert run(conn, calls.succeed(one.task_id, one.token, 7)) is True
            assert run(conn, calls.succeed(one.task_id, one.token, 7)) is True
            held = Settle(one.task_id, one.token, "succeeded", own_transaction=True)
            assert crowd.worker.turn([held]).verdicts[0].code == "in_transaction"
            conn.commit()
            assert run(conn, calls.succeed(one.task_id, one.token, 7)) is False
            conn.rollback()
        row = crowd.scene.rows(
            "SELECT session_id, build, result FROM poolkeeper.delivery WHERE task_id = %s", one.task_id
        )
        assert row == [(crowd.worker.session.id, "b1", 7)]
        assert (
            crowd.worker.turn([Settle(other.task_id, other.token, "succeeded", own_transaction=True)]).verdicts[0].code
            is None
        )


def test_the_one_is_of_nobody_else(crowd: Crowd) -> None:
    """The crowd is one: its neighbours are in every state, in every queue."""
    places = {"ready", "later", "suspect", "lease", "dead", "ordered"}
    for place in places:
        homes = {row.queue_id for row in crowd.scene.rows(f"SELECT queue_id FROM poolkeeper.{place}")}
        assert homes == set(crowd.queue_ids.values()), place
    assert FOREIGN in QUEUES
    assert crowd.scene.rows("SELECT 1 FROM poolkeeper.task WHERE tenant = %s", ONES_OWN) == []


def test_in_time_is_by_the_own_queue(crowd: Crowd) -> None:
    """Q19, Q20: what others give their tasks is theirs; settled it may be all the same, while the lease stands."""
    scene = crowd.scene
    scene.queue("brisk", visibility_timeout_seconds=2)
    worker = scene.worker(pool="local/brisk", queues=["brisk", PLAIN], types=("one.type",))
    late, other = (scene.submit("one.type", queue=queue) for queue in ("brisk", PLAIN))
    held = {c.task_id: c for c in worker.claim(2)}
    scene.advance(4)
    with crowd.untouched(other):
        for task_id, code in ((late, "lease_expired"), (other, None)):
            assert run(worker.conn, calls.checkpoint(task_id, held[task_id].token, 1, sequence=1)).code == code
            assert run(worker.conn, calls.extend(task_id, held[task_id].token, HOUR)).code == code
    with crowd.untouched(late):
        assert worker.succeed(held[late]).code is None
