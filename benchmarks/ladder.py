"""What the benchmark beside KEDA asks of the API server and reads from its log: objects, and steps of a size. Pure; measures nothing.

KEDA looks at a table `jobs` of its own database in the same Postgres, as somebody would have who keeps work in a table: a row for each job,
a partial index for what is open, one connection string for all. Each setting of KEDA is a kind of ScaledObject here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lab.audit import Write

JOBS = """
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    state text NOT NULL DEFAULT 'ready',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX jobs_open ON jobs (queue, created_at) WHERE state IN ('ready', 'running');
"""
OPEN = "SELECT count(*) FROM jobs WHERE queue = '{queue}' AND state IN ('ready', 'running')"
AGE = (
    "SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0) FROM jobs"
    " WHERE queue = '{queue}' AND state IN ('ready', 'running')"
)
POLLS = (1, 5, 30)
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One way to set KEDA; what it does not name is at KEDA's default."""

    poll: int  # seconds
    opened: bool = False  # the HPA may add as many pods as it wants at each of its syncs; default: double, or to 4
    by_age: bool = False  # the metric is the age of the oldest job, not the number of open ones
    minimum: int = 0
    maximum: int = 100

    @property
    def name(self) -> str:
        """For tables."""
        return f"KEDA, poll {self.poll} s{', scale-up opened' if self.opened else ''}"

    def told(self) -> Manifest:
        """What the page says of it."""
        return {
            "query": (AGE if self.by_age else OPEN).format(queue="…"),
            "targetQueryValue": 5,
            "metricType": "AverageValue",
            "minReplicaCount": self.minimum,
            "maxReplicaCount": self.maximum,
            **({"behavior": OPENED} if self.opened else {}),
        }

    def objects(self, name: str, server: dict[str, str], pods: Manifest) -> list[Manifest]:
        """A Deployment and the ScaledObject that sizes it by the jobs of the queue of the same name."""
        labels = {"app": name}
        trigger = {
            "type": "postgresql",
            "metricType": "AverageValue",
            "metadata": {**server, "query": (AGE if self.by_age else OPEN).format(queue=name), "targetQueryValue": "5"},
        }
        spec: Manifest = {
            "scaleTargetRef": {"name": name},
            "pollingInterval": self.poll,
            "minReplicaCount": self.minimum,
            "maxReplicaCount": self.maximum,
            "triggers": [trigger],
        }
        if self.opened:
            spec["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": OPENED}}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": self.minimum,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pods},
            },
        }
        scaled = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": name}, "spec": spec}
        return [deployment, scaled]


OPENED = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 100, "periodSeconds": 15}],
    }
}


@dataclass(frozen=True)
class Step:
    """A write that set a size which was not there before."""

    at: datetime
    replicas: int


def steps(writes: Iterable[Write], name: str, *, start: int = 0) -> list[Step]:
    """The sizes that one Deployment was given, by whomever, in their order; a write that repeats the size is none."""
    found: list[Step] = []
    size = start
    for write in writes:
        wanted = _size(write) if write.name == name else None
        if wanted is not None and wanted != size:
            size = wanted
            found.append(Step(write.at, wanted))
    return found


def _size(write: Write) -> int | None:
    """The replicas that a write asks for; None if it is about something else, or says nothing of them."""
    if write.resource not in {"deployments", "deployments/scale"} or not isinstance(write.body, dict):
        return None
    spec = write.body.get("spec")
    if not isinstance(spec, dict):
        return None
    if write.resource == "deployments/scale":
        return int(spec.get("replicas") or 0)  # Scale leaves a zero out
    return int(spec["replicas"]) if spec.get("replicas") is not None else None


def first(steps: Sequence[Step], since: datetime, above: int = 0) -> float | None:
    """Seconds from a moment to the first size above this one; None if there was none."""
    return next(
        ((each.at - since).total_seconds() for each in steps if each.replicas > above and each.at >= since), None
    )


def climb(steps: Sequence[Step], since: datetime, top: int) -> tuple[float, list[int]] | None:
    """Seconds from a moment until the top was written, with each size on the way; None if it was not reached."""
    sizes: list[int] = []
    for each in steps:
        if each.at >= since:
            sizes.append(each.replicas)
            if each.replicas >= top:
                return (each.at - since).total_seconds(), sizes
    return None


def pods_made(writes: Iterable[Write], label: str, name: str) -> list[datetime]:
    """When pods of a Deployment were created, by a label that its pods carry."""
    return [
        write.at
        for write in writes
        if write.resource == "pods"
        and write.verb == "create"
        and isinstance(write.body, dict)
        and write.body.get("metadata", {}).get("labels", {}).get(label) == name
    ]
