"""`helm install` on a real node: up and Ready with the image that we built, with rights enough and no more (A6).

What becomes of a release afterwards is in test_chart_releases.py.
"""

import json
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cluster.test_chart_values import ODD
from fixtures.images import Images
from fixtures.stage import until
from lab.handle import Cluster
from lab.kubectl import Helm, Kubectl

CHART = Path(__file__).resolve().parents[2] / "charts" / "poolkeeper"
OURS = {f"{kind}.poolkeeper.dev" for kind in ("databases", "providerquotas", "taskqueues", "workerpools")}


@pytest.fixture(scope="module")
def release(node_cluster: Cluster, images: Images) -> Iterator[Kubectl]:
    """The chart in a namespace of its own, keeping that namespace only, so that other tests' resources stay theirs."""
    del images
    namespace = f"test-{secrets.token_hex(4)}"
    kubectl = Kubectl(node_cluster.kubeconfig)
    kubectl("create", "namespace", namespace)
    settings = (f"watchNamespaces={{{namespace}}}", "image.tag=dev", "image.pullPolicy=Never")
    flags = [part for each in settings for part in ("--set", each)]
    placed = Helm(node_cluster.kubeconfig, namespace)
    flags += ["--take-ownership"]  # of definitions that another test has applied
    placed("install", "poolkeeper", CHART, *flags, "--wait", "--timeout", "120s", timeout=150)
    yield kubectl.within(namespace)
    placed("uninstall", "poolkeeper", "--ignore-not-found", "--wait", timeout=150)
    kubectl("delete", "namespace", namespace, "--wait=false")


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


def holder(release: Kubectl) -> str:
    return str(release.get("lease", "poolkeeper-operator")["spec"]["holderIdentity"]).partition("_")[0]


def evicted(release: Kubectl, pod: str) -> bool:
    """What `kubectl drain` asks for; False: the disruption budget says not now."""
    assert release.namespace is not None
    wanted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": release.namespace}}
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod}/eviction"
    return "Success" in release("create", "--raw", path, "-f", "-", stdin=json.dumps(wanted), check=False)


def test_all_pods_can_be_evicted_and_another_one_leads(release: Kubectl) -> None:
    """O29, C32: as a drain of their node does it, with the chart's own rights and its disruption budget."""
    names = {pod["metadata"]["name"] for pod in release.get("pods", "-l", "app.kubernetes.io/component=operator")}
    first = holder(release)
    assert first in names
    assert evicted(release, first), "with all pods up one may go"
    until(lambda: holder(release) not in {"", first}, timeout=60, what="another holder of the Lease")
    for pod in names - {first}:
        until(partial(evicted, release, pod), timeout=90, what=f"{pod} may be evicted, too")


def test_the_operator_s_own_rights_are_the_roles_and_no_more(release: Kubectl) -> None:
    """O31: as the API server sees it: secrets by name only, and nothing in a namespace that is not kept."""
    account = f"--as=system:serviceaccount:{release.namespace}:poolkeeper-operator"

    def may(*request: str) -> bool:
        return release("auth", "can-i", *request, account, check=False).strip().startswith("yes")

    assert may("get", "secret/any")
    assert may("patch", "workerpools.poolkeeper.dev", "--subresource=status")
    assert not may("list", "secrets")
    assert not may("watch", "secrets")
    assert not may("get", "secret/any", "--namespace=default")
    assert not may("delete", "deployments.apps")
    assert not may("create", "rolebindings.rbac.authorization.k8s.io")


def test_values_that_look_like_something_else_make_objects_that_the_api_server_takes(
    release: Kubectl, tmp_path: Path
) -> None:
    """C60: rendered with texts such as no, 0777 and 123e4 wherever one may stand, and tried on the server."""
    values = tmp_path / "values.json"
    values.write_text(json.dumps({**ODD, "watchNamespaces": [release.namespace]}))
    rendered = Helm(release.kubeconfig, release.namespace)("template", "123e4", CHART, "--values", values)
    tried = release("apply", "--dry-run=server", "-f", "-", stdin=rendered)
    assert "deployment.apps/0777 created (server dry run)" in tried
