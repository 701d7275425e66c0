"""The second program: did the story happen? It asks the database, the API server and the model server's log, nobody else.

Guarantees a non-zero exit and the sentence for each thing that did not happen as promised; what was promised comes from
the files beside this one, not from the story. Knows nothing of what the story believes to have done.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import yaml
from psycopg.rows import dict_row

from lab.archive import image_id
from lab.audit import AuditLog
from lab.kubectl import Kubectl
from poolkeeper.durations import parse_duration

from .facts import CallLog, Delivery, Exit, Facts, Limit, Promise, Resize, Session, Task
from .judge import judge
from .model import RETRY_AFTER
from .trace import arrivals

HERE = Path(__file__).parent
NAMESPACE, NAME, POISON = "demo", "agents", "poison"
STEPS = ("plan", "write", "check")


def promise(image: str = "") -> Promise:
    """What the files of the demo say; `image` is the id of the one that was built."""
    spec = {kind: yaml.safe_load((HERE / f"{kind}.yaml").read_text())["spec"] for kind in ("queue", "quota", "pool")}
    return Promise(
        keys=frozenset(arrival.key for arrival in arrivals()),
        poison=POISON,
        steps=STEPS,
        concurrent_calls=spec["quota"]["limits"]["concurrentCalls"],
        max_deliveries=spec["queue"]["maxDeliveries"],
        retry_after=RETRY_AFTER,
        image=image,
        target_age=parse_duration(spec["pool"]["scaling"]["targetAge"]).total_seconds(),
    )


def collect(dsn: str, kubectl: Kubectl, audit: Path | None, log: Path) -> Facts:
    """Ask everybody who knows something."""
    rows = {name: _query(dsn, text) for name, text in _queries().items()}
    deliveries: dict[str, list[Delivery]] = defaultdict(list)
    for row in rows["deliveries"]:
        deliveries[row.pop("task")].append(Delivery(**row))
    calls = CallLog.of(json.loads(line) for line in log.read_text().splitlines())
    events = kubectl.get("events", "--field-selector", f"involvedObject.kind=TaskQueue,involvedObject.name={NAME}")
    deployment = kubectl.get("deployment", NAME)
    writes = None if audit is None else AuditLog(audit).since(namespace=NAMESPACE)
    decisions = tuple(row["decision"] for row in rows["decisions"])
    return Facts(
        tasks=tuple(
            Task(
                row["id"],
                row["key"],
                row["type"],
                row["state"],
                row["reason"],
                row["run_at"],
                tuple(deliveries[row["id"]]),
            )
            for row in rows["tasks"]
        ),
        sessions=tuple(Session(row["id"], row["pod"], row["slots"]) for row in rows["sessions"]),
        decisions=decisions,
        limits=tuple(_limits(decisions, writes or [])),
        calls=calls.calls,
        refusals=calls.refusals,
        dead_letter_events=tuple(event["message"] for event in events if "DeadLetter" in event["reason"]),
        replicas=deployment["spec"]["replicas"],
        pods=len(kubectl.get("pods", "-l", f"poolkeeper.dev/pool={NAME}")),
        resizes=None if writes is None else tuple(_resizes(writes)),
        exits=None if writes is None else tuple(_exits(writes)),
        images=None if writes is None else frozenset(_images(writes)),
    )


def _queries() -> dict[str, str]:
    parts = (HERE / "facts.sql").read_text().split("-- name: ")[1:]
    return {name.strip(): text for name, _, text in (part.partition("\n") for part in parts)}


def _query(dsn: str, text: str) -> list[dict[str, Any]]:
    path = f"{NAMESPACE}/{NAME}"
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        rows = conn.execute(text.encode(), {"queue": path, "pool": path}).fetchall()
    return [{key: _seconds(value) for key, value in row.items()} for row in rows]


def _seconds(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


def _limits(decisions: tuple[dict[str, Any], ...], writes: list[Any]) -> Iterator[Limit]:
    """From the changes of size in the store, and from the pool's status as it was written: a size that stays is no change."""
    told = [(each["limitedBy"], each["wanted"], each["limited"]) for each in decisions]
    for write in writes:
        if write.resource == "workerpools/status" and write.name == NAME:
            wanted = (_body(write).get("status") or {}).get("wanted") or {}
            told.append((wanted.get("limitedBy"), wanted.get("replicas"), wanted.get("limited")))
    return (Limit(wanted, limited) for by, wanted, limited in told if by == "ProviderQuota" and wanted and limited)


def _resizes(writes: list[Any]) -> list[Resize]:
    """Every size that was written to the pool's Deployment."""
    sizes = []
    for write in writes:
        if write.resource in {"deployments", "deployments/scale"} and write.name in {"", NAME}:
            replicas = (_body(write).get("spec") or {}).get("replicas")
            if replicas is not None:
                sizes.append(Resize(write.at.timestamp(), replicas))
    return sizes


def _exits(writes: list[Any]) -> list[Exit]:
    """Every end of a container, once per pod, code and time."""
    found = {}
    for pod, status in _containers(writes):
        for state in (status.get("state"), status.get("lastState")):
            if ended := (state or {}).get("terminated"):
                found[pod, ended["exitCode"], ended.get("finishedAt")] = Exit(pod, ended["exitCode"])
    return list(found.values())


def _images(writes: list[Any]) -> Iterator[str]:
    """The ids of the images that containers ran."""
    for _, status in _containers(writes):
        if status.get("imageID"):
            yield status["imageID"].rpartition("@")[2]


def _containers(writes: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pod and container status, as the kubelet wrote them."""
    for write in writes:
        if write.resource == "pods/status":
            for status in (_body(write).get("status") or {}).get("containerStatuses") or []:
                yield write.name, status


def _body(write: Any) -> dict[str, Any]:
    return write.body if isinstance(write.body, dict) else {}


def main() -> int:
    """Print the summary; 1 if anything in it is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True, help="of the installation's owner")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--audit", type=Path, help="the API server's record of writes")
    parser.add_argument("--log", type=Path, required=True, help="the model server's")
    parser.add_argument("--image", type=Path, required=True, help="archive of the image that pods were to run")
    asked = parser.parse_args()
    facts = collect(asked.dsn, Kubectl(asked.kubeconfig, NAMESPACE), asked.audit, asked.log)
    findings = judge(facts, promise(image_id(asked.image)))
    for finding in findings:
        print(f"  {'ok ' if finding.well else 'NOT'}  {finding.sentence}")
    broken = [finding for finding in findings if not finding.well]
    if broken:
        print(
            f"verify: {len(broken)} of {len(findings)} are not as promised: {'; '.join(each.sentence for each in broken)}"
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
