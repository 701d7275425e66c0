"""What a login may is asked at every call, of each queue and tenant by its own name; what makes no sense is refused (Q11, Q51, contract 9)."""

from typing import Any

import psycopg
import pytest

from fixtures.neighbours import BOUNDED, LIMITED, PLAIN, TYPES, Crowd
from poolkeeper.errors import Forbidden
from poolkeeper.store import calls, run
from store.scene import Scene

OWNER = ("local", "default", "default")


def test_a_login_that_is_limited_later_claims_of_what_is_left(crowd: Crowd) -> None:
    """Q11, Q51: of its own queues those that it still may serve, and of no other that it may."""
    scene, login = crowd.scene, crowd.scene.database.login("worker")
    both, one = (scene.worker(pool="local/l", queues=queues, types=TYPES) for queues in ([PLAIN, BOUNDED], [PLAIN]))
    scene.allow(login, queues=[f"default/{PLAIN}", f"default/{LIMITED}"])
    assert {claimed.queue for claimed in both.claim(100)} == {f"default/{PLAIN}"}
    for _ in range(3):
        crowd.submit(PLAIN)
    assert {claimed.queue for claimed in one.claim(100)} == {f"default/{PLAIN}"}


def test_a_session_is_for_the_tenants_that_its_login_may_see(scene: Scene) -> None:
    """Q11, Q51: nobody waits for a worker that names others."""
    scene.actor("worker")
    scene.allow(scene.database.login("worker"), tenants=["t1"])
    call = calls.register_session("local/p", ["q"], ["a.b"], concurrency=1, info={}, tenants=["t1", "t2"])
    run(scene.actor("worker"), call)
    for tenant in ("t1", "t2", "t2"):
        scene.submit(tenant=tenant)
    (queue,) = scene.ask("operator", calls.stats(cluster=None)).queues
    assert queue.no_capable_worker == 2


@pytest.mark.parametrize("limits", [{"pool": "local/other"}, {"queues": ["default/other"]}])
def test_a_session_of_another_pool_or_queue_is_refused(scene: Scene, limits: dict[str, Any]) -> None:
    """Q51: with nothing registered."""
    scene.actor("worker")
    scene.allow(scene.database.login("worker"), **limits)
    call = calls.register_session("local/p", ["q"], ["a.b"], concurrency=1, info={})
    with pytest.raises(Forbidden):
        run(scene.actor("worker"), call)
    assert scene.rows("SELECT 1 FROM poolkeeper.session") == []


def test_a_queue_is_removed_by_who_may_rule_it(crowd: Crowd) -> None:
    """O9, Q51: also one that is paused already."""
    scene = crowd.scene
    scene.queue(PLAIN, paused=True)
    for limits in ({"queues": [f"default/{BOUNDED}"]}, {"tenants": ["t1"]}, {"pool": "local/p"}):
        scene.allow(scene.database.login("operator"), **limits)
        with crowd.untouched(), pytest.raises(Forbidden):
            scene.ask("operator", calls.purge(*OWNER, PLAIN, who="ann"))


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED, LIMITED])
def test_a_queue_that_is_removed_keeps_its_own_policy(crowd: Crowd, queue: str) -> None:
    """O9: to the end, so that whoever changes his mind finds it."""
    spec = "SELECT p.spec FROM poolkeeper.policy AS p JOIN poolkeeper.queue AS q ON q.id = p.queue_id AND q.policy_version = p.version WHERE q.id = %s"
    before = crowd.scene.value(spec, crowd.queue_ids[queue])
    crowd.scene.ask("operator", calls.purge(*OWNER, queue, who="ann"))
    assert crowd.scene.value(spec, crowd.queue_ids[queue]) == {**before, "paused": True}


def test_a_removal_waits_for_no_task_of_another_queue(crowd: Crowd) -> None:
    """O9: whoever holds those, and for however long."""
    scene, cursor = crowd.scene, None
    with scene.connect("owner", autocommit=False) as other:
        other.execute("SELECT 1 FROM poolkeeper.task WHERE queue_id <> %s FOR UPDATE", [crowd.queue_ids[PLAIN]])
        for _ in range(6):
            page = scene.ask("operator", calls.purge(*OWNER, PLAIN, who="ann", cursor=cursor))
            cursor = page.cursor
        other.rollback()
    assert cursor is None


def test_a_call_that_makes_no_sense_is_refused(scene: Scene) -> None:
    """Contract 9: by a sentence, before anything is done."""
    worker = scene.worker()
    scene.submit()
    turn = "SELECT * FROM poolkeeper.turn(%s, %s, %s, %s, '[]', 1)"
    for numbers in ((-1, 0), (1, -1), (10**16, 0), (1, 10**16), (None, 0), (1, None)):
        with pytest.raises(psycopg.Error, match="no turn") as told:
            worker.conn.execute(turn, [worker.session.id, worker.session.secret, *numbers])
        assert told.value.sqlstate == "PK400"
    for tasks in ("{}", "1", "null", None):
        with pytest.raises(psycopg.Error, match="tasks must be a JSON array") as told:
            scene.actor("submitter").execute("SELECT * FROM poolkeeper.submit_many('q', %s)", [tasks])
        assert told.value.sqlstate == "PK400"
    assert scene.rows("SELECT 1 FROM poolkeeper.lease") == []
