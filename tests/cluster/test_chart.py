"""The chart as rendered: least privilege, hardened, nonsense refused. Needs helm, no cluster."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import build
from poolkeeper_operator.runtime.rights import RIGHTS

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "poolkeeper"
COMMITTED = Path(__file__).with_name("rbac.txt")

Object = dict[str, Any]


def helm(*argv: str) -> tuple[int, str]:
    (programs,) = build.ensure([build.HELM])
    done = subprocess.run([programs / "helm", *argv], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def template(*settings: str, release: str = "poolkeeper") -> list[Object]:
    flags = [part for setting in settings for part in ("--set", setting)]
    status, said = helm("template", release, "charts/poolkeeper", "--namespace", "pk-system", *flags)
    assert status == 0, said
    return [found for found in yaml.safe_load_all(said) if found]


def of_kind(kind: str, objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def granted(rules: list[Object]) -> set[str]:
    """One line per verb on a resource, with the object's name where only one is meant."""
    return {
        f"{verb} {resource}{'.' + group if group else ''}{' ' + name if name else ''}"
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def needed(*, cluster: bool | None = None, home: bool | None = False, value: str = "") -> set[str]:
    """The operator's own list in the same form; `cluster`: only what is (not) cluster-wide in any case.

    `home`: only what it needs (or not) in its own namespace. `value`: what this value of the chart grants, too.
    """
    return granted(
        [
            {
                "apiGroups": [right.group],
                "resources": [right.resource],
                "verbs": right.verbs,
                "resourceNames": [right.name or ""],
            }
            for right in RIGHTS
            if cluster in {None, right.cluster} and home in {None, right.home} and right.value in {"", value}
        ]
    )


def container(objects: list[Object]) -> Object:
    (deployment,) = of_kind("Deployment", objects)
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_lint_is_content_with_the_defaults() -> None:
    """A6."""
    status, said = helm("lint", "--strict", "charts/poolkeeper")
    assert status == 0, said


def test_the_role_grants_exactly_what_the_operator_needs() -> None:
    """O31: the chart, the operator's own list with its reasons, and the list that reviewers see are the same."""
    (role,), (own,) = of_kind("ClusterRole", template()), of_kind("Role", template())
    committed = [line for line in COMMITTED.read_text().splitlines() if not line.startswith("#")]
    assert granted(role["rules"]) == needed()
    assert granted(own["rules"]) == needed(home=True)
    assert sorted(granted(role["rules"]) | granted(own["rules"])) == committed


def test_secrets_are_written_only_where_somebody_said_so() -> None:
    """O5, O31: with rbac.databaseRoles, for the whole cluster or in single namespaces; still none is listed, watched or deleted."""
    more = needed(value="rbac.databaseRoles") - needed()
    assert more == {"create secrets", "patch secrets"}
    (role,) = of_kind("ClusterRole", template("rbac.databaseRoles=true"))
    assert granted(role["rules"]) == needed() | more
    single = of_kind("Role", template("rbac.databaseRoles=true", "watchNamespaces={team-a}"))
    assert more <= granted(next(each for each in single if each["metadata"]["namespace"] == "team-a")["rules"])


def test_no_right_reaches_beyond_a_named_secret() -> None:
    """O31: secrets by get only; no wildcards; nothing that could raise the operator's own rights."""
    (role,) = of_kind("ClusterRole", template())
    rights = granted(role["rules"])
    assert [right for right in rights if right.endswith(" secrets")] == ["get secrets"]
    assert [right for right in rights if "*" in right or "rbac." in right] == []
    assert {right.split()[0] for right in rights} <= {"get", "list", "watch", "create", "patch", "update"}


def test_single_namespaces_are_kept_through_roles() -> None:
    """O31: with watchNamespaces nothing but the schema check and the cluster's identity is cluster-wide."""
    objects = template("watchNamespaces={team-a,team-b}")
    (cluster_role,) = of_kind("ClusterRole", objects)
    roles = {role["metadata"]["namespace"]: role for role in of_kind("Role", objects)}
    assert granted(roles.pop("pk-system")["rules"]) == needed(home=True)
    assert granted(cluster_role["rules"]) == needed(cluster=True)
    assert set(roles) == {"team-a", "team-b"}
    assert all(granted(role["rules"]) == needed(cluster=False) for role in roles.values())
    assert len(of_kind("RoleBinding", objects)) == 3


@pytest.mark.parametrize("release", ["poolkeeper", "team-a"])
def test_the_lease_is_the_release_s_own(release: str) -> None:
    """O29, O31: two releases in one namespace have two Leases, and neither may touch the other's."""
    objects = template("watchNamespaces={pk-system}", release=release)
    env = {each["name"]: each.get("value") for each in container(objects)["env"]}
    roles = [role for role in of_kind("Role", objects) if role["metadata"]["name"].endswith("-leader")]
    (own,) = roles
    assert granted(own["rules"]) == {
        "create leases.coordination.k8s.io",
        f"get leases.coordination.k8s.io {env['POOLKEEPER_LEASE']}",
        f"update leases.coordination.k8s.io {env['POOLKEEPER_LEASE']}",
    }
    assert (
        env["POOLKEEPER_LEASE"]
        == {"poolkeeper": "poolkeeper-operator", "team-a": "team-a-poolkeeper-operator"}[release]
    )


def test_two_operators_and_one_may_be_evicted() -> None:
    """O29: a warm standby by default, replaced one by one; with one replica nothing is in the way of a drain."""
    (deployment,) = of_kind("Deployment", template())
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (budget,) = of_kind("PodDisruptionBudget", template())
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    (alone,) = of_kind("Deployment", template("replicaCount=1"))
    assert alone["spec"]["replicas"] == 1
    assert of_kind("PodDisruptionBudget", template("replicaCount=1")) == []
    assert "topologySpreadConstraints" not in alone["spec"]["template"]["spec"]


def test_every_binding_names_the_account_of_the_operator() -> None:
    objects = template("watchNamespaces={team-a}", "serviceAccount.create=false", "serviceAccount.name=mine")
    bindings = of_kind("ClusterRoleBinding", objects) + of_kind("RoleBinding", objects)
    (deployment,) = of_kind("Deployment", objects)
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "mine"
    assert of_kind("ServiceAccount", objects) == []
    assert [each["subjects"] for each in bindings] == 3 * [
        [{"kind": "ServiceAccount", "name": "mine", "namespace": "pk-system"}]
    ]


def test_the_operator_is_hardened() -> None:
    """O6: the operator asks of itself what it asks of workers."""
    (deployment,) = of_kind("Deployment", template())
    pod = deployment["spec"]["template"]["spec"]
    found = container([deployment])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert found["resources"]["requests"].keys() == {"cpu", "memory"}
    assert found["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert found["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert found["livenessProbe"]["terminationGracePeriodSeconds"] < pod["terminationGracePeriodSeconds"]


def test_images_are_named_by_digest_where_one_is_given() -> None:
    digest = "sha256:" + "0a" * 32
    assert container(template())["image"] == "localhost/poolkeeper-operator:0.1.0"
    assert container(template("image.tag=dev"))["image"] == "localhost/poolkeeper-operator:dev"
    settings = ("image.repository=registry.example:5000/team/operator", "image.tag=dev", f"image.digest={digest}")
    assert container(template(*settings))["image"] == f"registry.example:5000/team/operator@{digest}"


def test_the_definitions_stay_when_the_release_goes() -> None:
    """A6: rendered as generated, plus the policy that keeps them; `crds.install=false` leaves them out."""
    rendered = {crd["metadata"]["name"]: crd for crd in of_kind("CustomResourceDefinition", template())}
    generated = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    for crd in generated:
        crd["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
    assert rendered == {crd["metadata"]["name"]: crd for crd in generated}
    assert of_kind("CustomResourceDefinition", template("crds.install=false")) == []


def test_every_value_is_explained() -> None:
    """A value of values.yaml is in the schema and the other way round."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    assert re.search(r"^# .*\nwatchNamespaces", (CHART / "values.yaml").read_text(), re.MULTILINE)
