"""A pool in words. Pure: from the object as the API server has it to lines of text."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

_ORDER = (
    "Ready",
    "ScalingActive",
    "SignalFresh",
    "QuotaLimited",
    "DrainBudgetOK",
    "DeadLetters",
    "Drained",
    "EgressUnrestricted",
    "Reconciling",
    "Stalled",
)


def overview(pool: Mapping[str, Any]) -> list[str]:
    """Size, slots, grace and conditions."""
    meta, spec, status = pool["metadata"], pool.get("spec") or {}, pool.get("status") or {}
    wanted, grace = status.get("wanted") or {}, status.get("grace") or {}
    scaling = spec.get("scaling") or {}
    pods = f"{status.get('replicas', 0)} ({status.get('readyReplicas', 0)} ready), wanted {wanted.get('replicas', '?')}"
    lines = [
        f"pool {meta['namespace']}/{meta['name']}",
        f"  pods      {pods}, limits {scaling.get('min', 0)} to {scaling.get('max', 10)}",
        f"  slots     {status.get('busySlots', 0)} busy of {spec.get('concurrency', 10)} per pod",
    ]
    if grace:
        lines.append(
            f"  grace     {grace.get('applied')} applied, {grace.get('needed')} needed "
            f"({grace.get('samples')} drains measured, {grace.get('censored')} cut short)"
        )
    lines += [f"  {line}" for line in _conditions(status)]
    return lines


def explanation(pool: Mapping[str, Any]) -> list[str]:
    """Why it has its size, the last changes first to last, and what holds it now."""
    meta, status = pool["metadata"], pool.get("status") or {}
    wanted = status.get("wanted") or {}
    decisions = status.get("decisions") or []
    lines = [f"pool {meta['namespace']}/{meta['name']} has {status.get('replicas', 0)} pods."]
    if not status:
        return [*lines, "The operator has not looked at it yet: is it running, and does it keep this namespace?"]
    if wanted:
        lines.append(_now(wanted))
    if decisions:
        lines.append("How it came to this size:")
        lines += [f"  {line['time']}  {line['sentence']}" for line in reversed(decisions)]
    else:
        lines.append("Its size has not changed yet.")
    if status.get("grace"):
        lines.append(_grace(status["grace"]))
    trouble = list(_conditions(status, only_trouble=True))
    if trouble:
        lines += ["What is in the way:", *(f"  {line}" for line in trouble)]
    return lines


def recollection(kept: Sequence[tuple[datetime, Mapping[str, Any]]]) -> list[str]:
    """What the store recorded of it, newest last; changes of size only."""
    if not kept:
        return ["The store has recorded no change of its size (or this login may not see it)."]
    lines = [f"  {at:%Y-%m-%dT%H:%M:%SZ}  {decision['sentence']}" for at, decision in reversed(kept)]
    return ["The store has recorded:", *lines]


def _now(wanted: Mapping[str, Any]) -> str:
    told = f"Its work asks for {wanted.get('replicas')} pods"
    if wanted.get("limitedBy", "None") != "None":
        told += f"; {wanted['limitedBy']} leaves {wanted.get('limited')} of them"
    if wanted.get("rateLimitedBy", "None") != "None":
        told += f"; {wanted['rateLimitedBy']} lets it come to that step by step"
    return f"{told}; {wanted.get('applied')} are asked of the Deployment."


def _grace(grace: Mapping[str, Any]) -> str:
    return (
        f"Its pods are given {grace.get('applied')} to drain: {grace.get('reason')}, {grace.get('needed')} needed, "
        f"from {grace.get('samples')} measured drains of which {grace.get('censored')} were cut short."
    )


def _conditions(status: Mapping[str, Any], *, only_trouble: bool = False) -> Iterator[str]:
    found = {condition["type"]: condition for condition in status.get("conditions") or []}
    for kind in _ORDER:
        condition = found.get(kind)
        if condition is None or (only_trouble and not _trouble(condition)):
            continue
        message = f": {condition['message']}" if condition.get("message") else ""
        yield f"{kind}={condition['status']} ({condition['reason']}){message}"


def _trouble(condition: Mapping[str, Any]) -> bool:
    if condition["type"] in {"Drained", "EgressUnrestricted"}:
        return False
    bad = "False" if condition["type"] in {"Ready", "ScalingActive", "SignalFresh", "DrainBudgetOK"} else "True"
    telling = {
        "ForeignWriter",
        "ReplicasNotObeyed",
        "NoCapableWorker",
        "QueueHeld",
        "ExternalBounded",
        "HoldAndDrain",
        "Hold",
    }
    return bool(condition["status"] == bad or condition["reason"] in telling)
