"""Q24: who can hold an installation, and who lets it go on. What is held rightly: tests/worker/test_fence.py."""

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from poolkeeper.codes import Code
from poolkeeper.errors import Forbidden
from poolkeeper.store import calls
from store.scene import Scene, Worker

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
