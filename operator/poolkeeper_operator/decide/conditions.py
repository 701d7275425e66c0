"""Conditions and coarse numbers: what may stand in a status without making it move.

Guarantees: a condition keeps its `lastTransitionTime` while its status is the same; one entry per type, sorted; messages of at most 1 KiB,
cut on a character boundary; ages in coarse buckets, so that an unchanged situation is an unchanged status.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

MESSAGE_BYTES = 1024
JOINER = "\u200d"  # between emoji that show as one
MOST_JOINED = 32  # characters that show as one, as far as a cut looks
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
    """The text, or as much of it as fits into `limit` bytes with an ellipsis at the end; no character as shown is cut in two."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    end = fits = len(raw[: limit - len("…".encode())].decode(errors="ignore"))
    while end > 0 and (text[end - 1] == JOINER or _joins(text[end])):
        end -= 1
        if fits - end > MOST_JOINED:  # no writing: marks without end
            end = fits
            break
    return text[:end] + "…"


def _joins(character: str) -> bool:
    """Whether it shows as a part of the one before it: a mark, a joiner, a skin tone."""
    tone = "\U0001f3fb" <= character <= "\U0001f3ff"
    return tone or character == JOINER or unicodedata.category(character) in {"Mn", "Mc", "Me"}


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
