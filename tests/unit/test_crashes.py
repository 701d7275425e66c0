"""What a pod's status says of how its processes ended (O26): with the shapes that a kubelet writes."""

from typing import Any

import pytest

from poolkeeper_operator.observe.crashes import crashes

AT = "2026-11-29T20:00:00Z"
LATER = "2026-11-29T20:01:00Z"


def ended(code: int, reason: str = "Error", at: str = AT) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at, "message": "secret of a payload"}}


def pod(state: Any = None, last: Any = None, *, deleted: bool = False, **status: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"uid": "u-1", **({"deletionTimestamp": AT} if deleted else {})}
    container = {"name": "worker", "state": state or {"running": {}}, "lastState": last or {}}
    return {"metadata": meta, "status": {"containerStatuses": [container], **status}}


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "lastTransitionTime": AT}
EVICTED: dict[str, Any] = {
    "reason": "Evicted",
    "message": "The node was low on resource: memory.\nmore",
    "phase": "Failed",
}


@pytest.mark.parametrize(
    ("seen", "causes"),
    [
        (pod(), []),
        (pod(ended(0, "Completed")), []),
        (pod(ended(137, "OOMKilled")), ["OOMKilled (exit 137)"]),
        (pod(last=ended(137, "OOMKilled")), ["OOMKilled (exit 137)"]),
        (pod(ended(139)), ["SIGSEGV (exit 139)"]),
        (pod(ended(1)), ["Error (exit 1)"]),
        (pod(ended(137), deleted=True), ["SIGKILL (exit 137), at the end of its grace period"]),
        (pod(ended(137), conditions=[DISRUPTED], deleted=True), ["SIGKILL (exit 137), by PreemptionByScheduler"]),
        (pod(ended(137), **EVICTED), ["Evicted: The node was low on resource: memory. (SIGKILL, exit 137)"]),
        ({"metadata": {"uid": "u-1"}, "status": {**EVICTED, "startTime": AT}}, ["Evicted: The node was low on resource: memory."]),
        (pod(ended(1, at=LATER), ended(137, "OOMKilled"), deleted=True), ["OOMKilled (exit 137)", "Error (exit 1)"]),
        ({"metadata": {"uid": "u-1"}}, []),
    ],
)  # fmt: skip
def test_a_crash_in_a_few_words(seen: dict[str, Any], causes: list[str]) -> None:
    """Never the container's own message: it may hold what a task was given."""
    assert [crash.cause for crash in crashes(seen)] == causes
    assert "secret" not in str(crashes(seen))


def test_the_kinds_are_few() -> None:
    """A8: a label of a metric is bounded."""
    seen = [pod(ended(137, "OOMKilled")), pod(ended(137), **EVICTED), pod(ended(3)), pod(ended(9, "StartError"))]
    assert [crashes(each)[0].kind for each in seen] == ["OOMKilled", "Evicted", "Other", "Other"]
