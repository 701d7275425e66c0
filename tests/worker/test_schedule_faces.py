"""Schedules from Python and from the command line, up to a task that a worker ran (Q34, contract 2 and 16)."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from fixtures.workers import Stage, eventually
from poolkeeper import AsyncClient, Client, Conflict, NotFound, PoolkeeperError, Refused
from poolkeeper.cli import run
from poolkeeper.codes import Code


def test_a_schedule_is_set_listed_run_paused_and_removed(stage: Stage) -> None:
    """Q34: the same again changes nothing; on the caller's connection it is part of the caller's transaction."""
    with Client(dsn=stage.dsn) as client, psycopg.connect(stage.dsn) as conn:
        mine = Client(conn)
        mine.schedule("q", "report", "30 2 * * *", "t.count", {"x": 1})
        assert client.schedules() == []
        conn.commit()
        again = client.schedule("q", "report", "30 2 * * *", "t.count", {"x": 1})
        assert (again.created, again.changed) == (False, False)
        how: dict[str, Any] = {"tenant": "acme", "max_age": timedelta(hours=1), "labels": {"a": "b"}}
        client.schedule("q", "report", "0 9 * * MON-FRI", "t.count", zone="Europe/Berlin", catch_up="skip", **how)
        assert [(one.tenant, one.cron, one.zone, one.catch_up) for one in client.schedules("q")] == [
            ("acme", "0 9 * * MON-FRI", "Europe/Berlin", "skip"),
            ("default", "30 2 * * *", "UTC", "latest"),
        ]
        task = client.run_schedule("q", "report").task_id
        assert task is not None
        assert client.get(task).payload == {"x": 1}
        client.pause_schedule("q", "report", tenant="acme")
        assert [one.paused for one in client.schedules()] == [True, False]
        client.pause_schedule("q", "report", tenant="acme", paused=False)
        for tenant in ("acme", "default"):
            client.remove_schedule("q", "report", tenant=tenant)
            with pytest.raises(
                NotFound, match=r"schedule 'report'.* there is none of that name; poolkeeper schedule list"
            ):
                client.remove_schedule("q", "report", tenant=tenant)


async def test_the_async_face_is_the_same(stage: Stage) -> None:
    async with AsyncClient(dsn=stage.dsn) as client:
        assert (await client.schedule("q", "report", "30 2 * * *", "t.count")).created
        assert (await client.run_schedule("q", "report")).created
        await client.pause_schedule("q", "report")
        assert [(one.name, one.paused) for one in await client.schedules()] == [("report", True)]
        await client.remove_schedule("q", "report")
        with pytest.raises(NotFound):
            await client.run_schedule("q", "report")


WRONG: list[tuple[dict[str, Any], Code, str]] = [
    ({"cron": "61 * * * *"}, Code.SCHEDULE_INVALID, r"schedule 'report' in queue \"default/q\": cron expression .* \(Bad minute\); give minute"),
    ({"cron": "0 0 30 2 *"}, Code.SCHEDULE_INVALID, "cannot be read"),
    ({"zone": "Mars/Crater"}, Code.SCHEDULE_INVALID, r"time zone .* is not known here; give one of the IANA names"),
    ({"catch_up": "some"}, Code.SCHEDULE_INVALID, "none of skip, latest, all"),
    ({"catch_up_limit": 0}, Code.SCHEDULE_INVALID, "not from 1 to 1000"),
    ({"name": "a b"}, Code.SCHEDULE_INVALID, r"schedule 'a b'.*a name is 1 to 100 of"),
    ({"type": "A"}, Code.TYPE_INVALID, r"type 'A'\); a type is words"),
    ({"key": "k"}, Code.OPTION_INVALID, "leave key, run_at, delay and traceparent out"),
    ({"queue": "nowhere"}, Code.UNKNOWN_QUEUE, r"in queue \"default/nowhere\": unknown_queue; apply it first"),
]  # fmt: skip


def test_what_cannot_be_is_refused_with_its_name_and_the_remedy(stage: Stage) -> None:
    """Q34, contract 2: at once, not at the first slot."""
    with Client(dsn=stage.dsn) as client:
        for how, code, words in WRONG:
            given = {"queue": "q", "name": "report", "cron": "* * * * *", "type": "t.count", **how}
            with pytest.raises((Refused, Conflict, NotFound), match=words) as refused:
                client.schedule(**given)
            assert isinstance(refused.value, PoolkeeperError)
            assert refused.value.code == code
        assert client.schedules() == []


def test_the_command_line_does_the_same(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 16: and a worker fires and runs it."""
    monkeypatch.delenv("POOLKEEPER_DSN_FILE", raising=False)
    monkeypatch.setenv("POOLKEEPER_DSN", stage.dsn)

    def said(*words: str, code: int = 0) -> str:
        assert run(["schedule", *words]) == code
        return "".join(capsys.readouterr())

    begun = datetime.now(UTC)
    put = ("set", "q", "tick", "* * * * * *", "t.count", '{"n": 1}')
    assert said(*put) == "tick  set\n"
    assert said(*put) == "tick  unchanged\n"
    assert said(*put, "--priority", "7", "--max-age", "1h", "--ordering-key", "k") == "tick  changed\n"
    worker = stage.worker().ready()
    stage.note("done", count=2)
    (one,) = json.loads(said("list", "q", "-o", "json"))
    assert one["task"] == {
        "type": "t.count",
        "payload": {"n": 1},
        "tenant": "default",
        "priority": 7,
        "max_age": 3600.0,
        "ordering_key": "k",
    }
    assert datetime.fromisoformat(one["fired_at"]) >= begun - timedelta(seconds=1)
    assert said("pause", "q", "tick") == "tick  paused\n"
    line = said("list").splitlines()[1]
    assert line.startswith("default/q  default  tick  * * * * * *  UTC   latest    t.count  yes     -     20")
    assert said("resume", "q", "tick") == "tick  resumed\n"
    assert len(said("run", "q", "tick").strip()) == 36
    assert said("remove", "q", "tick") == "tick  removed\n"
    assert said("run", "q", "tick", code=3).startswith("error: unknown_schedule: schedule 'tick'")
    assert said("set", "q", "tick", "61 * * * *", "t.count", code=4).startswith("error: schedule_invalid: ")
    assert "text needs quotes" in said("set", "q", "tick", "* * * * *", "t.count", "hello", code=2)
    tasks = eventually(lambda: stage.states().get("succeeded", 0) > 1, "they end")
    assert tasks
    worker.process.terminate()
    assert worker.wait() == 0, worker.log
