"""Which nodes are about to go, and what is known of how much grace they allow. Pure.

Guarantees (O23): a pod is on its way out where it could not be scheduled any more: its node is cordoned or shuts down, or carries a taint that it
does not tolerate for good, as Cluster Autoscaler, Karpenter, clouds and people set them. Taints about a node's health do not count: a
kubelet that is silent, or short of memory, says nothing of the worker, which renews its leases by itself, and a cluster of which
none is heard would stop all work.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

AUTOSCALER = "ToBeDeletedByClusterAutoscaler"  # whatever a pod tolerates: the machine goes
CORDON = "node.kubernetes.io/unschedulable"
SHUTDOWN = "node is shutting down"  # a kubelet's own words, in its condition Ready
SHUTTING_DOWN = "shuttingDown"
HEALTH = {
    f"node.kubernetes.io/{what}"
    for what in (
        "not-ready",
        "unreachable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
    )
}
EFFECTS = {"NoSchedule", "NoExecute"}
Taint = Mapping[str, Any]


def trimmed(node: Mapping[str, Any]) -> dict[str, Any]:
    """What of a node is looked at: a cluster has many, and each says a lot about itself."""
    spec = node.get("spec") or {}
    kept = {key: spec[key] for key in ("unschedulable", "taints") if spec.get(key)}
    conditions = (node.get("status") or {}).get("conditions") or []
    if any(c["type"] == "Ready" and c["status"] == "False" and SHUTDOWN in c.get("message", "") for c in conditions):
        kept[SHUTTING_DOWN] = True
    return kept


def leaving(node: Mapping[str, Any] | None, tolerations: Sequence[Mapping[str, Any]]) -> str:
    """Why a pod on this node is about to go, in a few words; empty if it is not, or nothing is known of the node."""
    spec = (node or {}).get("spec") or {}
    if spec.get(SHUTTING_DOWN):
        return "shutting down"
    if spec.get("unschedulable"):
        return "cordoned"
    for taint in spec.get("taints") or []:
        if taint.get("effect") not in EFFECTS or taint["key"] in HEALTH:
            continue
        if taint["key"] in {AUTOSCALER, CORDON} or not _tolerated(taint, tolerations):
            return f"taint {taint['key']}"
    return ""


def _tolerated(taint: Taint, tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of them lets the pod stay for good."""
    return any(_covers(each, taint) for each in tolerations if each.get("tolerationSeconds") is None)


def _covers(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/."""
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    key = toleration.get("key") or ""
    if toleration.get("operator") == "Exists":
        return key in {"", taint["key"]}
    return key == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")
