"""Q50: a handler can be run in-process, without a database."""

import time
from typing import Any

import pytest
from pydantic import BaseModel

from poolkeeper import Context, Dead, Poolkeeper, Reject, RetryAfter, Snooze
from poolkeeper.errors import Refused
from poolkeeper.testing import arun_task, run_task

app = Poolkeeper()


class Pages(BaseModel):
    until: int


@app.task("t.pages")
async def pages(work: Pages, ctx: Context) -> dict[str, int]:
    for page in range(ctx.checkpoint or 0, work.until):
        if ctx.stopping:
            raise Snooze(5)
        await ctx.save_checkpoint(page + 1)
    return {"pages": work.until, "delivery": ctx.delivery}


@app.task("t.sync", isolation="process")
def in_thread(name: str, ctx: Context) -> str:
    ctx.raise_if_canceled()
    ctx.save_checkpoint_sync({"name": name})
    time.sleep(0)
    return name.upper()


@app.task("t.raises")
def raises(what: str) -> Any:
    match what:
        case "reject":
            raise Reject("no")
        case "dead":
            raise Dead("gone")
        case "retry":
            raise RetryAfter(3)
        case "nan":
            return {"x": [float("nan")]}
        case _:
            raise KeyError(what)


@app.task("t.big")
async def big(size: int, ctx: Context) -> str:
    await ctx.save_checkpoint("small")
    try:
        await ctx.save_checkpoint("x" * size)
    except Refused as error:
        return str(error.code)
    return "saved"


def test_a_handler_resumes_from_the_checkpoint_that_it_is_given() -> None:
    """Q30, Q50: result and checkpoints come back in order."""
    result = run_task(app, "t.pages", Pages(until=4), checkpoint=2, delivery=3)
    assert (result.outcome, result.result) == ("succeeded", {"pages": 4, "delivery": 3})
    assert result.checkpoints == [3, 4]


async def test_it_runs_in_a_test_that_is_a_coroutine() -> None:
    """Q50: the same arguments."""
    result = await arun_task(app, "t.sync", "ada")
    assert (result.result, result.checkpoints) == ("ADA", [{"name": "ada"}])


def test_a_draining_worker_and_a_canceled_task_can_be_played() -> None:
    """Q48, Q39."""
    assert run_task(app, "t.pages", {"until": 4}, stopping=True).retry_after == 5
    assert run_task(app, "t.sync", "ada", canceled=True).outcome == "canceled"


@pytest.mark.parametrize(
    ("payload", "outcome", "error_class"),
    [
        ("reject", "rejected", "Reject"),
        ("dead", "dead", "Dead"),
        ("retry", "failed", "RetryAfter"),
        ("other", "failed", "KeyError"),
        ("nan", "dead", "result_invalid"),
        ({"not": "text"}, "dead", "payload_invalid"),
    ],
)
def test_the_outcome_is_the_one_of_a_worker(payload: Any, outcome: str, error_class: str) -> None:
    """Q28: the same judgement."""
    result = run_task(app, "t.raises", payload)
    assert (result.outcome, result.error_class) == (outcome, error_class)


def test_an_oversized_checkpoint_is_refused_and_the_previous_one_stays() -> None:
    """Q30: with the size of the queue's default, or the one given."""
    result = run_task(app, "t.big", 70_000)
    assert (result.result, result.checkpoints) == ("checkpoint_too_large", ["small"])
    assert run_task(app, "t.big", 70_000, max_checkpoint=100_000).result == "saved"


def test_a_result_beyond_the_stores_bound_is_a_dead_letter_here_too() -> None:
    """C52: at the bound it is kept."""
    echo = Poolkeeper()
    echo.task("t.long")(lambda size: "x" * size)
    assert run_task(echo, "t.long", (1 << 20) - 2).outcome == "succeeded"
    result = run_task(echo, "t.long", (1 << 20) - 1)
    assert (result.outcome, result.error_class) == ("dead", "result_too_large")


def test_a_payload_that_the_store_would_refuse_is_refused_here() -> None:
    """Q8."""
    with pytest.raises(Refused, match=r"\$\.until"):
        run_task(app, "t.pages", {"until": float("nan")})


def test_a_type_that_nobody_handles_is_named_with_those_that_are() -> None:
    with pytest.raises(KeyError, match=r"no handler of type 't.page'; it has: .*t.pages"):
        run_task(app, "t.page")


def test_a_success_in_a_transaction_is_remembered_not_done() -> None:
    """Q18, Q50: the connection may be anything."""
    local = Poolkeeper()

    @local.task("t.books")
    async def books(lines: int, ctx: Context) -> str:
        assert await ctx.succeed_in(None, {"lines": lines})
        return "returned"

    result = run_task(local, "t.books", 3)
    assert (result.outcome, result.result, result.succeeded_in) == ("succeeded", "returned", [{"lines": 3}])


def test_signs_of_progress_are_counted() -> None:
    """Q21, Q50: a test sees how often the handler said that it gets on."""
    app = Poolkeeper()

    @app.task("steps.take")
    async def take(count: int, ctx: Context) -> None:
        for _ in range(count):
            ctx.progress()

    assert run_task(app, "steps.take", 3).progressed == 3
