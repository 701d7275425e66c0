"""What a handler sees: Q20, Q39, Q48."""

import asyncio
import threading
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID

import pytest

from poolkeeper import Context, LeaseLost
from poolkeeper.codes import Code
from poolkeeper.context import Stopping
from poolkeeper.provider import Report


class Keeper:
    """Remembers checkpoints; says whether the lease is certain."""

    def __init__(self) -> None:
        self.stopping = Stopping()
        self.is_certain = True
        self.saved: list[Any] = []

    def certain(self) -> bool:
        return self.is_certain

    async def save(self, ctx: Context, value: Any) -> bool:
        return self.save_sync(ctx, value)

    def save_sync(self, ctx: Context, value: Any) -> bool:
        self.saved.append(value)
        ctx.checkpoint = value
        return True

    def progress(self) -> None:
        self.saved.append("progress")

    async def succeed(self, ctx: Context, connection: Any, result: Any) -> bool:
        return self.succeed_sync(ctx, connection, result)

    def succeed_sync(self, ctx: Context, connection: Any, result: Any) -> bool:
        del ctx
        self.saved.append((connection, result))
        return True

    async def report(self, ctx: Context, report: Report) -> bool:
        return self.report_sync(ctx, report)

    def report_sync(self, ctx: Context, report: Report) -> bool:
        del ctx
        self.saved.append(report)
        return True


def context(keeper: Keeper) -> Context:
    return Context(keeper, task_id=UUID(int=1), type="a")


async def test_a_halted_delivery_raises_at_every_call() -> None:
    """Q18, Q39: after "canceled" nothing more is written."""
    keeper = Keeper()
    ctx = context(keeper)
    await ctx.save_checkpoint(1)
    ctx.halt(LeaseLost(Code.CANCELED, "task: canceled"))
    with pytest.raises(LeaseLost):
        await ctx.save_checkpoint(2)
    with pytest.raises(LeaseLost):
        ctx.raise_if_canceled()
    with pytest.raises(LeaseLost):
        ctx.progress()
    assert keeper.saved == [1]
    assert ctx.checkpoint == 1


def test_threads_are_told_when_the_lease_is_uncertain() -> None:
    """Q20: before anybody knows whether it is lost."""
    keeper = Keeper()
    ctx = context(keeper)
    ctx.save_checkpoint_sync(1)
    keeper.is_certain = False
    with pytest.raises(LeaseLost, match="no renewal was answered"):
        ctx.raise_if_canceled()
    with pytest.raises(LeaseLost):
        ctx.save_checkpoint_sync(2)
    keeper.is_certain = True
    ctx.raise_if_canceled()
    assert keeper.saved == [1]


async def test_the_sync_face_is_refused_in_the_event_loop() -> None:
    """It would wait for the loop that it blocks."""
    with pytest.raises(RuntimeError, match=r"await ctx\.save_checkpoint"):
        context(Keeper()).save_checkpoint_sync(1)


def test_the_async_face_is_refused_outside_of_an_event_loop() -> None:
    """It would return a coroutine that nobody awaits, and save nothing (Q18)."""
    keeper = Keeper()
    with pytest.raises(RuntimeError, match=r"write: ctx\.save_checkpoint_sync"):
        _ = context(keeper).save_checkpoint(1)
    assert keeper.saved == []


async def test_stopping_is_awaitable_and_testable_from_everywhere() -> None:
    """Q48: coroutines of any loop and threads hear of it, before and after it is set."""
    stopping = Stopping()
    assert not stopping
    heard: list[str] = []

    async def waits() -> None:
        await stopping
        heard.append("coroutine")

    waiting = [asyncio.create_task(waits()) for _ in range(3)]
    abandoned = asyncio.create_task(stopping.wait())
    thread = threading.Thread(target=lambda: heard.append("thread") if stopping.wait_sync(30) else None)
    thread.start()
    await asyncio.sleep(0)
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    threading.Thread(target=stopping.set).start()
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    await asyncio.to_thread(thread.join)
    assert sorted(heard) == ["coroutine"] * 3 + ["thread"]
    await stopping.wait()
    assert stopping.is_set()
    assert stopping


def test_the_token_is_nowhere_to_be_seen() -> None:
    """Q17: a context has no attribute for it."""
    assert not [name for name in dir(context(Keeper())) if "token" in name]


async def test_the_face_for_the_other_kind_of_handler_ends_nothing() -> None:
    """Q18: a coroutine that nobody awaits, or a blocked event loop, is refused with what to write."""
    keeper = Keeper()
    ctx = context(keeper)
    with pytest.raises(RuntimeError, match=r"await ctx\.succeed_in"):
        ctx.succeed_in_sync(None)
    with pytest.raises(RuntimeError, match=r"ctx\.succeed_in_sync"):
        _ = await asyncio.to_thread(ctx.succeed_in, None)
    assert await ctx.succeed_in("conn", 1)
    assert await asyncio.to_thread(ctx.succeed_in_sync, "conn", 2)
    ctx.halt(LeaseLost(Code.CANCELED, "task: canceled"))
    with pytest.raises(LeaseLost):
        await ctx.succeed_in("conn", 3)
    assert keeper.saved == [("conn", 1), ("conn", 2)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"status": 429, "retry_after": 30}, ("429", 30.0, {})),
        ({"status": HTTPStatus.TOO_MANY_REQUESTS, "retry_after": " 7 "}, ("429", 7.0, {})),
        ({"status": "throttled", "retry_after": timedelta(minutes=1)}, ("throttled", 60.0, {})),
        ({"status": 200, "used": {"requests": 1, "tokens": 1200}}, ("200", None, {"requests": 1, "tokens": 1200})),
        ({"status": 503, "retry_after": 1e300}, ("503", 1e9, {})),
    ],
)
async def test_what_a_provider_answered_is_told_as_the_store_takes_it(given: dict[str, Any], told: Any) -> None:
    """Q40: numbers, durations, and a header's text."""
    keeper = Keeper()
    assert await context(keeper).report_provider("api", **given) is True
    assert await asyncio.to_thread(context(keeper).report_provider_sync, "api", **given) is True
    assert keeper.saved == [Report("api", *told)] * 2


@pytest.mark.parametrize(
    "given",
    [
        {"status": 99}, {"status": True}, {"status": None}, {"status": "429 Too Many Requests"}, {"status": 429, "retry_after": -1},
        {"status": 429, "retry_after": float("nan")}, {"status": 429, "retry_after": "Fri, 31 Dec 1999 23:59:59 GMT"},
        {"status": 429, "retry_after": True}, {"status": 429, "used": 7}, {"status": 429, "used": {"money": 1}},
        {"status": 429, "used": {"tokens": 1.5}}, {"status": 429, "used": {"tokens": 10**9}},
        {"status": 429, "name": ""}, {"status": 429, "name": 7}, {"status": 429, "name": "a\0"},
    ],
)  # fmt: skip
async def test_what_no_provider_answers_is_refused_with_a_remedy(given: dict[str, Any]) -> None:
    """Q40: before anything is told; the sentence says what to give."""
    keeper = Keeper()
    with pytest.raises(ValueError, match=r"report_provider: .* give "):
        await context(keeper).report_provider(**{"name": "api", **given})
    assert keeper.saved == []


async def test_reports_in_the_wrong_kind_of_handler_say_what_to_write() -> None:
    """Q40: one that was never awaited would tell nothing."""
    ctx = context(Keeper())
    with pytest.raises(RuntimeError, match=r"await ctx\.report_provider"):
        ctx.report_provider_sync("api", 200)
    with pytest.raises(RuntimeError, match="report_provider_sync"):
        _ = await asyncio.to_thread(ctx.report_provider, "api", 200)
    ctx.halt(LeaseLost(Code.CANCELED, "task: canceled"))
    with pytest.raises(LeaseLost):
        await ctx.report_provider("api", 429)
