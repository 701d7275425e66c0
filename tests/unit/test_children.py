"""Each field of a WorkerPool that ends in its children is found there, and nowhere else (O5, O6): one change, one difference."""

from copy import deepcopy
from typing import Any

import pytest

from poolkeeper_operator.act.children import build_deployment, build_disruption_budget, build_service_account
from poolkeeper_operator.resources import DatabaseSpec, WorkerPoolSpec

POOL = {"metadata": {"name": "agents", "namespace": "team-a", "uid": "u"}}
SPEC: dict[str, Any] = {"queues": [{"name": "agents"}], "app": "m:app", "template": {"image": "localhost/a:1"}}
DATABASE: dict[str, Any] = {"dsnSecretRef": {"name": "pk-main"}}
CONTAINER = "deployment.spec.template.spec.containers[worker]"
PODS = "deployment.spec.template"
# What follows every change of the user's part of the template: the hash that names the build.
BUILD = {
    "deployment.metadata.labels.poolkeeper.dev/build",
    f"{PODS}.metadata.labels.poolkeeper.dev/build",
    f"{CONTAINER}.env[POOLKEEPER_BUILD].value",
    "deployment.metadata.annotations.poolkeeper.dev/template",
}


def children(spec: dict[str, Any], database: dict[str, Any] | None = None) -> dict[str, Any]:
    """All children of a pool as flat paths."""
    pool, data = WorkerPoolSpec.model_validate(spec), DatabaseSpec.model_validate(database or DATABASE)
    made = {
        "deployment": build_deployment(POOL, pool, data, live=None, grace_seconds=90),
        "pdb": build_disruption_budget(POOL, pool),
        "serviceaccount": build_service_account(POOL, pool),
    }
    return dict(_flat(made))


def _flat(node: Any, path: str = "") -> Any:
    if isinstance(node, dict) and node:
        for key, child in node.items():
            yield from _flat(child, f"{path}.{key}" if path else key)
    elif isinstance(node, list) and node:
        for index, child in enumerate(node):
            name = child.get("name", index) if isinstance(child, dict) else index
            yield from _flat(child, f"{path}[{name}]")
    else:
        yield path, node


def difference(spec: dict[str, Any], database: dict[str, Any] | None = None) -> dict[str, Any]:
    """What another spec makes different: path to new value, None for what is gone."""
    before, after = children(SPEC), children(spec, database)
    return {p: after.get(p) for p in before.keys() | after.keys() if before.get(p) != after.get(p)}


def with_(path: str, value: Any) -> dict[str, Any]:
    spec = deepcopy(SPEC)
    *folders, leaf = path.split(".")
    inner = spec
    for folder in folders:
        inner = inner.setdefault(folder, {})
    inner[leaf] = value
    return spec


FIELDS: list[tuple[str, Any, dict[str, Any]]] = [
    ("app", "other:app", {f"{CONTAINER}.env[POOLKEEPER_APP].value": "other:app"}),
    (
        "queues",
        [{"name": "agents"}, {"name": "reports"}],
        {f"{CONTAINER}.env[POOLKEEPER_QUEUES].value": "team-a/agents,team-a/reports"},
    ),
    (
        "taskTypes",
        ["a.b", "c"],
        {
            f"{CONTAINER}.env[POOLKEEPER_TASK_TYPES].name": "POOLKEEPER_TASK_TYPES",
            f"{CONTAINER}.env[POOLKEEPER_TASK_TYPES].value": "a.b,c",
        },
    ),
    (
        "tenants",
        {"only": ["acme", "a,b"]},
        {
            f"{CONTAINER}.env[POOLKEEPER_TENANTS_ONLY].name": "POOLKEEPER_TENANTS_ONLY",
            f"{CONTAINER}.env[POOLKEEPER_TENANTS_ONLY].value": '["acme", "a,b"]',
        },
    ),
    (
        "tenants",
        {"except": ["acme"]},
        {
            f"{CONTAINER}.env[POOLKEEPER_TENANTS_EXCEPT].name": "POOLKEEPER_TENANTS_EXCEPT",
            f"{CONTAINER}.env[POOLKEEPER_TENANTS_EXCEPT].value": '["acme"]',
        },
    ),
    ("concurrency", 3, {f"{CONTAINER}.env[POOLKEEPER_CONCURRENCY].value": "3"}),
    ("template.metadata.labels", {"cost-centre": "7"}, {f"{PODS}.metadata.labels.cost-centre": "7"}),
    ("template.metadata.annotations", {"a/b": "c"}, {f"{PODS}.metadata.annotations.a/b": "c"}),
    (
        "template.image",
        "localhost/a:2",
        {f"{CONTAINER}.image": "localhost/a:2", f"{CONTAINER}.env[POOLKEEPER_IMAGE].value": "localhost/a:2"},
    ),
    ("template.imagePullPolicy", "Never", {f"{CONTAINER}.imagePullPolicy": "Never"}),
    ("template.imagePullSecrets", [{"name": "reg"}], {f"{PODS}.spec.imagePullSecrets[reg].name": "reg"}),
    (
        "template.env",
        [{"name": "MODEL", "value": "small"}],
        {f"{CONTAINER}.env[MODEL].name": "MODEL", f"{CONTAINER}.env[MODEL].value": "small"},
    ),
    (
        "template.env",
        [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        {
            f"{CONTAINER}.env[KEY].name": "KEY",
            f"{CONTAINER}.env[KEY].valueFrom.secretKeyRef.name": "s",
            f"{CONTAINER}.env[KEY].valueFrom.secretKeyRef.key": "k",
        },
    ),
    ("template.envFrom", [{"configMapRef": {"name": "c"}}], {f"{CONTAINER}.envFrom[0].configMapRef.name": "c"}),
    (
        "template.volumes",
        [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        {f"{PODS}.spec.volumes[scratch].name": "scratch", f"{PODS}.spec.volumes[scratch].emptyDir.sizeLimit": "1Gi"},
    ),
    (
        "template.volumeMounts",
        [{"name": "scratch", "mountPath": "/scratch", "readOnly": True}],
        {
            f"{CONTAINER}.volumeMounts[scratch].name": "scratch",
            f"{CONTAINER}.volumeMounts[scratch].mountPath": "/scratch",
            f"{CONTAINER}.volumeMounts[scratch].readOnly": True,
        },
    ),
    ("template.resources.requests", {"cpu": "250m"}, {f"{CONTAINER}.resources.requests.cpu": "250m"}),
    (
        "template.resources.limits",
        {"ephemeral-storage": "1Gi"},
        {f"{CONTAINER}.resources.limits.ephemeral-storage": "1Gi"},
    ),
    ("drain.preStop", "3s", {f"{CONTAINER}.lifecycle.preStop.sleep.seconds": 3}),
    ("drain.preStop", "500ms", {f"{CONTAINER}.lifecycle.preStop.sleep.seconds": 1}),
    ("drain.handBackMargin", "7s", {f"{CONTAINER}.env[POOLKEEPER_HAND_BACK_MARGIN].value": "7"}),
]
NO_BUILD: list[tuple[str, Any, dict[str, Any]]] = [
    ("disruption.maxUnavailable", "25%", {"pdb.spec.maxUnavailable": "25%"}),
    ("rollout.maxSurge", 2, {"deployment.spec.strategy.rollingUpdate.maxSurge": 2}),
    ("rollout.maxUnavailable", "10%", {"deployment.spec.strategy.rollingUpdate.maxUnavailable": "10%"}),
    ("scaling", {"min": 1, "max": 3, "targetAge": "5s"}, {}),
    ("maxRunning", 5, {}),
    ("replicas", 5, {}),
    ("drain.minGrace", "1m", {}),
]


@pytest.mark.parametrize(("path", "value", "expected"), FIELDS)
def test_a_field_of_the_template_is_found_in_the_pods_and_makes_a_new_build(path, value, expected):
    found = difference(with_(path, value))
    assert set(found) >= BUILD
    assert {p: v for p, v in found.items() if p not in BUILD} == expected


@pytest.mark.parametrize(("path", "value", "expected"), NO_BUILD)
def test_a_field_that_pods_do_not_see_leaves_them_alone(path, value, expected):
    """O21: no rollout for what is not in the template."""
    assert difference(with_(path, value)) == expected


def test_a_service_account_of_the_users_takes_the_place_of_the_pools_own():
    found = difference(with_("isolation.serviceAccountName", "mine"))
    assert found[f"{PODS}.spec.serviceAccountName"] == "mine"
    assert found["serviceaccount.metadata.name"] is None


@pytest.mark.parametrize(
    ("database", "path", "value"),
    [
        ({"dsnSecretRef": {"name": "other"}}, "secret.name", "other"),
        ({"dsnSecretRef": {"name": "pk-main", "key": "url"}}, "secret.items[0].key", "url"),
        (DATABASE | {"directSecretRef": {"name": "direct"}}, "secret.name", "direct"),
        (DATABASE | {"directSecretRef": {"name": "direct", "key": "k"}}, "secret.items[0].key", "k"),
    ],
)
def test_the_secrets_of_the_database_are_mounted_and_never_read_into_the_pod(database, path, value):
    found = difference(SPEC, database)
    assert value in [v for p, v in found.items() if p.endswith(path)]
    if "directSecretRef" in database:
        assert found[f"{CONTAINER}.env[POOLKEEPER_DIRECT_DSN_FILE].value"] == "/run/poolkeeper/db/direct-dsn"


def test_pods_behind_a_pooler_are_told_of_it_and_are_a_new_build() -> None:
    """C20: they must not ask it for what it refuses."""
    found = difference(SPEC, DATABASE | {"pooler": "Transaction"})
    name, value = (f"{CONTAINER}.env[POOLKEEPER_POOLER].{part}" for part in ("name", "value"))
    assert found.keys() == {*BUILD, name, value}
    assert found[value] == "transaction"
    assert difference(SPEC, DATABASE | {"pooler": "None"}) == {}


def test_pods_are_hardened_unless_a_field_says_otherwise():
    """O6: non-root, read-only root, no escalation, no capabilities, seccomp, no token."""
    found = children(SPEC)
    assert found[f"{PODS}.spec.securityContext.runAsNonRoot"] is True
    assert found[f"{PODS}.spec.securityContext.seccompProfile.type"] == "RuntimeDefault"
    assert found[f"{PODS}.spec.automountServiceAccountToken"] is False
    assert found[f"{CONTAINER}.securityContext.readOnlyRootFilesystem"] is True
    assert found[f"{CONTAINER}.securityContext.allowPrivilegeEscalation"] is False
    assert found[f"{CONTAINER}.securityContext.capabilities.drop[0]"] == "ALL"


@pytest.mark.parametrize(
    ("given", "requests", "limits"),
    [
        ({}, {"cpu": "100m", "memory": "128Mi"}, {"memory": "512Mi"}),
        ({"requests": {"memory": "1Gi"}}, {"cpu": "100m", "memory": "1Gi"}, {}),
        ({"limits": {"memory": "64Mi"}}, {"cpu": "100m", "memory": "64Mi"}, {"memory": "64Mi"}),
        ({"limits": {"cpu": "50m"}}, {"cpu": "50m", "memory": "128Mi"}, {"cpu": "50m", "memory": "512Mi"}),
    ],
)
def test_resources_have_defaults_that_never_put_a_limit_below_a_request(given, requests, limits):
    """O6: requests are set, and what the user says stands."""
    spec = WorkerPoolSpec.model_validate(with_("template.resources", given))
    made = build_deployment(POOL, spec, DatabaseSpec.model_validate(DATABASE), live=None, grace_seconds=90)
    found = made["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert (found["requests"], found["limits"]) == (requests, limits)
