"""Q20, Q30: checkpoints wait while the lease is uncertain or the database away, and keep to the rate."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from poolkeeper import Context, LeaseLost, Refused
from poolkeeper.codes import Code
from poolkeeper.context import HandedBack, Stopping
from poolkeeper.errors import Forbidden, Misconfigured, Unavailable
from poolkeeper.store import Call
from poolkeeper.store.rows import CheckpointVerdict
from poolkeeper.worker.checkpoints import Desk, Writer


class Store:
    """Answers checkpoints; away for as many calls as `failing` says."""

    def __init__(self, *, failing: int = 0, code: Code | None = None, per_second: float = 10) -> None:
        self.written: list[tuple[int, Any]] = []
        self.certain = True
        self.failing = failing
        self.failure: Exception = Unavailable(Code.DATABASE_UNREACHABLE, "away")
        self._answer = CheckpointVerdict(code, None, None, per_second)

    async def send(self, call: Call[CheckpointVerdict]) -> CheckpointVerdict:
        await asyncio.sleep(0)
        if self.failing:
            self.failing -= 1
            raise self.failure
        if self._answer.code is None:
            self.written.append((call.params["sequence"], call.params["value"].obj))
        return self._answer

    def context(self) -> Context:
        writer = Writer(self.send, certain=lambda: self.certain, stopping=Stopping())
        return Context(Desk(writer, "pkt_secret"), task_id=UUID(int=1), type="a")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_nothing_is_written_while_the_lease_is_uncertain() -> None:
    """Q20: it waits, and is written once the lease is certain again."""
    store = Store()
    store.certain = False
    ctx = store.context()
    saving = asyncio.create_task(ctx.save_checkpoint("x"))
    await asyncio.sleep(0.3)
    assert not saving.done()
    assert store.written == []
    store.certain = True
    assert await saving is True
    assert store.written == [(1, "x")]


async def test_an_outage_is_waited_for() -> None:
    """Q20: the same call is repeated; the store orders by sequence, so that repeating does no harm."""
    store = Store(failing=3)
    assert await store.context().save_checkpoint("x") is True
    assert store.written == [(1, "x")]


async def test_a_lost_lease_ends_the_waiting() -> None:
    """Q18: and every later call."""
    store = Store()
    store.certain = False
    ctx = store.context()
    saving = asyncio.create_task(ctx.save_checkpoint("x"))
    await asyncio.sleep(0)
    ctx.halt(LeaseLost(Code.LEASE_EXPIRED, "lost"))
    with pytest.raises(LeaseLost):
        await saving
    store.certain = True
    with pytest.raises(LeaseLost):
        await ctx.save_checkpoint("y")
    assert store.written == []


@pytest.mark.parametrize("code", [Code.STALE_TOKEN, Code.LEASE_EXPIRED, Code.CANCELED])
async def test_what_the_store_says_of_the_lease_halts_the_context(code: Code) -> None:
    """Q39: a checkpoint is one of the places where a cancel is heard."""
    ctx = Store(code=code).context()
    with pytest.raises(LeaseLost) as lost:
        await ctx.save_checkpoint("x")
    assert lost.value.code == code
    assert ctx.halted is lost.value


async def test_a_refused_size_leaves_the_previous_value_in_the_context() -> None:
    """Q30: the task lives."""
    ctx = Store(code=Code.CHECKPOINT_TOO_LARGE).context()
    ctx.checkpoint = "small"
    with pytest.raises(Refused):
        await ctx.save_checkpoint("large")
    assert ctx.checkpoint == "small"
    assert ctx.halted is None


async def test_beyond_the_rate_the_newest_is_kept_and_written_in_time() -> None:
    """Q30: ten a second in a burst, then as the rate allows; nothing older overtakes."""
    store = Store()
    ctx = store.context()
    answers = [await ctx.save_checkpoint(number) for number in range(25)]
    assert answers.count(True) in {10, 11}
    assert ctx.checkpoint == 24
    await until(lambda: store.written[-1][1] == 24)
    values = [value for _, value in store.written]
    assert values == sorted(values)
    assert len(values) <= 13


async def test_a_worker_that_stops_still_takes_a_last_checkpoint() -> None:
    """Q48: handed back is not lost."""
    store = Store()
    ctx = store.context()
    ctx.halt(HandedBack(Code.LEASE_EXPIRED, "the worker stops"))
    assert await ctx.save_checkpoint("last") is True
    with pytest.raises(LeaseLost):
        ctx.raise_if_canceled()


@pytest.mark.parametrize(
    "failure",
    [
        Misconfigured(Code.LOGIN_REFUSED, "while a Secret is rotated"),
        Forbidden(Code.ROLE_NOT_ALLOWED, "while rights are changed"),
        psycopg.InternalError("of the server"),
        OSError("no more files"),
    ],
)
async def test_a_checkpoint_waits_for_whatever_passes(failure: Exception) -> None:
    """Q20: no handler fails of a database that is away, in whatever way it is."""
    store = Store(failing=2)
    store.failure = failure
    assert await store.context().save_checkpoint("x") is True
    assert store.written == [(1, "x")]


async def test_a_checkpoint_that_the_database_cannot_hold_is_refused() -> None:
    """Q30: it would be so for ever; the task lives."""
    store = Store(failing=1)
    store.failure = psycopg.DataError("no jsonb")
    with pytest.raises(Refused, match="no jsonb"):
        await store.context().save_checkpoint("x")


async def test_a_checkpoint_is_what_it_was_when_it_was_saved() -> None:
    """Q30: also one that the rate keeps back, whatever the handler does to its own value meanwhile."""
    store = Store(per_second=1)
    ctx, state = store.context(), {"step": 0}
    for step in range(12):
        state["step"] = step
        await ctx.save_checkpoint(state)
    state["step"] = -1
    await until(lambda: bool(store.written) and store.written[-1][1] == {"step": 11})
