"""Q50: whatever a test does with a kit, in this process and on a Postgres: random tests, compared step by step; a difference is a fault."""

import random
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures.postgres import Database
from poolkeeper import (
    Client,
    Context,
    Dead,
    Misconfigured,
    Poolkeeper,
    PoolkeeperError,
    Refused,
    Reject,
    RetryAfter,
    Snooze,
)
from poolkeeper.policy import QueuePolicy
from poolkeeper.store import calls, connect, run
from poolkeeper.store.call import Call
from poolkeeper.store.call import value as the_value
from poolkeeper.testing import Delivery, Kit, Point, TaskNow
from poolkeeper.testing.database import template

SEEDS = 50
IN_SHORT = 3
STEPS = 20
DELAY, RETRY, SNOOZE = 1801, 3607, 5417  # no two of them at one moment, by whose passing a test could be late or early
EVENTS = ("crash_at", "cancel_at", "drain_at", "overtaken_at")

app = Poolkeeper()


def steps(program: list[Any], ctx: Context) -> Iterator[Any]:  # noqa: C901  (a table)
    """What a handler does, from where it stopped; what it yields is saved, or reported."""
    done = (ctx.checkpoint or [0])[0]
    for number, (what, value) in enumerate(program[done:], done + 1):
        match what:
            case "save":
                yield [number, value]
            case "progress":
                ctx.progress()
            case "report":
                yield "api", value
            case "check":
                ctx.raise_if_canceled()
            case "stop" if ctx.stopping:
                raise Snooze(SNOOZE)
            case "retry" if ctx.failures < value:
                raise RetryAfter(RETRY)
            case "fail" if ctx.failures < value:
                raise KeyError(value)
            case "snooze" if ctx.delivery <= value:
                raise Snooze(SNOOZE)
            case "reject":
                raise Reject("no")
            case "dead":
                raise Dead("gone")
            case "exit":
                raise SystemExit(value)


@app.task("play.sync")
def play(program: list[Any], ctx: Context) -> Any:
    for value in steps(program, ctx):
        if isinstance(value, tuple):
            assert ctx.report_provider_sync(value[0], value[1], retry_after=30)
            continue
        try:
            ctx.save_checkpoint_sync(value)
        except Refused:
            continue
    return [ctx.delivery, ctx.failures]


@app.task("play.async", checkpoint_version=2)
async def aplay(program: list[Any], ctx: Context) -> Any:
    for value in steps(program, ctx):
        if isinstance(value, tuple):
            assert await ctx.report_provider(value[0], value[1], used={"tokens": 5})
            continue
        try:
            await ctx.save_checkpoint(value)
        except Refused:
            continue
    return [ctx.delivery, ctx.failures]


def a_program(rng: random.Random) -> list[Any]:
    """Mostly something that goes on, with one thing or another that ends it."""
    made = [
        rng.choice(
            [
                ["save", rng.choice(["x", "ä" * rng.randint(1, 20), {"a": [1, 2.5, None]}])],
                ["save", "y"],
                ["progress", 0],
                ["report", rng.choice([200, 429])],
                ["check", 0],
                ["stop", 0],
                ["retry", rng.randint(1, 3)],
                ["fail", rng.randint(1, 4)],
                ["snooze", rng.randint(1, 4)],
            ]
        )
        for _ in range(rng.randint(0, 5))
    ]
    return made + rng.choice([[], [], [], [["reject", 0]], [["dead", 0]], [["exit", 1]]])


def a_point(rng: random.Random) -> Point:
    return rng.choice(
        [
            Point.start,
            Point.before_settle,
            Point.after_settle,
            Point.before_checkpoint(rng.randint(1, 3)),
            Point.after_checkpoint(rng.randint(1, 3)),
        ]
    )


def a_test(rng: random.Random) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """A policy, and what the test does."""
    policy = {
        "maxDeliveries": rng.randint(1, 4),
        "maxSnoozes": rng.randint(1, 3),
        "checkpoint": {"maxSize": str(rng.choice([20, 30, 1000]))},
    }
    does: list[tuple[str, Any]] = []
    for number in range(STEPS):
        match (
            rng.choice(["submit", "deliver", "deliver", "deliver", "advance", "cancel", "finish"])
            if number
            else "submit"
        ):
            case "submit":
                wishes = {"delay": rng.choice([None, None, DELAY]), "max_deliveries": rng.choice([None, None, 2])}
                does.append(("submit", (rng.choice(["play.sync", "play.async"]), a_program(rng), wishes)))
            case "deliver":
                chosen = rng.sample(EVENTS, rng.choice([0, 1, 1, 1, 2]))
                does.append(("deliver", {name: a_point(rng) for name in chosen}))
            case "advance":
                does.append(("advance", rng.choice([1, 20, 4000])))
            case other:
                does.append((other, None))
    return policy, does


def seen(kit: Kit, task: Any) -> Any:
    """A task as it is; when a retry is due is chance, where its handler did not say."""
    now: TaskNow = kit.get(task)
    state = "waits" if now.state in {"scheduled", "ready"} and now.endings[-1:] == ("failed",) else now.state
    return state, now.reason, now.result, now.checkpoint, now.deliveries, now.cancel_requested, now.endings


def told(delivery: Delivery) -> Any:
    state = "waits" if delivery.outcome == "failed" and delivery.state in {"scheduled", "ready"} else delivery.state
    return (
        delivery.outcome, delivery.result, delivery.error, delivery.error_class, delivery.retry_after, delivery.checkpoints,
        delivery.progressed, delivery.reported, delivery.number, state, delivery.passed,
    )  # fmt: skip


def carried_out(kit: Kit, does: list[tuple[str, Any]]) -> list[Any]:
    """Everything that the test sees, in order."""
    tasks: list[Any] = []
    log: list[Any] = []
    for what, how in does:
        target = tasks[-1] if tasks else None
        act: dict[str, Callable[[], Any]] = {
            "submit": lambda: tasks.append(kit.submit(how[0], how[1], **how[2])),
            "deliver": lambda: told(kit.deliver(target, **how)),  # type: ignore[arg-type]
            "finish": lambda: told(kit.finish(target)),  # type: ignore[arg-type]
            "advance": lambda: kit.clock.advance(how),
            "cancel": lambda: kit.cancel(target),  # type: ignore[arg-type]
        }
        try:
            log.append((what, how, act[what]()))
        except (AssertionError, RuntimeError, ValueError, PoolkeeperError) as error:
            text = str(error)
            for index, task in enumerate(tasks):
                text = text.replace(str(task), f"task {index}")
            log.append((what, how, type(error).__name__, text))
        log.append([seen(kit, task) for task in tasks])
    return log


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < IN_SHORT else pytest.mark.wide) for seed in range(SEEDS)]
)
def test_both_places_show_the_same(seed: int, poolkeeper_dsn: str) -> None:
    """Q50: outcomes, errors and their texts, checkpoints, budgets, states, points."""
    policy, does = a_test(random.Random(seed))
    with Kit(app, policy=policy) as here, Kit(app, policy=policy, dsn=poolkeeper_dsn) as there:
        for mine, other in zip(carried_out(here, does), carried_out(there, does), strict=True):
            assert mine == other


def test_a_task_that_the_application_submitted_is_delivered_too(poolkeeper_dsn: str) -> None:
    """Q50: on a Postgres, in the order of its queue; another one is named and unharmed."""
    with connect(poolkeeper_dsn) as conn, Kit(app, dsn=poolkeeper_dsn) as kit:
        spec = QueuePolicy().to_store()
        run(conn, calls.apply_policy("local", "default", "default", "its-own", spec, who="test"))
        one, two = (Client(conn).submit("its-own", "play.sync", []).task_id for _ in range(2))
        assert one is not None
        assert two is not None
        with pytest.raises(
            RuntimeError, match=f"{two} is not the next one of queue default/its-own; deliver {one} first"
        ):
            kit.deliver(two)
        assert [kit.deliver(each).result for each in (one, two)] == [[1, 0], [1, 0]]
        assert kit.get(one).endings == ("succeeded",)


def test_a_clock_that_is_not_a_kits_is_not_moved(database: Database) -> None:
    """Q50: a database that somebody works with is left alone."""
    with pytest.raises(Misconfigured, match="not made for the testing kit"):
        Kit(app, dsn=database.dsn)


def test_the_clock_goes_on_when_no_kit_is_open(poolkeeper_dsn: str) -> None:
    """Q50: real workers may run on such a database as well."""
    with connect(poolkeeper_dsn) as conn:

        def moves() -> bool:
            asked = [run(conn, Call("now", {}, the_value, file="testing.sql")) for _ in range(2)]
            return bool(asked[0] < asked[1])

        assert moves()
        with Kit(app, dsn=poolkeeper_dsn) as kit, Kit(app, dsn=poolkeeper_dsn) as other:
            kit.clock.advance(1000)
            assert not moves()
            other.close()
            assert not moves()
            later = kit.clock.now()
        assert moves()
        assert run(conn, Call("now", {}, the_value, file="testing.sql")) >= later


@pytest.mark.wide
def test_a_login_that_may_create_databases_and_roles_is_enough(pg_dsn: str) -> None:
    """Q50: as docs/how-to/test-a-handler.md says; no superuser."""
    login = f"kit_{secrets.token_hex(4)}"
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {login} LOGIN CREATEDB CREATEROLE PASSWORD 'test'")
        try:
            with template(make_conninfo(pg_dsn, user=login, password="test")) as clone, Kit(app, dsn=clone()) as kit:
                assert kit.run("play.sync", []).result == [1, 0]
        finally:
            conn.execute(f"DROP OWNED BY {login}; DROP ROLE {login}")
