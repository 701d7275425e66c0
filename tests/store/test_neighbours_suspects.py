"""Suspects, the room that is made for them, and keys of order, beside a crowd that has its own (Q9, Q27)."""

from uuid import UUID

import pytest

from fixtures.neighbours import BOUNDED, FOREIGN, HOUR, LIMITED, PLAIN, QUEUES, Crowd
from poolkeeper.store import calls, run
from store.scene import Worker


def isolating(crowd: Crowd, *queues: str, types: tuple[str, ...] = ("x.y",), pool: str = "local/iso") -> Worker:
    """A worker that can run what is suspect in these queues."""
    return crowd.scene.worker(pool=pool, queues=queues, types=types, concurrency=20, pod_name="iso")


def suspects(crowd: Crowd, *queues: str) -> set[UUID]:
    ids = [crowd.queue_ids[queue] for queue in queues]
    return {
        row.task_id for row in crowd.scene.rows("SELECT task_id FROM poolkeeper.suspect WHERE queue_id = ANY (%s)", ids)
    }


@pytest.mark.parametrize("queues", [(PLAIN,), (BOUNDED,), (PLAIN, LIMITED, FOREIGN), QUEUES])
def test_a_session_runs_the_suspects_of_its_queues(crowd: Crowd, queues: tuple[str, ...]) -> None:
    """Q27: of its types, each with its own body, queue and checkpoint; and what it then holds is all that it holds."""
    worker = isolating(crowd, *queues)
    mine = suspects(crowd, *queues)
    with crowd.untouched():  # it holds nothing: no room has to be made
        assert worker.turn(want=5).isolate is True
    with crowd.untouched(*mine) as own:
        own.queues |= {crowd.queue_ids[queue] for queue in queues}
        claimed = worker.claim(20, isolated=True)
    assert {c.task_id for c in claimed} == mine
    homes = {queue_id: name if "/" in name else f"default/{name}" for name, queue_id in crowd.queue_ids.items()}
    for delivery in claimed:
        (task,) = crowd.scene.rows("SELECT * FROM poolkeeper.task WHERE id = %s", delivery.task_id)
        assert (delivery.queue, delivery.type, delivery.tenant) == (homes[task.queue_id], task.type, task.tenant)
        assert (delivery.checkpoint, delivery.suspect, delivery.beside) == (str(delivery.task_id), True, 20)
        (lease,) = crowd.scene.rows("SELECT * FROM poolkeeper.lease WHERE task_id = %s", delivery.task_id)
        assert (lease.session_id, lease.counted) == (worker.session.id, task.queue_id == crowd.queue_ids[BOUNDED])
    assert worker.claim(20, isolated=True) == []
    with crowd.untouched(*mine) as own:
        own.queues |= {crowd.queue_ids[queue] for queue in queues}
        for delivery in claimed:
            assert worker.succeed(delivery).code is None


def test_who_runs_suspects_makes_no_room_for_more(crowd: Crowd) -> None:
    """Q27: it has that already; nothing else of the pool is told to wait."""
    worker = isolating(crowd, *QUEUES)
    assert len(worker.claim(1, isolated=True)) == 1
    with crowd.untouched():
        assert worker.turn(want=1).isolate is True


def test_suspects_of_others_hold_nobody_up(crowd: Crowd) -> None:
    """Q27: of another queue, of a type that it does not run, of a tenant that it does not take, paused or too old."""
    scene = crowd.scene
    for queues, types in (((PLAIN,), ("a.b",)), ((PLAIN,), ("x.z",))):
        worker = isolating(crowd, *queues, types=types)
        assert worker.turn(want=5).isolate is False
        assert worker.claim(5, isolated=True) == []
    for tenants in ({"tenants": ["t2"]}, {"tenants_except": ["t1"]}):
        call = calls.register_session("local/iso", QUEUES, ["x.y"], concurrency=5, info={}, **tenants)
        worker = Worker(scene.actor("worker"), run(scene.actor("worker"), call))
        with crowd.untouched():
            assert worker.turn(want=5).isolate is False
            assert worker.claim(5, isolated=True) == []
    scene.queue(PLAIN, paused_task_types=["x.y"])
    worker = isolating(crowd, PLAIN)
    with crowd.untouched():
        assert worker.turn(want=5).isolate is False
        assert worker.claim(5, isolated=True) == []
    scene.queue(PLAIN)
    scene.owner.execute(
        "UPDATE poolkeeper.suspect SET expires_at = poolkeeper.clock() WHERE queue_id = %s", [crowd.queue_ids[PLAIN]]
    )
    with crowd.untouched():
        assert worker.claim(5, isolated=True) == []


def test_limits_hold_for_suspects(crowd: Crowd) -> None:
    """Q12: of their queue, of their tenant there, of their pool; counted as far as they are its own."""
    scene = crowd.scene
    held = scene.value("SELECT count(*) FROM poolkeeper.lease WHERE queue_id = %s", crowd.queue_ids[PLAIN])
    worker = isolating(crowd, PLAIN, LIMITED)
    scene.queue(PLAIN, concurrency_max=held)
    (only,) = worker.claim(5, isolated=True)
    assert only.queue == f"default/{LIMITED}"
    scene.queue(PLAIN, concurrency_max=held + 1)
    (also,) = worker.claim(5, isolated=True)
    assert also.queue == f"default/{PLAIN}"
    of_tenant = scene.value(
        "SELECT count(*) FROM poolkeeper.lease AS l JOIN poolkeeper.task AS t ON t.id = l.task_id WHERE l.queue_id = %s AND t.tenant = 't1'",
        crowd.queue_ids[BOUNDED],
    )
    other = isolating(crowd, BOUNDED, pool="local/iso2")
    scene.queue(BOUNDED, per_tenant_max=of_tenant)
    assert other.claim(5, isolated=True) == []
    assert other.turn(want=5).isolate is False
    scene.queue(BOUNDED, per_tenant_max=of_tenant + 1)
    assert len(other.claim(5, isolated=True)) == 1
    last = isolating(crowd, FOREIGN, pool="local/iso3")
    scene.ask("operator", calls.set_pool("local/iso3", max_running=0))
    assert last.claim(5, isolated=True) == []
    scene.ask("operator", calls.set_pool("local/iso3", max_running=1))
    assert len(last.claim(5, isolated=True)) == 1


def test_one_of_a_pool_makes_room_and_of_each_pool_its_own(crowd: Crowd) -> None:
    """Q27: as long as that one is alive, does not drain and has not ended; and only that one gives it back."""
    scene = crowd.scene
    types = ("x.y", "a.b")
    one, two = isolating(crowd, PLAIN, types=types), isolating(crowd, PLAIN, types=types)
    other = isolating(crowd, PLAIN, types=types, pool="local/iso2")
    for _ in range(6):
        crowd.submit(PLAIN)
    # each holds another task: it has to make room
    scene.owner.execute(
        "UPDATE poolkeeper.suspect SET expires_at = poolkeeper.clock() WHERE queue_id = %s", [crowd.queue_ids[PLAIN]]
    )
    for worker in (one, two, other):
        assert len(worker.claim(1)) == 1
    scene.owner.execute("UPDATE poolkeeper.suspect SET expires_at = NULL")

    def holders() -> dict[str, UUID | None]:
        return {
            row.name: row.isolating_session for row in scene.rows("SELECT name, isolating_session FROM poolkeeper.pool")
        }

    with crowd.untouched() as own:
        own.pools.add(crowd.pool_id("local/iso"))
        assert one.turn(want=1).isolate is True
    with crowd.untouched(*ready(crowd)) as own:
        assert two.turn(want=1).isolate is False
    with crowd.untouched() as own:
        own.pools.add(crowd.pool_id("local/iso2"))
        assert other.turn(want=1).isolate is True
    assert one.turn(want=1).isolate is True
    assert holders()["local/iso"] == one.session.id
    scene.queue("brisk", visibility_timeout_seconds=2)  # none of theirs: they have longer
    scene.advance(4)
    assert two.turn(want=1).isolate is False
    for gone in (
        "UPDATE poolkeeper.session SET draining = true WHERE id = %s",
        "UPDATE poolkeeper.session SET draining = false, ended_at = poolkeeper.clock() WHERE id = %s",
        "UPDATE poolkeeper.session SET ended_at = NULL, renewed_at = renewed_at - interval '20 seconds' WHERE id = %s",
    ):
        scene.owner.execute(
            "UPDATE poolkeeper.pool SET isolating_session = %s WHERE name = 'local/iso'", [one.session.id]
        )
        scene.owner.execute(gone, [one.session.id])
        assert two.turn(want=1).isolate is True, gone
        assert holders()["local/iso"] == two.session.id
        assert holders()["local/iso2"] == other.session.id
    assert (
        len(isolating(crowd, BOUNDED, pool="local/iso3").claim(1, isolated=True)) == 1
    )  # another's, which keeps no room of theirs
    (gone_now,) = suspects(crowd, PLAIN)
    scene.ask("person", calls.cancel(gone_now, who="ann", why="x"))
    two.turn(want=1)
    assert holders()["local/iso"] is None
    assert holders()["local/iso2"] == other.session.id


def ready(crowd: Crowd) -> list[UUID]:
    return [row.task_id for row in crowd.scene.rows("SELECT task_id FROM poolkeeper.ready")]


@pytest.mark.parametrize("queue", [PLAIN, BOUNDED, LIMITED])
def test_a_key_goes_on_by_itself(crowd: Crowd, queue: str) -> None:
    """Q9: its next, in its queue, when its own head has gone: not when another key's has, nor by another queue's gate."""
    scene, home = crowd.scene, crowd.queue_ids[queue]
    first, second, third = (crowd.submit(queue, ordering_key="mine") for _ in range(3))
    scheduled = crowd.submit(queue, ordering_key="late", delay=HOUR)
    with crowd.untouched(first, scheduled) as own:
        own.queues.add(home)
        scene.sweep()
    assert scene.rows("SELECT 1 FROM poolkeeper.later WHERE task_id = %s", scheduled) != []
    with crowd.untouched(first) as own:
        own.queues.add(home)
        scene.ask("person", calls.cancel(first, who="ann", why="x"))
    with crowd.untouched(second) as own:
        own.queues.add(home)
        scene.sweep()
    (delivery,) = [c for c in crowd._until(crowd.worker, second, None) if c.task_id == second]
    with crowd.untouched(second, third) as own:
        own.queues.add(home)
        crowd.worker.settle(delivery, "dead")
        scene.sweep()
    assert scene.state(third) == ("ready")
    waits = scene.rows("SELECT 1 FROM poolkeeper.ordered WHERE task_id = %s", third) != []
    assert waits == (queue != LIMITED)
    with crowd.untouched(second, third) as own:
        own.queues.add(home)
        scene.ask("person", calls.discard(second, who="ann", why="x"))
        scene.sweep()
    assert scene.rows("SELECT 1 FROM poolkeeper.ready WHERE task_id = %s", third) != []


def test_a_narrow_sweep_opens_its_own_gates(crowd: Crowd) -> None:
    """Q9, Q51: whoever may see some queues only moves nothing behind the keys of others."""
    scene = crowd.scene
    mine, other = (crowd.submit(queue, ordering_key="mine") for queue in (PLAIN, LIMITED))
    scene.allow(scene.database.login("operator"), queues=[f"default/{PLAIN}"])
    with crowd.untouched(mine) as own:
        own.queues.add(crowd.queue_ids[PLAIN])
        scene.sweep()
    scene.allow(scene.database.login("operator"))
    with crowd.untouched(other) as own:
        own.queues.add(crowd.queue_ids[LIMITED])
        scene.sweep()
