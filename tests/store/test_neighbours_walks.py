"""The walks of a claim, which leap from lane to lane, see what a plain look sees, also where lanes of queues and tenants collide (Q11-Q14).

A lane is a hash of its queue and its tenant. Here those of all queues are the same, so that a look which forgets to say whose
lane it means finds its neighbours'.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from fixtures.neighbours import BOUNDED, LIMITED, PLAIN, QUEUES, Crowd

LEAST, MOST = -(2**63), 2**63 - 1
TENANTS = ("t1", "t2", "t3", "t4")
TYPES = ("a.b", "a.c", "d.e", "f.g", "x.y")
TABLES = ("ready", "later", "suspect", "ordered", "lease", "dead", "opening", "tenant_rule")
FEW = 1000


class Walks(Crowd):
    """The crowd with more tenants, types and priorities, retries among them, and the same lanes in each queue."""

    def __init__(self, crowd: Crowd) -> None:
        self.__dict__.update(crowd.__dict__)
        scene = self.scene
        tasks = [
            {"type": type_, "payload": 1, "tenant": tenant, "priority": (n + m) % 3}
            for n, tenant in enumerate(TENANTS)
            for m, type_ in enumerate(TYPES)
            if (n + m) % 4
        ]
        self._submit(tasks)
        self._submit([{"type": "a.c", "payload": 1, "tenant": "t1", "max_age": 7200, "priority": 2}])
        self.owner = scene.owner

    def mix(self) -> None:
        """To be given up at the end of a transaction: lanes that collide, retries in each, one that is too old."""
        self.owner.execute(
            "UPDATE poolkeeper.ready SET spent = 1, failures = 1 WHERE (seq + queue_id) % 3 = 0;"
            "UPDATE poolkeeper.ready SET expires_at = poolkeeper.clock() - interval '1 s' WHERE expires_at < poolkeeper.clock() + interval '3 h';"
            "INSERT INTO poolkeeper.opening (queue_id, lane) SELECT r.queue_id, r.lane FROM poolkeeper.ready AS r WHERE (r.queue_id + r.seq) % 2 = 0"
        )
        for table in TABLES:
            self.owner.execute(
                f"UPDATE poolkeeper.{table} AS x SET lane = poolkeeper.lane_key(0, c.tenant) FROM (SELECT DISTINCT t.queue_id, t.tenant FROM poolkeeper.task AS t) AS c"
                " WHERE c.queue_id = x.queue_id AND x.lane = poolkeeper.lane_key(x.queue_id, c.tenant)"
            )

    def ready(self, queue: str, *, again: bool | None = None) -> list[Any]:
        """What is ready there, in the order of the claim index."""
        rows = self.scene.rows(
            "SELECT * FROM poolkeeper.ready WHERE queue_id = %s ORDER BY lane, type_key, priority, seq",
            self.queue_ids[queue],
        )
        return [row for row in rows if again in {None, row.again}]

    def answers(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.owner.execute(query, params).fetchall()]

    def types(self, *names: str) -> list[int]:
        return cast(
            "list[int]",
            self.scene.value("SELECT ARRAY(SELECT poolkeeper.type_key(t) FROM unnest(%s::text[]) AS t)", list(names)),
        )


@pytest.fixture
def walks(crowd: Crowd) -> Iterator[Walks]:
    found = Walks(crowd)
    with found.owner.transaction(force_rollback=True):
        found.mix()
        yield found


def places(lanes: Sequence[int]) -> list[int]:
    """Where a walk may begin or end: before and behind everything, and at each lane."""
    return [LEAST, *sorted(set(lanes)), MOST]


KINDS = [(queue, again) for queue in QUEUES for again in (False, True)]


def test_heads_are_the_first_of_each_kind(walks: Walks) -> None:
    """Q11: of one queue, of first deliveries or of retries, behind a lane."""
    for queue, again in KINDS:
        queue_id = walks.queue_ids[queue]
        rows = walks.ready(queue, again=again)
        assert len({row.lane for row in rows}) > 2
        for after in places([row.lane for row in rows]):
            wanted: dict[tuple[int, ...], Any] = {}
            for row in rows:
                if row.lane > after:
                    wanted.setdefault((row.lane, row.type_key, row.priority), (row.seq, row.task_id, row.ready_at))
            told = walks.answers("SELECT * FROM poolkeeper.heads(%s, %s, %s, %s)", queue_id, again, after, FEW)
            assert told == [(*kind, *first) for kind, first in wanted.items()]
            assert walks.answers("SELECT * FROM poolkeeper.heads(%s, %s, %s, 2)", queue_id, again, after) == told[:2]


def test_a_walk_for_own_types_finds_each_once(walks: Walks) -> None:
    """Q11: what it can run, of lanes that it takes; of others it sees one for each gap between its types, and no more."""
    served = [walks.types(*names) for names in (("a.b",), ("a.c", "d.e"), ("a.b", "f.g", "x.y"), ("no.such",))]
    for keys, (queue, again) in [(keys, kind) for keys in served for kind in KINDS[:4]]:
        queue_id = walks.queue_ids[queue]
        rows = walks.ready(queue, again=again)
        ends = places([row.lane for row in rows])
        lanes = ends[1:-1]
        for after, until in [(after, until) for after in ends for until in ends if after < until]:
            for besides in ([], lanes[1:2], lanes):
                told = walks.answers(
                    "SELECT * FROM poolkeeper.own_heads(%s, %s, %s, %s, %s, %s, %s)",
                    *(queue_id, again, keys, besides, after, until, FEW),
                )
                mine = [row for row in told if row[1] in keys and row[0] not in besides]
                inside = [row for row in rows if after < row.lane <= until]
                assert mine == sorted(
                    {(r.lane, r.type_key, r.priority) for r in inside if r.type_key in keys and r.lane not in besides}
                )
                assert len(told) == len(set(told))
                assert {row[0] for row in told} <= {row.lane for row in inside}
                seen_in: dict[int, int] = defaultdict(int)
                for lane, type_key, _ in told:
                    seen_in[lane] += lane in besides or type_key not in keys
                assert all(seen <= (1 if lane in besides else len(keys) + 1) for lane, seen in seen_in.items())
        for lane in lanes:
            told = walks.answers(
                "SELECT * FROM poolkeeper.heads_of_lane(%s, %s, %s, %s, %s)", queue_id, again, lane, keys, FEW
            )
            assert told == sorted({(r.type_key, r.priority) for r in rows if r.lane == lane and r.type_key in keys})


def test_lanes_are_walked_one_by_one(walks: Walks) -> None:
    """Q12: those with work, and those that are open; of one queue, between two places."""
    for queue, queue_id in walks.queue_ids.items():
        lanes = sorted({row.lane for row in walks.ready(queue)})
        opened = sorted(
            {lane for (lane,) in walks.answers("SELECT lane FROM poolkeeper.opening WHERE queue_id = %s", queue_id)}
        )
        assert opened
        for after in places(lanes):
            behind = [(lane,) for lane in lanes if lane > after]
            assert walks.answers("SELECT poolkeeper.next_lane(%s, %s)", queue_id, after) == [
                behind[0] if behind else (None,)
            ]
            for most in (FEW, 1):
                assert (
                    walks.answers("SELECT * FROM poolkeeper.lanes_with_work(%s, %s, %s)", queue_id, after, most)
                    == behind[:most]
                )
            for until in places(lanes):
                between = [(lane,) for lane in opened if after < lane <= until]
                for most in (FEW, 1):
                    told = walks.answers(
                        "SELECT * FROM poolkeeper.opened(%s, %s, %s, %s)", queue_id, after, until, most
                    )
                    assert told == between[:most]
    only = "SELECT poolkeeper.next_lane(%s, %s)"
    for again in (False, True):  # of either kind alone
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute("DELETE FROM poolkeeper.ready WHERE again <> %s", [again])
            for queue, queue_id in walks.queue_ids.items():
                first = min(row.lane for row in walks.ready(queue))
                assert walks.answers(only, queue_id, LEAST) == [(first,)]


def test_shares_are_dealt_by_what_is_there(walks: Walks) -> None:
    """Q13: counted lane by lane, type by type and priority by priority, of one queue; what is too old takes nobody's place."""
    now = walks.scene.value("SELECT poolkeeper.clock()")
    for queue, queue_id in walks.queue_ids.items():
        there: dict[tuple[Any, ...], int] = defaultdict(int)
        for row in walks.ready(queue):
            there[row.lane, row.type_key, row.priority, row.again] += row.expires_at is None or row.expires_at > now
        shares = "(SELECT array_agg(DISTINCT ROW(r.lane, r.type_key, r.priority, 900, 1, r.again)::poolkeeper.share) FROM poolkeeper.ready AS r WHERE r.queue_id = q.id)"
        told = walks.answers(
            f"SELECT s.lane, s.type_key, s.priority, s.again, s.n FROM poolkeeper.queue AS q CROSS JOIN LATERAL poolkeeper.deal(q, 900, %s, {shares}, %s, 0) AS d"
            " CROSS JOIN LATERAL unnest(d._shares) AS s WHERE q.id = %s",
            *(now, LEAST, queue_id),
        )
        assert {row[:4]: row[4] for row in told} == {kind: n for kind, n in there.items() if n}
        assert len(told) == len({row[:4] for row in told})


def test_weights_are_of_the_own_queue(walks: Walks) -> None:
    """Q13: of its lanes, whatever the same lane weighs elsewhere."""
    rules = "INSERT INTO poolkeeper.tenant_rule (queue_id, tenant, lane, weight) SELECT q.id, x.t, poolkeeper.lane_key(0, x.t), q.id * 10 + x.n FROM poolkeeper.queue AS q, unnest(%s::text[]) WITH ORDINALITY AS x (t, n)"
    walks.owner.execute("DELETE FROM poolkeeper.tenant_rule")
    walks.owner.execute(rules, [list(TENANTS[:3])])
    for queue_id in walks.queue_ids.values():
        told = walks.answers(
            "SELECT s.weight FROM unnest(poolkeeper.weigh(%s, ARRAY(SELECT ROW(poolkeeper.lane_key(0, t), 1, 1, 1, 1, false)::poolkeeper.share FROM unnest(%s::text[]) AS t))) AS s",
            *(queue_id, list(TENANTS)),
        )
        assert told == [(queue_id * 10 + 1,), (queue_id * 10 + 2,), (queue_id * 10 + 3,), (1,)]


def test_what_is_granted_is_what_was_dealt(walks: Walks) -> None:
    """Q10, Q51: of its queue, kind and tenant, by name where lanes collide, and not too old; with its own checkpoint and body."""
    limits: tuple[tuple[list[str] | None, list[str] | None], ...] = (
        (None, None),
        (["t1"], None),
        (None, ["t1", "t3"]),
        (["t1", "t2"], ["t2"]),
    )
    walks.owner.execute("UPDATE poolkeeper.ready SET lane = 7 WHERE lane <> poolkeeper.lane_key(0, 't4')")
    walks.owner.execute(
        "INSERT INTO poolkeeper.checkpoint SELECT r.task_id, 1, 1, 1, to_jsonb(r.task_id), now() FROM poolkeeper.ready AS r WHERE r.seq % 2 = 0 ON CONFLICT DO NOTHING;"
        "UPDATE poolkeeper.ready SET delivery = 1 WHERE seq % 4 < 2"
    )
    saved = dict(walks.answers("SELECT task_id, value FROM poolkeeper.checkpoint"))
    tenant = dict(walks.answers("SELECT id, tenant FROM poolkeeper.task"))
    for queue, (tenants, besides) in [(queue, each) for queue in (PLAIN, BOUNDED, LIMITED) for each in limits]:
        rows = walks.ready(queue)
        kind = next(row for row in rows if row.lane == 7 and sum(_kind(row) == _kind(other) for other in rows) > 1)
        wanted = {
            row.task_id: (
                tenant[row.task_id],
                saved.get(row.task_id) if row.delivery else None,
                row.delivery > 0 and row.task_id in saved,
            )
            for row in rows
            if _kind(row) == _kind(kind)
            and (row.expires_at is None or row.expires_at - row.ready_at > timedelta(hours=3))
            and (tenants is None or tenant[row.task_id] in tenants)
            and (besides is None or tenant[row.task_id] not in besides)
        }
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute(
                "UPDATE poolkeeper.session SET tenants = %s, tenants_except = %s WHERE id = %s",
                [tenants, besides, walks.worker.session.id],
            )
            told = walks.answers(
                "SELECT a.task_id, a.tenant, a.checkpoint FROM poolkeeper.queue AS q, poolkeeper.session AS s"
                " CROSS JOIN LATERAL poolkeeper.grant_shares(q, s, 99, ARRAY[ROW(%s, %s, %s, 900, 1, %s)::poolkeeper.share], 900, poolkeeper.clock()) AS a"
                " WHERE q.id = %s AND s.id = %s",
                *(*_kind(kind), walks.queue_ids[queue], walks.worker.session.id),
            )
            marked = dict(
                walks.answers(
                    "SELECT task_id, checkpointed FROM poolkeeper.lease WHERE turn = 99 AND session_id = %s",
                    walks.worker.session.id,
                )
            )
        assert {row[0]: (*row[1:], marked[row[0]]) for row in told} == wanted


def _kind(row: Any) -> tuple[Any, ...]:
    return row.lane, row.type_key, row.priority, row.again


def test_the_stage_has_something_to_confuse(walks: Walks) -> None:
    """In each queue the same lanes, in several of which there are retries and first deliveries of the same types."""
    lanes = [{row.lane for row in walks.ready(queue)} for queue in QUEUES]
    assert all(each == lanes[0] for each in lanes)
    for queue in QUEUES:
        kinds = [{(row.lane, row.type_key) for row in walks.ready(queue, again=again)} for again in (False, True)]
        assert kinds[0] & kinds[1]
