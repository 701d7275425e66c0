"""The calls of the operator: one reading of everything, limits, marks, decisions, announcements, upkeep."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Json

from poolkeeper.store.call import Call, Row, from_json, maybe, nothing, value
from poolkeeper.store.rows import DeadBatch, PoolStats, QueueStats, Stats


def stats(*, cluster: str | None) -> Call[Stats]:
    """Everything about all queues of a cluster (None: all) and all pools, in one statement (O10)."""

    def read(rows: list[Row]) -> Stats:
        by_kind: dict[str, list[Any]] = {"queue": [], "pool": [], "installation": []}
        for row in rows:
            by_kind[row.kind].append(row.data)
        here = by_kind["installation"][0]
        return Stats(
            datetime.fromisoformat(here["now"]),
            UUID(here["instance_id"]),
            here["schema_version"],
            here["server_version"],
            [from_json(QueueStats, q) for q in by_kind["queue"]],
            [from_json(PoolStats, p) for p in by_kind["pool"]],
        )

    return Call("stats", {"cluster": cluster}, read)


def set_pool(pool: str, *, max_running: int | None) -> Call[bool]:
    """Set the exact cap of running tasks at the claim (P7); True where it changed."""
    return Call("set_pool", {"pool": pool, "max_running": max_running}, value)


def mark_sessions(pool: str, pod_names: Sequence[str], *, draining: bool) -> Call[dict[str, int]]:
    """Mark the sessions of these pods as draining, or not; answers the leases that each pod holds after it."""
    params = {"pool": pool, "pods": list(pod_names), "draining": draining}

    def read(rows: list[Row]) -> dict[str, int]:
        return {row.pod_name: row.busy for row in rows}

    return Call("mark_sessions", params, read)


def record_decision(pool: str, decision: Mapping[str, Any]) -> Call[None]:
    """Keep a decision with all that it was made from (O11)."""
    return Call("record_decision", {"pool": pool, "decision": Json(dict(decision))}, nothing)


def decisions(pool: str, limit: int = 20) -> Call[list[tuple[datetime, dict[str, Any]]]]:
    """The last decisions of a pool, newest first."""
    return Call("decisions", {"pool": pool, "limit": limit}, lambda rows: [(r.at, r.decision) for r in rows])


def dead_batch(queue_id: int) -> Call[DeadBatch | None]:
    """The next batch of dead letters to announce, or None; the same one until ``dead_batch_announced``."""
    return Call("dead_batch", {"queue_id": queue_id}, maybe(DeadBatch))


def dead_batch_announced(queue_id: int, number: int) -> Call[bool]:
    """Confirm the announcement of a batch; False where it was confirmed before."""
    return Call("dead_batch_announced", {"queue_id": queue_id, "number": number}, value)


def sweep(most: int = 1000) -> Call[int]:
    """Return what time has moved: expired leases, due tasks, aged ones (Q22); answers how many."""
    return Call("sweep", {"most": most}, value)


def maintain() -> Call[int]:
    """Make partitions ahead; answers how many were made."""
    return Call("maintain", {}, value)
