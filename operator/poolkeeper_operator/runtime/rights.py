"""Every right that the operator needs, as data, and the check at start that names the missing ones.

The chart's roles are compared with this list by a test. Nothing that is not used stands here: secrets by `get` only.
"""

import asyncio
from dataclasses import dataclass

from poolkeeper_operator.runtime.kinds import ACCESS_REVIEW, GROUP
from poolkeeper_operator.runtime.kube import Kube


@dataclass(frozen=True)
class Right:
    """Verbs on a resource, and what for; `cluster`: needs a cluster role even when the operator keeps one namespace."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    cluster: bool = False
    name: str | None = None  # one object only

    def __str__(self) -> str:
        where = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{','.join(self.verbs)} {where}" + (f" {self.name}" if self.name else "")


_LOOK = ("get", "list", "watch")
_KINDS = ("databases", "taskqueues", "workerpools", "providerquotas")

RIGHTS: tuple[Right, ...] = (
    *(Right(GROUP, kind, _LOOK, "the resources that it keeps") for kind in _KINDS),
    *(Right(GROUP, f"{kind}/status", ("patch",), "conditions and figures") for kind in _KINDS),
    Right(GROUP, "workerpools", ("patch",), "spec.replicas, so that /scale answers"),
    Right(GROUP, "workerpools/finalizers", ("update",), "blockOwnerDeletion where the cluster guards owner references"),
    Right("apps", "deployments", (*_LOOK, "create", "patch"), "the workers of a pool"),
    Right("", "pods", (*_LOOK, "patch"), "why a pod does not start; deletion costs of victims"),
    Right("", "serviceaccounts", ("get", "create", "patch"), "the identity of a pool's workers"),
    Right("policy", "poddisruptionbudgets", ("get", "create", "patch"), "evictions one by one"),
    Right("", "events", ("create",), "transitions and dead letters"),
    Right("", "secrets", ("get",), "connection strings, by name only"),
    Right("", "namespaces", ("get",), "identity of a queue's namespace; who may use a quota"),
    Right("", "namespaces", ("get",), "identity of the cluster", cluster=True, name="kube-system"),
    Right(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        ("get",),
        "fields of the installed schemas",
        cluster=True,
    ),
)


async def missing(kube: Kube, namespaces: tuple[str, ...]) -> list[str]:
    """One line for each right that the API server says we lack: in every namespace kept, or cluster-wide for ()."""
    asked = [
        (right, verb, namespace)
        for right in RIGHTS
        for verb in right.verbs
        for namespace in ((None,) if right.cluster or not namespaces else namespaces)
    ]
    answers = await asyncio.gather(*(_allowed(kube, right, verb, namespace) for right, verb, namespace in asked))
    return [
        _sentence(right, verb, namespace)
        for (right, verb, namespace), allowed in zip(asked, answers, strict=True)
        if not allowed
    ]


async def _allowed(kube: Kube, right: Right, verb: str, namespace: str | None) -> bool:
    resource, _, sub = right.resource.partition("/")
    attributes = {
        "group": right.group,
        "resource": resource,
        "subresource": sub,
        "verb": verb,
        "namespace": namespace,
        "name": right.name,
    }
    review = {
        "apiVersion": ACCESS_REVIEW.api_version,
        "kind": ACCESS_REVIEW.kind,
        "spec": {"resourceAttributes": {k: v for k, v in attributes.items() if v}},
    }
    answer = await kube.create(ACCESS_REVIEW, review)
    return bool(answer.get("status", {}).get("allowed"))


def _sentence(right: Right, verb: str, namespace: str | None) -> str:
    where = f"{right.resource}.{right.group}" if right.group else right.resource
    place = f'in namespace "{namespace}"' if namespace else "in all namespaces"
    if right.cluster:
        place = f'named "{right.name}"' if right.name else "in the cluster"
    return f"right_missing: {verb} {where} {place} ({right.why}); add it to the operator's role"
