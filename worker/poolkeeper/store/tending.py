"""The calls of the operator: one reading of everything, limits, marks, decisions, announcements, upkeep.

What an operator writes carries the ``term`` that ``lead`` answered: the store refuses one that is over (``not_leading``). Without a
term it writes only where no operator keeps the namespace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Json

from poolkeeper.codes import Code
from poolkeeper.errors import error
from poolkeeper.store.call import Call, Row, from_json, maybe, nothing, one, value
from poolkeeper.store.rows import DeadBatch, PoolStats, QueueStats, Stats
from poolkeeper.store.signs import ProviderStats


@dataclass(frozen=True)
class Upkeep:
    """What one page of the upkeep removed (payloads, results and checkpoints: emptied), and whether there is more to do now.

    ``dead_letters``: discarded because nobody looked at them in time; ``made`` and ``dropped``: months of the history;
    ``holders``: sessions that were ended because they kept a limit from others (Q51).
    """

    tasks: int
    payloads: int
    results: int
    checkpoints: int
    dead_letters: int
    keys: int
    sessions: int
    decisions: int
    drains: int
    made: int
    dropped: int
    holders: int
    more: bool


@dataclass(frozen=True)
class Purged:
    """Answer to purge: ``removed`` tasks in this page; ``cursor`` goes into the next call, None: nothing is left."""

    code: Code | None
    removed: int
    cursor: dict[str, Any] | None


def stats(*, cluster: str | None, position: Mapping[str, Any] | None = None) -> Call[Stats]:
    """Everything about all queues of a cluster (None: all) and all pools, in one statement (O10).

    ``position``: that of the reading before; a database without what was there by then is held (Q24).
    """

    def read(rows: list[Row]) -> Stats:
        by_kind: dict[str, list[Any]] = {"queue": [], "pool": [], "provider": [], "installation": []}
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
            here["held"],
            here["position"],
            here["vacuum"],
            tuple(from_json(ProviderStats, p) for p in by_kind["provider"]),
        )

    return Call("stats", {"cluster": cluster, "position": None if position is None else Json(dict(position))}, read)


def set_pool(pool: str, *, max_running: int | None, term: UUID | None = None) -> Call[bool]:
    """Set the exact cap of running tasks at the claim (P7); True where it changed."""
    return Call("set_pool", {"pool": pool, "max_running": max_running, "term": term}, value)


def set_providers(pool: str, providers: Sequence[Mapping[str, Any]], *, term: UUID | None = None) -> Call[bool]:
    """Say which quota each provider of a pool is (Q40): ``name``, ``quota`` ("namespace/name"), and the quota's ``cut``, ``floor`` and ``recover``.

    ``windows``: the most ``requests`` and ``tokens`` that it grants, each {limit, window in seconds}; absent: no such bound. ``requests`` and ``tokens``: what
    one task of the pool needs of it; while a window is there and this is not, the pool starts nothing.
    All pools of one quota start fewer tasks once one of their workers reports that the provider refuses; True where something changed.
    """
    return Call(
        "set_providers", {"pool": pool, "providers": Json([dict(one) for one in providers]), "term": term}, value
    )


def mark_sessions(
    pool: str, pod_names: Sequence[str], *, draining: bool, term: UUID | None = None
) -> Call[dict[str, int]]:
    """Mark the sessions of these pods as draining, or not; answers the leases that each pod holds after it."""
    params = {"pool": pool, "pods": list(pod_names), "draining": draining, "term": term}

    def read(rows: list[Row]) -> dict[str, int]:
        return {row.pod_name: row.busy for row in rows}

    return Call("mark_sessions", params, read)


def tell_grace(pool: str, graces: Mapping[str, float], *, term: UUID | None = None) -> Call[int]:
    """Tell the workers in these pods, by uid, how many seconds of grace they really have (O20)."""
    params = {"pool": pool, "uids": list(graces), "seconds": list(graces.values()), "term": term}
    return Call("tell_grace", params, value)


def report_crashes(pool: str, crashes: Sequence[tuple[str, datetime, str]], *, term: UUID | None = None) -> Call[int]:
    """Tell how containers of a pool ended: the pod's uid, when, and how (O26); answers how many sessions are known to have ended so."""
    params = {
        "pool": pool,
        "uids": [uid for uid, _, _ in crashes],
        "ended": [at for _, at, _ in crashes],
        "crashes": [how for _, _, how in crashes],
        "term": term,
    }
    return Call("report_crashes", params, value)


def record_decision(pool: str, decision: Mapping[str, Any], *, term: UUID | None = None) -> Call[None]:
    """Keep a decision with all that it was made from (O11)."""
    params = {"pool": pool, "decision": Json(dict(decision)), "term": term}
    return Call("record_decision", params, nothing)


def decisions(pool: str, limit: int = 20) -> Call[list[tuple[datetime, dict[str, Any]]]]:
    """The last decisions of a pool, newest first."""
    return Call("decisions", {"pool": pool, "limit": limit}, lambda rows: [(r.at, r.decision) for r in rows])


def dead_batch(queue_id: int, *, term: UUID | None = None) -> Call[DeadBatch | None]:
    """The next batch of dead letters to announce, or None; the same one until ``dead_batch_announced``."""
    return Call("dead_batch", {"queue_id": queue_id, "term": term}, maybe(DeadBatch))


def dead_batch_announced(queue_id: int, number: int, *, term: UUID | None = None) -> Call[bool]:
    """Confirm the announcement of a batch; False where it was confirmed before."""
    return Call("dead_batch_announced", {"queue_id": queue_id, "number": number, "term": term}, value)


def purge(
    cluster: str,
    namespace_uid: str,
    namespace: str,
    name: str,
    *,
    who: str,
    cursor: Mapping[str, Any] | None = None,
    most: int = 2000,
    term: UUID | None = None,
) -> Call[Purged]:
    """Remove a page of a queue and of all that belongs to it (O9); call again with the cursor until there is none.

    Refused with ``queue_owned``, and nothing touched, where the queue is another cluster's or an earlier namespace's.
    """
    params = {
        "cluster": cluster,
        "namespace_uid": namespace_uid,
        "namespace": namespace,
        "name": name,
        "who": who,
        "cursor": None if cursor is None else Json(dict(cursor)),
        "most": most,
        "term": term,
    }
    return Call("purge", params, one(Purged))


def lead(cluster: str, namespace: str, *, lease: str, epoch: int, holder: str) -> Call[UUID]:
    """Register the operator that leads by a Lease, or say that it is still there (O29); answers the term that its writes carry.

    Raises Conflict (``not_leading``) where another one keeps the namespace.
    """

    def read(rows: list[Row]) -> UUID:
        row = rows[0]
        if row.code is not None:
            raise error(
                Code(row.code),
                f'namespace "{namespace}" of this database is kept by {row.holder}, by the Lease {row.lease}, not by {lease}: '
                "let one installation keep a namespace (watchNamespaces), or end the other; "
                "3 minutes after it was last heard of this one takes over",
            )
        return UUID(str(row.term))

    params = {"cluster": cluster, "namespace": namespace, "lease": lease, "epoch": epoch, "holder": holder}
    return Call("lead", params, read)


def accept_installation(who: str, why: str) -> Call[bool]:
    """Let a held installation go on as what it is now (Q24); False where it was not held."""
    return Call("accept_installation", {"who": who, "why": why}, value)


def resign(term: UUID) -> Call[bool]:
    """Say that the operator of this term goes; False where it was over."""
    return Call("resign", {"term": term}, value)


def sweep(most: int = 1000, since: float | None = None) -> Call[int]:
    """Return what time has moved: expired leases, due tasks, aged ones (Q22); answers how many.

    ``since``: seconds since the caller's last sweep by a monotonic clock, None where one failed since (Q23).
    """
    return Call("sweep", {"most": most, "since": since}, value)


def maintain(most: int = 1000) -> Call[Upkeep]:
    """One page of the upkeep: remove what is old by the policies (Q52), make and drop months of the history."""
    return Call("maintain", {"most": most}, one(Upkeep))
