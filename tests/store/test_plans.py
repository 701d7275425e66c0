"""What the hot statements touch, whatever the tables hold and whatever their statistics say (Q14, quality 2.6).

Counted by the server itself, as a non-owner: tables that grow with work are entered by an index alone, and neither the
entries nor the blocks that a turn visits follow what else lies there. (Plans as text would need auto_explain, which not
every server ships, and would not show what a plan really visited.)
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, Worker, seconds
from store.windowing import entry, tell, use, window

GROWING = (
    "ready",
    "ordered",
    "gate_due",
    "lease",
    "later",
    "task",
    "delivery",
    "event",
    "task_key",
    "checkpoint",
    "dead",
    "retention_note",
    "provider_hold",
    "provider_spent",
    "provider_slice",
)
BATCH = 20
MOST = 1220
"""Index entries, and blocks of one index, that all the calls of ``hot_calls`` together may touch.

The most is 1203 blocks of ready_claim: eight of them are the four claims' probes for retries, of two blocks each (Q13).
"""

_COUNTED = """
    SELECT t.relname AS name, t.seq_scan AS scans, 0::bigint AS entries, 0::bigint AS blocks FROM pg_stat_user_tables AS t
    WHERE t.schemaname = 'poolkeeper'
    UNION ALL
    SELECT i.relname || '.' || i.indexrelname, 0, i.idx_tup_read, b.idx_blks_read + b.idx_blks_hit
    FROM pg_stat_user_indexes AS i JOIN pg_statio_user_indexes AS b USING (indexrelid) WHERE i.schemaname = 'poolkeeper'
"""


class Touched:
    """What was touched between two moments."""

    def __init__(self, scene: Scene, *conns: psycopg.Connection) -> None:
        self._scene = scene
        self._conns = conns
        self._before = self._now()

    def _now(self) -> dict[str, tuple[int, int, int]]:
        ours = (*self._conns, *self._scene._actors.values(), self._scene.owner)
        pids = [conn.info.backend_pid for conn in ours]
        strangers = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> ALL (%s)"
        end = time.monotonic() + 2  # the last test's sessions report when they go; one that holds a snapshot stays
        while time.monotonic() < end and self._scene.rows(strangers, pids):
            time.sleep(0.05)
        for conn in ours:
            conn.execute("SELECT pg_stat_force_next_flush()")
            conn.execute("SELECT 1")  # reports when it is idle again, before it answers this
        return {r.name: (r.scans, r.entries, r.blocks) for r in self._scene.rows(_COUNTED)}

    def stop(self) -> None:
        """Take the second look."""
        after = self._now()
        nothing = (0, 0, 0)
        self.by_name = {
            name: tuple(x - y for x, y in zip(seen, self._before.get(name, nothing), strict=True))
            for name, seen in after.items()
            if any(name.split(".")[0] == g or name.startswith(f"{g}_standard") for g in GROWING)
        }

    @property
    def scanned(self) -> set[str]:
        """Growing tables that were read from end to end."""
        return {name for name, (scans, _, _) in self.by_name.items() if scans}

    @property
    def excessive(self) -> dict[str, tuple[int, ...]]:
        """Indexes of which more than MOST was visited."""
        return {name: seen for name, seen in self.by_name.items() if max(seen[1:]) > MOST}


@contextmanager
def touching(scene: Scene, *conns: psycopg.Connection) -> Iterator[Touched]:
    """What the block touches."""
    touched = Touched(scene, *conns)
    yield touched
    touched.stop()


def empty(scene: Scene) -> None:
    """Nothing was ever submitted."""


def full(scene: Scene) -> None:
    """Thousands everywhere, most of them of one tenant."""
    scene.queue("big")
    for queue in ("q", "big"):
        scene.submit_many(2000, queue=queue, tenant="hog")
        tasks = [{"type": "a.b", "payload": n, "tenant": f"t{n % 60}", "priority": n % 10} for n in range(600)]
        scene.ask("submitter", calls.submit_many(queue, tasks))
        scene.submit_many(1500, queue=queue, delay=seconds(3000), max_age=seconds(9000))
    tasks = [{"type": "a.b", "payload": n, "key": f"k{n}"} for n in range(1500)]
    scene.ask("submitter", calls.submit_many("big", tasks))
    keyed = [{"type": "a.b", "payload": n, "ordering_key": f"k{n % 300}"} for n in range(1500)]
    scene.ask("submitter", calls.submit_many("big", keyed))
    worker = scene.worker(queues=["big"], concurrency=2000)
    held = worker.claim(1500)
    outcomes = ["succeeded", "dead", "failed", "rejected", "snoozed"]
    settles = [Settle(c.task_id, c.token, outcomes[n % 5], retry_after=seconds(5000)) for n, c in enumerate(held)]
    worker.turn(settles)
    assert len(worker.claim(1500)) == 1500


def skewed(scene: Scene) -> None:
    """One tenant and one type have nearly everything, and what is claimed here lies behind it."""
    scene.submit_many(4000, tenant="hog", type="a.hog")
    scene.submit_many(30, tenant="hog")
    scene.submit_many(3, tenant="other")


def bloated(scene: Scene) -> None:
    """Full, and emptied again under a snapshot that lets nothing be cleaned up."""
    snapshot = scene._stack.enter_context(scene.database.connect())
    snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    snapshot.execute("SELECT count(*) FROM poolkeeper.task")
    full(scene)
    worker = scene.worker(concurrency=2000)
    for _ in range(2):
        settles = [Settle(c.task_id, c.token, "succeeded") for c in worker.claim(1000)]
        worker.turn(settles)


SHAPES = {"empty": empty, "full": full, "skewed": skewed, "bloated": bloated}
STATISTICS = {
    "none": lambda scene, fill: fill(scene),
    "fresh": lambda scene, fill: (fill(scene), scene.owner.execute("ANALYZE")),
    "of empty tables": lambda scene, fill: (scene.owner.execute("ANALYZE"), fill(scene)),
}


def hot_calls(scene: Scene, worker: Worker) -> None:
    """A turn of everything, a renewal, a checkpoint and an extension, and looking for what is not there."""
    tasks = [{"type": "a.b", "payload": n, "ordering_key": None if n < BATCH else f"k{n}"} for n in range(2 * BATCH)]
    scene.ask("submitter", calls.submit_many("q", tasks))
    held = worker.claim(BATCH)
    assert len(held) == BATCH
    outcomes = ["succeeded"] * 10 + ["failed", "dead", "snoozed", "rejected", "handed_back"] * 2
    settles = [Settle(c.task_id, c.token, o) for c, o in zip(held, outcomes, strict=True)]
    worker.turn(settles, want=BATCH, sweep=True)
    worker.turn(settles, want=1)
    (delivery,) = worker.claim(1)
    worker.renew(*[c.task_id for c in held])
    run(worker.conn, calls.checkpoint(delivery.task_id, delivery.token, 1, sequence=1))
    run(worker.conn, calls.extend(delivery.task_id, delivery.token, seconds(5)))
    run(worker.conn, calls.task(held[0].task_id))
    run(worker.conn, calls.timeline(held[0].task_id))


@pytest.mark.parametrize(
    "plans", ["auto", *(pytest.param(f"force_{kind}_plan", marks=pytest.mark.wide) for kind in ("generic", "custom"))]
)
@pytest.mark.parametrize("statistics", list(STATISTICS))
@pytest.mark.parametrize("shape", list(SHAPES))
def test_what_workers_call_enters_growing_tables_by_an_index(
    scene: Scene, shape: str, statistics: str, plans: str
) -> None:
    """Q14: claim, settle, sweep, renew, checkpoint, looking up: on empty, full, skewed and bloated tables, analysed or not, planned for each call or once."""
    STATISTICS[statistics](scene, SHAPES[shape])
    conn = scene.connect("worker")
    conn.execute(f"SET plan_cache_mode = {plans}")
    worker = scene.worker(conn=conn, concurrency=100)
    worker.turn(sweep=True)  # the first to come by tidies up behind the filling
    with touching(scene, worker.conn) as touched:
        hot_calls(scene, worker)
    assert sum(entries for _, entries, _ in touched.by_name.values()) > BATCH  # it was counted at all
    assert touched.scanned == set()
    if shape != "bloated":
        assert touched.excessive == {}


def test_windows_are_counted_by_an_index_and_only_where_a_pool_has_them(scene: Scene) -> None:
    """Q14, Q40: a thousand tasks of other quotas hold theirs, and their spent is looked at by nobody else; who has no window looks at none."""
    scene.queue(visibility_timeout_seconds=300)
    scene.submit_many(1500)
    for n in range(10):
        use(scene, entry(1, quota=f"x/{n}", windows={"requests": window(1000)}), pool=f"team/{n}")
        scene.worker(pool=f"team/{n}", concurrency=200).claim(100)
    scene.owner.execute(
        "INSERT INTO poolkeeper.provider_spent (provider_id, at, requests, tokens)"
        " SELECT r.id, poolkeeper.clock(), 1, 0 FROM poolkeeper.provider AS r, generate_series(1, 500)"
    )
    use(scene, entry(1, windows={"requests": window(1000)}))
    conn = scene.connect("worker")
    own, bare = scene.worker(conn=conn), scene.worker(conn=conn, pool="team/bare")
    for worker, looked in ((own, True), (bare, False)):
        with touching(scene, conn) as touched:
            for _ in range(3):
                held = worker.claim(BATCH)
                assert len(held) == BATCH
                if looked:
                    tell(scene, held[0])
                worker.turn([Settle(c.task_id, c.token, "succeeded") for c in held])
        assert touched.scanned == set()
        assert touched.excessive == {}
        seen = {name for name, counts in touched.by_name.items() if name.startswith("provider_") and any(counts)}
        assert bool(seen) is looked


def test_submitting_enters_growing_tables_by_an_index(scene: Scene) -> None:
    """F2: with and without keys, new ones and known ones, and canceling."""
    full(scene)
    conn = scene.connect("submitter")
    with touching(scene, conn) as touched:
        for n in range(20):
            run(conn, calls.submit("big", "a.b", n, key=f"k{n}"))
            task_id = run(conn, calls.submit("q", "a.b", n, key=f"new{n}")).task_id
            assert task_id is not None
            run(conn, calls.cancel(task_id, who="a", why="b"))
    assert (touched.scanned, touched.excessive) == (set(), {})


def test_expiry_is_found_beside_thousands_of_live_leases(scene: Scene) -> None:
    """Q22: a sweep takes the few that expired and reads no table from end to end."""
    full(scene)
    scene.submit_many(30, type="c.d")
    scene.worker(types=["c.d"]).claim(30)
    scene.advance(16)
    scene.owner.execute("UPDATE poolkeeper.session SET renewed_at = poolkeeper.clock() WHERE types = '{a.b}'")
    conn = scene.connect("worker")
    with touching(scene, conn) as touched:
        run(conn, calls.sweep(100))
    assert scene.value("SELECT count(*) FROM poolkeeper.suspect") == 30
    assert touched.scanned == set()


def test_statistics_do_not_follow_the_backlog(scene: Scene) -> None:
    """O10: one statement for all queues; heads of lanes and capped counts, never a table from end to end."""
    full(scene)
    conn = scene.connect("operator")
    with touching(scene, conn) as touched:
        run(conn, calls.stats(cluster="local"))
    assert touched.scanned == set()


def buffers_per_turn(conn: psycopg.Connection, worker: Worker, turns: int = 15) -> float:
    """Buffers that a turn touches which settles ten and claims ten, on average."""
    total, held = 0, list[Claimed]()
    for n in range(turns + 5):
        worker.turn_no += 1
        call = calls.turn(
            worker.session, worker.turn_no, worker.received, [Settle(c.task_id, c.token, "succeeded") for c in held], 10
        )
        conn.execute("BEGIN")
        row = conn.execute(b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + call.sql, call.params).fetchone()
        conn.execute("COMMIT")
        assert row is not None
        if n >= 5:  # the first ones fill caches of the connection
            total += row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"]
        worker.received = worker.turn_no
        held = []
    return total / turns


def backlog(scene: Scene, count: int) -> None:
    """So many ready tasks, put there at once."""
    scene.owner.execute(
        "WITH body AS (INSERT INTO poolkeeper.task (id, queue_id, type, tenant, priority, accepted_at, run_at, payload, submitted_by)"
        " SELECT poolkeeper.new_id(), 1, 'a.b', 'default', 4, now(), now(), '1', 'bulk'"
        " FROM generate_series(1, %s) RETURNING id)"
        " INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at)"
        " SELECT b.id, 1, 4, poolkeeper.lane_key(1, 'default'), poolkeeper.type_key('a.b'), poolkeeper.clock() FROM body AS b",
        [count],
    )


def test_the_cost_of_a_claim_is_flat_in_the_backlog(scene: Scene) -> None:
    """Q14: buffers touched with 1,000 and with 100,000 tasks behind: a level of the index more, no more."""
    conn = scene.connect("worker")
    backlog(scene, 1000)
    few = buffers_per_turn(conn, scene.worker(conn=conn))
    backlog(scene, 100_000)
    many = buffers_per_turn(conn, scene.worker(conn=conn))
    scene.owner.execute("TRUNCATE poolkeeper.task, poolkeeper.ready, poolkeeper.lease, poolkeeper.delivery")
    assert many <= 1.5 * few + 20, (few, many)
