"""Retries that are held back by their share are said of the queue: figure, metric and condition (Q13, contract 3)."""

from datetime import timedelta

from fixtures.stage import until
from poolkeeper.store import Settle, calls


def worker(stage):
    """Registers a session outside the cluster; answers a function that claims up to so many."""
    made = stage.run(
        calls.register_session("local/p", [f"{stage.namespace}/mail"], ["demo.echo"], concurrency=100, info={})
    )
    turns = iter(range(1, 100))

    def turn(settles, want):
        number = next(turns)
        return stage.run(calls.turn(made, number, number - 1, settles, want)).claimed

    return turn


def held(stage):
    status = (stage.get("taskqueue", "mail") or {}).get("status") or {}
    return ((status.get("depth") or {}).get("heldBack") or {}).get("retryShare", 0)


def test_a_queue_whose_retries_wait_long_for_their_share_says_so_until_they_are_done(stage, operator):
    """Q13: of six retries beside eight first deliveries two are theirs; False while that is young, True, False again."""
    stage.apply(stage.db(), stage.queue("mail", retrySharePercent=20))
    stage.submit("mail", 6)
    turn = worker(stage)
    failed = [Settle(c.task_id, c.token, "failed", retry_after=timedelta(0)) for c in turn([], 6)]
    assert len(failed) == 6
    turn(failed, 0)
    stage.submit("mail", 8)
    until(lambda: held(stage) == 4, timeout=60, what="the retries are due, and four of them beyond their share")
    assert stage.condition("taskqueue", "mail", "RetryStorm")["status"] == "False"

    stage.move_clock(60)
    told = stage.wait_condition("taskqueue", "mail", "RetryStorm", "True", "ShareExceeded", timeout=60)
    assert "raise spec.retrySharePercent" in told["message"]
    assert held(stage) == 4
    assert operator.metric("poolkeeper_queue_retries_held_back_tasks", queue="mail") == 4

    stage.apply(stage.queue("mail", retrySharePercent=100))
    until(lambda: held(stage) == 0, timeout=60, what="no difference is made")
    assert stage.condition("taskqueue", "mail", "RetryStorm")["status"] == "True", "they still wait"
    assert len(worker(stage)([], 100)) == 14
    stage.wait_condition("taskqueue", "mail", "RetryStorm", "False", "WithinShare", timeout=60)
