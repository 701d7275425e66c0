"""What /metrics tells of the operator: the same values as status, per pool and queue, without a delay.

Names are part of the API. Labels are namespaces and names only; an object that is gone takes its series along.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import Counter, Gauge

from poolkeeper.store.rows import QueueStats
from poolkeeper.store.signs import ProviderStats
from poolkeeper.store.tending import Upkeep
from poolkeeper_operator.act.trouble import KINDS
from poolkeeper_operator.act.trouble import VACUUM as HELD
from poolkeeper_operator.decide.decision import Decision

_POOL = ("namespace", "pool")
_QUEUE = ("namespace", "queue")
_DATABASE = ("namespace", "database")
_QUOTA = ("namespace", "quota")

POOL_GAUGES: Mapping[str, Gauge] = {
    "wanted": Gauge("poolkeeper_pool_wanted_pods", "Pods that the work of a pool asks for.", _POOL),
    "needed": Gauge(
        "poolkeeper_pool_needed_pods",
        "The same also in scaling.mode External, where wanted is what the other scaler asks for: a figure for it to follow.",
        _POOL,
    ),
    "limited": Gauge("poolkeeper_pool_limited_pods", "Pods that limits leave of them.", _POOL),
    "replicas": Gauge("poolkeeper_pool_replicas", "Pods asked of the Deployment.", _POOL),
    "busy": Gauge("poolkeeper_pool_busy_slots", "Slots in use.", _POOL),
    "ready": Gauge("poolkeeper_pool_ready", "1 while the condition Ready of the pool holds.", _POOL),
    "drains_fit": Gauge(
        "poolkeeper_pool_drain_budget_ok", "1 while its drains fit into the grace of its pods (DrainBudgetOK).", _POOL
    ),
    "blind": Gauge("poolkeeper_pool_blind", "1 while the pool's queues cannot be read.", _POOL),
}
QUOTA_GAUGES: Mapping[str, Gauge] = {
    "percent": Gauge(
        "poolkeeper_quota_percent", "What is left of a provider's quota after what it refused; 100: all.", _QUOTA
    ),
    "throttled": Gauge(
        "poolkeeper_quota_throttled_reports", "Reports of workers that the provider refused (429), in total.", _QUOTA
    ),
    "ok": Gauge("poolkeeper_quota_ok_reports", "Reports of workers that it answered, in total.", _QUOTA),
    "failed": Gauge(
        "poolkeeper_quota_failed_reports", "Reports of workers that it failed otherwise, in total.", _QUOTA
    ),
    "requests": Gauge("poolkeeper_quota_reported_requests", "Requests that workers reported, in total.", _QUOTA),
    "tokens": Gauge("poolkeeper_quota_reported_tokens", "Tokens that workers reported, in total.", _QUOTA),
}
QUEUE_GAUGES: Mapping[str, Gauge] = {
    "ready": Gauge("poolkeeper_queue_runnable_tasks", "Tasks that could run now (counted up to 10000).", _QUEUE),
    "unable": Gauge(
        "poolkeeper_queue_no_capable_worker_tasks",
        "Of these, tasks of types that no worker of the queue can run.",
        _QUEUE,
    ),
    "retries": Gauge(
        "poolkeeper_queue_retries_held_back_tasks",
        "Of these, tasks that have failed or expired before and are more than their share of the claims.",
        _QUEUE,
    ),
    "running": Gauge("poolkeeper_queue_running_tasks", "Tasks in user code.", _QUEUE),
    "dead": Gauge("poolkeeper_queue_dead_letters", "Tasks that wait for a person.", _QUEUE),
    "dead_recent": Gauge("poolkeeper_queue_dead_letters_last_minute", "Of these, new within a minute.", _QUEUE),
    "oldest": Gauge("poolkeeper_queue_oldest_runnable_seconds", "Age of the oldest task that could run.", _QUEUE),
    "dead_oldest": Gauge("poolkeeper_queue_oldest_dead_letter_seconds", "Age of the oldest dead letter.", _QUEUE),
    "expiries": Gauge("poolkeeper_queue_lease_expiries", "Leases that ended by expiry, in total.", _QUEUE),
    "expired_live": Gauge(
        "poolkeeper_queue_expired_of_live_workers",
        "Deliveries that expired within ten minutes although their worker lives (counted up to 1000).",
        _QUEUE,
    ),
    "expired_dead": Gauge(
        "poolkeeper_queue_expired_of_dead_workers",
        "Deliveries that expired within ten minutes, of workers that were not heard of again (counted up to 1000).",
        _QUEUE,
    ),
    "slots_late": Gauge(
        "poolkeeper_queue_late_schedules", "Schedules with a slot that nobody fired for two minutes.", _QUEUE
    ),
    "slots_refused": Gauge("poolkeeper_queue_refused_schedules", "Schedules whose slots are refused.", _QUEUE),
}
QUEUE_TROUBLE = Gauge(
    "poolkeeper_queue_trouble",
    "1 while the TaskQueue's status says so, by the word that stands there (status.trouble).",
    (*_QUEUE, "trouble"),
)
DATABASE_TROUBLE = Gauge(
    "poolkeeper_database_trouble",
    "1 while the Database's status says so, by the word that stands there (status.trouble).",
    (*_DATABASE, "trouble"),
)
DATABASE_READY = Gauge("poolkeeper_database_ready", "1 while the condition Ready of the Database holds.", _DATABASE)
VACUUM = Gauge(
    "poolkeeper_database_vacuum_held_seconds",
    "How long somebody has kept vacuum from removing dead rows, where for more than a minute.",
    _DATABASE,
)
SCALED = Counter("poolkeeper_pool_scaled_total", "Changes of a pool's size.", (*_POOL, "direction"))
WRONG_VICTIMS = Counter(
    "poolkeeper_pool_wrong_victims_total",
    "Pods that the controller took at a scale-down in place of the idle ones that were chosen; they drain like any other.",
    _POOL,
)
CRASHES = Counter(
    "poolkeeper_pool_crashes_total",
    "Processes of workers that ended and did not mean to, by cause: OOMKilled, Evicted or Other.",
    (*_POOL, "cause"),
)
POSTS = Counter(
    "poolkeeper_queue_webhook_posts_total",
    "Tries to tell a webhook of a batch of dead letters, by how they ended: taken or failed.",
    (*_QUEUE, "outcome"),
)
CONTESTED = Gauge(
    "poolkeeper_operator_contested_databases", "Databases in which another operator keeps a namespace of this one's."
)
REMOVED = Counter(
    "poolkeeper_retention_removed_total",
    "What this operator's upkeep removed, or emptied, because of its age.",
    (*_DATABASE, "kind"),
)
FIRED = Counter(
    "poolkeeper_schedule_slots_fired_total",
    "Slots of schedules that this operator fired; workers fire too.",
    _DATABASE,
)
LATE = Gauge(
    "poolkeeper_schedule_late_seconds",
    "How long ago the slot came that waits longest to be fired, of queues that are not paused; 0: none waits.",
    _DATABASE,
)
AUDITED = Counter("poolkeeper_audit_tasks_total", "Tasks that this operator's audit looked at.", _DATABASE)
BROKEN = Gauge(
    "poolkeeper_audit_violations",
    "Violations of an invariant of the store that the last whole audit found, or the present one, if those are more.",
    (*_DATABASE, "invariant"),
)
LEADER = Gauge("poolkeeper_operator_leader", "1 while this operator may act, 0 while it stands by.")
FAILED = Counter("poolkeeper_operator_reconcile_failures_total", "Reconciles that will be tried again.", ("kind",))


def tell_pool(namespace: str, pool: str, decision: Decision, replicas: int, busy: int | None) -> None:
    """The last decision about a pool."""
    values = {
        "wanted": decision.wanted,
        "needed": decision.needed,
        "limited": decision.limited,
        "replicas": replicas,
        "blind": int(decision.blind),
        **({} if busy is None else {"busy": busy}),
    }
    for name, value in values.items():
        POOL_GAUGES[name].labels(namespace, pool).set(value)


def tell_pool_conditions(namespace: str, pool: str, conditions: Iterable[Mapping[str, Any]]) -> None:
    """What its status says, whether it was due to be written or not."""
    holds = {c["type"]: c["status"] == "True" for c in conditions}
    for name, kind in (("ready", "Ready"), ("drains_fit", "DrainBudgetOK")):
        if kind in holds:
            POOL_GAUGES[name].labels(namespace, pool).set(holds[kind])


def tell_upkeep(namespace: str, database: str, done: Upkeep) -> None:
    """One page of the upkeep of a database."""
    for kind in (
        "tasks",
        "payloads",
        "results",
        "checkpoints",
        "dead_letters",
        "keys",
        "sessions",
        "decisions",
        "drains",
    ):
        if count := getattr(done, kind):
            REMOVED.labels(namespace, database, kind).inc(count)


def tell_schedules(namespace: str, database: str, late: float) -> None:
    """The last reading of a database."""
    LATE.labels(namespace, database).set(late)


def tell_audit(namespace: str, database: str, looked: int, found: Mapping[str, int]) -> None:
    """One page of the audit of a database, and what is known to be broken there."""
    AUDITED.labels(namespace, database).inc(looked)
    for invariant, violations in found.items():
        BROKEN.labels(namespace, database, invariant).set(violations)


def forget_audit(namespace: str, database: str, invariants: Iterable[str]) -> None:
    """The Database is gone."""
    for labels in [(namespace, database, invariant) for invariant in invariants]:
        with contextlib.suppress(KeyError):
            BROKEN.remove(*labels)


def tell_queue(stats: QueueStats, unable: int) -> None:
    """The last reading of a queue, and how many of its tasks nobody can run."""
    values = {
        "ready": stats.ready,
        "unable": unable,
        "retries": stats.held_back.retry_share,
        "running": stats.running,
        "dead": stats.dead,
        "dead_recent": stats.dead_recent,
        "oldest": stats.oldest_runnable.total_seconds() if stats.oldest_runnable else 0.0,
        "dead_oldest": stats.dead_oldest.total_seconds() if stats.dead_oldest else 0.0,
        "expiries": stats.lease_expiries,
        "expired_live": stats.expired.live,
        "expired_dead": stats.expired.dead,
        "slots_late": stats.schedules.late,
        "slots_refused": stats.schedules.refused,
    }
    for name, value in values.items():
        QUEUE_GAUGES[name].labels(stats.namespace, stats.name).set(value)


def tell_quota(namespace: str, quota: str, percent: float, seen: Sequence[ProviderStats]) -> None:
    """What workers reported of a quota, in all databases that grant it."""
    QUOTA_GAUGES["percent"].labels(namespace, quota).set(percent)
    for name in ("throttled", "ok", "failed", "requests", "tokens"):
        QUOTA_GAUGES[name].labels(namespace, quota).set(sum(getattr(one, name) for one in seen))


def tell_trouble(namespace: str, queue: str, kinds: Iterable[str]) -> None:
    """What is wrong with a queue, as its status says it."""
    holds = set(kinds)
    for kind in KINDS:
        QUEUE_TROUBLE.labels(namespace, queue, kind).set(kind in holds)


def tell_vacuum(namespace: str, database: str, holder: Mapping[str, Any] | None, *, held: bool) -> None:
    """Who keeps vacuum back in a database, and whether its status says so."""
    VACUUM.labels(namespace, database).set((holder or {}).get("seconds") or 0.0)
    DATABASE_TROUBLE.labels(namespace, database, HELD).set(held)


def forget_database(namespace: str, database: str) -> None:
    """The Database is gone."""
    for gauge, labels in ((DATABASE_READY, ()), (VACUUM, ()), (DATABASE_TROUBLE, (HELD,)), (LATE, ())):
        with contextlib.suppress(KeyError):
            gauge.remove(namespace, database, *labels)


def forget_queue(namespace: str, queue: str) -> None:
    """The TaskQueue is gone."""
    forget(QUEUE_GAUGES, namespace, queue)
    for kind in KINDS:
        with contextlib.suppress(KeyError):
            QUEUE_TROUBLE.remove(namespace, queue, kind)


def forget(gauges: Mapping[str, Gauge], namespace: str, name: str) -> None:
    """The object is gone."""
    for gauge in gauges.values():
        try:
            gauge.remove(namespace, name)
        except KeyError:
            continue
