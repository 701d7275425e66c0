"""The children of a pool: Deployment, ServiceAccount, PodDisruptionBudget. Pure.

Guarantees: each is owned by its pool (the cluster's garbage collector removes it, no finalizer); an existing
Deployment keeps the template that it has, until the user's part of it changes (O21, O28), but for a grace period that cuts
drains short, see `pacing`; its replicas are left to the scaler as soon as that owns them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from poolkeeper_operator.act import owners, pacing
from poolkeeper_operator.act.compare import difference
from poolkeeper_operator.act.podtemplate import BUILD_LABEL, build_id, template
from poolkeeper_operator.decide.lengthening import Lengthening
from poolkeeper_operator.resources import DatabaseSpec, WorkerPoolSpec
from poolkeeper_operator.runtime.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    GROUP,
    MANAGER,
    POOL,
    POOL_LABEL,
    SCALER,
    SERVICE_ACCOUNT,
    Resource,
)

Manifest = dict[str, Any]
TEMPLATE_NOTE = f"{GROUP}/template"  # what was applied last, so that an upgrade of the operator repeats it


@dataclass(frozen=True)
class Child:
    """A manifest and what it is."""

    resource: Resource
    manifest: Manifest


def build_deployment(
    pool: Mapping[str, Any],
    spec: WorkerPoolSpec,
    database: DatabaseSpec,
    *,
    live: Mapping[str, Any] | None,
    grace_seconds: int,
    lengthen: tuple[Lengthening, datetime] | None = None,
) -> Manifest:
    """The Deployment to apply: a new one at zero replicas, an existing one with its template unless the user changed it.

    `lengthen`: roll it out now with the longer grace period that this decision names, made at that time (O21).
    """
    meta = pool["metadata"]
    namespace, name = meta["namespace"], meta["name"]
    build = build_id(spec, database)
    kept, paced, begins = kept_template(live, build), pacing.last(live), False
    pods = kept or template(namespace, name, spec, database, grace_seconds=grace_seconds, build=build)
    if lengthen is not None and kept is not None:
        (pods, paced), begins = pacing.begin(kept, *lengthen), True
    wanted: Manifest = {
        "selector": {"matchLabels": {POOL_LABEL: name}},
        "revisionHistoryLimit": 3,
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": spec.rollout.max_surge, "maxUnavailable": spec.rollout.max_unavailable},
        },
        "template": pods,
    }
    notes = {TEMPLATE_NOTE: json.dumps(pods, sort_keys=True, separators=(",", ":"))}
    if paced is not None:
        wanted |= pacing.fields(paced, under_way=begins or pacing.goes_on(paced, pods, live))
        notes[pacing.NOTE] = pacing.note(paced)
    replicas = _own_replicas(live)
    if replicas is not None:
        wanted["replicas"] = replicas
    return {**head(pool, DEPLOYMENT, name, notes, {BUILD_LABEL: build}), "spec": wanted}


def kept_template(live: Mapping[str, Any] | None, build: str) -> Manifest | None:
    """The template that an existing Deployment was given, if the user's part is still the same."""
    if live is None or (live["metadata"].get("labels") or {}).get(BUILD_LABEL) != build:
        return None
    try:
        kept: Manifest = json.loads((live["metadata"].get("annotations") or {})[TEMPLATE_NOTE])
    except (KeyError, ValueError):
        return None
    return kept


def present_grace(live: Mapping[str, Any] | None) -> int | None:
    """The grace period of a Deployment's template in seconds."""
    found = ((((live or {}).get("spec") or {}).get("template") or {}).get("spec") or {}).get(
        "terminationGracePeriodSeconds"
    )
    return None if found is None else int(found)


def _own_replicas(live: Mapping[str, Any] | None) -> int | None:
    """What the shape says about replicas: a sole owner that falls silent would have the field reset to 1."""
    if live is None:
        return 0
    if SCALER in owners.managers(live, "spec", "replicas"):
        return None
    if MANAGER in owners.managers(live, "spec", "replicas"):
        return int(live["spec"].get("replicas", 0))
    return None


def build_service_account(pool: Mapping[str, Any], spec: WorkerPoolSpec) -> Manifest | None:
    """The pool's own identity, which the API server knows nothing about; None if the user named one."""
    name = pool["metadata"]["name"]
    if spec.isolation.service_account_name is not None:  # be it the pool's own name
        return None
    return {**head(pool, SERVICE_ACCOUNT, name), "automountServiceAccountToken": False}


def build_disruption_budget(pool: Mapping[str, Any], spec: WorkerPoolSpec) -> Manifest:
    """Evictions go a few at a time; a pod that is not healthy never blocks the drain of its node."""
    name = pool["metadata"]["name"]
    return {
        **head(pool, DISRUPTION_BUDGET, name),
        "spec": {
            "maxUnavailable": spec.disruption.max_unavailable,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {POOL_LABEL: name}},
        },
    }


def build_replicas(live: Mapping[str, Any], replicas: int) -> Manifest:
    """The scaler's one field, for the Deployment as it was seen: the number follows from what stood there."""
    meta = live["metadata"]
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": {
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "spec": {"replicas": replicas},
    }


def as_seen(wanted: Manifest, live: Mapping[str, Any] | None) -> Manifest:
    """A child to be written only while it is as it was seen: the API server refuses it (409) if it was changed since."""
    if live is None:
        return wanted
    seen = {key: live["metadata"][key] for key in ("uid", "resourceVersion")}
    return {**wanted, "metadata": {**wanted["metadata"], **seen}}


def taken(found: Mapping[str, Any], pool: Mapping[str, Any]) -> str | None:
    """Why an object that bears the name of a child is not the pool's, and must be left alone; None if it may be taken.

    One of an earlier pool of that name is left to the garbage collector, or, where that has let it go, taken over.
    """
    meta, name = found["metadata"], pool["metadata"]["name"]
    holder = _controller(found)
    if holder is not None:
        ours = holder["kind"] == POOL.kind and holder["apiVersion"].startswith(f"{GROUP}/") and holder["name"] == name
        return None if ours else f'it belongs to {holder["kind"]} "{holder["name"]}"'
    labels = meta.get("labels") or {}
    made = labels.get(POOL_LABEL) == name and labels.get("app.kubernetes.io/managed-by") == MANAGER
    return None if made else "nobody of ours made it"


def owner(found: Mapping[str, Any]) -> str | None:
    """The uid of the object that controls another; None if none does."""
    holder = _controller(found)
    return None if holder is None else str(holder["uid"])


def _controller(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((each for each in found["metadata"].get("ownerReferences") or [] if each.get("controller")), None)


def changed(live: Mapping[str, Any] | None, wanted: Manifest) -> str | None:
    """Why a child must be written: the path of the first field that is not as wanted; None if it may be left alone."""
    if live is None:
        return "missing"
    return difference(live, {key: value for key, value in wanted.items() if key not in {"apiVersion", "kind"}})


def head(
    pool: Mapping[str, Any],
    resource: Resource,
    name: str,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """What every child begins with: its labels, and the pool as its owner."""
    owner = pool["metadata"]
    metadata: Manifest = {
        "namespace": owner["namespace"],
        "name": name,
        "labels": {
            "app.kubernetes.io/name": "poolkeeper-worker",
            "app.kubernetes.io/instance": owner["name"],
            "app.kubernetes.io/component": "worker",
            "app.kubernetes.io/part-of": "poolkeeper",
            "app.kubernetes.io/managed-by": MANAGER,
            POOL_LABEL: owner["name"],
            **(labels or {}),
        },
        "ownerReferences": [
            {
                "apiVersion": POOL.api_version,
                "kind": POOL.kind,
                "name": owner["name"],
                "uid": owner["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
