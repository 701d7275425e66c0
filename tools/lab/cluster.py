"""A Kubernetes cluster of our own on this machine: up, down, and all that lies between.

Guarantees: `up` twice is a no-op; an `up` that fails or is interrupted takes down what it started; what a killed one
left is taken down by the next `up` of any cluster of this user; processes are ended by pid only; nothing listens
beyond loopback and the cluster's own bridge. Does not survive a reboot, and is not meant to.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from lab import build, cache, network, packages, state
from lab.controlplane import ControlPlane, Ports, api_get
from lab.errors import LabError
from lab.network import Network
from lab.node import Node
from lab.pki import NODE
from lab.process import Process
from lab.state import Facts, State

NO_NODE = "pods are accepted but never run; no containers, probes, exit codes, grace periods, image or Helm tests"


class LocalCluster:
    """One cluster, named within this checkout.

    Parameters
    ----------
    name: `dev` is the one of `python -m lab up`; test runs have their own.
    owned: whether it ends with this process (an orphan is taken down by the next `up`).
    say: where progress goes.
    """

    def __init__(self, name: str = "dev", *, owned: bool = True, say: cache.Say = build.tell) -> None:
        self._state, self._owned, self._say = state.place(name), owned, say
        self._name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

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
        """The address under which pods reach this machine; None without a node."""
        found = self._state.facts.network
        return found.gateway if found else None

    @property
    def audit_log(self) -> Path | None:
        """The API server's own record of all writes; None unless asked for."""
        return self._state.root / "audit.log" if self._state.facts.audit else None

    @property
    def logs(self) -> Path:
        """Folder of what the cluster's processes wrote."""
        return self._state.logs

    def up(self, *, node: bool = False, audit: bool = False, images: Iterable[Path] = ()) -> Self:
        """Bring it up unless it is; builds and installs what is missing first."""
        why_not = why_no_node() if node else None
        if why_not:
            raise LabError(f"no node here: {why_not}. Without it {NO_NODE}")
        packages.need(packages.CONTROL_PLANE, purpose="a control plane", say=self._say)
        if node:
            packages.need(packages.NODE, purpose="a node", say=self._say)
        (programs,) = build.ensure([build.KUBERNETES], self._say)
        with self._lock():
            self._state = State(self._state.root)
            if self._is_up(node=node, audit=audit):
                self._say("the cluster is up already")
                self._take_over()
                self.load(*images)
                return self
            take_down_orphans(self._say)
            self._take_down()
            try:
                with _one_node_at_a_time(self._say, wanted=node):
                    self._bring_up(programs, node=node, audit=audit, images=images)
            except BaseException:
                self._say(f"not up; its logs are kept in {self._keep_logs()}")
                self._take_down()
                raise
        return self

    def down(self) -> None:
        """Take it down; nothing when it is not up."""
        with self._lock():
            self._state = State(self._state.root)
            self._take_down()

    def load(self, *archives: Path) -> None:
        """Bring image archives to the node; a pod then uses them by their names."""
        if archives:
            self._require_up()
            Node(self._state, Path()).load(archives)

    def status(self) -> dict[str, dict[str, object]]:
        """Pid, memory and CPU time of each process."""
        return {name: usage(process) for name, process in self._state.facts.processes.items()}

    def _bring_up(self, programs: Path, *, node: bool, audit: bool, images: Iterable[Path]) -> None:
        began = time.monotonic()
        planned = network.plan(self._state.root.name[-8:], network.used_networks()) if node else None
        facts = Facts(owner=Process.of(os.getpid()), audit=audit, network=planned)
        self._state.begin(facts)
        worker = Node(self._state, programs) if node else None
        if planned is not None:
            self._make_network(planned)
        host = planned.gateway if planned else "127.0.0.1"
        ports = Ports.choose(host)
        plane = ControlPlane(self._state, programs, host, ports)
        facts.server = plane.server
        plane.start_etcd()
        if worker:
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
        facts.ready = True
        self._take_over()
        self._say(f"Kubernetes is up {'with a node ' if node else ''}after {time.monotonic() - began:.1f} s")

    def _make_network(self, planned: Network) -> None:
        network.make(planned)
        self._state.set_sysctl("net/ipv4/ip_forward", "1")
        self._state.set_sysctl("net/bridge/bridge-nf-call-iptables", "1")  # answers of services on the same bridge

    def _take_over(self) -> None:
        """From now on it ends with this process, or stays until `down`."""
        self._state.facts.owner = Process.of(os.getpid()) if self._owned else None
        self._state.save()

    def _is_up(self, *, node: bool, audit: bool) -> bool:
        facts = self._state.facts
        if not facts.ready or (node and not facts.network) or (audit and not facts.audit):
            return False
        with suppress(OSError):
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
        with suppress(OSError):
            self._state.logs.rename(kept)
        return kept

    def _require_up(self) -> None:
        if not self._state.facts.ready:
            raise LabError(f"the cluster {self._name!r} is not up; bring it up: python -m lab up")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One `up` or `down` of this cluster at a time."""
        with cache.lock(cache.folder() / f"{self._state.root.name}.lock", f"cluster {self._name!r}", self._say):
            yield


def why_no_node() -> str | None:
    """Why a real node cannot run here; None when it can."""
    if sys.platform != "linux":
        return f"containers need Linux, this is {sys.platform} (with Docker running, kind is used instead)"
    if os.geteuid() != 0:
        return "containers, bridges and control groups need root, and you are not root"
    return None


def take_down(found: State) -> None:
    """Take down whatever there is of a cluster, in whatever state it is."""
    facts = found.facts
    for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
        found.stop(name, grace=0.0)  # nothing in etcd is worth keeping
    if facts.network is not None:
        Node(found, Path()).clear()
        network.drop(facts.network)
    found.stop_all()
    found.restore_sysctls()
    found.remove()


def take_down_orphans(say: cache.Say) -> None:
    """Take down clusters whose owner was killed before it could."""
    for found in state.all_states():
        owner = found.facts.owner
        if owner is not None and not owner.alive():
            say(f"taking down what process {owner.pid} left in {found.root}")
            take_down(found)


@contextmanager
def _one_node_at_a_time(say: cache.Say, *, wanted: bool) -> Iterator[None]:
    """Wait until no other cluster here has a node: two kube-proxies break each other's services."""
    if not wanted:
        yield
        return
    with (cache.folder() / "node.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        end, said = time.monotonic() + 900, False
        while others := [each for each in state.all_states() if each.facts.network is not None]:
            other = others[0]
            owner = other.facts.owner
            if owner is None or time.monotonic() > end:
                raise LabError(
                    f"another cluster with a node is up ({other.root}); only one fits on a machine. Take it down "
                    f"(python -m lab down), or use it: POOLKEEPER_TEST_KUBECONFIG={other.root}/admin.kubeconfig"
                )
            if not said:
                say(
                    f"another cluster with a node is up (process {owner.pid}); waiting until it is down, 15 min at most"
                )
            said = True
            time.sleep(0.5)
            take_down_orphans(say)
        if network.has_proxy_table():
            raise LabError(
                "another kube-proxy's services are on this machine, and two break each other's. If its owner is gone: "
                "nft delete table ip kube-proxy; else run in a network namespace of its own: unshare -n"
            )
        yield


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


def writes(audit_log: Path, offset: int = 0) -> tuple[list[dict[str, object]], int]:
    """Entries of an audit log from a position on, and the position after the last whole one."""
    with audit_log.open("rb") as file:
        file.seek(offset)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole)
