"""F22 to F24: a thousand pools and queues under one operator, on a real control plane.

F22: from the start of the operator until its last write, by the API server's audit log, beside a raw apply of the
same Deployments and ServiceAccounts by eight connections; its memory; what it does when nothing happens.
F23: its connections to the one database, and transactions for each tick.
F24: the leader is killed, and one is frozen: until the next one has decided for every pool. No pod is made.
"""

import os
import secrets
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.figures import Figure
from benchmarks.footprint import memory, processor
from benchmarks.ground import Ground, ground
from fixtures.api import Api
from fixtures.stage import Operator, until
from lab.audit import Write

CONNECTIONS = 8
TICK = 5.0
PATIENCE = 600.0
DECIDED = "poolkeeper_pool_wanted_pods{"


def figures(ids: set[str], *, quick: bool) -> list[Figure]:
    """F22, F23 and F24, as asked."""
    count, calm = (100, 30.0) if quick else (1000, 60.0)
    found: list[Figure] = []
    with ground() as place:
        _furnish(place, count)
        mark, began = place.audit.mark(), time.time()
        operator = place.start()
        _await_decisions(operator, count, every=TICK)
        writes = _until_calm(place, mark)
        took = max(w.at for w in writes).timestamp() - began
        peak = _peak(operator.process.pid)
        print(
            f"  F22 {count} pools: last write after {took:.1f} s, {_by_kind(writes)}, peak {peak:.0f} MiB", flush=True
        )
        if "F22" in ids:
            raw = _raw(place)
            found += [
                Figure("F22", "<= 60 s", "", f"{took:.1f} s", f"cold start to the last write, {count} pools; raw apply of their Deployments and ServiceAccounts: {raw:.1f} s",
                       took <= 60, {"writes": _by_kind(writes), "raw_apply_seconds": round(raw, 1)}),
                Figure("F22", "<= 256 MiB", "", f"{peak:.0f} MiB", f"the operator's memory at its highest, {count} pools", peak <= 256),
            ]  # fmt: skip
        if ids & {"F22", "F23"}:
            found += _idle(place, operator, ids, count, calm)
        if "F24" in ids:
            found += _fail_overs(place, operator, count)
    return found


def _furnish(place: Ground, count: int) -> None:
    """The objects as users write them, before there is an operator."""
    stage = place.stage
    stage.apply(stage.db(tickInterval=f"{TICK:g}s"))
    names = [f"p{n:04}" for n in range(count)]
    _create(place, stage.namespace, "taskqueue", [stage.queue(name) for name in names])
    _create(place, stage.namespace, "workerpool", [stage.pool(name) for name in names])


def _create(place: Ground, namespace: str, kind: str, objects: Sequence[dict[str, Any]]) -> None:
    """As fast as the API server takes them from some connections."""

    def one(part: Sequence[dict[str, Any]]) -> None:
        api = Api(place.stage.kubectl.kubeconfig)
        for each in part:
            refused = api.create(kind, namespace, each)
            assert refused is None, refused
        api.close()

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(one, [objects[n::CONNECTIONS] for n in range(CONNECTIONS)]))


def _raw(place: Ground) -> float:
    """Seconds that it takes to make the same Deployments and ServiceAccounts in an empty namespace."""
    stage, other = place.stage, f"raw-{secrets.token_hex(3)}"
    stage.kubectl("create", "namespace", other)
    kinds = {
        kind: [_bare(each) for each in stage.all(kind, "poolkeeper.dev/pool")]
        for kind in ("serviceaccount", "deployment")
    }
    began = time.monotonic()
    for kind, objects in kinds.items():
        _create(place, other, kind, objects)
    return time.monotonic() - began


def _bare(made: dict[str, Any]) -> dict[str, Any]:
    meta = made["metadata"]
    kept = {key: meta[key] for key in ("name", "labels", "annotations") if key in meta}
    return {**{key: value for key, value in made.items() if key != "status"}, "metadata": kept}


def _await_decisions(operator: Operator, count: int, *, every: float) -> None:
    """Until it has decided for so many pools; looked at seldom, since each look costs the operator a page of thousands of lines."""
    end = time.monotonic() + PATIENCE
    while _decided(operator) < count:
        assert time.monotonic() < end, f"decided for {_decided(operator)} of {count} pools"
        time.sleep(every)


def _decided(operator: Operator) -> int:
    """For how many pools this process has decided since it leads."""
    try:
        told = operator.fetch("/metrics")[1]
    except (OSError, StopIteration):  # its port is not open yet, or it is busy
        return 0
    return sum(line.startswith(DECIDED) for line in told.splitlines())


def _own(place: Ground, mark: int) -> list[Write]:
    """The operators' writes: the cluster's own controllers have names of the system."""
    return [
        w
        for w in place.audit.since(mark, namespace=place.stage.namespace)
        if not w.user.startswith("system:") and w.resource != "leases"
    ]


def _until_calm(place: Ground, mark: int) -> list[Write]:
    """All writes since the mark, once none came for three ticks."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        here = place.audit.mark()
        time.sleep(3 * TICK)
        if not _own(place, here):
            return _own(place, mark)
    raise AssertionError("the operator goes on writing")


def _by_kind(writes: Sequence[Write]) -> dict[str, int]:
    kinds = [f"{w.verb} {w.resource}" for w in writes]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _peak(pid: int) -> float:
    """The most that it had resident, in MiB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def _idle(place: Ground, operator: Operator, ids: set[str], count: int, seconds: float) -> list[Figure]:
    """What it costs when nothing happens."""
    with psycopg.connect(place.stage.database.dsn, autocommit=True) as conn:
        mark, spent, calls, began = (
            place.audit.mark(),
            processor(operator.process.pid),
            _commits(conn),
            time.monotonic(),
        )
        time.sleep(seconds)
        took = time.monotonic() - began
        share = (processor(operator.process.pid) - spent) / took
        statements = (_commits(conn) - calls - 2) / took * TICK
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
        assert row is not None
        writes = _own(place, mark)
    unit = f"nothing to do for {seconds:g} s, {count} pools and queues"
    found = []
    if "F22" in ids:
        found += [
            Figure("F22", "<= 0.2 writes/s", "", f"{len(writes) / took:.2f}/s", unit, len(writes) / took <= 0.2, {"writes": _by_kind(writes)}),
            Figure("F22", "<= 0.25 cores", "", f"{share:.3f}", f"{unit}; {memory(operator.process.pid):.0f} MiB", share <= 0.25),
        ]  # fmt: skip
    if "F23" in ids:
        found += [
            Figure("F23", "<= 2 connections", "", str(row[0]), unit, row[0] <= 2),
            Figure("F23", "1 statement a tick", "", f"{statements:.2f}", f"{unit}; all transactions of the operator, the lease to lead included", statements <= 1.05),
        ]  # fmt: skip
    return found


def _commits(conn: psycopg.Connection) -> int:
    conn.execute("SELECT pg_stat_clear_snapshot()")
    row = conn.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def _fail_overs(place: Ground, leader: Operator, count: int) -> list[Figure]:
    """The one that leads is killed, then the next one frozen, each with another one that waits."""
    found = []
    for what, sign in (("killed", signal.SIGKILL), ("frozen", signal.SIGSTOP)):
        heir = place.start()
        until(lambda: any("leadership.standby" in line.get("message", "") for line in heir.lines()), timeout=PATIENCE)  # noqa: B023
        time.sleep(2 * TICK)
        began = time.monotonic()
        os.kill(leader.process.pid, sign)
        _await_decisions(heir, count, every=1.0)
        took = time.monotonic() - began
        found.append(
            Figure(
                "F24",
                "<= 20 s",
                "",
                f"{took:.1f} s",
                f"leader {what}, until the next one has decided for all {count} pools",
                took <= 20,
            )
        )
        leader.process.kill()
        leader = heir
    return found
