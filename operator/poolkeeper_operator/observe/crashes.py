"""How the processes of a pod ended, as its status tells it (O26). Pure.

Guarantees: only what Kubernetes states: exit code, OOMKilled, eviction and what disrupted the pod; never a container's own
message, which may hold anything. A process that ended well, with 0, is no crash.
"""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from poolkeeper_operator.observe.pods import first_line, moment

EVICTED = "Evicted"
OOM = "OOMKilled"
LONGEST = 300
NO_REASON = {"", "Error", "Completed", "ContainerStatusUnknown"}


@dataclass(frozen=True)
class Crash:
    """One process that ended and did not mean to."""

    uid: str  # of its pod
    at: datetime  # by the node's clock
    cause: str

    @property
    def kind(self) -> str:
        """One word of few, for metrics."""
        return next((word for word in (OOM, EVICTED) if word in self.cause), "Other")


def crashes(pod: Mapping[str, Any]) -> list[Crash]:
    """Every crash that a pod's status has, the oldest first: of the last process and of the one before."""
    status = pod.get("status") or {}
    uid = pod["metadata"]["uid"]
    ended = [
        Crash(uid, moment(each["finishedAt"]), _cause(pod, each, present=present)[:LONGEST])
        for container in status.get("containerStatuses") or []
        for each, present in _ends(container)
        if each.get("exitCode", 0) != 0 and each.get("finishedAt")
    ]
    if not ended and status.get("reason") == EVICTED:
        ended = [Crash(uid, at, _evicted(status)[:LONGEST]) for at in [_since(status)] if at is not None]
    return sorted(ended, key=lambda crash: crash.at)


def _ends(container: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], bool]]:
    for state, present in (("lastState", False), ("state", True)):
        ended = (container.get(state) or {}).get("terminated")
        if ended:
            yield ended, present


def _cause(pod: Mapping[str, Any], ended: Mapping[str, Any], *, present: bool) -> str:
    status, code = pod.get("status") or {}, ended["exitCode"]
    reason = str(ended.get("reason") or "")
    if reason in NO_REASON:
        reason = _signal(code)
    said = f"{reason} (exit {code})"
    if not present:  # what became of the pod says nothing of a process before
        return said
    if status.get("reason") == EVICTED:
        return f"{_evicted(status)} ({reason}, exit {code})"
    disruption = _disruption(status)
    if disruption:
        return f"{said}, by {disruption}"
    if "deletionTimestamp" in pod["metadata"] and code == 128 + signal.SIGKILL and reason != OOM:
        return f"{said}, at the end of its grace period"
    return said


def _signal(code: int) -> str:
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return "Error"


def _evicted(status: Mapping[str, Any]) -> str:
    said = first_line(str(status.get("message") or ""))
    return f"{EVICTED}: {said}" if said else EVICTED


def _disruption(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or []:
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return str(condition.get("reason") or "a disruption")
    return ""


def _since(status: Mapping[str, Any]) -> datetime | None:
    """When a pod without the status of a container was evicted: its last transition."""
    times = [c["lastTransitionTime"] for c in status.get("conditions") or [] if c.get("lastTransitionTime")]
    return max(map(moment, times), default=None) or (moment(status["startTime"]) if status.get("startTime") else None)
