"""The custom resources: one pydantic model per kind, from which the CRDs in `crds/` are generated.

Guarantees: what the API server accepts, the models accept, and the other way round for every rule written in CEL; every field is honoured
by this version. Nothing here talks to Kubernetes or to a database.
"""

from poolkeeper_operator.resources.database import DatabaseSpec, DatabaseStatus, Migrations
from poolkeeper_operator.resources.kinds import GROUP, KINDS, VERSION, Kind, ResourceError, read_spec
from poolkeeper_operator.resources.podtemplate import PodTemplate
from poolkeeper_operator.resources.providerquota import ProviderQuotaSpec, ProviderQuotaStatus
from poolkeeper_operator.resources.taskqueue import TaskQueueSpec, TaskQueueStatus
from poolkeeper_operator.resources.workerpool import WorkerPoolSpec, WorkerPoolStatus

__all__ = [
    "GROUP",
    "KINDS",
    "VERSION",
    "DatabaseSpec",
    "DatabaseStatus",
    "Kind",
    "Migrations",
    "PodTemplate",
    "ProviderQuotaSpec",
    "ProviderQuotaStatus",
    "ResourceError",
    "TaskQueueSpec",
    "TaskQueueStatus",
    "WorkerPoolSpec",
    "WorkerPoolStatus",
    "read_spec",
]
