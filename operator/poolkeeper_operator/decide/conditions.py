"""Conditions and coarse numbers: what may stand in a status without making it move.

Guarantees: a condition keeps its `lastTransitionTime` while its status is the same; one entry per type, sorted; messages of at most 1 KiB,
cut on a character boundary; ages in coarse buckets, so that an unchanged situation is an unchanged status.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

MESSAGE_BYTES = 1024
BUCKETS = (0, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400)  # seconds


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as decided now."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def merge(
    present: Sequence[Mapping[str, Any]], new: Iterable[Condition], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The conditions to write: those of `new`, each with the transition time of its predecessor if the status did not change.

    Types that are not in `new` are kept as they are: they belong to someone else, or were not judged this time.
    """
    old = {c["type"]: dict(c) for c in present if "type" in c}
    for condition in new:
        was = old.get(condition.type, {})
        unchanged = was.get("status") == condition.status and was.get("lastTransitionTime")
        old[condition.type] = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": cut(condition.message),
            "observedGeneration": generation,
            "lastTransitionTime": was["lastTransitionTime"] if unchanged else stamp(now),
        }
    return [old[name] for name in sorted(old)]


def stamp(moment: datetime) -> str:
    """As Kubernetes writes times: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def cut(text: str, limit: int = MESSAGE_BYTES) -> str:
    """The text, or as many of its characters as fit into `limit` bytes with an ellipsis at the end."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    return raw[: limit - len("…".encode())].decode(errors="ignore") + "…"


def coarse(age: timedelta | None) -> str | None:
    """An age rounded down to its bucket, as a duration string: 0s 5s 15s 30s 1m 2m 5m … 24h, then whole days in hours."""
    if age is None:
        return None
    seconds = max(0, int(age.total_seconds()))
    day = BUCKETS[-1]
    bucket = seconds // day * day if seconds >= day else max(b for b in BUCKETS if b <= seconds)
    if bucket >= 3600:  # noqa: PLR2004
        return f"{bucket // 3600}h"
    return f"{bucket // 60}m" if bucket >= 60 else f"{bucket}s"  # noqa: PLR2004
