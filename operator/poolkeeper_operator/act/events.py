"""Events: one per transition, named so that a repeated one is refused by the API server instead of shown twice.

Events may be lost by the cluster: conditions, metrics and the store are the record.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from poolkeeper_operator.decide.conditions import cut, stamp
from poolkeeper_operator.runtime.kinds import MANAGER

Kind = Literal["Normal", "Warning"]


def event(
    about: Mapping[str, Any], *, suffix: str, kind: Kind, reason: str, message: str, now: datetime
) -> dict[str, Any]:
    """An Event about an object; `suffix` makes its name, equal suffixes are the same Event."""
    meta = about["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": meta["namespace"], "name": f"{meta['name']}.{suffix}".lower()},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "type": kind,
        "reason": reason,
        "message": cut(message),
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": MANAGER,
    }


def moment_suffix(now: datetime) -> str:
    """A suffix for a transition that may happen again: its time."""
    return f"{int(now.timestamp() * 1e6):x}"
