"""A Kubernetes cluster of our own on this machine, brought up and taken down.

Guarantees: `up` twice is a no-op; an `up` that fails or is interrupted takes down what it started; what a killed one
left is taken down by the next `up` of any cluster of this user; processes are ended by pid only; nothing listens
beyond loopback and the cluster's own bridge. Does not survive a reboot, and is not meant to.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from lab import build, cache, kind, network, packages, state
from lab.controlplane import ControlPlane, Ports, api_get
from lab.errors import LabError
from lab.handle import Cluster, OurCluster, named
from lab.node import Node
from lab.pki import NODE
from lab.process import Process
from lab.state import Facts, State
from lab.teardown import lock_of, one_node_at_a_time, take_down, take_down_orphans

_KEPT_LOGS = 4
NO_NODE = "pods are accepted but never run; no containers, probes, exit codes, grace periods, image or Helm tests"


class LocalCluster(OurCluster):
    """One cluster, named within this checkout.

    Parameters
    ----------
    name: `dev` is the one of `python -m lab up`; test runs have their own.
    owned: whether it ends with this process (an orphan is taken down by the next `up`).
    say: where progress goes.
    """

    def __init__(self, name: str = "dev", *, owned: bool = True, say: cache.Say = build.tell) -> None:
        super().__init__(state.place(name))
        self._name, self._owned, self._say = name, owned, say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self, *, node: bool = False, audit: bool = False, images: Iterable[Path] = ()) -> Self:
        """Bring it up unless it is; builds and installs what is missing first."""
        if node and (why_not := why_no_node()):
            raise LabError(f"no node here: {why_not}. Without it {NO_NODE}")
        packages.need(packages.CONTROL_PLANE, purpose="a control plane", say=self._say)
        if node:
            packages.need(packages.NODE, purpose="a node", say=self._say)
        (programs,) = build.ensure([build.KUBERNETES], self._say)
        take_down_orphans(self._say)
        with cache.lock(lock_of(self._state), f"cluster {self._name!r}", self._say):
            self._state = State(self._state.root)
            if self._is_up(node=node, audit=audit):
                self._say("the cluster is up already")
                self._take_over()
                self.load(*images)
                return self
            self._take_down()
            with one_node_at_a_time(self._say, wanted=node):
                try:
                    self._bring_up(programs, node=node, audit=audit, images=images)
                except BaseException as error:
                    if isinstance(error, Exception):  # not when it was told to stop
                        self._say(f"not up; its logs are kept in {self._keep_logs()}")
                    self._take_down()
                    raise
        return self

    def down(self) -> None:
        """Take it down; nothing when it is not up."""
        with cache.lock(lock_of(self._state), f"cluster {self._name!r}", self._say):
            self._state = State(self._state.root)
            self._take_down()

    def status(self) -> dict[str, dict[str, object]]:
        """Pid, memory and CPU time of each process."""
        return {name: usage(process) for name, process in self._state.facts.processes.items()}

    def _bring_up(self, programs: Path, *, node: bool, audit: bool, images: Iterable[Path]) -> None:
        began = time.monotonic()
        planned = network.plan(self._state.root.name[-8:], *network.in_use()) if node else None
        facts = Facts(netns=state.our_netns(), owner=Process.of(os.getpid()), audit=audit, network=planned)
        self._state.begin(facts)
        host = planned.gateway if planned else "127.0.0.1"
        ports = Ports.choose("127.0.0.1")  # nobody else has the bridge's address
        plane = ControlPlane(self._state, programs, host, ports)
        worker = Node(self._state, programs) if planned else None
        facts.server = plane.server
        plane.start_etcd()
        if planned and worker:
            network.make(planned)
            self._state.set_sysctl("net/ipv4/ip_forward", "1")
            self._state.set_sysctl("net/bridge/bridge-nf-call-iptables", "1")  # for services' answers on one bridge
            worker.start_containerd()
        plane.make_keys()
        plane.start_apiserver()
        if worker:
            worker.import_images(images)
        plane.await_apiserver()
        plane.start_controllers()
        if worker:
            worker.start_kubelet(ports)
            worker.start_proxy(ports)
        plane.await_controllers()
        if worker:
            self._state.wait(f"{NODE} Ready", lambda: plane.node_ready(NODE), needs=["kubelet", "containerd"])
            self._state.wait("kube-proxy", plane.services_reachable, needs=["kube-proxy"])
        facts.ready = True
        self._take_over()
        self._say(f"Kubernetes is up {'with a node ' if node else ''}after {time.monotonic() - began:.1f} s")

    def _take_over(self) -> None:
        """From now on it ends with this process, or stays until `down`."""
        self._state.facts.owner = Process.of(os.getpid()) if self._owned else None
        self._state.save()

    def _is_up(self, *, node: bool, audit: bool) -> bool:
        facts = self._state.facts
        if not facts.ready or (node and not facts.network) or (audit and not facts.audit):
            return False
        with suppress(OSError, LabError):
            return all(each.alive() for each in facts.processes.values()) and (
                api_get(facts.server, self._state.pki, "/readyz") == "ok"
            )
        return False

    def _take_down(self) -> None:
        if self._state.exists:
            take_down(self._state)

    def _keep_logs(self) -> Path:
        kept = cache.folder() / "logs" / f"{self._state.root.name}-{os.getpid()}"
        kept.parent.mkdir(exist_ok=True)
        for old in sorted(kept.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)[:-_KEPT_LOGS]:
            shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):
            self._state.logs.rename(kept)
        return kept


def why_no_node() -> str | None:
    """Why a real node cannot run here; None when it can."""
    if sys.platform != "linux":
        return f"containers need Linux, this is {sys.platform} (with a Docker engine running, kind is used instead)"
    if os.geteuid() != 0:
        return "containers, bridges and control groups need root, and you are not root"
    return None


def is_ours() -> bool:
    """Whether `obtain` makes one of our own."""
    return not os.environ.get("POOLKEEPER_TEST_KUBECONFIG") and not kind.engine_answers()


def obtain(name: str, *, node: bool, audit: bool = True, say: cache.Say = build.tell) -> Cluster:
    """A cluster for a test run: the one named, else kind where a Docker engine answers, else our own."""
    kubeconfig = os.environ.get("POOLKEEPER_TEST_KUBECONFIG")
    if kubeconfig:
        return named(Path(kubeconfig))
    if kind.engine_answers():
        return kind.KindCluster(name)
    return LocalCluster(name, say=say).up(node=node and why_no_node() is None, audit=audit)


def usage(process: Process) -> dict[str, object]:
    """Pid, resident memory in MiB and CPU seconds; `dead` when it has ended."""
    if not process.alive():
        return {"pid": process.pid, "dead": True}
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    return {
        "pid": process.pid,
        "rss_mib": round(int(fields[21]) * page / 2**20, 1),
        "cpu_seconds": round((int(fields[11]) + int(fields[12])) / ticks, 2),
    }
