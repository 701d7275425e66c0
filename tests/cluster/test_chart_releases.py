"""The life of a release on a real node, with a pool at work: no worker notices upgrade, rollback, uninstall and installing again (O28, A6)."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.test_chart import CHART, Object, of_kind
from fixtures.images import Images
from fixtures.stage import Stage, until
from lab.errors import LabError
from lab.kubectl import Helm, Kubectl
from poolkeeper.store import calls

pytestmark = pytest.mark.wide

NEWER = ("fullnameOverride", "policies", "replicaCount", "rbac.clusterRole")
"""Values that an earlier chart did not have."""
LEADER = "lease/poolkeeper-operator"
HELLO = Path(__file__).resolve().parents[2] / "examples" / "hello" / "hello.py"
OUTSIDE = (
    "clusterroles,clusterrolebindings,crd,validatingadmissionpolicies,validatingadmissionpolicybindings,namespaces"
)
WAIT = ("--wait", "--timeout", "180s")


@pytest.fixture
def earlier_chart(tmp_path: Path) -> Path:
    """The chart as it was before it knew some of its values."""
    made = tmp_path / "earlier" / "poolkeeper"
    shutil.copytree(CHART, made)
    values = yaml.safe_load((made / "values.yaml").read_text())
    for key in NEWER:
        *path, last = key.split(".")
        found = values
        for name in path:
            found = found[name]
        del found[last]
    (made / "values.yaml").write_text(yaml.safe_dump(values))
    return made


@pytest.fixture
def install(helm: Helm, images: Images) -> Iterator[Callable[..., Helm]]:
    """`install(namespace, *flags)`: a release of the operator that we built; all are gone at the end."""
    del images
    made: list[tuple[Helm, str]] = []

    def run(namespace: str, *flags: str, release: str = "poolkeeper", chart: Path = CHART, **program: Any) -> Helm:
        placed = Helm(helm.kubeconfig, namespace)
        made.append((placed, release))
        image = ("--set", "image.tag=dev", "--set", "image.pullPolicy=Never")
        placed("install", release, chart, *image, *flags, *WAIT, timeout=200, **program)
        return placed

    yield run
    for placed, release in made:
        placed("uninstall", release, "--ignore-not-found", "--wait", timeout=150)


def workers(stage: Stage) -> dict[str, tuple[str, int]]:
    """The pool's pods with the starts of their containers."""
    return {
        pod["metadata"]["uid"]: (
            pod["metadata"]["name"],
            sum(c["restartCount"] for c in pod["status"]["containerStatuses"]),
        )
        for pod in stage.all("pod", "poolkeeper.dev/pool=hello")
        if pod["status"].get("containerStatuses")
    }


def ready(stage: Stage) -> int:
    return int((stage.get("deployment", "hello") or {}).get("status", {}).get("readyReplicas", 0))


def leader(stage: Stage) -> str:
    return str(stage.kubectl.get(LEADER)["spec"].get("holderIdentity", "")).partition("_")[0]


def _leads_other_than(stage: Stage, name: str) -> bool:
    return leader(stage) not in {"", name}


def is_kept(stage: Stage, most: int) -> None:
    """The operator that runs now reads the pool, and says so of a generation that only it can have seen."""
    stage.kubectl(
        "patch", "workerpool", "hello", "--type=merge", "-p", json.dumps({"spec": {"scaling": {"max": most}}})
    )

    def observed() -> bool:
        pool = stage.get("workerpool", "hello") or {}
        return bool(pool.get("status", {}).get("observedGeneration") == pool["metadata"]["generation"])

    until(observed, timeout=90, what="the operator keeps the pool")


def works(stage: Stage) -> None:
    task = stage.run(calls.submit(f"{stage.namespace}/hello", "hello.greet", {"name": "Ada", "times": 1})).task_id
    until(lambda: stage.run(calls.task(task)).state == "succeeded", timeout=60, what="the pool works")


def inventory(kubectl: Kubectl) -> set[str]:
    """Everything in the namespace, and what is outside of namespaces of the kinds that charts make."""
    kinds = kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
    listed = ",".join(kind for kind in kinds if not kind.startswith(("events", "pods.metrics")))
    return {*kubectl("get", listed, "-o", "name").split(), *kubectl("get", OUTSIDE, "-o", "name").split()}


@pytest.fixture
def pool(stage: Stage, images: Images) -> Object:
    """Two workers of the smallest application."""
    hello = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "hello"},
        "data": {"hello.py": HELLO.read_text()},
    }
    stage.apply(hello, stage.db(), stage.queue("hello"))
    template = {
        "image": images.worker,
        "imagePullPolicy": "Never",
        "volumes": [{"name": "app", "configMap": {"name": "hello"}}],
        "volumeMounts": [{"name": "app", "mountPath": "/app"}],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }
    return stage.pool("hello", app="hello:app", template=template, scaling={"min": 2, "max": 2})


@pytest.mark.timeout(600)
def test_no_worker_notices_what_becomes_of_the_release(
    stage: Stage, pool: Object, install: Callable[..., Helm], earlier_chart: Path
) -> None:
    """O28, C36, C60: upgrades from an earlier chart that reuse its values, rollback, uninstall, installing again."""
    settings = ("--set", f"watchNamespaces={{{stage.namespace}}}", "--take-ownership")
    before = inventory(stage.kubectl)
    helm = install(stage.namespace, *settings, chart=earlier_chart)
    stage.apply(pool)
    until(lambda: ready(stage) == 2, timeout=120, what="two workers")
    seen = workers(stage)
    assert len(seen) == 2
    deployment = stage.get("deployment", "hello")
    assert deployment is not None

    with pytest.raises(LabError, match="at '/log': additional properties 'levl' not allowed"):
        helm("upgrade", "poolkeeper", CHART, "--reuse-values", "--set", "log.levl=debug")
    for number, command in enumerate(
        [
            ("upgrade", "poolkeeper", str(CHART), "--reuse-values", "--set", "log.level=debug"),
            ("upgrade", "poolkeeper", str(CHART), "--reset-then-reuse-values", "--set", "podAnnotations.tried=twice"),
            ("rollback", "poolkeeper", "1"),
        ]
    ):
        first = leader(stage)
        helm(*command, *WAIT, timeout=200)
        until(partial(_leads_other_than, stage, first), timeout=60, what="a pod of the new revision leads")
        is_kept(stage, 3 + number)
        assert workers(stage) == seen
    works(stage)

    helm("uninstall", "poolkeeper", "--wait", timeout=150)
    stage.kubectl("wait", "pod", "-l", "app.kubernetes.io/component=operator", "--for=delete", "--timeout=60s")
    left = {name for name in inventory(stage.kubectl) - before if "hello" not in name}  # the pool's
    definitions = {
        name for name in inventory(stage.kubectl) if name.endswith(".poolkeeper.dev") and "customres" in name
    }
    assert len(definitions) == 4
    assert left - definitions == {"lease.coordination.k8s.io/poolkeeper-operator"}, "as docs/how-to/uninstall.md says"
    works(stage)

    install(stage.namespace, *settings[:2])
    is_kept(stage, 6)
    works(stage)
    assert workers(stage) == seen
    again = stage.get("deployment", "hello")
    assert again is not None
    assert (again["metadata"]["uid"], again["metadata"]["generation"]) == (
        deployment["metadata"]["uid"],
        deployment["metadata"]["generation"],
    )


@pytest.mark.timeout(400)
def test_releases_beside_each_other(
    kubectl: Kubectl, make_namespace: Callable[[], str], install: Callable[..., Helm], helm: Helm
) -> None:
    """C38, C60, O31: two in one namespace, two of one name in two, the last by somebody without rights on the cluster."""
    home, first, second, own = (make_namespace() for _ in range(4))
    alone = ("--set", "replicaCount=1")
    beside = (*alone, "--set", "crds.install=false,policies.install=false")
    install(home, *alone, "--set", f"watchNamespaces={{{first}}}", "--take-ownership")
    with pytest.raises(LabError, match="exists and cannot be imported into the current release"):
        Helm(helm.kubeconfig, home)("install", "second", CHART, *alone, "--set", f"watchNamespaces={{{second}}}")
    install(home, *beside, "--set", f"watchNamespaces={{{second}}}", release="second")
    leases = {lease["metadata"]["name"]: lease["spec"]["holderIdentity"] for lease in kubectl.within(home).get("lease")}
    assert {name: holder.startswith(name) for name, holder in leases.items()} == {
        "poolkeeper-operator": True,
        "second-poolkeeper-operator": True,
    }

    kubectl.within(own)("create", "rolebinding", "tenant", "--clusterrole=cluster-admin", "--user=tenant")
    settings = ("--set", f"watchNamespaces={{{own}}}")
    placed = Helm(helm.kubeconfig, own)
    rendered = placed("template", "poolkeeper", CHART, *settings, "--show-only", "templates/clusterrole.yaml")
    made = [each for each in yaml.safe_load_all(rendered) if each]
    assert len(made) == len(of_kind("ClusterRole", made) + of_kind("ClusterRoleBinding", made)) == 2
    kubectl.apply(*made)
    try:
        install(own, *beside, *settings, "--set", "rbac.clusterRole=false", "--kube-as-user", "tenant")
        assert kubectl.within(own).get("deployment", "poolkeeper-operator")["status"]["readyReplicas"] == 1
        assert len(kubectl.within(own).get("lease")) == 1
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", stdin=rendered)
