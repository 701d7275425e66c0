"""Q24: who can hold an installation, and who lets it go on. What is held rightly: tests/worker/test_fence.py."""

from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from poolkeeper.codes import Code
from poolkeeper.errors import Forbidden
from poolkeeper.store import calls
from store.scene import Scene, Worker, seconds

BEYOND = {"timeline": "00000001", "lsn": "FFFFFFFF/FFFFFFFF", "renewals": 1, "accepts": 0}


@pytest.fixture
def held(scene: Scene) -> Any:
    """Why the installation is held; whatever a test does, the next one finds it free."""
    scene.queue()
    yield lambda: scene.value("SELECT held_why FROM poolkeeper.contact")
    scene.owner.execute("UPDATE poolkeeper.contact SET held_since = NULL, held_why = NULL, accepts = 0")


def tell(worker: Worker, position: Any) -> Any:
    """A renewal that claims to have been there."""
    query = "SELECT extra FROM poolkeeper.renew(%s, %s, 0, '{}', %s) WHERE kind = 'note'"
    session = worker.session
    row = worker.conn.execute(query, [session.id, session.secret, Jsonb({"position": position})]).fetchone()
    assert row is not None
    return row[0]["position"]


def test_a_position_that_was_never_told_holds_nothing(scene: Scene, held: Any) -> None:
    """Q24, Q51: else whoever has a worker's login could stop all pools of all tenants."""
    real = tell(scene.worker(), None)
    forged = [BEYOND, {**BEYOND, "seal": "00"}, {**BEYOND, "seal": None}, {**real, "lsn": BEYOND["lsn"]}, [], "x", 1]
    for position in forged:
        worker = scene.worker(position=position)
        assert held() is None
        tell(worker, position)
        assert held() is None
    scene.submit()
    assert worker.take()
    told = {**{k: v for k, v in real.items() if k != "seal"}, "lsn": BEYOND["lsn"]}
    seal = scene.value("SELECT encode(poolkeeper.payload_digest(%s), 'hex')", Jsonb(told))
    scene.worker(position={**told, "seal": seal})  # as from a copy that went on
    assert held() == "older_copy"


@pytest.mark.parametrize("limits", [{"queues": ["default/q"]}, {"tenants": ["acme"]}, {"tenants_except": ["acme"]}])
def test_who_is_limited_cannot_let_the_others_go_on(scene: Scene, held: Any, limits: dict[str, Any]) -> None:
    """Q24, Q51: the installation is everybody's."""
    scene.owner.execute("SELECT poolkeeper.hold('older_copy', poolkeeper.clock())")
    scene.connect("person")
    scene.allow(scene.database.login("person"), **limits)
    with pytest.raises(Forbidden) as caught:
        scene.ask("person", calls.accept_installation("ann", "x"))
    assert (caught.value.code, held()) == (Code.ROLE_NOT_ALLOWED, "older_copy")
    scene.allow(scene.database.login("person"))
    assert scene.ask("person", calls.accept_installation("ann", "x"))
    assert held() is None


HERE = "SELECT held_why, held_since::text, timeline FROM poolkeeper.contact"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("system_id = system_id + 1", "another_system"),
        ("database_oid = database_oid::bigint + 1", "another_database"),
        ("system_id = system_id + 1, database_oid = database_oid::bigint + 1", "another_system"),
        ("timeline = '00000000'", None),
        ("timeline = '00000000', system_id = NULL", None),
    ],
)
def test_where_it_is_not_any_more_holds_it(scene: Scene, change: str, why: str | None) -> None:
    """Q24: another system or database does, a timeline is noted; what is held stays so for its first reason."""
    with scene.owner.transaction(force_rollback=True):
        ((_, _, timeline),) = scene.rows(HERE)
        scene.owner.execute(f"UPDATE poolkeeper.contact SET {change}")
        scene.owner.execute("SELECT poolkeeper.examine(poolkeeper.clock())")
        ((told, since, now),) = scene.rows(HERE)
        assert (told, now) == (why, timeline)
        scene.owner.execute("UPDATE poolkeeper.contact SET timeline = '00000000'")
        if why is None:  # one that is held looks no further
            scene.owner.execute("SELECT poolkeeper.hold('lost_commits', 'infinity')")
            why, since = "lost_commits", "infinity"
        for again in ("poolkeeper.hold('older_copy', 'infinity')", "poolkeeper.examine('infinity')"):
            scene.owner.execute(f"SELECT {again}")
            assert scene.rows(HERE) == [(why, since, "00000000")]


def test_what_was_told_beyond_this_holds_it(scene: Scene) -> None:
    """Q24: a position of the future of this timeline, of a later one, of a past beyond its end; not one of before an acceptance."""
    session = scene.worker().session.id
    ask = "SELECT poolkeeper.compare_position(t.told || jsonb_build_object('seal', encode(poolkeeper.payload_digest(t.told), 'hex')), %s, %s, poolkeeper.clock()) FROM (SELECT poolkeeper.position(%s, 3) - 'seal' || %s AS told) AS t"
    for change, renewals, why in (
        ({}, 3, None),
        ({"lsn": "FFFFFFFF/0"}, 3, "older_copy"),
        ({"lsn": "FFFFFFFF/0", "accepts": 77}, 3, None),
        ({"timeline": "000000FF"}, 3, "older_copy"),
        ({"timeline": "00000000"}, 3, None),
        ({"timeline": "00000000"}, 2, "lost_commits"),
        ({"timeline": "00000000", "session": str(UUID(int=1))}, 2, None),
        ({"timeline": "00000000", "lsn": "FFFFFFFF/0"}, None, "lost_commits"),
    ):
        with scene.owner.transaction(force_rollback=True):
            scene.owner.execute("UPDATE poolkeeper.contact SET timeline_lsn = 'FFFFFFFE/0'")
            scene.owner.execute(ask, [session, renewals, session, Jsonb(change)])
            assert scene.rows(HERE)[0].held_why == why, (change, renewals)


def test_while_it_is_held_nothing_expires_and_nothing_is_due(scene: Scene, held: Any) -> None:
    """Q24: however many come by; what was alive then has one further timeout once it goes on, not only who came by."""
    scene.queue(max_run_time_seconds=20)
    worker, peer = scene.worker(), scene.worker()
    silent, spoke = scene.submit(), scene.submit()
    assert (worker.take().task_id, peer.take().task_id) == (silent, spoke)
    due, aged = scene.submit(delay=seconds(5)), scene.submit(max_age=seconds(5))
    scene.owner.execute("SELECT poolkeeper.hold('older_copy', poolkeeper.clock())")
    for _ in range(8):
        scene.jump(4)
        peer.renew(spoke)
        peer.turn(sweep=True)
        assert scene.sweep() == 0
    states = [scene.state(each) for each in (silent, spoke, due, aged)]
    assert (states, held()) == (["running", "running", "scheduled", "ready"], "older_copy")
    assert scene.ask("person", calls.accept_installation("ann", "x"))
    scene.jump(1)
    scene.sweep()
    assert [scene.state(each) for each in (silent, due, aged)] == ["running", "ready", "dead"]


def test_a_look_at_where_it_is_waits_for_nobody(scene: Scene) -> None:
    """Q24, Q5: somebody else notes the same just now."""
    ((_, _, timeline),) = scene.rows(HERE)
    scene.owner.execute("UPDATE poolkeeper.contact SET timeline = '00000000'; SET statement_timeout = '15s'")
    with scene.connect("owner", autocommit=False) as other:
        other.execute("SELECT 1 FROM poolkeeper.contact FOR UPDATE")
        scene.owner.execute("SELECT poolkeeper.examine(poolkeeper.clock())")
        other.rollback()
    assert scene.rows(HERE)[0].timeline == "00000000"
    scene.owner.execute("SELECT poolkeeper.examine(poolkeeper.clock())")
    assert scene.rows(HERE)[0].timeline == timeline
