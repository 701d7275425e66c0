"""The pod template of a pool's workers. Pure.

Guarantees: hardened by default (O6); the build id is a hash of the user's part alone, so that an upgrade of the operator
or a changed default of it is no new build (O28). Whatever may change under a running pod is not in here: it is read
from the database or from a mounted file.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from poolkeeper_operator.act.compare import digest
from poolkeeper_operator.resources import DatabaseSpec, WorkerPoolSpec
from poolkeeper_operator.resources.placement import TopologySpread
from poolkeeper_operator.resources.workerpool import Isolation
from poolkeeper_operator.runtime.kinds import GROUP, POOL_LABEL

USER = 65532
PORT = 8080
SECRET_MODE = 0o440
BUILD_LABEL = f"{GROUP}/build"
DEFAULT_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
_FIELDS = {
    "POOLKEEPER_POD_NAME": "metadata.name",
    "POOLKEEPER_POD_NAMESPACE": "metadata.namespace",
    "POOLKEEPER_POD_UID": "metadata.uid",
    "POOLKEEPER_NODE_NAME": "spec.nodeName",
}
# Parts of the spec that a running pod does not see: changing them is no new build.
_NOT_IN_TEMPLATE = {"scaling", "maxRunning", "providers", "disruption", "rollout", "replicas"}
# Parts of the isolation that it does see; what pods may reach is no part of them.
_OF_THE_PODS = {"serviceAccountName", "runtimeClassName", "placement"}
_UNSATISFIABLE = {TopologySpread.PREFERRED: "ScheduleAnyway", TopologySpread.REQUIRED: "DoNotSchedule"}


def build_id(spec: WorkerPoolSpec, database: DatabaseSpec) -> str:
    """The hash of what the user decides about the pods; it changes only when the user changes that."""
    user = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    user = {key: value for key, value in user.items() if key not in _NOT_IN_TEMPLATE}
    # The bounds of the grace ride along with the next build, they do not make one.
    drain = {key: value for key, value in user.pop("drain", {}).items() if key in {"preStop", "handBackMargin"}}
    user |= {"drain": drain} if drain else {}
    isolation = {key: value for key, value in user.pop("isolation", {}).items() if key in _OF_THE_PODS and value}
    user |= {"isolation": isolation} if isolation else {}
    secrets = [ref and [ref.name, ref.key] for ref in (database.dsn_secret_ref, database.direct_secret_ref)]
    return digest([user, secrets, *(["pooled"] if database.pooled else [])], 8)


def template(
    namespace: str, name: str, spec: WorkerPoolSpec, database: DatabaseSpec, *, grace_seconds: int, build: str
) -> dict[str, Any]:
    """The pod template of a pool: the user's part, hardened, with a grace period that the environment repeats."""
    user = spec.template
    labels = {
        **user.metadata.labels,
        "app.kubernetes.io/name": "poolkeeper-worker",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/part-of": "poolkeeper",
        "app.kubernetes.io/managed-by": "poolkeeper-operator",
        POOL_LABEL: name,
        BUILD_LABEL: build,
    }
    pod: dict[str, Any] = {
        "serviceAccountName": service_account(name, spec),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **_placed(name, spec.isolation),
        "containers": [_container(namespace, name, spec, database, grace_seconds=grace_seconds, build=build)],
        "volumes": [
            *(volume.as_pod_field() for volume in user.volumes),
            {"name": "poolkeeper-database", "projected": {"defaultMode": SECRET_MODE, "sources": _secrets(database)}},
            {"name": "poolkeeper-tmp", "emptyDir": {}},
        ],
    }
    if user.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": ref.name} for ref in user.image_pull_secrets]
    metadata: dict[str, Any] = {"labels": labels}
    if user.metadata.annotations:
        metadata["annotations"] = dict(user.metadata.annotations)
    return {"metadata": metadata, "spec": pod}


def _placed(name: str, isolation: Isolation) -> dict[str, Any]:
    """Where they may run, and in what; what is absent is the cluster's own to say."""
    placement = isolation.placement
    found: dict[str, Any] = {}
    if placement.topology_spread in _UNSATISFIABLE:
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": _UNSATISFIABLE[placement.topology_spread],
            "labelSelector": {"matchLabels": {POOL_LABEL: name}},
        }
        found["topologySpreadConstraints"] = [spread]
    if placement.node_selector:
        found["nodeSelector"] = dict(placement.node_selector)
    if placement.tolerations:
        found["tolerations"] = [each.as_pod_field() for each in placement.tolerations]
    if isolation.runtime_class_name is not None:
        found["runtimeClassName"] = isolation.runtime_class_name
    return found


def service_account(name: str, spec: WorkerPoolSpec) -> str:
    """The service account of the pods: the one named by the user, else the pool's own."""
    return spec.isolation.service_account_name or name


def _container(
    namespace: str, name: str, spec: WorkerPoolSpec, database: DatabaseSpec, *, grace_seconds: int, build: str
) -> dict[str, Any]:
    user = spec.template
    container: dict[str, Any] = {
        "name": "worker",
        "image": user.image,
        "command": ["poolkeeper", "worker"],
        "env": _environment(namespace, name, spec, database, grace_seconds=grace_seconds, build=build),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(spec),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",  # so that the cause of a crash can be quoted (O16)
        **_probes(),
        "volumeMounts": [
            *(mount.as_pod_field() for mount in user.volume_mounts),
            {"name": "poolkeeper-database", "mountPath": "/run/poolkeeper/db", "readOnly": True},
            {"name": "poolkeeper-tmp", "mountPath": "/tmp"},  # noqa: S108 - the root file system is read-only
        ],
    }
    if user.image_pull_policy:
        container["imagePullPolicy"] = user.image_pull_policy
    if user.env_from:
        container["envFrom"] = [source.as_pod_field() for source in user.env_from]
    if spec.drain.pre_stop:
        whole = math.ceil(spec.drain.pre_stop.total_seconds())  # Kubernetes takes whole seconds, and no 0
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": whole}}}
    return container


def _probes() -> dict[str, Any]:
    def http(path: str) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 5}

    return {
        "startupProbe": {**http("/livez"), "periodSeconds": 2, "failureThreshold": 90},
        "readinessProbe": {**http("/readyz"), "periodSeconds": 5, "failureThreshold": 3},
        # A hung worker must not be granted the whole grace of a drain before it is restarted.
        "livenessProbe": {
            **http("/livez"),
            "periodSeconds": 10,
            "failureThreshold": 3,
            "terminationGracePeriodSeconds": 10,
        },
    }


def _environment(
    namespace: str, name: str, spec: WorkerPoolSpec, database: DatabaseSpec, *, grace_seconds: int, build: str
) -> list[dict[str, Any]]:
    ours = {
        "POOLKEEPER_DSN_FILE": "/run/poolkeeper/db/dsn",
        "POOLKEEPER_APP": spec.app,
        "POOLKEEPER_QUEUES": ",".join(f"{namespace}/{queue.name}" for queue in spec.queues),
        "POOLKEEPER_TASK_TYPES": ",".join(spec.task_types),
        "POOLKEEPER_TENANTS_ONLY": _names(spec.tenants.only),
        "POOLKEEPER_TENANTS_EXCEPT": _names(spec.tenants.but),
        "POOLKEEPER_CONCURRENCY": str(spec.concurrency),
        "POOLKEEPER_POOL": f"{namespace}/{name}",
        "POOLKEEPER_BUILD": build,
        "POOLKEEPER_IMAGE": spec.template.image,
        "POOLKEEPER_GRACE_PERIOD": str(grace_seconds),
        "POOLKEEPER_HAND_BACK_MARGIN": f"{spec.drain.hand_back_margin.total_seconds():g}",
        "POOLKEEPER_HTTP_ADDR": f"0.0.0.0:{PORT}",
        "POOLKEEPER_LOG_FORMAT": "json",
    }
    if database.direct_secret_ref is not None:
        ours["POOLKEEPER_DIRECT_DSN_FILE"] = "/run/poolkeeper/db/direct-dsn"
    if database.pooled:
        ours["POOLKEEPER_POOLER"] = "transaction"
    users = {variable.name for variable in spec.template.env}
    places = {key: "/tmp" for key in ("TMPDIR", "HOME") if key not in users}  # noqa: S108 - the emptyDir
    return [
        *(variable.as_pod_field() for variable in spec.template.env),
        *({"name": key, "value": value} for key, value in {**places, **ours}.items() if value),
        *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in _FIELDS.items()),
    ]


def _names(tenants: Sequence[str]) -> str:
    return json.dumps(list(tenants)) if tenants else ""


def _resources(spec: WorkerPoolSpec) -> dict[str, Any]:
    user = spec.template.resources
    requests = {**DEFAULT_RESOURCES["requests"], **user.requests}
    limits = {**DEFAULT_RESOURCES["limits"], **user.limits}
    # A default must not contradict what the user says: a request above the default limit would be refused.
    if "memory" in user.requests and "memory" not in user.limits:
        limits.pop("memory")
    for what, limit in user.limits.items():
        if what in requests and what not in user.requests:
            requests[what] = limit
    return {"requests": requests, "limits": limits}


def _secrets(database: DatabaseSpec) -> list[dict[str, Any]]:
    refs = {"dsn": database.dsn_secret_ref, "direct-dsn": database.direct_secret_ref}
    return [
        {"secret": {"name": ref.name, "items": [{"key": ref.key, "path": path}]}}
        for path, ref in refs.items()
        if ref is not None
    ]
