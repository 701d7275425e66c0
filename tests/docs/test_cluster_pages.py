"""The pages for a cluster, followed one after the other from an empty one to none (A12).

In a network namespace of their own, as there is one cluster with a node in each.
"""

import logging
import os
from pathlib import Path

import pytest

from fixtures.console import ON_A_CLUSTER, blocks, free_port, shell
from fixtures.layers import cannot_run
from lab import cluster
from lab.packages import find

pytestmark = pytest.mark.wide

log = logging.getLogger(__name__)
LOOKS_WHEN_LOST = (
    "kubectl --namespace team-a get databases,taskqueues,workerpools -o yaml",
    "kubectl get pods,events --all-namespaces",
    "kubectl --namespace poolkeeper logs deployment/poolkeeper-operator --tail=60",
)
IN_A_NAMESPACE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def namespace_of_its_own() -> None:
    if why_not := cluster.why_no_node():
        cannot_run(f"no node: {why_not}")
    if find("unshare") is None:
        cannot_run("no unshare to give the pages' cluster a network of its own; install util-linux")


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("namespace_of_its_own", "image_archives")  # there, nothing can be fetched
def test_the_pages_for_a_cluster_can_be_followed_in_order(tmp_path: Path) -> None:
    """Literally, but for the port of Postgres and the name of the cluster."""
    lab = f"python -m lab --name docs-{os.getpid()}"
    environment = {"TZ": "UTC", "HELM_CACHE_HOME": str(tmp_path / "helm")}
    with shell(tmp_path, {"54320": free_port(), "python -m lab": lab}, environment, within=IN_A_NAMESPACE) as made:
        try:
            for page in ON_A_CLUSTER:
                for block in blocks(page):
                    made.run(block)
        except AssertionError:
            for look in LOOKS_WHEN_LOST:
                log.warning("$ %s\n%s", look, made.ask(f"timeout 20 {look}")[1])
            raise
        finally:
            made.command(f"{lab} down")
