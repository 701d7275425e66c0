"""Q50: the kit for users' tests, in this process and on a Postgres: the same tests, with the same results.

On a Postgres they are wide; test_kit_same.py shows in short that the kit works there.
"""

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest

from fixtures.kits import ON_BOTH, app, fetch, log
from poolkeeper import Context, NotFound, Poolkeeper, PoolkeeperError, Refused
from poolkeeper.testing import Delivery, Kit, MakeKit

pytestmark = ON_BOTH


def test_a_task_is_delivered_until_it_ends(kit: Kit) -> None:
    """Q50: what a handler sees and leaves is the same."""
    task = kit.submit("pages.fetch", 2, labels={"a": "ä"}, tenant="acme")
    assert kit.get(task).state == "ready"
    done = kit.deliver(task)
    assert (done.outcome, done.result, done.checkpoints, done.number) == ("succeeded", {"pages": 2}, [1, 2], 1)
    now = kit.get(task)
    assert (now.state, now.result, now.checkpoint, now.deliveries) == ("succeeded", {"pages": 2}, None, 1)
    assert now.endings == ("succeeded",)
    with pytest.raises(RuntimeError, match="ended as succeeded"):
        kit.deliver(task)


def test_a_context_holds_what_was_submitted(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q50: also where it lies in the store."""
    seen: list[Any] = []
    local = Poolkeeper()

    @local.task("a.b", checkpoint_version=7)
    def look(payload: Any, ctx: Context) -> None:
        assert ctx.queue.startswith("default/test-")
        seen.append([payload, ctx.type, ctx.tenant, dict(ctx.labels), ctx.delivery, ctx.failures])
        seen.append([ctx.checkpoint, ctx.checkpoint_version, ctx.version, ctx.submitted_at is None, ctx.traceparent])
        ctx.progress()
        ctx.save_checkpoint_sync({"at": (1, 2)})
        seen.append(ctx.checkpoint)
        if ctx.delivery == 1:
            raise KeyError("first")

    kit = poolkeeper_kit(local)
    task = kit.submit(look, {"x": [1, None, 1.5]}, tenant="acme", labels={"a": "b"})
    first = kit.deliver(task)
    assert (first.outcome, first.error_class, first.progressed, first.state) == ("failed", "KeyError", 1, "scheduled")
    assert kit.deliver(task).outcome == "succeeded"
    assert seen == [
        [{"x": [1, None, 1.5]}, "a.b", "acme", {"a": "b"}, 1, 0],
        [None, None, 7, False, None],
        {"at": [1, 2]},
        [{"x": [1, None, 1.5]}, "a.b", "acme", {"a": "b"}, 2, 1],
        [{"at": [1, 2]}, 7, 7, False, None],
        {"at": [1, 2]},
    ]


@pytest.mark.parametrize(
    ("how", "endings", "state", "reason"),
    [
        ("first", ["succeeded"], "succeeded", None),
        ("second", ["failed", "succeeded"], "succeeded", None),
        ("reject", ["rejected"], "failed", None),
        ("dead", ["dead"], "dead", "permanent_error"),
        ("retry", ["failed"] * 3, "dead", "deliveries_exhausted"),
        ("never", ["failed"] * 3, "dead", "deliveries_exhausted"),
        ("snooze", ["snoozed"] * 3, "dead", "snoozes_exhausted"),
        ("exit", ["failed"] * 3, "dead", "deliveries_exhausted"),
        ("nan", ["dead"], "dead", "permanent_error"),
    ],
)
def test_what_a_handler_raises_has_its_consequences(
    poolkeeper_kit: MakeKit[Kit], how: str, endings: list[str], state: str, reason: str | None
) -> None:
    """Q28, Q50: budgets of deliveries and snoozes end where they do in the store."""
    log.clear()
    kit = poolkeeper_kit(app, policy={"maxDeliveries": 3, "maxSnoozes": 2})
    last = kit.run("how.ends", how)
    now = kit.get(last.task_id)
    assert (list(now.endings), now.state, now.reason) == (endings, state, reason)
    assert last.state == state
    failed = 0
    for number, (entry, ending) in enumerate(zip(log, endings, strict=True), 1):
        assert entry == (number, failed)
        failed += ending == "failed"


def test_time_passes_only_by_the_kit(kit: Kit) -> None:
    """Q50: the clock is moved to what is due, or by the test; a retry is not early."""
    began = kit.clock.now()
    task = kit.submit("how.ends", "retry", delay=timedelta(hours=2))
    assert kit.get(task).state == "scheduled"
    kit.clock.advance(7199)
    assert kit.get(task).state == "scheduled"
    kit.clock.advance(timedelta(seconds=2))
    assert kit.get(task).state == "ready"
    kit.deliver(task)
    assert kit.get(task).state == "scheduled"
    kit.deliver(task)
    assert timedelta(seconds=7203) < kit.clock.now() - began < timedelta(seconds=7300)
    with pytest.raises(ValueError, match="time does not go back"):
        kit.clock.advance(-1)


def test_far_times_are_no_matter(kit: Kit) -> None:
    """Q50: a delay of a year and more."""
    assert kit.run("how.ends", "first", delay=timedelta(days=400)).outcome == "succeeded"
    task = kit.submit("how.ends", "snooze")
    for _ in range(3):
        assert kit.deliver(task).outcome == "snoozed"


def test_a_checkpoint_that_is_too_large_is_refused(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q30, Q50: to the byte, as the store counts it; the previous one stays."""
    local = Poolkeeper()

    @local.task("a.b")
    async def big(value: Any, ctx: Context) -> list[str]:
        await ctx.save_checkpoint("small")
        try:
            await ctx.save_checkpoint(value)
        except Refused as refused:
            return [str(refused.code), ctx.checkpoint]
        return ["saved"]

    kit = poolkeeper_kit(local, policy={"checkpoint": {"maxSize": "30"}})
    for value, answer in (
        ("x" * 28, ["saved"]),
        ("x" * 29, ["checkpoint_too_large", "small"]),
        ("ä" * 14, ["saved"]),
        ("ä" * 15, ["checkpoint_too_large", "small"]),
        ({"a": [1, 2, 3], "b": None, "c": 1}, ["checkpoint_too_large", "small"]),
        ({"a": [1, 2, 3], "b": None, "c": "x" * 0}, ["checkpoint_too_large", "small"]),
        ({"a": [1, 2, 3], "b": None}, ["saved"]),
    ):
        assert kit.run(big, value).result == answer, value


def test_payloads_are_refused_or_fit(kit: Kit) -> None:
    """Q8, Q50: what is no JSON at once, what is too large by the policy's bound, what does not fit by the handler's signature."""
    with pytest.raises(Refused, match=r"payload"):
        kit.submit(fetch, float("nan"))
    with pytest.raises(Refused) as refused:
        kit.submit(fetch, "x" * 70_000)
    assert refused.value.code == "payload_too_large"
    misfit = kit.run(fetch, "three")
    assert (misfit.outcome, misfit.error_class, misfit.state, log) == ("dead", "payload_invalid", "dead", [])


@pytest.mark.parametrize(
    ("wishes", "code"),
    [
        ({"max_deliveries": 0}, "option_invalid"),
        ({"max_deliveries": "three"}, "option_invalid"),
        ({"delay": "soon"}, "option_invalid"),
        ({"delay": float("inf")}, "option_invalid"),
        ({"tenant": ""}, "tenant_invalid"),
        ({"tenant": "x" * 201}, "tenant_invalid"),
        ({"tenant": "a\nb"}, "tenant_invalid"),
        ({"tenant": 7}, "tenant_invalid"),
        ({"labels": {"a": 1}}, "labels_invalid"),
        ({"labels": {"a": "x" * 4096}}, "labels_invalid"),
        ({"labels": ["a"]}, "labels_invalid"),
    ],
)
def test_wishes_are_refused_as_by_the_store(kit: Kit, wishes: Any, code: str) -> None:
    """Q7, Q50: with the same code."""
    with pytest.raises(PoolkeeperError) as refused:
        kit.submit(fetch, 1, **wishes)
    assert refused.value.code == code


def test_wishes_that_only_just_pass(kit: Kit) -> None:
    """Q7, Q50: a delay that is over already, the longest tenant, more deliveries than the policy has."""
    task = kit.submit(fetch, 1, delay=-5, tenant="x" * 200, max_deliveries=1000, labels={})
    assert kit.get(task).state == "ready"
    assert kit.deliver(task).outcome == "succeeded"


def test_a_task_that_is_not_there(kit: Kit) -> None:
    """Q50."""
    other = Delivery("succeeded").task_id
    with pytest.raises(NotFound):
        kit.get(other)
    with pytest.raises(KeyError, match=r"no handler of type 'no.such'; it has: how.ends"):
        kit.submit("no.such")
    with pytest.raises(KeyError, match="no handler of 'str'"):
        kit.submit(str)


def test_a_policy_that_a_kit_does_not_play_is_refused(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q50: a test of it would show nothing."""
    with pytest.raises(ValueError, match=r"does not play maxAge, backoff.maxElapsed of a policy"):
        poolkeeper_kit(app, policy={"maxAge": "5m", "backoff": {"maxElapsed": "1h"}})
    with pytest.raises(ValueError, match=r"policy of the kit: spec.maxDeliverys"):
        poolkeeper_kit(app, policy={"maxDeliverys": 1})


def test_two_kits_of_one_test_know_nothing_of_each_other(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q50."""
    one, two = poolkeeper_kit(app), poolkeeper_kit(app)
    waiting = one.submit(fetch, 1)
    assert two.run(fetch, 1).outcome == "succeeded"
    assert one.get(waiting).state == "ready"
    assert one.deliver(waiting).outcome == "succeeded"


def test_what_a_handler_keeps_belongs_to_one_event_loop(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q50: an engine or a client of HTTP that the application made once works in each delivery, as in a worker."""
    local = Poolkeeper()
    loops: list[asyncio.AbstractEventLoop] = []
    kept: list[asyncio.Queue[int]] = []

    @local.task("a.b")
    async def waits(number: int) -> int:
        loops.append(asyncio.get_running_loop())
        if not kept:
            kept.append(asyncio.Queue())
        putting = asyncio.get_running_loop().call_soon(kept[0].put_nowait, number)
        found = await kept[0].get()  # waits, and so belongs to this loop
        putting.cancel()
        return found

    kit = poolkeeper_kit(local)
    assert [kit.run(waits, number).result for number in range(3)] == [0, 1, 2]
    assert len(set(loops)) == 1
    kit.close()
    assert loops[0].is_closed()


def test_a_kit_that_nobody_closes_leaves_nothing(poolkeeper_place: str, poolkeeper_dsn: str) -> None:
    """Q50: warnings are errors here, also of what is found unclosed."""
    kit: Kit | None = Kit(app, dsn=poolkeeper_dsn if poolkeeper_place == "postgres" else None)
    assert kit is not None
    kit.run(fetch, 1)
    if poolkeeper_place == "postgres":
        kit.close()  # a connection is the test's to close
    kit = None
    gc.collect()
