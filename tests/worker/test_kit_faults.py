"""Q50: crashes, lost leases, cancels and drains at points that a test names; the same in this process and on a Postgres."""

import asyncio
import contextlib
from typing import Any

import pytest

from fixtures.kits import ON_BOTH, app, ends, fetch, fetch_once, log
from poolkeeper import Conflict, Context, LeaseLost, Poolkeeper, Snooze
from poolkeeper.testing import Kit, MakeKit, Point

pytestmark = ON_BOTH


@pytest.mark.parametrize(
    ("point", "done", "checkpoint", "again"),
    [
        (Point.start, [], None, [0, 1, 2]),
        (Point.before_checkpoint(1), [0], None, [0, 1, 2]),
        (Point.after_checkpoint(1), [0], 1, [1, 2]),
        (Point.before_checkpoint(3), [0, 1, 2], 2, [2]),
        (Point.after_checkpoint(3), [0, 1, 2], 3, []),
        (Point.before_settle, [0, 1, 2], 3, []),
    ],
    ids=str,
)
def test_a_crash_at_a_named_point_leaves_what_was_stored(
    kit: Kit, point: Point, done: list[int], checkpoint: int | None, again: list[int]
) -> None:
    """Q50, Q30: the next delivery goes on from the last checkpoint, once the lease has ended."""
    task = kit.submit(fetch, 3)
    crashed = kit.deliver(task, crash_at=point)
    assert (crashed.outcome, crashed.state, crashed.error, log) == ("crashed", "running", None, done)
    assert kit.get(task).checkpoint == checkpoint
    log.clear()
    second = kit.deliver(task)
    assert (second.outcome, second.number, second.result, log) == ("succeeded", 2, {"pages": 3}, again)
    assert kit.get(task).endings == ("expired", "succeeded")


def test_a_crash_after_the_settle_changes_nothing(kit: Kit) -> None:
    """Q50, Q18: the answer is lost, the end is not."""
    task = kit.submit(fetch, 1)
    assert kit.deliver(task, crash_at=Point.after_settle).state == "succeeded"
    assert kit.get(task).result == {"pages": 1}
    task = kit.submit(ends, "second")
    assert kit.deliver(task, crash_at=Point.after_settle).state == "scheduled"
    assert kit.deliver(task).outcome == "succeeded"


def test_crashes_cost_deliveries_and_stop(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q26, Q50: a poison task is a dead letter after exactly its deliveries."""
    kit = poolkeeper_kit(app, policy={"maxDeliveries": 2})
    task = kit.submit(fetch, 3)
    kit.deliver(task, crash_at=Point.after_checkpoint(1))
    kit.deliver(task, crash_at=Point.after_checkpoint(1))
    kit.clock.advance(20)
    now = kit.get(task)
    assert (now.state, now.reason, now.endings, now.checkpoint) == ("dead", "deliveries_exhausted", ("expired",) * 2, 2)
    one = kit.submit(fetch, 3, max_deliveries=1)
    kit.deliver(one, crash_at=Point.start)
    with pytest.raises(RuntimeError, match="ended as dead"):
        kit.deliver(one)


def test_a_lease_lasts_for_the_visibility_timeout_of_a_silent_worker(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q20, Q50."""
    kit = poolkeeper_kit(app, policy={"visibilityTimeout": "60s"})
    task = kit.submit(fetch, 3)
    kit.deliver(task, crash_at=Point.start)
    kit.clock.advance(50)
    assert kit.get(task).state == "running"
    kit.clock.advance(15)
    assert kit.get(task).state == "ready"


def test_a_worker_that_lives_renews_whatever_time_passes(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q20, Q50: a handler for which hours pass keeps its lease."""
    local = Poolkeeper()
    kits: list[Kit] = []

    @local.task("a.b")
    def slow(_: Any, ctx: Context) -> str:
        kits[0].clock.advance(7200)
        ctx.save_checkpoint_sync(1)
        return "well"

    kits.append(poolkeeper_kit(local))
    assert kits[0].run(slow).outcome == "succeeded"


@pytest.mark.parametrize("point", [Point.start, Point.before_checkpoint(2), Point.after_checkpoint(2)], ids=str)
def test_who_was_overtaken_hears_it_at_its_next_call(kit: Kit, point: Point) -> None:
    """Q18, Q50: another delivery has ended the task, and what the first one says counts for nothing."""
    task = kit.submit(fetch, 3)
    first = kit.deliver(task, overtaken_at=point)
    assert (first.outcome, first.state, first.number) == ("lost", "succeeded", 1)
    assert first.result is None
    now = kit.get(task)
    assert (now.endings, now.result, now.deliveries) == (("expired", "succeeded"), {"pages": 3}, 2)


def test_who_was_overtaken_at_its_end_changes_nothing(poolkeeper_kit: MakeKit[Kit]) -> None:
    """P2, Q50: the late success of the first delivery is refused."""
    local = Poolkeeper()

    @local.task("a.b")
    def number(_: Any, ctx: Context) -> int:
        return ctx.delivery

    kit = poolkeeper_kit(local)
    task = kit.submit(number)
    assert kit.deliver(task, overtaken_at=Point.before_settle).outcome == "lost"
    assert kit.get(task).result == 2


def test_a_handler_that_holds_on_to_a_lost_lease_is_told_each_time(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q18, Q50: swallowing LeaseLost helps nothing."""
    local = Poolkeeper()
    told: list[str] = []

    @local.task("a.b")
    async def stubborn(_: Any, ctx: Context) -> int:
        for page in range(3):
            try:
                await ctx.save_checkpoint(page)
            except LeaseLost as lost:
                told.append(str(lost.code))
        return ctx.delivery

    kit = poolkeeper_kit(local)
    task = kit.submit(stubborn)
    assert kit.deliver(task, overtaken_at=Point.before_checkpoint(2)).outcome == "lost"
    assert (told, kit.get(task).result) == (["lease_expired"] * 2, 2)


def test_a_handler_cannot_hold_a_crash(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q50: whatever it catches, it is dead, and nothing that it does counts."""
    local = Poolkeeper()

    @local.task("a.b")
    async def tough(_: Any, ctx: Context) -> str:
        for page in range(3):
            with contextlib.suppress(BaseException):
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.save_checkpoint(page + 1))
        return "alive"

    @local.task("a.c")
    def tough_sync(_: Any, ctx: Context) -> str:
        for page in range(3):
            with contextlib.suppress(BaseException):
                ctx.save_checkpoint_sync(page + 1)
        return "alive"

    kit = poolkeeper_kit(local)
    for handler in (tough, tough_sync):
        task = kit.submit(handler)
        assert kit.deliver(task, crash_at=Point.after_checkpoint(1)).outcome == "crashed"
        now = kit.get(task)
        assert (now.state, now.checkpoint) == ("running", 1)


def test_a_cancel_is_heard_at_the_next_call(kit: Kit) -> None:
    """Q39, Q50: of a running task, of a waiting one, and not of one that has ended."""
    task = kit.submit(fetch, 3)
    done = kit.deliver(task, cancel_at=Point.after_checkpoint(1))
    assert (done.outcome, done.state, done.checkpoints, log) == ("canceled", "canceled", [1], [0, 1])
    assert kit.get(task).endings == ("canceled",)
    waiting = kit.submit(fetch, 3)
    kit.cancel(waiting)
    assert kit.get(waiting).state == "canceled"
    with pytest.raises(Conflict) as conflict:
        kit.cancel(waiting)
    assert conflict.value.code == "already_ended"


@pytest.mark.parametrize("point", [Point.start, Point.before_checkpoint(2)], ids=str)
def test_a_cancel_stops_what_comes_next(kit: Kit, point: Point) -> None:
    """Q39, Q50."""
    done = kit.deliver(kit.submit(fetch_once, 3), cancel_at=point)
    assert (done.outcome, done.state) == ("canceled", "canceled")


def test_a_success_that_arrives_first_wins_over_a_cancel(kit: Kit) -> None:
    """Q39, Q50; a retry of a canceled task does not come."""
    assert kit.deliver(kit.submit(fetch, 1), cancel_at=Point.before_settle).state == "succeeded"
    failing = kit.deliver(kit.submit(ends, "never"), cancel_at=Point.before_settle)
    assert failing.state == "canceled"
    crashed = kit.submit(fetch, 2)
    kit.deliver(crashed, crash_at=Point.after_checkpoint(1))
    kit.cancel(crashed)
    assert kit.get(crashed).cancel_requested
    kit.clock.advance(60)
    assert kit.get(crashed).state == "canceled"


def test_a_drain_is_seen_by_the_handler(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q48, Q50."""
    local = Poolkeeper()

    @local.task("a.b")
    async def polite(until: int, ctx: Context) -> int:
        for page in range(ctx.checkpoint or 0, until):
            if ctx.stopping:
                raise Snooze(1)
            await ctx.save_checkpoint(page + 1)
        return until

    kit = poolkeeper_kit(local)
    task = kit.submit(polite, 3)
    stopped = kit.deliver(task, drain_at=Point.after_checkpoint(2))
    assert (stopped.outcome, stopped.retry_after, stopped.state) == ("snoozed", 1, "waiting")
    assert kit.deliver(task).checkpoints == [3]


def test_several_things_happen_to_one_delivery(kit: Kit) -> None:
    """Q50: each at a point of its own."""
    task = kit.submit(fetch, 3)
    both = kit.deliver(task, drain_at=Point.start, crash_at=Point.after_checkpoint(2))
    assert (both.outcome, log) == ("crashed", [0, 1])
    with pytest.raises(ValueError, match="one thing can happen at a point"):
        kit.deliver(task, drain_at=Point.start, crash_at=Point.start)


def test_a_point_that_was_never_come_to_is_told(kit: Kit) -> None:
    """Q50: a crash that did not happen proves nothing."""
    with pytest.raises(AssertionError, match="never came to: after checkpoint 4; it came to: at the start"):
        kit.deliver(kit.submit(fetch, 3), crash_at=Point.after_checkpoint(4))
    with pytest.raises(TypeError, match="is a Point"):
        kit.deliver(kit.submit(fetch, 3), crash_at="before settle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="counted from 1"):
        Point.after_checkpoint(0)
