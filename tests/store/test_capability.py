"""What somebody can run, and tasks that nobody can: seen, told, and left alone (Q11, C06)."""

import psycopg
import pytest

from poolkeeper.store import calls, run
from poolkeeper.store.rows import QueueStats
from poolkeeper.store.signs import BuildStats
from store.scene import Scene, seconds
from store.test_plans import backlog, touching
from store.test_stats import pool_of, queue_of


def able(stats: QueueStats) -> dict[str, tuple[bool, bool]]:
    return {t.type: (t.live, t.known) for t in stats.types}


def test_tasks_that_no_worker_can_run_are_counted_by_type(scene: Scene) -> None:
    """Q11: beside those that somebody can; their age is not that of work that could run (O12)."""
    scene.submit_many(3, type="c.d")
    scene.advance(5)
    scene.submit_many(2)
    scene.worker()
    stats = queue_of(scene)
    assert able(stats) == {"a.b": (True, True), "c.d": (False, False)}
    assert (stats.ready, stats.no_capable_worker) == (5, 3)
    assert stats.oldest_runnable is not None
    assert stats.oldest_runnable < seconds(5)
    assert scene.ask("reader", calls.queues())[0].no_capable_worker == 3


def test_a_build_that_has_the_type_makes_them_runnable(scene: Scene) -> None:
    """C06: beside the old one, as in a rollout; and each is delivered for the first time."""
    tasks = scene.submit_many(3, type="c.d")
    old = scene.worker(build="v1")
    assert old.claim(10) == []
    assert queue_of(scene).no_capable_worker == 3
    new = scene.worker(build="v2", types=["a.b", "c.d"])
    stats = queue_of(scene)
    assert (stats.no_capable_worker, able(stats)) == (0, {"c.d": (True, True)})
    assert stats.oldest_runnable is not None
    assert {(c.task_id, c.delivery) for c in new.claim(10)} == {(task, 1) for task in tasks}


def test_what_a_pools_last_session_could_run_is_remembered(scene: Scene) -> None:
    """Q11: so a pool at zero is no reason to say that nobody can."""
    scene.submit_many(2)
    scene.submit("c.d")
    worker = scene.worker()
    worker.end()
    stats = queue_of(scene)
    assert (able(stats), stats.no_capable_worker) == ({"a.b": (False, True), "c.d": (False, False)}, 1)


def test_where_no_worker_was_ever_seen_everything_counts_as_able(scene: Scene) -> None:
    """Q11: the first pod of a pool has to start for something."""
    scene.queue("r")
    scene.worker(queues=["r"])
    scene.ask("operator", calls.set_pool("local/new", max_running=1))
    scene.submit("c.d")
    scene.advance(3)
    stats = queue_of(scene)
    assert (able(stats), stats.no_capable_worker) == ({"c.d": (False, True)}, 0)
    assert stats.oldest_runnable is not None
    assert stats.oldest_runnable >= seconds(3)


def test_workers_of_another_queue_do_not_count(scene: Scene) -> None:
    """Q11: of any pool of *their* queue."""
    scene.queue("r")
    scene.worker()
    scene.worker(pool="local/r", queues=["r"], types=["c.d"])
    scene.submit("c.d")
    assert queue_of(scene).no_capable_worker == 1


@pytest.mark.parametrize("gone", ["silent", "marked", "ended"])
def test_a_session_that_may_not_claim_is_not_live(scene: Scene, gone: str) -> None:
    """Q20, O17: silent for a lease, marked by the operator, or ended; what its pool can run stays known."""
    scene.submit("c.d")
    worker = scene.worker(types=["c.d"], pod_name="pod-1")
    assert able(queue_of(scene)) == {"c.d": (True, True)}
    if gone == "silent":
        scene.advance(16)
    elif gone == "marked":
        scene.ask("operator", calls.mark_sessions("local/p", ["pod-1"], draining=True))
    else:
        worker.end()
    assert able(queue_of(scene)) == {"c.d": (False, True)}
    scene.worker(types=["a.b"])  # another build of the pool, and the last
    assert able(queue_of(scene)) == {"c.d": (False, False)}


def test_the_builds_of_a_pool(scene: Scene) -> None:
    """Q11: those that live, and the last one, each with what it can run."""
    old = scene.worker(build="v1")
    scene.worker(build="v1")
    new = scene.worker(build="v2", types=["c.d", "a.b"])
    assert sorted(pool_of(scene).builds, key=lambda b: str(b.build)) == [
        BuildStats("v1", ["a.b"]),
        BuildStats("v2", ["c.d", "a.b"]),
    ]
    scene.advance(130)
    for worker in (old, new):
        worker.end()
    assert pool_of(scene).builds == [BuildStats("v2", ["c.d", "a.b"])]
    scene.ask("operator", calls.set_pool("local/new", max_running=1))
    assert pool_of(scene, "local/new").builds == []


def test_suspects_are_told_by_their_type(scene: Scene) -> None:
    """Q27, O12: one that nobody can run any more asks for no pod."""
    scene.submit()
    scene.submit("c.d")
    worker = scene.worker(types=["a.b", "c.d"])
    assert len(worker.claim(2)) == 2
    scene.advance(16)
    scene.sweep()
    scene.worker()
    stats = queue_of(scene)
    assert {t.type: (t.ready, t.suspects) for t in stats.types} == {"a.b": (0, 1), "c.d": (0, 1)}
    assert (stats.ready, stats.suspects, stats.no_capable_worker) == (2, 2, 1)


def test_one_task_says_why_it_waits(scene: Scene) -> None:
    """Q11: in its view, while it is so; a task of another type does not."""
    nobody, mine = scene.submit("c.d"), scene.submit()
    conn = scene.actor("reader")

    def reasons() -> list[tuple[str, str | None]]:
        views = [run(conn, calls.task(task)) for task in (nobody, mine)]
        return [(view.state, view.reason) for view in views if view is not None]

    assert reasons() == [("ready", None), ("ready", None)]  # nobody was ever seen
    scene.worker()
    assert reasons() == [("ready", "no_capable_worker"), ("ready", None)]
    scene.worker(build="v2", types=["c.d"])
    assert reasons() == [("ready", None), ("ready", None)]


def buffers(conn: psycopg.Connection) -> int:
    """What one reading of the statistics touches."""
    call = calls.stats(cluster="local")
    for _ in range(2):  # the first one fills caches of the connection
        row = conn.execute(b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + call.sql, call.params).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"])


def test_tasks_that_nobody_can_run_cost_the_statistics_no_more_than_others(scene: Scene) -> None:
    """O10, Q11: nor is a growing table read from end to end for them."""
    conn = scene.connect("operator")
    backlog(scene, 20_000)
    scene.worker(types=["a.b"])
    runnable = buffers(conn)
    scene.worker(types=["c.d"]).end()
    scene.owner.execute("UPDATE poolkeeper.session SET ended_at = poolkeeper.clock() WHERE ended_at IS NULL")
    assert queue_of(scene).no_capable_worker == 10_000
    with touching(scene, conn) as touched:
        foreign = buffers(conn)
    scene.owner.execute("TRUNCATE poolkeeper.task, poolkeeper.ready")
    assert touched.scanned == set()
    assert foreign <= runnable + 20, (foreign, runnable)
