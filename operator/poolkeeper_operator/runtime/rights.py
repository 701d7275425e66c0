"""Every right that the operator needs, as data, and the check at start that names the missing ones.

The chart's roles are compared with this list by a test. Nothing that is not used stands here: secrets by `get` only.
"""

import asyncio
from dataclasses import dataclass, replace

from poolkeeper_operator.runtime.kinds import ADMISSION_BINDING, ADMISSION_POLICY, DELETION_POLICY, GROUP
from poolkeeper_operator.runtime.kube import Kube
from poolkeeper_operator.runtime.leadership import DEFAULT_LEASE, Post


@dataclass(frozen=True)
class Right:
    """Verbs on a resource, and what for; `cluster`: needs a cluster role even when the operator keeps one namespace.

    `home`: only in the namespace of the operator's Lease, whose name stands for the `name` here.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    cluster: bool = False
    name: str | None = None  # one object only
    home: bool = False
    optional: bool = False  # without it the operator starts, and says what it leaves out
    value: str = ""  # of the chart, by which it is granted; not needed to begin, and named where it is missed

    def __str__(self) -> str:
        where = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{','.join(self.verbs)} {where}" + (f" {self.name}" if self.name else "")


_LOOK = ("get", "list", "watch")
_KINDS = ("databases", "taskqueues", "workerpools", "providerquotas")

RIGHTS: tuple[Right, ...] = (
    *(Right(GROUP, kind, _LOOK, "the resources that it keeps") for kind in _KINDS),
    *(Right(GROUP, f"{kind}/status", ("patch",), "conditions and figures") for kind in _KINDS),
    Right(GROUP, "workerpools", ("patch",), "spec.replicas, so that /scale answers"),
    Right(GROUP, "taskqueues", ("patch",), "the finalizer of a queue with deletionPolicy Purge"),
    Right(GROUP, "workerpools/finalizers", ("update",), "blockOwnerDeletion where the cluster guards owner references"),
    Right("apps", "deployments", (*_LOOK, "create", "patch"), "the workers of a pool"),
    Right("", "pods", (*_LOOK, "patch"), "why a pod does not start; deletion costs of victims"),
    Right("", "serviceaccounts", (*_LOOK, "create", "patch"), "the identity of a pool's workers"),
    Right("policy", "poddisruptionbudgets", (*_LOOK, "create", "patch"), "evictions one by one"),
    Right("networking.k8s.io", "networkpolicies", (*_LOOK, "create", "patch"), "what pods may reach"),
    Right("", "events", ("create",), "transitions and dead letters"),
    Right("", "secrets", ("get",), "connection strings, by name only"),
    Right(
        "", "secrets", ("create", "patch"), "logins of pools (Database.spec.roles PerPool)", value="rbac.databaseRoles"
    ),
    Right("", "namespaces", ("get",), "identity of a queue's namespace; who may use a quota"),
    Right("", "namespaces", ("get",), "identity of the cluster", cluster=True, name="kube-system"),
    *(
        Right(
            kind.group, kind.plural, ("get",), "is deletionPolicy Refuse enforced", cluster=True, name=DELETION_POLICY
        )
        for kind in (ADMISSION_POLICY, ADMISSION_BINDING)
    ),
    Right(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        ("get",),
        "fields of the installed schemas",
        cluster=True,
    ),
    Right(
        "",
        "nodes",
        ("list", "watch"),
        "who is on a node about to go claims nothing more",
        cluster=True,
        optional=True,
    ),
    Right("coordination.k8s.io", "leases", ("create",), "the Lease that makes one operator the leader", home=True),
    Right("coordination.k8s.io", "leases", ("get", "update"), "to hold and to renew it", home=True, name=DEFAULT_LEASE),
)


async def missing(kube: Kube, namespaces: tuple[str, ...], post: Post, *, optional: bool = False) -> list[str]:
    """One line for each right that the API server says we lack: in every namespace kept, or cluster-wide for ().

    `optional`: of those without which the operator starts all the same; else of the others.
    """
    asked = [
        (right, verb, namespace)
        for right in (replace(right, name=right.name and post.name) if right.home else right for right in RIGHTS)
        if right.optional is optional and not right.value
        for verb in right.verbs
        for namespace in _places(right, namespaces, post)
    ]
    answers = await asyncio.gather(*(_allowed(kube, right, verb, namespace) for right, verb, namespace in asked))
    return [
        _sentence(right, verb, namespace)
        for (right, verb, namespace), allowed in zip(asked, answers, strict=True)
        if not allowed
    ]


def _places(right: Right, namespaces: tuple[str, ...], post: Post) -> tuple[str | None, ...]:
    if right.home:
        return (post.namespace,)
    return (None,) if right.cluster or not namespaces else namespaces


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
    answer = await kube.review({k: v for k, v in attributes.items() if v})
    return bool(answer.get("status", {}).get("allowed"))


def _sentence(right: Right, verb: str, namespace: str | None) -> str:
    where = f"{right.resource}.{right.group}" if right.group else right.resource
    place = f'in namespace "{namespace}"' if namespace else "in all namespaces"
    if right.cluster:
        place = f'named "{right.name}"' if right.name else "in the cluster"
    elif right.name:
        place = f'named "{right.name}" {place}'
    return f"right_missing: {verb} {where} {place} ({right.why}); add it to the operator's role"
