"""Moments mean the same whatever the session thinks of time: its zone, the forms in which it reads and writes (C56, Q9)."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Json

from poolkeeper.store import calls, run
from store.scene import Scene

ODD = {
    "TimeZone": ["Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kathmandu", "Europe/Berlin"],
    "DateStyle": ["German, DMY", "SQL, MDY", "Postgres, DMY"],
    "standard_conforming_strings": ["off"],
    "IntervalStyle": ["iso_8601", "sql_standard", "postgres_verbose"],
}
"""Settings that a role or database may bring along."""

UUIDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")

WITH_ZONE = {
    "2031-03-30T02:30:00Z": "2031-03-30T02:30:00Z",
    "2031-03-30t02:30:00z": "2031-03-30T02:30:00Z",
    "2031-03-30 02:30:00+05:45": "2031-03-29T20:45:00Z",
    "2031-03-30T02:30+0545": "2031-03-29T20:45:00Z",
    "2031-03-30T02:30:00.25-11": "2031-03-30T13:30:00.25Z",
    "2031-10-26T02:30:00+01:00": "2031-10-26T01:30:00Z",
    "2031-10-26T02:30:00+02:00": "2031-10-26T00:30:00Z",
    "2031-06-30T23:59:60Z": "2031-07-01T00:00:00Z",
}
NAIVE = [
    "2031-03-30T02:30:00", "2031-03-30 02:30", "2031-03-30", "2031-10-26T02:30:00", "2031-06-30T23:59:60", "30.03.2031 02:30",
    "03/04/2031 10:00 PST", "2031-03-30T02:30:00 Europe/Berlin", "2031-03-30T02:30:00 CET", "now", "tomorrow", "infinity",
    "allballs", "epoch", "2031-03-30-05", "2031-13-30T02:30:00Z", "2031-03-30T25:30:00Z", "2031-02-30T00:00:00Z", "", "Z",
    "2031-03-30T02:30:00Z BC", "2031-03-30T02:30:00+99:00", "12:00Z", "J2463000", "20310330T023000Z",
]  # fmt: skip


@pytest.fixture(
    params=[(name, value) for name, values in ODD.items() for value in values], ids=lambda p: f"{p[0]}-{p[1]}"
)
def odd_scene(request: pytest.FixtureRequest, scene: Scene) -> Iterator[Scene]:
    """All connections made from here on bring such a setting from their database."""
    name, value = request.param
    database = sql.Identifier(scene.database.name)
    scene.owner.execute(
        sql.SQL("ALTER DATABASE {} SET {} = {}").format(database, sql.Identifier(name), sql.Literal(value))
    )
    yield scene
    scene.owner.execute(sql.SQL("ALTER DATABASE {} RESET {}").format(database, sql.Identifier(name)))


def submitted(conn: psycopg.Connection, run_at: str) -> tuple[Any, ...]:
    query = "SELECT code, task_id FROM poolkeeper.submit('q', 'a.b', '1', %s::jsonb)"
    row = conn.execute(query, [Json({"run_at": run_at})]).fetchone()
    assert row is not None
    return row


def test_a_moment_with_its_zone_is_that_instant_and_any_other_is_refused(odd_scene: Scene) -> None:
    """C56: naive, named, relative and local forms are option_invalid; none is read in the session's zone."""
    conn = odd_scene.connect("submitter")
    for text, instant in WITH_ZONE.items():
        code, task_id = submitted(conn, text)
        assert code is None, text
        told = odd_scene.value("SELECT extract(epoch FROM run_at) FROM poolkeeper.task WHERE id = %s", task_id)
        assert float(told) == datetime.fromisoformat(instant).timestamp(), text
    for text in NAIVE:
        assert submitted(conn, text) == ("option_invalid", None), text


def test_a_life_is_the_same_in_every_session(odd_scene: Scene) -> None:
    """C56: what comes back carries its zone and is the instant that was meant; durations are read as they are."""
    scene = odd_scene
    kathmandu = datetime.fromisoformat("2031-10-26T02:30:00+05:45")
    later = scene.submit(run_at=kathmandu, max_age=timedelta(days=1, hours=3))
    view = scene.ask("reader", calls.task(later))
    assert view is not None
    assert view.run_at == kathmandu
    assert view.run_at.tzinfo is not None
    assert view.expires_at == kathmandu + timedelta(hours=27)
    task = scene.submit()
    worker = scene.worker()
    assert worker.session.visibility_timeout == timedelta(seconds=15)
    assert worker.session.renew_every == timedelta(seconds=3.75)
    delivery = worker.take()
    assert abs(delivery.submitted_at - datetime.now(UTC)) < timedelta(hours=1)
    worker.renew(task)
    worker.succeed(delivery)
    for line in scene.ask("reader", calls.timeline(task)):
        assert abs(line.at - datetime.now(UTC)) < timedelta(hours=1)
    assert scene.ask("operator", calls.stats(cluster=None)).queues


@pytest.mark.parametrize(
    "zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Berlin", "America/St_Johns"]
)
@pytest.mark.usefixtures("this_month_again")
def test_months_of_the_history_begin_in_utc(bare_scene: Scene, zone: str) -> None:
    """C56: through two years, over both changes of the clock, without a gap, a doubled month or an error."""
    owner = bare_scene.database.connect()
    owner.execute(sql.SQL("SET TimeZone = {}").format(sql.Literal(zone)))
    try:
        bounds = "SELECT relname, pg_get_expr(relpartbound, oid) AS bounds FROM pg_class WHERE relname ~ '^event_standard_[0-9]{6}$' ORDER BY 1"
        found: dict[str, list[str]] = {}
        for _ in range(25):
            run(owner, calls.maintain())  # makes months, and drops those that have passed without a task
            found |= {row.relname[-6:]: UUIDS.findall(row.bounds) for row in bare_scene.rows(bounds)}
            bare_scene.advance(30 * 86_400)
        moments = [(name, moment(pair[0]), moment(pair[1])) for name, pair in sorted(found.items())]
        assert len(moments) >= 25
        for name, first, end in moments:
            assert (first.strftime("%Y%m"), first.day, first.hour) == (name, 1, 0)
            assert (end - timedelta(seconds=1)).strftime("%Y%m") == name
    finally:
        owner.close()


def moment(floor: str) -> datetime:
    """The moment in the smallest id of it."""
    return datetime.fromtimestamp((UUID(floor).int >> 80) / 1000, UTC)
