"""Q4, Q6, Q8: the client on the caller's connection and on its own, both faces."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row
from pydantic import BaseModel

from fixtures.workers import Stage
from poolkeeper import AsyncClient, Client, Conflict, NotFound, Refused, Unavailable
from poolkeeper.codes import Code


class Order(BaseModel):
    id: int
    at: datetime


def test_in_the_callers_transaction_the_task_exists_if_and_only_if_it_commits(stage: Stage) -> None:
    """Q4: psycopg, whatever the row factory of the caller's connection is."""
    with psycopg.connect(stage.dsn, row_factory=dict_row) as conn:
        client = Client(conn)
        lost = client.submit("q", "t.count", 1).task_id
        conn.rollback()
        kept = client.submit("q", "t.count", 2).task_id
        with Client(dsn=stage.dsn) as other:
            for task in (lost, kept):
                assert task is not None
                with pytest.raises(NotFound):
                    other.get(task)
            conn.commit()
            assert kept is not None
            assert other.get(kept).payload == 2
        assert not conn.closed


async def test_the_async_face_is_the_same(stage: Stage) -> None:
    """Q4: on a connection of the caller's and on its own."""
    conn = await psycopg.AsyncConnection.connect(stage.dsn)
    async with conn, AsyncClient(dsn=stage.dsn) as own:
        client = AsyncClient(conn)
        task = (await client.submit("q", "t.count", Order(id=1, at=datetime(2026, 1, 1, tzinfo=UTC)))).task_id
        assert task is not None
        with pytest.raises(NotFound):
            await own.get(task)
        await conn.commit()
        assert (await own.get(task)).payload == {"id": 1, "at": "2026-01-01T00:00:00Z"}
        assert (await own.cancel(task, who="me", why="test")).state == "canceled"
        verdicts = await own.submit_many("q", [{"type": "t.count", "payload": n} for n in range(3)])
        assert [verdict.code for verdict in verdicts] == [None] * 3


def test_a_connection_whose_cursors_know_no_binary_form_will_do(stage: Stage) -> None:
    """Q4: Django's connections are such: they put the parameters into the text by themselves."""
    with psycopg.connect(stage.dsn, cursor_factory=psycopg.ClientCursor) as conn:
        task = Client(conn).submit("q", "t.count", 1, delay=timedelta(hours=1)).task_id
        conn.commit()
        assert task is not None
        assert Client(conn).get(task).state == "scheduled"


def test_what_is_no_connection_is_refused_with_what_was_expected() -> None:
    """Q4."""
    with pytest.raises(TypeError, match=r"psycopg 3.*not object"):
        Client(object()).submit("q", "t.count")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="either a connection of yours or a dsn"):
        Client()


def test_the_same_key_is_the_same_task_and_another_payload_a_conflict(stage: Stage) -> None:
    """Q6: equal as JSON, whatever the order of the keys."""
    with Client(dsn=stage.dsn) as client:
        first = client.submit("q", "t.count", {"a": 1, "b": 2}, key="k")
        again = client.submit("q", "t.count", {"b": 2.0, "a": 1}, key="k")
        assert (again.task_id, again.created, first.created) == (first.task_id, False, True)
        with pytest.raises(Conflict) as conflict:
            client.submit("q", "t.count", {"a": 2}, key="k")
        assert conflict.value.code == Code.KEY_CONFLICT


def test_what_the_store_refuses_is_raised_with_its_code(stage: Stage) -> None:
    """Q7: nothing is lost by not looking at an answer; in bulk each task has its verdict."""
    stage.apply("default/paused", paused=True)
    stage.apply("default/small", admission={"max_payload_size": "10"}, task_types=["t.count"])
    with Client(dsn=stage.dsn) as client:
        for queue, payload, code in (
            ("nowhere", 1, Code.UNKNOWN_QUEUE),
            ("paused", 1, Code.QUEUE_PAUSED),
            ("small", "x" * 20, Code.PAYLOAD_TOO_LARGE),
        ):
            with pytest.raises((Refused, NotFound)) as refused:
                client.submit(queue, "t.count", payload)
            assert refused.value.code == code
        verdicts = client.submit_many(
            "small",
            [
                {"type": "t.count", "payload": "x" * 20},
                {"type": "t.count", "payload": 1},
                {"type": "t.else", "payload": 1},
            ],
        )
        assert [verdict.code for verdict in verdicts] == [Code.PAYLOAD_TOO_LARGE, None, Code.UNKNOWN_TYPE]


def test_what_is_no_json_is_refused_before_anything_is_sent(stage: Stage) -> None:
    """Q8: a closed connection shows that nothing was sent; the transaction of the caller is unharmed."""
    with psycopg.connect(stage.dsn) as conn:
        conn.close()
        with pytest.raises(Refused, match=r"payload cannot be stored: \$\.x"):
            Client(conn).submit("q", "t.count", {"x": float("nan")})
        with pytest.raises(Refused, match=r"payload of tasks\[1\] cannot be stored: \$ "):
            Client(conn).submit_many("q", [{"type": "t.count", "payload": 1}, {"type": "t.count", "payload": "\x00"}])
        with pytest.raises(Refused, match=r"run_at .* says no time zone"):
            Client(conn).submit("q", "t.count", run_at=datetime(2026, 1, 1))  # noqa: DTZ001


def test_later_and_cancelled_before(stage: Stage) -> None:
    """Q9, Q39: a task with a delay is scheduled, and a cancel ends it at once."""
    with Client(dsn=stage.dsn) as client:
        task = client.submit("q", "t.count", delay=timedelta(hours=1), labels={"a": "b"}, tenant="acme").task_id
        assert task is not None
        view = client.get(task)
        assert (view.state, view.tenant, view.labels) == ("scheduled", "acme", {"a": "b"})
        assert client.cancel(task, who="me", why="test").state == "canceled"
        with pytest.raises(Conflict) as conflict:
            client.cancel(task, who="me", why="again")
        assert conflict.value.code == Code.ALREADY_ENDED
        with pytest.raises(NotFound):
            client.cancel(uuid4(), who="me", why="none")


def test_an_own_connection_that_was_lost_is_opened_again(stage: Stage) -> None:
    """Q4: the call that met the loss raises, the next one works."""
    with Client(dsn=stage.dsn) as client, psycopg.connect(stage.dsn, autocommit=True) as killer:
        client.submit("q", "t.count")
        killer.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'poolkeeper client'"
        )
        with pytest.raises(Unavailable):
            client.submit("q", "t.count")
        client.submit("q", "t.count")


async def test_more_than_a_page_is_one_list_of_verdicts_in_both_faces(stage: Stage) -> None:
    """Q5: pages of one call each, in the caller's transaction all or nothing."""
    tasks = [{"type": "t.count", "payload": n, "key": f"k{n}"} for n in range(10_002)]
    tasks[10_001]["type"] = "NO WORD"
    async with await psycopg.AsyncConnection.connect(stage.dsn) as conn:
        verdicts = await AsyncClient(conn).submit_many("default/q", iter(tasks))  # type: ignore[arg-type]
        assert [verdict.code for verdict in verdicts[10_000:]] == [None, Code.TYPE_INVALID]
        await conn.rollback()
    assert stage.states() == {}
    with Client(dsn=stage.dsn) as client:
        made = client.submit_many("default/q", tasks)  # type: ignore[arg-type]
    assert sum(verdict.created for verdict in made) == 10_001
    assert stage.states() == {"ready": 10_001}
