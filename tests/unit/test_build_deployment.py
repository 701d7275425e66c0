"""What a pool's children look like, and when they are left alone (O5, O6, O21, O28). No cluster: these are pure functions."""

import copy
from typing import Any

import pytest

from poolkeeper_operator.act import children
from poolkeeper_operator.act.compare import difference, digest
from poolkeeper_operator.act.podtemplate import build_id
from poolkeeper_operator.resources import DatabaseSpec, WorkerPoolSpec

DATABASE = DatabaseSpec.model_validate({"dsnSecretRef": {"name": "pk-main"}})
SPEC: dict[str, Any] = {
    "queues": [{"name": "agents"}, {"name": "reports"}],
    "app": "my_agent:app",
    "concurrency": 4,
    "template": {"image": "localhost/my-agent:1", "env": [{"name": "MODEL", "value": "small"}]},
}


def pool(**changes):
    return {
        "apiVersion": "poolkeeper.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"namespace": "team-a", "name": "agents", "uid": "u-1", "generation": 1},
        "spec": {**copy.deepcopy(SPEC), **changes},
    }


def deployment(live=None, grace=60, database=DATABASE, **changes):
    made = pool(**changes)
    spec = WorkerPoolSpec.model_validate(made["spec"])
    return children.build_deployment(made, spec, database, live=live, grace_seconds=grace)


def container(manifest):
    return manifest["spec"]["template"]["spec"]["containers"][0]


def environment(manifest):
    return {v["name"]: v.get("value") for v in container(manifest)["env"]}


def as_live(manifest, generation=1, managers=()):
    """As the API server would return it: with defaults added and owners noted."""
    live = copy.deepcopy(manifest)
    live["metadata"] |= {"generation": generation, "resourceVersion": "5", "managedFields": list(managers)}
    live["spec"]["progressDeadlineSeconds"] = 600
    container(live)["terminationMessagePath"] = "/dev/termination-log"
    return live


def owner(manager, *path):
    fields: dict[str, Any] = {}
    here = fields
    for part in path:
        here = here.setdefault(f"f:{part}", {})
    return {"manager": manager, "operation": "Apply", "fieldsV1": fields}


def test_a_worker_is_told_what_it_needs_and_nothing_that_may_change_under_it():
    """The environment of the contract (4); no pause, limit or password in it."""
    env = environment(deployment())
    assert env["POOLKEEPER_QUEUES"] == "team-a/agents,team-a/reports"
    assert env["POOLKEEPER_POOL"] == "team-a/agents"
    assert env["POOLKEEPER_APP"] == "my_agent:app"
    assert env["POOLKEEPER_CONCURRENCY"] == "4"
    assert env["POOLKEEPER_DSN_FILE"] == "/run/poolkeeper/db/dsn"
    assert env["POOLKEEPER_GRACE_PERIOD"] == "60"
    assert env["MODEL"] == "small"
    assert "POOLKEEPER_DSN" not in env
    assert container(deployment())["command"] == ["poolkeeper", "worker"]


def test_pods_are_hardened_by_default():
    """Non-root, nothing writable but /tmp, no privileges, no token (O6)."""
    made = deployment()
    pod = made["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container(made)["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container(made)["resources"]["requests"]


def test_a_hung_worker_does_not_get_the_grace_of_a_drain():
    """The liveness probe has a short grace of its own; the probes differ (O6)."""
    made = container(deployment(grace=1800))
    assert made["livenessProbe"]["terminationGracePeriodSeconds"] <= 10
    assert made["livenessProbe"]["httpGet"]["path"] != made["readinessProbe"]["httpGet"]["path"]


@pytest.mark.parametrize(
    "change",
    [
        {"scaling": {"max": 50}},
        {"maxRunning": 3},
        {"disruption": {"maxUnavailable": 2}},
        {"rollout": {"maxSurge": 3}},
        {"drain": {"minGrace": "5m", "headroomPercent": 300}},
        {"replicas": 4},
        {"providers": [{"name": "api", "quotaRef": {"name": "api"}, "perTask": {"concurrentCalls": 1}}]},
    ],
)
def test_what_pods_do_not_see_makes_no_new_build(change):
    """Limits, bounds and budgets change without a rollout (O21)."""
    assert deployment(**change)["spec"]["template"] == deployment()["spec"]["template"]


@pytest.mark.parametrize(
    "change",
    [
        {"app": "my_agent:other"},
        {"concurrency": 5},
        {"queues": [{"name": "agents"}]},
        {"taskTypes": ["agent.answer"]},
        {"template": {"image": "localhost/my-agent:2"}},
        {"template": {**SPEC["template"], "metadata": {"labels": {"cost-centre": "7"}}}},
        {"drain": {"preStop": "3s"}},
        {"isolation": {"serviceAccountName": "mine"}},
        {"isolation": {"runtimeClassName": "gvisor"}},
        {"isolation": {"placement": {"nodeSelector": {"disk": "ssd"}}}},
        {"isolation": {"placement": {"topologySpread": "Required"}}},
    ],
)
def test_what_pods_see_makes_a_new_build(change):
    """A change of the user's part changes the build id and the template."""
    before, after = deployment(), deployment(**change)
    assert environment(before)["POOLKEEPER_BUILD"] != environment(after)["POOLKEEPER_BUILD"]


def test_another_secret_is_a_new_build_and_a_rotated_one_is_not():
    """Secrets are mounted by reference; their content is read from the file."""
    other = DatabaseSpec.model_validate({"dsnSecretRef": {"name": "pk-other"}})
    spec = WorkerPoolSpec.model_validate(SPEC)
    assert build_id(spec, other) != build_id(spec, DATABASE)
    assert "pk-other" in str(deployment(database=other)["spec"]["template"]["spec"]["volumes"])


def test_an_existing_template_is_kept_whatever_we_would_render_now():
    """Grace and defaults ride on the next change of the user's part (O21, O28)."""
    live = as_live(deployment(grace=60))
    kept = deployment(live=live, grace=600)
    assert kept["spec"]["template"] == deployment(grace=60)["spec"]["template"]
    assert children.changed(live, {**kept, "spec": {k: v for k, v in kept["spec"].items() if k != "replicas"}}) is None
    moved = deployment(live=live, grace=600, app="my_agent:new")
    assert moved["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 600


def test_replicas_are_handed_over_to_the_scaler():
    """A sole owner that falls silent would have the field reset: we speak until the scaler owns it (1.7.2)."""
    assert deployment()["spec"]["replicas"] == 0
    live = as_live(deployment(), managers=[owner("poolkeeper-operator", "spec", "replicas")])
    live["spec"]["replicas"] = 7
    assert deployment(live=live)["spec"]["replicas"] == 7
    both = [owner("poolkeeper-operator", "spec", "replicas"), owner("poolkeeper-scaler", "spec", "replicas")]
    assert "replicas" not in deployment(live=as_live(deployment(), managers=both))["spec"]
    foreign = [owner("kubectl", "spec", "replicas")]
    assert "replicas" not in deployment(live=as_live(deployment(), managers=foreign))["spec"]


def test_the_disruption_budget_never_blocks_a_node():
    """At least one eviction at a time, and unhealthy pods always (O5)."""
    made = pool()
    budget = children.build_disruption_budget(made, WorkerPoolSpec.model_validate(made["spec"]))
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_pods_run_where_and_in_what_the_pool_says():
    """O6: what is absent is the cluster's to say, but for the spread, which is a default of ours."""
    plain = deployment()["spec"]["template"]["spec"]
    assert {"runtimeClassName", "nodeSelector", "tolerations"}.isdisjoint(plain)
    assert [each["whenUnsatisfiable"] for each in plain["topologySpreadConstraints"]] == ["ScheduleAnyway"]
    taint = {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    placement = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [taint, {"key": "team", "value": "a"}],
        "topologySpread": "Required",
    }
    made = deployment(isolation={"runtimeClassName": "gvisor", "placement": placement})["spec"]["template"]["spec"]
    assert (made["runtimeClassName"], made["nodeSelector"]) == ("gvisor", {"disk": "ssd"})
    assert made["tolerations"] == [taint, {"key": "team", "operator": "Equal", "value": "a"}]
    assert [each["whenUnsatisfiable"] for each in made["topologySpreadConstraints"]] == ["DoNotSchedule"]
    alone = deployment(isolation={"placement": {"topologySpread": "None"}})["spec"]["template"]["spec"]
    assert "topologySpreadConstraints" not in alone


def test_a_named_service_account_is_not_made():
    """The user's own account is used as it is."""
    made = pool(isolation={"serviceAccountName": "mine"})
    spec = WorkerPoolSpec.model_validate(made["spec"])
    assert children.build_service_account(made, spec) is None
    assert (
        deployment(isolation={"serviceAccountName": "mine"})["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    )


@pytest.mark.parametrize(
    ("live", "wanted", "where"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, None),
        ({"a": 1}, {"a": 2}, ".a"),
        ({"cpu": "1"}, {"cpu": "1000m"}, None),
        ({"memory": "1Gi"}, {"memory": "1024Mi"}, None),
        ({"env": [{"name": "X", "value": "1"}, {"name": "Y"}]}, {"env": [{"name": "Y"}]}, None),
        ({"env": [{"name": "X", "value": "1"}]}, {"env": [{"name": "X", "value": "2"}]}, ".env[name=X].value"),
        ({"args": ["a"]}, {"args": ["a", "b"]}, ".args"),
        ({}, {"flag": False, "text": ""}, None),
        ({}, {"labels": {}}, None),
        (None, {"a": 1}, ""),
    ],
)
def test_only_real_differences_count(live, wanted, where):
    """Defaults, foreign entries and other spellings of a quantity are none; the first difference is named."""
    assert difference(live, wanted) == where


def test_a_digest_does_not_depend_on_order():
    """Equal manifests have equal digests."""
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"b": [2, 1], "a": 1})
