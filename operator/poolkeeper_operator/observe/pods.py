"""Why a pod does not start, in one line for people; and what a decision needs to know of it. Pure.

Guarantees: a cause is only what Kubernetes itself states of this pod or its Deployment; a pod that is merely slow has
none. Which pods work is known from the store's sessions, not from readiness.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from poolkeeper_operator.observe.nodes import leaving

HOPELESS = {
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
}
LINE = 200  # characters of a quoted message
COST = "controller.kubernetes.io/pod-deletion-cost"
BUSY = "poolkeeper.dev/busy"
ASKING = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""How a pod asks node scalers to be left alone; with `BUSY` it is the operator that asks."""


@dataclass(frozen=True)
class PodSeen:
    """One pod of a pool."""

    name: str
    uid: str
    created_at: datetime
    terminating: bool
    over: bool  # succeeded, failed or evicted: no longer counts
    phase: str
    ready: bool
    stuck: str  # why it cannot start; empty if it can
    cost: str | None  # the deletion cost that it carries
    node: str | None
    asking: bool | None = (
        False  # whether it asks node scalers to be left alone; None: its template says something of its own
    )
    leaving: str = ""  # why its node is about to go; empty if it is not, as far as is known


Node = Callable[[str], Mapping[str, Any] | None]
"""How a node of this name was last seen."""


def seen(pod: Mapping[str, Any], node: Node | None = None) -> PodSeen:
    """What a pod's manifest says, and that of its node."""
    meta, status, spec = pod["metadata"], pod.get("status") or {}, pod.get("spec") or {}
    name = spec.get("nodeName")
    return PodSeen(
        name=meta["name"],
        uid=meta["uid"],
        created_at=moment(meta["creationTimestamp"]),
        terminating="deletionTimestamp" in meta,
        over=status.get("phase") in {"Succeeded", "Failed"},
        phase=status.get("phase") or "Pending",
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or []),
        stuck=stuck(status),
        cost=(meta.get("annotations") or {}).get(COST),
        asking=_asking(meta.get("annotations") or {}),
        node=name,
        leaving=leaving(node(name), spec.get("tolerations") or []) if node and name else "",
    )


def _asking(annotations: Mapping[str, str]) -> bool | None:
    if BUSY in annotations:
        return True
    return None if annotations.keys() & ASKING.keys() else False


def stuck(status: Mapping[str, Any]) -> str:
    """Why a pod with this status cannot start; empty if nothing speaks against it."""
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', 'Unschedulable')}: {first_line(condition.get('message', ''))}"
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return next(filter(None, map(_container, containers)), "")


def told(stuck_pods: Iterable[PodSeen]) -> str:
    """Why they cannot start, by the newest: those of an older template may tell of what was mended since."""
    newest = max(stuck_pods, key=lambda pod: (pod.created_at, pod.name), default=None)
    return newest.stuck if newest else ""


def _container(container: Mapping[str, Any]) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason not in HOPELESS:
        return ""
    if reason != "CrashLoopBackOff":
        return f"{reason}: {first_line(waiting.get('message', '')) or container.get('image', '')}"
    ended = (container.get("lastState") or {}).get("terminated") or {}
    why = f" ({ended['reason']})" if ended.get("reason") not in {None, "Error"} else ""
    last = last_line(ended.get("message", ""))
    return f"CrashLoopBackOff: exit code {ended.get('exitCode', 'unknown')}{why}" + (f": {last}" if last else "")


def refused(deployment: Mapping[str, Any] | None) -> str:
    """Why the Deployment cannot create pods at all (quota, admission); empty if it can."""
    for condition in ((deployment or {}).get("status") or {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return f"{condition.get('reason', 'FailedCreate')}: {first_line(condition.get('message', ''))}"
    return ""


def rolling(deployment: Mapping[str, Any] | None) -> bool:
    """Whether a rollout is under way: pods of an older template are there, or the controller has not seen the last write."""
    if deployment is None:
        return False
    seen = (deployment.get("status") or {}).get("observedGeneration", 0)
    return bool(seen < deployment["metadata"].get("generation", 0)) or replacing(deployment)


def replacing(deployment: Mapping[str, Any]) -> bool:
    """Whether pods of an older template are there."""
    status = deployment.get("status") or {}
    return bool((status.get("replicas") or 0) > (status.get("updatedReplicas") or 0))


def moment(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def first_line(text: str) -> str:
    """The first line that says something, cut."""
    return next((line.strip()[:LINE] for line in text.splitlines() if line.strip()), "")


def last_line(text: str) -> str:
    """The last line that says something, cut: where a traceback names its exception."""
    return next((line.strip()[:LINE] for line in reversed(text.splitlines()) if line.strip()), "")


def living(pods: Iterable[Mapping[str, Any]], node: Node | None = None) -> list[PodSeen]:
    """The pods that count: neither terminating nor over."""
    return [pod for pod in (seen(each, node) for each in pods) if not pod.terminating and not pod.over]


def present_pods(pods: Iterable[Mapping[str, Any]]) -> int:
    """How many may still run something: terminating ones count."""
    return sum(not pod.over for pod in map(seen, pods))
