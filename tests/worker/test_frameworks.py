"""Q4: submitting on the connections of real frameworks: the task exists if, and only if, their transaction commits."""

import asyncio
import traceback
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from fixtures.frameworks import WAYS, Way, url
from fixtures.workers import StageOn
from lab.postgres import Server
from poolkeeper import Client, Context, NotFound, Poolkeeper, Refused
from poolkeeper.policy import QueuePolicy
from poolkeeper.store import calls, connect, run
from poolkeeper.testing import Kit, Point


@pytest.fixture(scope="module")
def shop(poolkeeper_dsn: str) -> str:
    """One database for all, with a queue and a table of the application's."""
    with connect(poolkeeper_dsn) as conn:
        spec = QueuePolicy().to_store()
        run(conn, calls.apply_policy("local", "default", "default", "shop", spec, who="test"))
        conn.execute("CREATE TABLE shop_order (number integer PRIMARY KEY)")
    return poolkeeper_dsn


IN_SHORT = {"sqlalchemy-session", "sqlalchemy-session-async", "django"}


@pytest.fixture(params=[pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.wide) for name in WAYS])
def way(request: pytest.FixtureRequest, shop: str) -> Way:
    with psycopg.connect(shop) as conn:
        conn.execute("TRUNCATE shop_order")
    made: Way = WAYS[request.param](shop)
    return made


class Rolled(Exception):
    """What a program raises to roll back."""


def seen(dsn: str, task: UUID) -> bool:
    """Whether another program sees the task."""
    with Client(dsn=dsn) as other:
        try:
            other.get(task)
        except NotFound:
            return False
    return True


def rows(dsn: str) -> int:
    """How many rows of the application's are committed."""
    with psycopg.connect(dsn) as conn:
        found = conn.execute("SELECT count(*) FROM shop_order").fetchone()
    assert found is not None
    return int(found[0])


def play(way: Way, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario: of a framework that blocks without an event loop, as Django demands."""
    if way.is_async:
        asyncio.run(scenario)
        return
    with pytest.raises(StopIteration):
        scenario.send(None)


async def submit(way: Way, given: Any, payload: Any = None, **wishes: Any) -> UUID:
    task = (await way.ask(given, "submit", "shop", "shop.bill", payload, **wishes)).task_id
    assert isinstance(task, UUID)
    return task


def test_task_and_row_exist_when_it_commits_and_not_before(way: Way, shop: str) -> None:
    """Q4, P1."""

    async def scenario() -> None:
        async with way.transaction() as given:
            await way.order(given)
            task = await submit(way, given, {"order": 1}, key="order-1" + way.name)
            assert not seen(shop, task)
            assert (await way.ask(given, "get", task)).payload == {"order": 1}
        assert (seen(shop, task), rows(shop)) == (True, 1)

    play(way, scenario())


def test_neither_exists_when_it_is_rolled_back(way: Way, shop: str) -> None:
    """Q4: submitted first or last, in a block that an error ends."""

    async def scenario() -> None:
        tasks = []
        with pytest.raises(Rolled):
            async with way.transaction() as given:
                tasks.append(await submit(way, given))
                await way.order(given)
                tasks.append(await submit(way, given))
                raise Rolled
        assert ([seen(shop, task) for task in tasks], rows(shop)) == ([False, False], 0)

    play(way, scenario())


def test_a_transaction_of_nothing_but_a_submit_is_committed(way: Way, shop: str) -> None:
    """Q4: a commit() that believes that nothing was begun would lose the task."""

    async def scenario() -> None:
        async with way.transaction() as given:
            task = await submit(way, given)
        assert seen(shop, task)

    play(way, scenario())


def test_a_savepoint_takes_what_was_submitted_in_it_along(way: Way, shop: str) -> None:
    """Q4: rolled back to, the task is gone and what was before it is not; released, it is there."""

    async def scenario() -> None:
        async with way.transaction() as given:
            before = await submit(way, given)
            with pytest.raises(Rolled):
                async with way.savepoint(given):
                    undone = await submit(way, given)
                    raise Rolled
            async with way.savepoint(given):
                within = await submit(way, given)
                with pytest.raises(Rolled):
                    async with way.savepoint(given):
                        deeper = await submit(way, given)
                        raise Rolled
            after = await submit(way, given)
        assert [seen(shop, task) for task in (before, undone, within, deeper, after)] == [
            True,
            False,
            True,
            False,
            True,
        ]

    play(way, scenario())


def test_a_refusal_harms_nothing_of_the_transaction(way: Way, shop: str) -> None:
    """Q4, Q7: caught, the program goes on in it."""

    async def scenario() -> None:
        async with way.transaction() as given:
            await way.order(given)
            with pytest.raises(NotFound, match="unknown_queue"):
                await way.ask(given, "submit", "nowhere", "shop.bill")
            with pytest.raises(Refused, match="cannot be stored"):
                await way.ask(given, "submit", "shop", "shop.bill", float("nan"))
            task = await submit(way, given)
        assert (seen(shop, task), rows(shop)) == (True, 1)

    play(way, scenario())


def test_everything_else_works_on_it_too(way: Way, shop: str) -> None:
    """Q4, Q39: many at once, looking, cancelling; the answers are what they are elsewhere."""

    async def scenario() -> None:
        async with way.transaction() as given:
            verdicts = await way.ask(
                given, "submit_many", "shop", [{"type": "shop.bill", "payload": n} for n in range(3)]
            )
            tasks = [verdict.task_id for verdict in verdicts]
            assert (await way.ask(given, "cancel", tasks[0], who="me", why="test")).state == "canceled"
            view = await way.ask(given, "get", tasks[1])
            assert (view.state, view.payload, view.labels) == ("ready", 1, None)
            assert view.accepted_at.tzinfo is not None
        with Client(dsn=shop) as other:
            assert [other.get(task).state for task in tasks] == ["canceled", "ready", "ready"]

    play(way, scenario())


def booking(way: Way) -> Poolkeeper:
    """A handler that ends its task in the framework's transaction."""
    app = Poolkeeper()

    @app.task("shop.book")
    async def abook(_: Any, ctx: Context) -> None:
        async with way.transaction() as given:
            await way.order(given)
            assert await ctx.succeed_in(given, "booked")

    @app.task("shop.book_sync")
    def book(_: Any, ctx: Context) -> None:
        async def scenario() -> None:
            async with way.transaction() as given:
                await way.order(given)
                assert ctx.succeed_in_sync(given, "booked")

        play(way, scenario())

    return app


def test_a_handler_ends_its_task_in_the_frameworks_transaction(way: Way, shop: str) -> None:
    """Q18: row and "done" commit together, or neither does."""
    with Kit(booking(way), dsn=shop) as kit:
        task = kit.submit("shop.book" if way.is_async else "shop.book_sync")
        assert kit.deliver(task, crash_at=Point.in_transaction).state == "running"
        assert rows(shop) == 0
        assert (kit.deliver(task).state, kit.get(task).result, rows(shop)) == ("succeeded", "booked", 1)


@pytest.mark.wide
def test_a_two_phase_commit_takes_tasks_of_queues_that_poll(stage_on: StageOn) -> None:
    """Q4: Postgres prepares nothing that has sent a notification; prepared and rolled back, the task is gone."""
    with Server(fsync=False, settings={"max_prepared_transactions": "5"}) as server:
        stage = stage_on(server)
        stage.apply("default/polled", wake_up="Poll")
        engine = sa.create_engine(url(server.dsn()))
        for queue, ends in (("polled", orm.Session.commit), ("polled", orm.Session.rollback)):
            with orm.Session(engine, twophase=True) as session:
                Client(session).submit(queue, "shop.bill")
                session.prepare()
                ends(session)
        with orm.Session(engine, twophase=True) as session:
            Client(session).submit("q", "shop.bill")
            with pytest.raises(sa.exc.DBAPIError) as refused:
                session.prepare()
            assert "that has executed LISTEN, UNLISTEN, or NOTIFY" in "".join(traceback.format_exception(refused.value))
        engine.dispose()
        assert stage.states() == {"ready": 1}
