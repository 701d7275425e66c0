"""The contract's functions for people and programs that submit, look and mend; workers: ``turns``; operator: ``tending``.

Each function here makes a ``Call``; nothing is sent before ``run`` or ``arun``.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Json

from poolkeeper.codes import Code
from poolkeeper.errors import error
from poolkeeper.store.auditing import audit_counts, audit_keys, audit_tasks, only_look
from poolkeeper.store.call import Call, from_json, many, maybe, nothing, one, value
from poolkeeper.store.logins import pool_logins, retire_pool_login, set_pool_login
from poolkeeper.store.looking import doctor
from poolkeeper.store.posting import keep_post, post_taken, posts
from poolkeeper.store.recurring import (
    due_schedules,
    fire_schedules,
    pause_schedule,
    remove_schedule,
    run_schedule,
    schedules,
    set_schedule,
)
from poolkeeper.store.rows import (
    Applied,
    Changed,
    DeadLetter,
    HistoryRow,
    Installation,
    QueueStats,
    TaskView,
    Verdict,
)
from poolkeeper.store.tending import (
    accept_installation,
    dead_batch,
    dead_batch_announced,
    decisions,
    lead,
    maintain,
    mark_sessions,
    purge,
    record_decision,
    report_crashes,
    resign,
    set_pool,
    set_providers,
    stats,
    sweep,
    tell_grace,
)
from poolkeeper.store.turns import (
    checkpoint,
    end_session,
    extend,
    register_session,
    renew,
    report_drain,
    report_provider,
    succeed,
    turn,
)
from poolkeeper.store.wire import wire

__all__ = [
    "accept_installation",
    "apply_policy",
    "audit_counts",
    "audit_keys",
    "audit_tasks",
    "backend",
    "cancel",
    "checkpoint",
    "dead_batch",
    "dead_batch_announced",
    "dead_letters",
    "decisions",
    "discard",
    "doctor",
    "due_schedules",
    "end_session",
    "extend",
    "fire_schedules",
    "installation",
    "keep_post",
    "lead",
    "listen",
    "maintain",
    "mark_sessions",
    "only_look",
    "pause",
    "pause_schedule",
    "pool_logins",
    "post_taken",
    "posts",
    "purge",
    "queues",
    "record_decision",
    "register_session",
    "remove_schedule",
    "renew",
    "report_crashes",
    "report_drain",
    "report_provider",
    "requeue",
    "resign",
    "retire_pool_login",
    "run_schedule",
    "schedules",
    "set_pool",
    "set_pool_login",
    "set_providers",
    "set_schedule",
    "stats",
    "submit",
    "submit_many",
    "succeed",
    "sweep",
    "task",
    "tell_grace",
    "timeline",
    "turn",
]


def submit(
    queue: str,
    type: str,  # noqa: A002 - the word of the contract
    payload: Any,
    *,
    tenant: str = "default",
    key: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    delay: timedelta | None = None,
    max_age: timedelta | None = None,
    max_deliveries: int | None = None,
    labels: Mapping[str, Any] | None = None,
    traceparent: str | None = None,
    ordering_key: str | None = None,
    notify: bool = True,
) -> Call[Verdict]:
    """Submit one task (Q4, Q6, Q7). ``queue`` is ``namespace/name``; without "/", namespace ``default``.

    ``key`` makes the submit idempotent within (tenant, queue); ``max_age`` counts from ``run_at`` plus ``delay``; of one
    ``ordering_key`` within (tenant, queue) one task runs after the other (Q9).
    """
    wish = {
        "type": type,
        "payload": payload,
        "tenant": tenant,
        "key": key,
        "priority": priority,
        "run_at": run_at,
        "delay": delay,
        "max_age": max_age,
        "max_deliveries": max_deliveries,
        "labels": labels,
        "traceparent": traceparent,
        "ordering_key": ordering_key,
    }
    many_call = submit_many(queue, [wish], notify=notify)
    return Call(many_call.name, many_call.params, lambda rows: many_call.read(rows)[0])


def submit_many(queue: str, tasks: Sequence[Mapping[str, Any]], *, notify: bool = True) -> Call[list[Verdict]]:
    """Submit many in one call, with a verdict for each, in order. Fields of a task: those of ``submit``."""
    sent = Json(list(tasks), dumps=wire)
    return Call("submit_many", {"queue": queue, "tasks": sent, "notify": notify}, many(Verdict))


def cancel(task_id: UUID, *, who: str, why: str, seen_version: int | None = None) -> Call[Changed]:
    """Cancel (Q39): a waiting task ends at once, a running one is told at its next renewal."""
    return _change("cancel", task_id, who, why, seen_version)


def requeue(task_id: UUID, *, who: str, why: str, seen_version: int | None = None) -> Call[Changed]:
    """Give a dead letter a fresh budget (Q29); its checkpoint stays."""
    return _change("requeue", task_id, who, why, seen_version)


def discard(task_id: UUID, *, who: str, why: str, seen_version: int | None = None) -> Call[Changed]:
    """End a dead letter for good (Q29)."""
    return _change("discard", task_id, who, why, seen_version)


def _change(name: str, task_id: UUID, who: str, why: str, seen_version: int | None) -> Call[Changed]:
    params = {"task_id": task_id, "who": who, "why": why, "seen_version": seen_version}
    return Call(name, params, one(Changed))


def task(task_id: UUID) -> Call[TaskView | None]:
    """One task, or None where there is none for this login."""
    return Call("task", {"task_id": task_id}, maybe(TaskView))


def timeline(task_id: UUID) -> Call[list[HistoryRow]]:
    """Everything that happened to a task, in order (Q2)."""
    return Call("timeline", {"task_id": task_id}, many(HistoryRow))


def dead_letters(queue: str | None = None, limit: int = 100) -> Call[list[DeadLetter]]:
    """Dead letters, newest first."""
    return Call("dead_letters", {"queue": queue, "limit": limit}, many(DeadLetter))


def queues() -> Call[list[QueueStats]]:
    """Every queue that this login may see, with its depth and ages."""
    return Call("queues", {}, lambda rows: [from_json(QueueStats, row.data) for row in rows])


def apply_policy(
    cluster: str,
    namespace_uid: str,
    namespace: str,
    name: str,
    policy: Mapping[str, Any],
    *,
    who: str,
    adopt: str | None = None,
    term: UUID | None = None,
) -> Call[Applied]:
    """Apply the policy of a queue (O1); ``policy`` is ``QueuePolicy.to_store()``. The same policy changes nothing.

    Refused with ``queue_owned`` where it is another's, unless ``adopt`` is the ``owner`` that such a refusal named.
    """
    params = {
        "cluster": cluster,
        "namespace_uid": namespace_uid,
        "namespace": namespace,
        "name": name,
        "spec": Json(dict(policy)),
        "who": who,
        "adopt": adopt,
        "term": term,
    }
    return Call("apply_policy", params, one(Applied))


def pause(queue: str, paused: bool, *, who: str) -> Call[int]:
    """Pause or resume a queue outside Kubernetes; answers the new policy version.

    Raises NotFound where there is no such queue, Conflict where a TaskQueue keeps it.
    """

    def read(rows: list[Any]) -> int:
        if rows[0].code == Code.QUEUE_OWNED:
            raise error(
                Code.QUEUE_OWNED,
                f'queue "{queue}" is kept by a TaskQueue; set spec.paused: {str(paused).lower()} there',
            )
        if rows[0].code is not None:
            raise error(Code(rows[0].code), f'queue "{queue}" is not there; apply it first')
        return int(rows[0].policy_version)

    return Call("pause", {"queue": queue, "paused": paused, "who": who}, read)


def installation() -> Call[Installation]:
    """Which installation this is, and its schema version."""
    return Call("installation", {}, one(Installation))


def listen() -> Call[None]:
    """Hear of new tasks on this connection: notifications are hints without content, and may be lost with it."""
    return Call("listen", {}, nothing)


def backend() -> Call[int]:
    """Process id of the server that answers; another one than was told at the login where a pooler is in between."""
    return Call("backend", {}, value)
