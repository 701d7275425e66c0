"""What those who use a cluster need of it, whoever made it."""

import os
from pathlib import Path
from typing import Protocol

from lab.archive import image_tag
from lab.errors import LabError
from lab.kubectl import Kubectl
from lab.node import Node
from lab.state import State


class Cluster(Protocol):
    """A cluster that is up."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        ...

    @property
    def has_node(self) -> bool:
        """Whether pods run."""
        ...

    @property
    def host_address(self) -> str | None:
        """The address under which pods reach this machine; None where there is none."""
        ...

    @property
    def audit_log(self) -> Path | None:
        """The API server's own record of all writes; None where it cannot be read."""
        ...

    def load(self, *archives: Path) -> None:
        """Bring image archives to the nodes; a pod then uses them by their names."""
        ...

    def down(self) -> None:
        """Take down what was brought up for us; a cluster that was there before stays."""
        ...


class OurCluster:
    """A cluster of the lab's, found by its folder; `down` leaves it to whoever brought it up."""

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        self._require_up()
        return self._state.root / "admin.kubeconfig"

    @property
    def has_node(self) -> bool:
        """Whether pods run."""
        return self._state.facts.network is not None

    @property
    def host_address(self) -> str | None:
        """The bridge's address."""
        found = self._state.facts.network
        return found.gateway if found else None

    @property
    def audit_log(self) -> Path | None:
        """None unless `up` was asked for it."""
        return self._state.root / "audit.log" if self._state.facts.audit else None

    @property
    def logs(self) -> Path:
        """Folder of what the cluster's processes wrote."""
        return self._state.logs

    def load(self, *archives: Path) -> None:
        """Bring image archives to the node."""
        if archives:
            self._require_up()
            Node(self._state, Path()).load(archives)

    def down(self) -> None:
        """Nothing: it is not ours to end."""

    def _require_up(self) -> None:
        if not self._state.facts.ready:
            raise LabError(f"no cluster is up in {self._state.root}; bring it up: python -m lab up")


class LackingImages(LabError):
    """A cluster of the user's does not have the images that were built here."""


class ForeignCluster:
    """A cluster that the user names by its kubeconfig; its nodes must have the images."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.audit_log: Path | None = None
        self.host_address = os.environ.get("POOLKEEPER_TEST_HOST_ADDRESS")

    @property
    def has_node(self) -> bool:
        """Whether it has a node at all."""
        return bool(Kubectl(self.kubeconfig).get("nodes"))

    def load(self, *archives: Path) -> None:
        """Not possible from outside: every node must have them already, by what it says itself; raises LackingImages."""
        nodes = Kubectl(self.kubeconfig).get("nodes")
        each_has = [{name for image in node["status"].get("images", []) for name in image["names"]} for node in nodes]
        lacking = [archive for archive in archives if any(image_tag(archive) not in there for there in each_has)]
        if lacking:
            raise LackingImages(
                f"images cannot be brought to the cluster of {self.kubeconfig} from here; import them into each of its nodes "
                f"(as with ctr --namespace k8s.io images import), and try again: {' '.join(map(str, lacking))}"
            )

    def down(self) -> None:
        """Nothing: it was there before us."""


def named(kubeconfig: Path) -> Cluster:
    """The cluster that POOLKEEPER_TEST_KUBECONFIG names; one of the lab's own is known as such."""
    if not kubeconfig.exists():
        raise LabError(f"POOLKEEPER_TEST_KUBECONFIG={kubeconfig}: no such file; name a kubeconfig or unset it")
    if (kubeconfig.parent / "cluster.json").exists():
        return OurCluster(State(kubeconfig.parent))
    return ForeignCluster(kubeconfig)
