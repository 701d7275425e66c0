"""A crowd whose lanes collide: the same in each queue, with more tenants, types and priorities, and retries among what is ready.

A lane is a hash of its queue and its tenant, so a look that forgets to say whose lane it means does the right thing all the same,
until two hashes are equal. Here they are (quality 3).
"""

from collections.abc import Sequence
from typing import Any, cast

from fixtures.neighbours import PLAIN, Crowd

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
        self._last = scene.submit("a.b", queue=PLAIN, tenant="t1", priority=1)

    def is_there(self) -> bool:
        """Whether nobody has cleared it since."""
        return bool(self.scene.rows("SELECT 1 FROM poolkeeper.task WHERE id = %s", self._last))

    def mix(self) -> None:
        """To be given up at the end of a transaction: lanes that collide, retries in each, one that is too old."""
        self.owner.execute(
            "CREATE TEMP TABLE place ON COMMIT DROP AS SELECT r.task_id, dense_rank() OVER (ORDER BY r.queue_id)"
            " + row_number() OVER (PARTITION BY r.queue_id ORDER BY r.seq) AS n,"
            " row_number() OVER kind AS of_kind, count(*) OVER kind AS alike FROM poolkeeper.ready AS r"
            " WINDOW kind AS (PARTITION BY r.queue_id, r.lane, r.type_key);"
            "UPDATE poolkeeper.ready AS r SET spent = 1, failures = 1 FROM place AS p"
            " WHERE p.task_id = r.task_id AND CASE WHEN p.alike > 1 THEN p.of_kind = 2 ELSE p.n % 3 = 0 END;"
            "UPDATE poolkeeper.ready SET expires_at = poolkeeper.clock() - interval '1 s' WHERE expires_at < poolkeeper.clock() + interval '3 h';"
            "INSERT INTO poolkeeper.opening (queue_id, lane) SELECT r.queue_id, r.lane FROM poolkeeper.ready AS r JOIN place AS p USING (task_id) WHERE p.n % 2 = 0"
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

    def lanes(self) -> list[int]:
        """The lane of each of TENANTS, which is that in every queue."""
        return [
            lane
            for (lane,) in self.answers("SELECT poolkeeper.lane_key(0, t) FROM unnest(%s::text[]) AS t", list(TENANTS))
        ]

    def answers(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.owner.execute(query, params).fetchall()]

    def types(self, *names: str) -> list[int]:
        return cast(
            "list[int]",
            self.scene.value("SELECT ARRAY(SELECT poolkeeper.type_key(t) FROM unnest(%s::text[]) AS t)", list(names)),
        )


def places(lanes: Sequence[int]) -> list[int]:
    """Where a walk may begin or end: before and behind everything, and at each lane."""
    return [LEAST, *sorted(set(lanes)), MOST]
