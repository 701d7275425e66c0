"""What a login that is bound to tenants sees and may do, whatever it asks for (Q46, contract 11)."""

from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Json

from poolkeeper.codes import Code
from poolkeeper.errors import Forbidden, NotFound
from poolkeeper.store import calls
from store.scene import Scene

TENANTS = [
    "",
    "0",
    0,
    "*",
    "%",
    None,
    "null",
    "acme,other",
    "Acme",
    "ACME",
    " acme",
    "acme ",
    "other",
    ["acme"],
    {"a": 1},
    "acme\u200b",
    "default",
]
"""What somebody may write where a tenant stands; none of it is `acme`."""


class TestTenants:
    """A login whose row names tenants sees theirs alone; the others' do not exist for it."""

    @pytest.fixture
    def foreign(self, scene: Scene) -> UUID:
        task_id = scene.submit(tenant="other", key="k", payload={"secret": 1}, max_deliveries=1)
        worker = scene.worker()
        worker.fail(worker.take())
        for kind in ("submitter", "reader", "person"):
            scene.actor(kind)
            scene.allow(scene.database.login(kind), tenants=["acme"])
        return task_id

    def test_a_foreign_task_is_not_there(self, scene: Scene, foreign: UUID) -> None:
        """Q51: not found, never exists: to looking, to canceling, to requeueing, to discarding."""
        assert scene.ask("reader", calls.task(foreign)) is None
        assert scene.ask("reader", calls.timeline(foreign)) == []
        assert scene.ask("reader", calls.dead_letters()) == []
        for verb in (calls.cancel, calls.requeue, calls.discard):
            changed = scene.ask("person", verb(foreign, who="eve", why="x"))
            assert (changed.code, changed.state, changed.state_version) == (Code.UNKNOWN_TASK, None, None)

    @pytest.mark.usefixtures("foreign")
    def test_its_own_is(self, scene: Scene) -> None:
        """Q51: the same credentials do the legitimate thing."""
        task_id = scene.submit(tenant="acme")
        view = scene.ask("reader", calls.task(task_id))
        assert view is not None
        assert scene.ask("person", calls.cancel(task_id, who="ann", why="x")).code is None

    @pytest.mark.usefixtures("foreign")
    def test_it_cannot_submit_for_another(self, scene: Scene) -> None:
        """Q51: nor learn whether a key of another tenant exists."""
        for key in ("k", "unused"):
            verdict = scene.verdict(tenant="other", key=key, payload={"secret": 1})
            assert (verdict.code, verdict.task_id) == (Code.ROLE_NOT_ALLOWED, None)

    @pytest.mark.usefixtures("foreign")
    @pytest.mark.parametrize("tenants", [["acme"], []], ids=["one", "none"])
    def test_no_way_of_writing_a_tenant_reaches_another(self, scene: Scene, tenants: list[str]) -> None:
        """C46: empty, absent, null, a number, lists, patterns, other cases and look-alikes are neither all nor somebody else."""
        scene.allow(scene.database.login("submitter"), tenants=tenants)
        conn = scene.actor("submitter")
        wishes: list[dict[str, Any]] = [{"tenant": text} for text in TENANTS]
        for wish in [{}, *wishes]:
            tasks = [{"type": "a.b", "payload": {"tenant": "other"}, "labels": {"tenant": "other"}, "key": "k", **wish}]
            row = conn.execute(
                "SELECT task_id, code FROM poolkeeper.submit_many('q', %s::jsonb)", [Json(tasks)]
            ).fetchone()
            assert row is not None
            assert row[0] is None, wish
            assert row[1] in {"role_not_allowed", "tenant_invalid"}, wish
        assert scene.value("SELECT count(*) FROM poolkeeper.task") == 1
        if tenants:
            assert scene.verdict(tenant="acme", key="k", payload={"secret": 1}).created

    @pytest.mark.usefixtures("foreign")
    def test_what_concerns_the_whole_queue_is_not_theirs(self, scene: Scene) -> None:
        """C46: figures would tell of the others, a pause, a policy or a purge would touch them."""
        scene.ask("operator", calls.set_pool("local/p", max_running=5))
        scene.ask("operator", calls.record_decision("local/p", {"waiting": 7}))
        for kind in ("operator", "person", "reader", "submitter"):
            scene.actor(kind)
            scene.allow(scene.database.login(kind), tenants=["acme"])
        for kind in ("reader", "submitter", "person"):
            assert scene.ask(kind, calls.queues()) == []
            assert scene.ask(kind, calls.decisions("local/p")) == []
        assert scene.ask("operator", calls.stats(cluster=None)).queues == []
        with pytest.raises(NotFound):
            scene.ask("person", calls.pause("q", True, who="eve"))
        for kind in ("person", "operator"):
            with pytest.raises(Forbidden):
                scene.ask(kind, calls.apply_policy("local", "default", "default", "q", {"paused": True}, who="eve"))
        assert not scene.value("SELECT paused FROM poolkeeper.queue")

    def test_all_but_some(self, scene: Scene) -> None:
        """Q51: tenants.except."""
        scene.actor("submitter")
        scene.allow(scene.database.login("submitter"), tenants_except=["acme"])
        assert scene.verdict(tenant="acme").code is Code.ROLE_NOT_ALLOWED
        assert scene.verdict(tenant="any").code is None

    def test_a_worker_is_handed_no_foreign_payload(self, scene: Scene) -> None:
        """P10, Q11: its session is its login's, whatever it asks for."""
        scene.submit(tenant="other")
        mine = scene.submit(tenant="acme")
        scene.actor("worker")
        scene.allow(scene.database.login("worker"), tenants=["acme"])
        assert [c.task_id for c in scene.worker().claim(5)] == [mine]
