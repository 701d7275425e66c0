"""`helm install` on a real node: up and Ready with the image that we built, and gone again but for the definitions (A6)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.images import Images
from fixtures.stage import until
from lab.kubectl import Helm, Kubectl

CHART = Path(__file__).resolve().parents[2] / "charts" / "poolkeeper"
OURS = {f"{kind}.poolkeeper.dev" for kind in ("databases", "providerquotas", "taskqueues", "workerpools")}
DEPLOYMENT = "deployment/poolkeeper-operator"


@pytest.fixture
def release(helm: Helm, kubectl: Kubectl, namespace: str, images: Images) -> Iterator[Kubectl]:
    """The chart in a namespace of its own, keeping that namespace only, so that other tests' resources stay theirs."""
    settings = (f"watchNamespaces={{{namespace}}}", "image.tag=dev", "image.pullPolicy=Never")
    flags = [part for each in settings for part in ("--set", each)]
    placed = Helm(helm.kubeconfig, namespace)
    flags += ["--take-ownership"]  # of definitions that another test has applied
    placed("install", "poolkeeper", CHART, *flags, "--wait", "--timeout", "120s", timeout=150)
    yield kubectl.within(namespace)
    placed("uninstall", "poolkeeper", "--ignore-not-found", "--wait", timeout=150)


def definitions(kubectl: Kubectl) -> set[str]:
    return {crd["metadata"]["name"] for crd in kubectl.get("crd")} & OURS


def test_install_brings_up_the_image_that_was_built(release: Kubectl, images: Images) -> None:
    """A6, A7: Ready means that it found its rights and definitions; the pod runs what our Dockerfile made."""
    pods = release.get("pods", "-l", "app.kubernetes.io/component=operator")
    for pod in pods:
        (status,) = pod["status"]["containerStatuses"]
        assert (status["ready"], status["restartCount"]) == (True, 0)
        assert status["imageID"] == images.operator_id
    assert len(pods) == 2
    assert definitions(release) == OURS


def test_one_of_the_pods_leads_and_hands_over_when_it_goes(release: Kubectl) -> None:
    """O29: with the chart's own rights; the pod that holds the Lease is deleted, and another one holds it soon."""

    def holder() -> str:
        return str(release.get("lease", "poolkeeper-operator")["spec"]["holderIdentity"]).partition("_")[0]

    names = {pod["metadata"]["name"] for pod in release.get("pods", "-l", "app.kubernetes.io/component=operator")}
    first = holder()
    assert first in names
    release("delete", "pod", first, "--wait=false")
    until(lambda: holder() not in {"", first}, timeout=60, what="another holder of the Lease")


def test_the_operator_s_own_rights_are_the_roles_and_no_more(release: Kubectl, namespace: str) -> None:
    """O31: as the API server sees it: secrets by name only, and nothing in a namespace that is not kept."""
    account = f"--as=system:serviceaccount:{namespace}:poolkeeper-operator"

    def may(*request: str) -> bool:
        return release("auth", "can-i", *request, account, check=False).strip().startswith("yes")

    assert may("get", "secret/any")
    assert may("patch", "workerpools.poolkeeper.dev", "--subresource=status")
    assert not may("list", "secrets")
    assert not may("watch", "secrets")
    assert not may("get", "secret/any", "--namespace=default")
    assert not may("delete", "deployments.apps")
    assert not may("create", "rolebindings.rbac.authorization.k8s.io")


def test_upgrade_and_rollback_replace_the_operator_and_keep_the_definitions(
    release: Kubectl, helm: Helm, namespace: str
) -> None:
    """A6: what was applied stays as it is; one operator after the other is replaced, and all come up again each time."""
    before = {crd["metadata"]["uid"] for crd in release.get("crd") if crd["metadata"]["name"] in OURS}
    placed = Helm(helm.kubeconfig, namespace)
    for command, level in (
        (("upgrade", "poolkeeper", str(CHART), "--reuse-values", "--set", "log.level=debug"), "debug"),
        (("rollback", "poolkeeper", "1"), "info"),
    ):
        placed(*command, "--wait", "--timeout", "120s", timeout=150)
        (container,) = release.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
        assert {"name": "POOLKEEPER_LOG_LEVEL", "value": level} in container["env"]
        assert release.get(DEPLOYMENT)["status"]["readyReplicas"] == 2
    assert {crd["metadata"]["uid"] for crd in release.get("crd") if crd["metadata"]["name"] in OURS} == before


def test_uninstall_leaves_the_definitions_and_what_was_made_of_them(
    release: Kubectl, helm: Helm, namespace: str
) -> None:
    """A6: people's queues survive the operator; nothing else of the release does."""
    database = {"apiVersion": "poolkeeper.dev/v1alpha1", "kind": "Database", "metadata": {"name": "kept"}}
    release.apply({**database, "spec": {"dsnSecretRef": {"name": "nowhere"}}})
    made = json.loads(Helm(helm.kubeconfig, namespace)("list", "-o", "json"))
    assert [each["status"] for each in made] == ["deployed"]

    Helm(helm.kubeconfig, namespace)("uninstall", "poolkeeper", "--wait", timeout=150)

    assert definitions(release) == OURS
    assert release.get("databases.poolkeeper.dev", "kept")["metadata"]["name"] == "kept"
    ours = "app.kubernetes.io/instance=poolkeeper,app.kubernetes.io/managed-by=Helm"
    assert (
        release.get(
            "deployments,poddisruptionbudgets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings",
            "-l",
            ours,
        )
        == []
    )
    release("wait", "pod", "-l", "app.kubernetes.io/component=operator", "--for=delete", "--timeout=60s")
