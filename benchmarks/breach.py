"""F20: how soon the operator acts, by the API server's own audit log: real control plane, real operator process.

(a) A task comes into an empty pool: until the replicas are written, and until the pod object is created.
(b) Work outgrows busy workers: from the moment when the oldest task passes targetAge until the replicas are written; a
negative figure was written before the breach. Pods stay Pending (no node); the workers' sessions are the benchmark's.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.figures import Figure, spread
from benchmarks.ground import ground
from fixtures.stage import Stage, until
from lab.audit import AuditLog, Write
from poolkeeper.store import Settle, calls

TARGET = timedelta(seconds=5)
ALLOWED = 2.0


def percentile(samples: list[float], share: float) -> float:
    """The smallest sample that at least this share of them does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * share * 100) // 100) - 1))]


def figures(*, rounds: int) -> list[Figure]:
    """F20, both halves."""
    with ground() as found:
        found.start().wait_ready()
        stage, audit = found.stage, found.audit
        stage.apply(stage.db(tickInterval="5s"))
        first = [_empty_pool(stage, audit, f"e{n}") for n in range(rounds)]
        breach = [outgrown(stage, audit, f"b{n}") for n in range(max(3, rounds // 3))]
    written, created = [w for w, _ in first], [c for _, c in first]
    print(f"  F20 empty pool: written {spread(written)}, pod {spread(created)}; breach: {spread(breach)}", flush=True)
    worst, late = percentile(created, 0.99), percentile(breach, 0.99)
    return [
        Figure("F20", "<= 2 s p99", "<= 2 s p99", f"{worst:.2f} s", "task in an empty pool until its pod is created",
               worst <= ALLOWED, {"replicas_written": spread(written), "pod_created": spread(created)}),
        Figure("F20", "<= 2 s p99", "<= 2 s p99", f"{late:.2f} s", "age breach until replicas are written (negative: before it)",
               late <= ALLOWED, {"after_breach": spread(breach)}),
    ]  # fmt: skip


def _empty_pool(stage: Stage, audit: AuditLog, name: str) -> tuple[float, float]:
    _in_force(stage, name)
    mark, began = audit.mark(), datetime.now(UTC)
    stage.submit(name)
    written = until(lambda: _replicas(audit, mark, stage.namespace, name), timeout=60)
    created = until(lambda: _pod(audit, mark, stage.namespace, name), timeout=60)
    _away(stage, name)
    return (written.at - began).total_seconds(), (created.at - began).total_seconds()


def outgrown(stage: Stage, audit: AuditLog, name: str) -> float:
    """Seconds from the breach to the write. One worker is busy with one task, each of which takes half the target; then more comes than it can start in time."""
    _in_force(stage, name)
    stage.submit(name)
    pod = until(lambda: stage.pods(name), timeout=60)[0]
    session = stage.session(pod, name, name)
    took = 0
    claimed = stage.run(calls.turn(session, 1, 0, [], 1)).claimed
    for took in range(1, 30):  # the pool learns what a task takes
        stage.run(
            calls.renew(session, took, [claimed[0].task_id], stats={"finished": took, "busy_seconds": took * 2.5})
        )
    time.sleep(6)
    mark = audit.mark()
    began = datetime.now(UTC)
    stage.submit(name, 3)
    write = until(lambda: _replicas(audit, mark, stage.namespace, name), timeout=60)
    stage.run(calls.turn(session, 2, 1, [Settle(claimed[0].task_id, claimed[0].token, "succeeded")], 0))
    stage.run(calls.end_session(session))
    _away(stage, name)
    return float((write.at - began - TARGET).total_seconds())


def _in_force(stage: Stage, name: str) -> None:
    scaling = {"targetAge": f"{TARGET.seconds}s", "toZeroAfter": "1m", "down": {"window": "2m"}}
    stage.apply(stage.queue(name), stage.pool(name, scaling=scaling))
    stage.wait_condition("workerpool", name, "SignalFresh", "True", timeout=60)
    until(lambda: stage.replicas(name) == 0, timeout=30)


def _away(stage: Stage, name: str) -> None:
    stage.kubectl("delete", "workerpool,taskqueue", name, "--wait=false")


def _replicas(audit: AuditLog, mark: int, namespace: str, name: str) -> Write | None:
    def sets(body: Any) -> bool:
        return isinstance(body, dict) and bool((body.get("spec") or {}).get("replicas"))

    writes = audit.since(mark, namespace=namespace)
    return next((w for w in writes if w.resource == "deployments" and w.name == name and sets(w.body)), None)


def _pod(audit: AuditLog, mark: int, namespace: str, name: str) -> Write | None:
    writes = audit.since(mark, namespace=namespace)
    return next((w for w in writes if w.resource == "pods" and w.verb == "create" and _of(w.body, name)), None)


def _of(body: Any, name: str) -> bool:
    return isinstance(body, dict) and body.get("metadata", {}).get("labels", {}).get("poolkeeper.dev/pool") == name
