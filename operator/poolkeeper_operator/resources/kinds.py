"""The four kinds: names, printer columns, and how an object's spec is read.

Guarantees: an unreadable spec is an error that names the object, each field and what to do; it is never half read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from poolkeeper.policy import fault
from poolkeeper_operator.resources.database import DatabaseSpec, DatabaseStatus
from poolkeeper_operator.resources.providerquota import ProviderQuotaSpec, ProviderQuotaStatus
from poolkeeper_operator.resources.taskqueue import TaskQueueSpec, TaskQueueStatus
from poolkeeper_operator.resources.workerpool import WorkerPoolSpec, WorkerPoolStatus

GROUP = "poolkeeper.dev"
VERSION = "v1alpha1"
S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "integer"
    wide: bool = False  # only with -o wide
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One custom resource."""

    name: str
    plural: str
    short: str
    description: str
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    name_length: int = 63
    scale: bool = False

    @property
    def crd_name(self) -> str:
        """Name of its CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"


def _condition(kind: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


READY = Column(name="Ready", path=_condition("Ready"), type="string", description="Whether it is in force.")
WHY = Column(
    name="Why", path=_condition("Ready", "message"), type="string", wide=True, description="What Ready says about it."
)
AGE = Column(name="Age", path=".metadata.creationTimestamp", type="date", description="Since it was created.")

DATABASE = Kind(
    name="Database",
    plural="databases",
    short="pkdb",
    description="Where a namespace's queues live: a schema in a Postgres database.",
    spec=DatabaseSpec,
    status=DatabaseStatus,
    columns=(
        READY,
        Column(name="Schema", path=".status.schemaVersion", description="Version of the schema."),
        Column(
            name="Server", path=".status.serverVersion", type="string", description="Version of the Postgres server."
        ),
        Column(
            name="Trouble",
            path=".status.trouble",
            type="string",
            description="What is wrong; the conditions of these names say more.",
        ),
        Column(
            name="Instance",
            path=".status.instanceID",
            type="string",
            wide=True,
            description="Identity of the installation.",
        ),
        WHY,
        AGE,
    ),
)
TASKQUEUE = Kind(
    name="TaskQueue",
    plural="taskqueues",
    short="tq",
    description="The policy of one queue, and what its tasks are doing.",
    spec=TaskQueueSpec,
    status=TaskQueueStatus,
    columns=(
        READY,
        Column(name="Runnable", path=".status.depth.ready", description="Tasks that could run now."),
        Column(name="Running", path=".status.depth.running", description="Tasks in user code."),
        Column(
            name="Oldest",
            path=".status.oldestRunnableAge",
            type="string",
            description="Age of the oldest task that could run now.",
        ),
        Column(name="Dead", path=".status.deadLetters.total", description="Dead letters: they wait for a person."),
        Column(
            name="Trouble",
            path=".status.trouble",
            type="string",
            description="What is wrong; the conditions of these names say more.",
        ),
        Column(name="Scheduled", path=".status.depth.scheduled", wide=True, description="Tasks that are due later."),
        Column(
            name="NoWorker",
            path=".status.depth.heldBack.noCapableWorker",
            wide=True,
            description="Tasks of types that no worker can run.",
        ),
        Column(name="Expiries", path=".status.leaseExpiries", wide=True, description="Leases that ended by expiry."),
        Column(name="Policy", path=".status.policyVersion", wide=True, description="Version of the policy in force."),
        WHY,
        AGE,
    ),
)
WORKERPOOL = Kind(
    name="WorkerPool",
    plural="workerpools",
    short="wp",
    description="Workers of one image that serve some queues, sized by the age of the work that waits.",
    spec=WorkerPoolSpec,
    status=WorkerPoolStatus,
    name_length=52,
    scale=True,
    columns=(
        READY,
        Column(name="Wanted", path=".status.wanted.replicas", description="Pods that the work asks for."),
        Column(name="Pods", path=".status.replicas", description="Pods that exist."),
        Column(name="Busy", path=".status.busySlots", description="Slots in use."),
        Column(
            name="Limit",
            path=".status.wanted.limitedBy",
            type="string",
            description="What keeps it below what it wants.",
        ),
        Column(name="Mode", path=".status.mode", type="string", wide=True, description="The scaling mode in force."),
        Column(
            name="Grace",
            path=".status.grace.applied",
            type="string",
            wide=True,
            description="Grace period of its pods.",
        ),
        Column(
            name="Scaling",
            path=_condition("ScalingActive", "message"),
            type="string",
            wide=True,
            description="Why it has its size.",
        ),
        WHY,
        AGE,
    ),
)
PROVIDERQUOTA = Kind(
    name="ProviderQuota",
    plural="providerquotas",
    short="pq",
    description="What an upstream provider allows, shared by the pools that use it.",
    spec=ProviderQuotaSpec,
    status=ProviderQuotaStatus,
    columns=(
        READY,
        Column(
            name="Calls", path=".spec.limits.concurrentCalls", description="Calls in flight that the provider allows."
        ),
        Column(name="Used", path=".status.used.concurrentCalls", description="Calls that running tasks declare."),
        Column(name="Suspended", path=".spec.suspended", type="boolean", description="Whether it is stopped."),
        WHY,
        AGE,
    ),
)
KINDS = (DATABASE, TASKQUEUE, WORKERPOOL, PROVIDERQUOTA)


class ResourceError(ValueError):
    """An object whose spec cannot be read; the message names the object, the fields and the remedy."""


def read_spec(model: type[S], obj: Mapping[str, Any]) -> S:
    """The typed spec of an object as the API server gave it."""
    try:
        return model.model_validate(obj.get("spec") or {})
    except ValidationError as error:
        meta = obj.get("metadata", {})
        faults = "; ".join(fault(e["loc"], e["msg"]) for e in error.errors())
        kind = str(obj.get("kind", "object")).lower()
        message = f'{kind} "{meta.get("name")}" in namespace "{meta.get("namespace")}": {faults}'
        raise ResourceError(message) from error
