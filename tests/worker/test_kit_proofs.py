"""Q50: what the kit proves of a handler, and what it finds; the same in this process and on a Postgres."""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fixtures.kits import ON_BOTH, app, ends, fetch, fetch_once, log
from poolkeeper import Context, Poolkeeper, Reject
from poolkeeper.testing import AsyncKit, Delivery, Kit, MakeKit, Point

pytestmark = ON_BOTH


def outcomes(*deliveries: Delivery) -> list[str]:
    return [each.outcome for each in deliveries]


def test_run_twice_shows_what_is_repeatable(kit: Kit) -> None:
    """Q50: result and effects are the same after a second delivery, which begins at the last checkpoint."""
    first, second = kit.run_twice(fetch, 3, effects=lambda: list(log))
    assert outcomes(first, second) == ["succeeded", "succeeded"]
    assert (first.number, second.number, second.checkpoints) == (1, 2, [])


def test_run_twice_finds_what_is_not(poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q50: effects that are doubled, results that differ, ends that differ."""
    local = Poolkeeper()
    sent: list[str] = []

    @local.task("mails.send")
    def send(to: str) -> str:
        sent.append(to)
        return to

    @local.task("mails.count")
    def count(_: Any) -> int:
        sent.append("")
        return len(sent)

    @local.task("mails.once")
    def once(_: Any) -> None:
        if "once" in sent:
            raise Reject("was sent before")
        sent.append("once")

    kit = poolkeeper_kit(local)
    with pytest.raises(
        AssertionError, match=r"mails.send is not repeatable: effects\(\) gave \['ada'\] after its first"
    ):
        kit.run_twice(send, "ada", effects=lambda: list(sent))
    with pytest.raises(
        AssertionError, match=r"mails.count is not repeatable: its first delivery succeeded with 3, the second"
    ):
        kit.run_twice(count)
    with pytest.raises(AssertionError, match=r"second one rejected with None \(was sent before\)"):
        kit.run_twice(once)


def test_crashes_at_every_point_are_survived(kit: Kit) -> None:
    """Q50: as many as there are points; the world begins anew for each."""
    stood = kit.assert_survives_crashes(fetch_once, 2, reset=log.clear, effects=lambda: list(log))
    assert stood == [
        "at the start of delivery 1",
        "before checkpoint 1 of delivery 1",
        "after checkpoint 1 of delivery 1",
        "before checkpoint 2 of delivery 1",
        "after checkpoint 2 of delivery 1",
        "before settle of delivery 1",
    ]
    several = kit.assert_survives_crashes(ends, "second")
    assert several[-1] == "before settle of delivery 2"


def test_a_crash_that_is_not_survived_is_named(kit: Kit, poolkeeper_kit: MakeKit[Kit]) -> None:
    """Q50: with the point, and both ends."""
    match = r"pages.fetch does not survive a crash before checkpoint 1 of delivery 1: effects\(\) gives \[0, 0, 1\], undisturbed \[0, 1\]"
    with pytest.raises(AssertionError, match=match):
        kit.assert_survives_crashes(fetch, 2, reset=log.clear, effects=lambda: list(log))
    local = Poolkeeper()

    @local.task("a.b")
    async def forgets(until: int, ctx: Context) -> int:
        done = 0
        for page in range(ctx.checkpoint or 0, until):
            done += 1
            await ctx.save_checkpoint(page + 1)
        return done

    with pytest.raises(
        AssertionError,
        match="after checkpoint 1 of delivery 1: it ended as succeeded, result 1; undisturbed as succeeded, result 2",
    ):
        poolkeeper_kit(local).assert_survives_crashes(forgets, 2)


def test_a_lost_lease_is_survived_or_named(kit: Kit) -> None:
    """Q50, C27: who goes on after its lease was lost does no harm."""
    stood = kit.assert_survives_lease(fetch_once, 2, reset=log.clear, effects=lambda: list(log))
    assert len(stood) == 6
    match = r"pages.fetch does not survive a lease that was lost at the start of delivery 1: effects\(\) gives \[0, 1, 0\], undisturbed \[0, 1\]"
    with pytest.raises(AssertionError, match=match):
        kit.assert_survives_lease(fetch, 2, reset=log.clear, effects=lambda: list(log))


async def test_tests_that_are_coroutines_have_a_kit_of_their_own(poolkeeper_async_kit: MakeKit[AsyncKit]) -> None:
    """Q50: handlers run in the test's own loop; looks may be coroutine functions."""
    log.clear()

    async def look() -> list[Any]:
        await asyncio.sleep(0)
        return list(log)

    async with poolkeeper_async_kit(app) as kit:
        assert (await kit.run(fetch, 2)).outcome == "succeeded"
        task = kit.submit(fetch_once, 3)
        assert (await kit.deliver(task, crash_at=Point.after_checkpoint(1))).outcome == "crashed"
        assert (await kit.finish(task)).result == 3
        assert len(await kit.run_twice(fetch, 1, effects=look)) == 2
        assert len(await kit.assert_survives_crashes(fetch_once, 1, reset=log.clear, effects=look)) == 4
        assert len(await kit.assert_survives_lease(fetch_once, 1, reset=log.clear, effects=look)) == 4


async def test_the_plain_kit_says_so_in_a_coroutine(kit: Kit) -> None:
    """Q50."""
    with pytest.raises(RuntimeError, match="take AsyncKit"):
        kit.run(fetch, 1)


@pytest.fixture
def rows(poolkeeper_dsn: str) -> Callable[[], int]:
    """A table of the application's, and how many rows are committed in it."""
    with psycopg.connect(poolkeeper_dsn) as conn:
        conn.execute("DROP TABLE IF EXISTS booking; CREATE TABLE booking (task uuid)")

    def count() -> int:
        with psycopg.connect(poolkeeper_dsn) as conn:
            found = conn.execute("SELECT count(*) FROM booking").fetchone()
        return 0 if found is None else int(found[0])

    return count


@pytest.fixture
def booking(poolkeeper_dsn: str) -> Poolkeeper:
    """Handlers that end their task in a transaction of their own."""
    local = Poolkeeper()

    @local.task("rows.book")
    def book(lines: int, ctx: Context) -> None:
        with psycopg.connect(poolkeeper_dsn) as conn:
            conn.execute("INSERT INTO booking VALUES (%s)", [ctx.task_id])
            assert ctx.succeed_in_sync(conn, {"lines": lines})

    @local.task("rows.abook")
    async def abook(lines: int, ctx: Context) -> None:
        async with await psycopg.AsyncConnection.connect(poolkeeper_dsn) as conn:
            await conn.execute("INSERT INTO booking VALUES (%s)", [ctx.task_id])
            assert await ctx.succeed_in(conn, {"lines": lines})

    return local


@pytest.mark.parametrize("name", ["rows.book", "rows.abook"])
def test_a_transaction_of_the_handlers_own_ends_the_task(
    poolkeeper_kit: MakeKit[Kit], booking: Poolkeeper, rows: Callable[[], int], name: str
) -> None:
    """Q18, Q50: crashed before its commit nothing has happened, crashed after it the task is done; the rows are there once."""
    kit = poolkeeper_kit(booking)
    done = kit.run(name, 3)
    assert (done.state, done.succeeded_in, kit.get(done.task_id).result, rows()) == (
        "succeeded",
        [{"lines": 3}],
        {"lines": 3},
        1,
    )
    task = kit.submit(name, 4)
    assert kit.deliver(task, crash_at=Point.in_transaction).state == "running"
    assert rows() == 1
    assert (kit.deliver(task).state, rows()) == ("succeeded", 2)
    after = kit.submit(name, 5)
    assert kit.deliver(after, crash_at=Point.before_settle).state == "succeeded"
    assert (kit.get(after).result, rows()) == ({"lines": 5}, 3)


def test_a_task_that_ends_in_its_own_transaction_is_run_once(
    poolkeeper_kit: MakeKit[Kit], booking: Poolkeeper, rows: Callable[[], int], poolkeeper_dsn: str
) -> None:
    """Q18, Q50: there is no second delivery to fear."""
    kit = poolkeeper_kit(booking)
    assert outcomes(*kit.run_twice("rows.book", 1, effects=rows)) == ["succeeded"]

    def empty() -> None:
        with psycopg.connect(poolkeeper_dsn) as conn:
            conn.execute("TRUNCATE booking")

    assert kit.assert_survives_crashes("rows.book", 1, effects=rows, reset=empty) == [
        "at the start of delivery 1",
        "in the transaction of succeed_in of delivery 1",
        "before settle of delivery 1",
    ]
    with pytest.raises(ValueError, match="take another point"):
        kit.deliver(kit.submit("rows.book", 1), overtaken_at=Point.in_transaction)
    with pytest.raises(RuntimeError, match="no lease to lose"):
        kit.deliver(kit.submit("rows.book", 1), overtaken_at=Point.before_settle)


def test_a_connection_that_the_handler_forgot_is_named(
    poolkeeper_kit: MakeKit[Kit], poolkeeper_place: str, poolkeeper_dsn: str
) -> None:
    """Q18, Q50: on a Postgres; in this process nothing is known of it."""
    if poolkeeper_place == "process":
        return
    local, left = Poolkeeper(), []

    @local.task("a.b")
    def forgets(_: Any, ctx: Context) -> None:
        left.append(psycopg.connect(poolkeeper_dsn))
        ctx.succeed_in_sync(left[0])

    kit = poolkeeper_kit(local)
    with pytest.raises(AssertionError, match="commit before returning"):
        kit.run(forgets)
    left[0].close()
