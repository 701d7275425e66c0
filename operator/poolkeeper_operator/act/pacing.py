"""A rollout of the operator's own, a pod at a time: how it is written into a Deployment. Pure.

Guarantees (O21): the template is the one in force with another grace period, nothing else of it moves; one pod is replaced,
and the next one only when the drain of the last must be over, whatever the user's surge; so it stays within every disruption
budget. All that is known of it stands in an annotation, so that another operator goes on with it. Where the user changes
the template meanwhile, theirs is rolled out as they say.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from poolkeeper_operator.act.compare import digest
from poolkeeper_operator.decide.conditions import stamp
from poolkeeper_operator.decide.lengthening import Lengthening
from poolkeeper_operator.observe.pods import moment, rolling
from poolkeeper_operator.runtime.kinds import GROUP

NOTE = f"{GROUP}/grace-rollout"
DEADLINE = 600  # seconds without progress after which a rollout counts as stuck: what Kubernetes sets by default


@dataclass(frozen=True)
class Pacing:
    """The last rollout of the operator's own."""

    at: datetime
    template: str  # digest of its template
    pause: int  # seconds from one pod to the next


def begin(template: Mapping[str, Any], how: Lengthening, now: datetime) -> tuple[dict[str, Any], Pacing]:
    """The template with the new grace period, and the note of the rollout that brings it."""
    seconds = int(how.grace.total_seconds())
    made: dict[str, Any] = copy.deepcopy(dict(template))
    made["spec"]["terminationGracePeriodSeconds"] = seconds
    for container in made["spec"]["containers"]:
        for variable in container.get("env") or []:
            if variable["name"] == "POOLKEEPER_GRACE_PERIOD":
                variable["value"] = str(seconds)
    return made, Pacing(now, digest(made), int(how.pause.total_seconds()))


def last(live: Mapping[str, Any] | None) -> Pacing | None:
    """The one that a Deployment tells of; None if there was none."""
    try:
        told = json.loads(((live or {})["metadata"].get("annotations") or {})[NOTE])
        return Pacing(moment(told["at"]), str(told["template"]), int(told["pause"]))
    except (KeyError, TypeError, ValueError):
        return None


def note(pacing: Pacing) -> str:
    """The annotation's value."""
    told = {"at": stamp(pacing.at), "template": pacing.template, "pause": pacing.pause}
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


def goes_on(pacing: Pacing, template: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether it is still under way with this template."""
    return pacing.template == digest(template) and rolling(live)


def fields(pacing: Pacing, *, under_way: bool) -> dict[str, Any]:
    """The fields of a Deployment's spec that pace it; afterwards those that undo it."""
    if not under_way:
        return {"minReadySeconds": 0, "progressDeadlineSeconds": DEADLINE}
    return {
        "minReadySeconds": pacing.pause,
        "progressDeadlineSeconds": pacing.pause + DEADLINE,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    }
