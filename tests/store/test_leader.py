"""The store obeys the operator whose term it is, and no other (O29)."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from poolkeeper.codes import Code
from poolkeeper.errors import Conflict, Forbidden, NotFound
from poolkeeper.store import Call, Settle, calls, run
from store.scene import Scene, await_blocked, meanwhile

CLUSTER = "0c0ffee0-0000-4000-8000-000000000000"
SILENCE = 180


def lead(
    lease: str = "pk/operator", epoch: int = 1, holder: str = "op-1", namespace: str = "team", cluster: str = CLUSTER
) -> Call[Any]:
    return calls.lead(cluster, namespace, lease=lease, epoch=epoch, holder=holder)


def writes(scene: Scene, term: UUID | None, queue_id: int) -> dict[str, Call[Any]]:
    """One of each kind of write of an operator's, in namespace "team"."""
    policy = {"max_deliveries": 3}
    return {
        "set_pool": calls.set_pool("team/p", max_running=3, term=term),
        "set_providers": calls.set_providers(
            "team/p", [{"name": "api", "quota": "team/api", "cut": 50, "floor": 10, "recover": 5}], term=term
        ),
        "mark_sessions": calls.mark_sessions("team/p", ["pod-1"], draining=True, term=term),
        "tell_grace": calls.tell_grace("team/p", {"uid-1": 5.0}, term=term),
        "report_crashes": calls.report_crashes(
            "team/p", [("uid-1", datetime.now(UTC), "OOMKilled (exit 137)")], term=term
        ),
        "set_pool_login": calls.set_pool_login("team/p", "a", None, queues=["team/q"], term=term),
        "retire_pool_login": calls.retire_pool_login("team/p", "a", term=term),
        "record_decision": calls.record_decision("team/p", {"n": 1}, term=term),
        "dead_batch": calls.dead_batch(queue_id, term=term),
        "dead_batch_announced": calls.dead_batch_announced(queue_id, 1, term=term),
        "keep_post": calls.keep_post(queue_id, 1, {"n": 1}, term=term),
        "post_taken": calls.post_taken(queue_id, 1, term=term),
        "apply_policy": calls.apply_policy(CLUSTER, "uid", "team", "q", policy, who="op", term=term),
        "purge": calls.purge(CLUSTER, "uid", "team", "q", who="op", term=term),
    }


@pytest.fixture
def queue_id(scene: Scene) -> int:
    applied = scene.ask("operator", calls.apply_policy(CLUSTER, "uid", "team", "q", {"max_deliveries": 1}, who="t"))
    return applied.queue_id


KINDS_OF_WRITES = [
    "set_pool",
    "set_providers",
    "mark_sessions",
    "tell_grace",
    "report_crashes",
    "set_pool_login",
    "retire_pool_login",
    "record_decision",
    "dead_batch",
    "dead_batch_announced",
    "keep_post",
    "post_taken",
    "apply_policy",
    "purge",
]


@pytest.mark.parametrize("kind", KINDS_OF_WRITES)
def test_a_later_epoch_ends_the_term(scene: Scene, queue_id: int, kind: str) -> None:
    """O29: what the old leader writes is refused and changes nothing; the new one's is done."""
    old = scene.ask("operator", lead(epoch=1, holder="op-1"))
    scene.ask("operator", writes(scene, old, queue_id)[kind])
    new = scene.ask("operator", lead(epoch=2, holder="op-2"))
    assert new != old
    before = everything(scene)
    with pytest.raises(Conflict, match="another one leads") as caught:
        scene.ask("operator", writes(scene, old, queue_id)[kind])
    assert caught.value.code is Code.NOT_LEADING
    assert everything(scene) == before
    scene.ask("operator", writes(scene, new, queue_id)[kind])


@pytest.mark.parametrize("kind", KINDS_OF_WRITES)
def test_nobody_writes_without_a_term_where_an_operator_keeps_the_namespace(
    scene: Scene, queue_id: int, kind: str
) -> None:
    """O29: nor with one that was made up; elsewhere, and where it has fallen silent, it is as without Kubernetes."""
    scene.ask("operator", writes(scene, None, queue_id)[kind])
    scene.ask("operator", lead())
    for term in (None, uuid4()):
        with pytest.raises(Conflict):
            scene.ask("operator", writes(scene, term, queue_id)[kind])
    scene.ask("operator", calls.set_pool("other/p", max_running=1))
    scene.advance(SILENCE + 1)
    scene.ask("operator", writes(scene, None, queue_id)[kind])


@pytest.mark.parametrize("kind", KINDS_OF_WRITES)
def test_a_pool_in_the_operator_s_group_is_no_operator(scene: Scene, queue_id: int, kind: str) -> None:
    """Q51: a login that is a pool's by its row writes nothing of an operator's, also with the role given by mistake; nor does a person's."""
    for actor in ("operator", "person"):
        scene.allow(scene.database.login(actor), pool="team/p")
    before = everything(scene)
    if kind.startswith(("dead_batch", "keep_post", "post_taken")):  # a queue that it may not keep is not there for it
        assert not scene.ask("operator", writes(scene, None, queue_id)[kind])
    else:
        with pytest.raises(Forbidden):
            scene.ask("operator", writes(scene, None, queue_id)[kind])
    with pytest.raises(Forbidden):
        scene.ask("person", calls.apply_policy(CLUSTER, "uid", "team", "q", {"max_deliveries": 9}, who="p"))
    with pytest.raises(NotFound):
        scene.ask("person", calls.pause("team/q", paused=True, who="p"))
    assert everything(scene) == before


def test_every_write_of_an_operator_asks_for_its_term(bare_scene: Scene) -> None:
    """O29: whatever an operator alone may call, and a function to come, demands the term, unless it writes nothing of its own."""
    rows = bare_scene.rows(
        "SELECT p.proname AS name, p.prosrc AS source FROM pg_proc AS p WHERE p.pronamespace = 'poolkeeper'::regnamespace"
        " AND has_function_privilege('poolkeeper_operator', p.oid, 'EXECUTE')"
        " AND NOT has_function_privilege('poolkeeper_reader', p.oid, 'EXECUTE') AND p.provolatile = 'v'"
    )
    anybody_s = {"sweep", "maintain", "fire_schedules"}  # the same whoever does it, and done once (Q34)
    unfenced = {row.name for row in rows if "poolkeeper.demand_leader" not in row.source}
    assert unfenced == anybody_s | {"lead", "resign", "stats"}  # and a reading
    assert {"set_pool", "apply_policy", "dead_batch"} <= {row.name for row in rows}


def everything(scene: Scene) -> list[object]:
    tables = ("pool", "provider", "session", "decision", "dead", "queue", "policy", "queue_count")
    return [[tuple(row) for row in scene.rows(f"SELECT * FROM poolkeeper.{table} ORDER BY 1, 2")] for table in tables]


def test_a_term_is_of_one_namespace(scene: Scene, queue_id: int) -> None:
    """O29: it opens no other."""
    term = scene.ask("operator", lead())
    scene.ask("operator", lead(namespace="other"))
    with pytest.raises(Conflict, match='namespace "other"'):
        scene.ask("operator", calls.set_pool("other/p", max_running=1, term=term))


def test_registering_again_is_a_sign_of_life(scene: Scene) -> None:
    """O29: the same operator keeps its term, and others wait for its silence."""
    term = scene.ask("operator", lead())
    for _ in range(3):
        scene.advance(SILENCE - 10)
        assert scene.ask("operator", lead()) == term
        with pytest.raises(Conflict):
            scene.ask("operator", lead(lease="other/operator", epoch=99, holder="x"))


def test_an_older_epoch_never_comes_back(scene: Scene) -> None:
    """O29: nor does another process with the same one."""
    scene.ask("operator", lead(epoch=2, holder="op-2"))
    for stale in (lead(epoch=1, holder="op-1"), lead(epoch=2, holder="op-1")):
        with pytest.raises(Conflict, match="kept by op-2"):
            scene.ask("operator", stale)


def test_two_operators_without_a_common_lease(scene: Scene) -> None:
    """O29: the second is told who keeps the namespace and what to do, and takes over when the first is silent."""
    term = scene.ask("operator", lead())
    other = lead(lease="elsewhere/operator", epoch=7, holder="op-x")
    with pytest.raises(Conflict) as caught:
        scene.ask("operator", other)
    for part in ('"team"', "op-1", "pk/operator", "elsewhere/operator", "watchNamespaces"):
        assert part in str(caught.value)
    scene.ask("operator", calls.set_pool("team/p", max_running=1, term=term))
    scene.advance(SILENCE + 1)
    scene.ask("operator", other)
    with pytest.raises(Conflict):
        scene.ask("operator", calls.set_pool("team/p", max_running=2, term=term))


def test_who_resigns_makes_room_at_once(scene: Scene) -> None:
    """O29: and its term is over as soon as another leads; a term of the past resigns nothing."""
    term = scene.ask("operator", lead())
    assert scene.ask("operator", calls.resign(term)) is True
    after = scene.ask("operator", lead(lease="elsewhere/operator", epoch=1, holder="op-x"))
    assert scene.ask("operator", calls.resign(term)) is False
    with pytest.raises(Conflict):
        scene.ask("operator", calls.set_pool("team/p", max_running=2, term=term))
    scene.ask("operator", calls.set_pool("team/p", max_running=2, term=after))


def test_other_namespaces_and_clusters_are_other_operators_business(scene: Scene) -> None:
    """O29, contract 11: two installations share a database as long as no namespace is kept twice."""
    scene.ask("operator", lead(namespace="a"))
    scene.ask("operator", lead(namespace="b", lease="b/operator", holder="op-b"))
    scene.ask("operator", lead(namespace="a", lease="c/operator", holder="op-c", cluster="another-cluster"))


def test_a_new_leader_waits_for_what_the_old_one_is_writing(scene: Scene) -> None:
    """O29: no write of the old term is committed after the new one has begun."""
    term = scene.ask("operator", lead())
    writing = scene.connect("operator", autocommit=False)
    run(writing, calls.set_pool("team/p", max_running=1, term=term))
    later = scene.connect("operator")
    with meanwhile(lambda: run(later, lead(epoch=2, holder="op-2"))) as taken:
        await_blocked(scene)
        writing.commit()
    assert taken.result() != term


def test_logins_that_keep_other_namespaces_cannot_register(scene: Scene) -> None:
    """Q51: an operator of one team's queues does not shut another's out; its own it keeps."""
    scene.actor("operator")
    scene.allow(scene.database.login("operator"), queues=["team/q"])
    scene.ask("operator", lead(namespace="team"))
    with pytest.raises(Forbidden):
        scene.ask("operator", lead(namespace="other"))
    scene.allow(scene.database.login("operator"), queues=[])
    with pytest.raises(Forbidden):
        scene.ask("operator", lead(namespace="team"))
    scene.allow(scene.database.login("operator"), pool="team/p")
    with pytest.raises(Forbidden):
        scene.ask("operator", lead(namespace="team"))


def test_people_apply_policies_outside_of_kubernetes_all_the_same(scene: Scene) -> None:
    """O29: an operator of a cluster is no bar to queues that no cluster keeps."""
    scene.ask("operator", lead(namespace="default"))
    applied = scene.ask("person", calls.apply_policy("local", "default", "default", "mine", {}, who="ann"))
    assert applied.code is None
    scene.submit(queue="mine", max_deliveries=1)
    worker = scene.worker(queues=["mine"])
    task = worker.claim(1)[0]
    worker.turn([Settle(task.task_id, task.token, "dead", error="x")])
    assert scene.ask("operator", calls.dead_batch(applied.queue_id)) is not None
