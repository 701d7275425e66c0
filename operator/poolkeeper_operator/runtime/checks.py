"""What must hold before the operator starts: a new enough API server, our schemas with the fields needed, our rights.

Guarantees that each lack is named in one line with its remedy, within a second of the answer; nothing is guessed from
a request that hangs or is refused later.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from poolkeeper_operator.resources import KINDS
from poolkeeper_operator.resources.schema import crd
from poolkeeper_operator.runtime import rights
from poolkeeper_operator.runtime.kinds import CRD, NAMESPACE, OURS, VERSION, Resource
from poolkeeper_operator.runtime.kube import Kube
from poolkeeper_operator.runtime.leadership import Post

OLDEST = (1, 30)
INSTALL = "`poolkeeper crds | kubectl apply --server-side -f -`"
SHOWN = 5  # fields named of each kind


async def failures(kube: Kube, namespaces: tuple[str, ...], post: Post) -> list[str]:
    """One line for each thing that keeps the operator from starting; empty if it may start."""
    version = await kube.version()
    if version < OLDEST:
        return [f"Kubernetes {version[0]}.{version[1]} is older than {OLDEST[0]}.{OLDEST[1]}; upgrade the cluster"]
    lacks = await rights.missing(kube, namespaces, post)
    if any("customresourcedefinitions" in lack for lack in lacks):
        return lacks
    if not lacks:
        lacks = [line for name in namespaces for line in await _namespace(kube, name)]
    return lacks + [line for resource in OURS for line in await _schema(kube, resource)]


async def _namespace(kube: Kube, name: str) -> list[str]:
    """What lists as empty may not be there at all."""
    if await kube.get(NAMESPACE, None, name) is not None:
        return []
    return [f'setting_invalid: there is no namespace "{name}"; create it, or correct --namespace']


async def _schema(kube: Kube, resource: Resource) -> list[str]:
    name = f"{resource.plural}.{resource.group}"
    found = await kube.get(CRD, None, name)
    if found is None:
        return [f"crd_missing: {name} is not installed; {INSTALL}"]
    served = [v for v in found["spec"]["versions"] if v["name"] == VERSION and v["served"]]
    if not served:
        return [f"crd_missing: {name} does not serve {VERSION}; apply the schemas of this version: {INSTALL}"]
    lacks = list(absent(_needed(resource.kind), served[0].get("schema", {}).get("openAPIV3Schema", {})))
    if not lacks:
        return []
    more = f" and {len(lacks) - SHOWN} more" if len(lacks) > SHOWN else ""
    fields = ", ".join(lacks[:SHOWN])
    return [f"crd_missing: {name} has no field {fields}{more}; apply the schemas of this version: {INSTALL}"]


def _needed(kind: str) -> Mapping[str, Any]:
    """The schema of this version: every field of it. One that is pruned could not be told from one that nobody set (O32)."""
    (found,) = (each for each in KINDS if each.name == kind)
    schema: Mapping[str, Any] = crd(found)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def absent(needed: Mapping[str, Any], installed: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted fields of one OpenAPI schema that another one does not have; the outermost alone where a whole part is absent."""
    if installed.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, schema in needed.get("properties", {}).items():
        there = installed.get("properties", {}).get(name)
        if there is None:
            yield f"{path}{name}"
        else:
            yield from absent(schema, there, f"{path}{name}.")
    if isinstance(needed.get("items"), Mapping):
        yield from absent(needed["items"], installed.get("items", {}), f"{path.removesuffix('.')}[].")
