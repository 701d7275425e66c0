"""What must hold before the operator starts: a new enough API server, our schemas with the fields needed, our rights.

Guarantees that each lack is named in one line with its remedy, within a second of the answer; nothing is guessed from
a request that hangs or is refused later.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from poolkeeper_operator.runtime import rights
from poolkeeper_operator.runtime.kinds import CRD, OURS, VERSION, Resource
from poolkeeper_operator.runtime.kube import Kube

OLDEST = (1, 30)

# Fields whose absence could not be told from pruning: a limit that the schema drops would look like "no limit" (O32).
NEEDED: Mapping[str, tuple[str, ...]] = {
    "Database": ("spec.dsnSecretRef", "status.conditions"),
    "TaskQueue": ("spec.databaseRef", "spec.deadLetter", "status.conditions"),
    "WorkerPool": (
        "spec.queues",
        "spec.maxRunning",
        "spec.providers",
        "spec.scaling",
        "spec.drain",
        "status.decisions",
    ),
    "ProviderQuota": ("spec.limits", "spec.suspended", "spec.allowedNamespaces", "status.conditions"),
}


async def failures(kube: Kube, namespaces: tuple[str, ...]) -> list[str]:
    """One line for each thing that keeps the operator from starting; empty if it may start."""
    version = await kube.version()
    if version < OLDEST:
        return [f"Kubernetes {version[0]}.{version[1]} is older than {OLDEST[0]}.{OLDEST[1]}; upgrade the cluster"]
    lacks = await rights.missing(kube, namespaces)
    if any("customresourcedefinitions" in lack for lack in lacks):
        return lacks
    return lacks + [line for resource in OURS for line in await _schema(kube, resource)]


async def _schema(kube: Kube, resource: Resource) -> list[str]:
    name = f"{resource.plural}.{resource.group}"
    crd = await kube.get(CRD, None, name)
    if crd is None:
        return [f"crd_missing: {name} is not installed; `poolkeeper crds | kubectl apply --server-side -f -`"]
    served = [v for v in crd["spec"]["versions"] if v["name"] == VERSION and v["served"]]
    if not served:
        return [f"crd_missing: {name} does not serve {VERSION}; apply the schemas of this version"]
    schema = served[0].get("schema", {}).get("openAPIV3Schema", {})
    return [
        f"crd_missing: {name} has no field {field}; apply the schemas of this version of the operator"
        for field in absent(schema, NEEDED[resource.kind])
    ]


def absent(schema: Mapping[str, Any], fields: Iterable[str]) -> list[str]:
    """The dotted fields that an OpenAPI schema does not have."""
    return [field for field in fields if not _has(schema, field.split("."))]


def _has(schema: Mapping[str, Any], path: list[str]) -> bool:
    here: Any = schema
    for part in path:
        here = (here or {}).get("properties", {}).get(part)
    return here is not None
