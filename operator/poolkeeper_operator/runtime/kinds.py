"""The kinds that the operator reads or writes, and their paths on the API server. Pure."""

from dataclasses import dataclass

GROUP = "poolkeeper.dev"
VERSION = "v1alpha1"
MANAGER = "poolkeeper-operator"
SCALER = "poolkeeper-scaler"
DELETION_POLICY = f"taskqueue-deletion.{GROUP}"  # names of an admission policy of the chart and of its binding
POOL_LABEL = f"{GROUP}/pool"


@dataclass(frozen=True)
class Resource:
    """One kind: where it is served and how it is named."""

    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What stands in a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        """The path of a list (without `name`), an object, or its subresource."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, sub) if part is not None]
        return "/" + "/".join(parts)


DATABASE = Resource("Database", GROUP, VERSION, "databases")
QUEUE = Resource("TaskQueue", GROUP, VERSION, "taskqueues")
POOL = Resource("WorkerPool", GROUP, VERSION, "workerpools")
QUOTA = Resource("ProviderQuota", GROUP, VERSION, "providerquotas")
OURS = (DATABASE, QUEUE, POOL, QUOTA)

DEPLOYMENT = Resource("Deployment", "apps", "v1", "deployments")
POD = Resource("Pod", "", "v1", "pods")
SECRET = Resource("Secret", "", "v1", "secrets")
NAMESPACE = Resource("Namespace", "", "v1", "namespaces", namespaced=False)
SERVICE_ACCOUNT = Resource("ServiceAccount", "", "v1", "serviceaccounts")
DISRUPTION_BUDGET = Resource("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets")
NETWORK_POLICY = Resource("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies")
NODE = Resource("Node", "", "v1", "nodes", namespaced=False)
EVENT = Resource("Event", "", "v1", "events")
CRD = Resource("CustomResourceDefinition", "apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
ADMISSION_POLICY = Resource(
    "ValidatingAdmissionPolicy", "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", namespaced=False
)
ADMISSION_BINDING = Resource(
    "ValidatingAdmissionPolicyBinding",
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    namespaced=False,
)
ACCESS_REVIEW = Resource(
    "SelfSubjectAccessReview", "authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False
)

LEASE = Resource("Lease", "coordination.k8s.io", "v1", "leases")

OPTIONAL = (NODE,)
"""Watched where the operator may."""
WATCHED = (*OURS, DEPLOYMENT, POD, SERVICE_ACCOUNT, DISRUPTION_BUDGET, NETWORK_POLICY)
_OF_OURS = f"app.kubernetes.io/managed-by={MANAGER}"
SELECTORS = {
    **dict.fromkeys((DEPLOYMENT, SERVICE_ACCOUNT, DISRUPTION_BUDGET, NETWORK_POLICY), _OF_OURS),
    POD: POOL_LABEL,
}
"""What of a kind concerns us, by labels; all of those that are not named."""
