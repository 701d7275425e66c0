"""The images from our Dockerfile: what is in them, how they run, and that users build on the worker's (A7)."""

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fixtures.images import Images
from fixtures.layers import cannot_run
from fixtures.stage import until
from lab import handle, image, wheels
from lab.archive import image_id
from lab.base_image import base_image
from lab.buildah import Storage
from lab.handle import Cluster
from lab.kind import engine_answers
from lab.kubectl import Kubectl

HARDENED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(name: str, reference: str, *command: str) -> dict[str, Any]:
    """A pod under the restrictions that the operator gives to workers; no user is set: the image's own counts."""
    container = {
        "name": "main",
        "image": reference,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "securityContext": HARDENED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def outcome(kubectl: Kubectl, name: str) -> tuple[str, dict[str, Any]]:
    """What the pod's program printed, and its container's status, once it has ended; it must have ended well."""
    kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", "--timeout=90s")
    status = kubectl.get("pod", name)["status"]["containerStatuses"][0]
    said = kubectl("logs", name).strip()
    assert status["state"]["terminated"]["exitCode"] == 0, said
    return said, status


def config_of(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as tar:
        member = tar.extractfile(image_id(archive).removeprefix("sha256:") + ".json")
        assert member is not None
        found: dict[str, Any] = json.load(member)["config"]
    return found


@pytest.fixture
def namespaced(kubectl: Kubectl, namespace: str) -> Kubectl:
    return kubectl.within(namespace)


@pytest.mark.parametrize(("name", "command"), [(image.WORKER, ["worker"]), (image.OPERATOR, ["operator"])])
def test_an_image_starts_without_a_shell_and_without_root(
    image_archives: dict[str, Path], name: str, command: list[str]
) -> None:
    config = config_of(image_archives[name])
    assert (config["Entrypoint"], config["Cmd"]) == (["poolkeeper"], command)
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_worker_runs_hardened_and_is_the_image_that_was_built(namespaced: Kubectl, images: Images) -> None:
    """O6, A7: own user, read-only root file system, no Kubernetes client inside; the pod's image id is the archive's."""
    program = """
import importlib.util, os, pathlib, shutil, tempfile
import poolkeeper, psycopg
assert os.getuid() == os.getgid() == 65532
assert psycopg.pq.__impl__ == "binary"
assert [name for name in ("kopf", "kubernetes") if importlib.util.find_spec(name)] == []
assert shutil.which("poolkeeper")
tempfile.NamedTemporaryFile().close()
for module in (poolkeeper, psycopg):  # compiled, and trusted by hash: by time it would be compiled at each start
    assert int.from_bytes(pathlib.Path(module.__cached__).read_bytes()[4:8], "little") == 0b11
try:
    pathlib.Path("/opt/poolkeeper/x").touch()
except OSError as error:
    print(error.strerror, os.getcwd())
"""
    namespaced.apply(pod("worker", images.worker, "python", "-c", program))
    said, status = outcome(namespaced, "worker")
    assert said == "Read-only file system /app"
    assert status["imageID"] == images.worker_id


def test_the_operator_s_image_has_its_command(namespaced: Kubectl, images: Images) -> None:
    namespaced.apply(pod("operator", images.operator, "poolkeeper", "operator", "--help"))
    said, status = outcome(namespaced, "operator")
    assert "Usage: poolkeeper operator" in said
    assert status["imageID"] == images.operator_id


def test_users_build_theirs_on_the_worker_s(namespaced: Kubectl, node_cluster: Cluster, tmp_path: Path) -> None:
    """A7: FROM and COPY are enough; the app is importable as it will be for `poolkeeper worker my_agent:app`."""
    (tmp_path / "Dockerfile").write_text(f"FROM {image.WORKER}\nCOPY my_agent.py /app/my_agent.py\n")
    (tmp_path / "my_agent.py").write_text("app = 'found'\n")
    reference = "localhost/my-agent:test"
    archive = image.build_app_image(tmp_path, reference)
    node_cluster.load(archive)

    namespaced.apply(pod("mine", reference, "python", "-c", "import my_agent; print(my_agent.app)"))

    said, status = outcome(namespaced, "mine")
    assert said == "found"
    assert status["imageID"] == image_id(archive)


def test_a_second_build_finds_the_first(image_archives: dict[str, Path]) -> None:
    """Nothing is built, fetched or said while nothing changed."""
    said: list[str] = []
    for _ in range(5):  # someone may be editing the sources at this moment
        sources, first = wheels.source_digest(), image.build_images()
        said.clear()
        again = image.build_images(said.append)
        if wheels.source_digest() == sources:
            break
    assert (again, said) == (first, [])


@pytest.mark.deep
def test_the_same_sources_make_the_same_image(tmp_path: Path) -> None:
    """A7: two builds that share no layer agree on the image's id."""
    if os.geteuid() != 0 or engine_answers():
        cannot_run("needs buildah as root, and no Docker engine")
    base = base_image(print)
    parts = wheels.wheels(base.python, print)
    made = []
    for name in ("one", "two"):
        with Storage(tmp_path / name, print) as storage:
            archive = tmp_path / f"{name}.tar"
            image.build(storage, {image.WORKER: archive}, base, parts, print)
            made.append(image_id(archive))
    assert made[0] == made[1]


def test_a_cluster_of_the_user_s_has_the_images_by_its_own_word_or_says_which_it_lacks(
    node_cluster: Cluster, images: Images, image_archives: dict[str, Path], tmp_path: Path
) -> None:
    """Nothing can be brought there from outside: what was imported by hand is seen, what was not is named."""
    del images  # loaded
    config, other = tmp_path / "config", tmp_path / "other.tar"
    config.write_text(node_cluster.kubeconfig.read_text())
    (tmp_path / "manifest.json").write_text(json.dumps([{"Config": "1.json", "RepoTags": ["localhost/other:1"]}]))
    with tarfile.open(other, "w") as tar:
        tar.add(tmp_path / "manifest.json", "manifest.json")
    named = handle.named(config)
    assert isinstance(named, handle.ForeignCluster)
    until(lambda: _refusal(named, *image_archives.values()) == "", timeout=90, what="the node tells what it has")
    assert _refusal(named, other, *image_archives.values()).endswith(f"and try again: {other}")


def _refusal(cluster: Cluster, *archives: Path) -> str:
    try:
        cluster.load(*archives)
    except handle.LackingImages as lacking:
        return str(lacking)
    return ""
