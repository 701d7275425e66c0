"""spec.replicas of a pool, as the scale subresource reads and writes it. Pure.

Guarantees (O3, O19): a value counts as asked for only where somebody else than us wrote it. When a pool comes to External, one that was
written before is not obeyed: the present size is written over it, and stands until the other scaler writes anew.
"""

from collections.abc import Mapping
from typing import Any

from poolkeeper_operator.act import owners
from poolkeeper_operator.runtime.kinds import MANAGER, POOL, SCALER

FIELD = ("spec", "replicas")


def writers(pool: Mapping[str, Any]) -> list[str]:
    """Who beside us wrote the value that stands; nobody, if it is ours or there is none."""
    return [] if pool["spec"].get("replicas") is None else owners.who_scaled(pool)


def asked(pool: Mapping[str, Any]) -> int | None:
    """The size that another scaler asks for; None if none does."""
    return int(pool["spec"]["replicas"]) if writers(pool) else None


def handed_over(pool: Mapping[str, Any]) -> bool:
    """Whether the value that stands was written with the mode External, or after it."""
    theirs = _times(pool, *FIELD)
    mode = _times(pool, "spec", "scaling", "mode")
    return bool(theirs and mode and max(theirs) >= max(mode))


def build(pool: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    """The one field, for the pool as it was seen: who scales meanwhile is not overwritten."""
    meta = pool["metadata"]
    seen = {key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    return {
        "apiVersion": POOL.api_version,
        "kind": POOL.kind,
        "metadata": seen,
        "spec": {"replicas": replicas},
    }


def _times(pool: Mapping[str, Any], *path: str) -> list[str]:
    """When others than we wrote a field: RFC 3339 in UTC and whole seconds, so that text compares as time does."""
    return [
        str(entry["time"])
        for entry in owners.entries(pool, *path)
        if entry.get("manager") not in {MANAGER, SCALER} and entry.get("time")
    ]
