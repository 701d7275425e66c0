"""A real node on this machine: containerd, kubelet and kube-proxy beside the control plane. Needs root on Linux.

Guarantees that images come from archives only (no registry is asked), and that `clear` leaves no container, shim,
mount or control group of this node, whether or not its containerd still runs. One node; one kube-proxy per machine.
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from lab import oci
from lab.controlplane import Ports
from lab.errors import LabError
from lab.node_settings import PAUSE, containerd_toml, kubelet_settings, network_list, proxy_settings
from lab.packages import require
from lab.pki import NODE
from lab.process import Process
from lab.state import State

_CGROUPS = Path("/sys/fs/cgroup")
_FIXED = (Path("/var/lib/kubelet"), Path("/var/lib/cni"), Path("/var/log/containers"), Path("/var/log/pods"))
_CAP_SYS_RESOURCE = 24


class Node:
    """The node of the cluster that `state` describes."""

    def __init__(self, state: State, programs: Path) -> None:
        if state.facts.network is None:
            raise LabError(f"the cluster in {state.root} has no node; bring it up with --node")
        self._state, self._programs = state, programs
        self._network = state.facts.network
        self._folder = state.root / "node"
        self._socket = self._folder / "run" / "c.sock"  # a socket's path has at most 107 bytes

    def start_containerd(self) -> None:
        """Start containerd; `import_images` waits for it."""
        self._state.facts.made = [place for place in _FIXED if not place.exists()]
        self._state.save()
        for name in ("run", "containerd", "cni", "kubelet", "logs"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        settings = network_list(self._network, self._folder / "ipam")
        (self._folder / "cni" / "10-lab.conflist").write_text(json.dumps(settings))
        config = self._folder / "containerd.toml"
        config.write_text(
            containerd_toml(
                self._folder,
                self._socket,
                plugins=Path(require("cni/bridge")).parent,
                runc=require("runc"),
                may_lower_oom_score=_may_lower_oom_score(),
            )
        )
        self._state.start("containerd", [require("containerd"), "--config", config])

    def import_images(self, archives: Iterable[Path]) -> None:
        """Bring the pods' own `pause` and these image archives to the node."""
        self._state.wait("containerd", lambda: self._ctr("version", check=True), needs=["containerd"])
        pause = self._folder / "pause.tar"
        oci.write(pause, PAUSE, {"pause": self._programs / "pause"}, "/pause")
        self.load([pause, *archives])

    def load(self, archives: Iterable[Path]) -> None:
        """Import image archives (docker or OCI format)."""
        for archive in archives:
            self._ctr("images", "import", str(Path(archive).absolute()), check=True)

    def start_kubelet(self, ports: Ports) -> None:
        """Start the kubelet in a control group of its own."""
        for group in self._cgroups():
            group.mkdir(exist_ok=True)
            for file in ("cpuset.mems", "cpuset.cpus"):  # version 1: empty in a new group, needed before its first use
                if (group / file).exists() and not (group / file).read_text().strip():
                    (group / file).write_text((group.parent / file).read_text())
        # an empty one would make containerd copy the machine's own; this one fails at once in the pod
        (self._folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions attempts:1 timeout:1\n")
        config = self._folder / "kubelet.yaml"
        settings = kubelet_settings(
            self._folder,
            self._socket,
            self._state.pki,
            address=self._network.gateway,
            ports=ports,
            cgroup=self._cgroup_name,
            cgroup_v1=not (_CGROUPS / "cgroup.controllers").exists(),
        )
        config.write_text(json.dumps(settings, indent=1))
        self._state.start(
            "kubelet",
            [
                self._programs / "kubelet",
                f"--config={config}",
                f"--kubeconfig={self._state.root}/{NODE}.kubeconfig",
                f"--root-dir={self._folder}/kubelet",
                f"--hostname-override={NODE}",
                f"--node-ip={self._network.gateway}",
                f"--cert-dir={self._folder}/kubelet-pki",
            ],
        )

    def start_proxy(self, ports: Ports) -> None:
        """Start kube-proxy, which makes services reachable."""
        config = self._folder / "proxy.yaml"
        settings = proxy_settings(self._network, self._state.root / "proxy.kubeconfig", ports)
        config.write_text(json.dumps(settings, indent=1))
        self._state.start("kube-proxy", [self._programs / "kube-proxy", f"--config={config}"])

    def clear(self, *, fixed_places: bool) -> None:
        """End kubelet, containers and containerd and take away what they left, also in places that others may share."""
        self._state.stop("kubelet")
        self._state.stop("kube-proxy")
        left = self._leftovers()
        self._kill_containers()
        self._state.stop("containerd")
        self._state.stop_all()  # the shims carry the folder's name as well
        for file in left:
            file.unlink(missing_ok=True)
        self._unmount()
        for group in self._cgroups():
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        for place in self._state.facts.made if fixed_places else ():
            shutil.rmtree(place, ignore_errors=True)

    def _leftovers(self) -> list[Path]:
        """Files of this node's pods in fixed places: sockets of shims, results of the network plugin, links to logs."""
        found: list[Path] = []
        tasks = self._folder / "run" / "containerd" / "io.containerd.runtime.v2.task"
        for task in tasks.glob("*/*"):
            found += Path("/var/lib/cni/results").glob(f"*-{task.name}-*")
            with contextlib.suppress(OSError):
                found.append(Path((task / "address").read_text().strip().removeprefix("unix://")))
        for link in Path("/var/log/containers").glob("*"):
            if link.is_symlink() and str(link.readlink()).startswith(f"{self._state.root}/"):
                found.append(link)
        return found

    def _kill_containers(self) -> None:
        """Whatever is in the node's control groups is a container's process."""
        end = time.monotonic() + 10
        while pids := self._pids():
            for pid in pids:
                Process.of(pid).stop(9, grace=1.0)
            if time.monotonic() > end:
                raise LabError(f"processes {pids} in the control group {self._cgroup_name} cannot be killed")

    def _pids(self) -> list[int]:
        found: set[int] = set()
        for group in self._cgroups():
            for folder, _, _ in os.walk(group):  # groups vanish meanwhile, as their containers end
                with contextlib.suppress(OSError):
                    found.update(map(int, (Path(folder) / "cgroup.procs").read_text().split()))
        return sorted(pid for pid in found if Process.of(pid).started)  # not zombies

    def _unmount(self) -> None:
        """Take away mounts below the folder, deepest first."""
        below = f"{self._state.root}/"
        lines = Path("/proc/self/mounts").read_text().splitlines()
        mounts = [line.split()[1].encode().decode("unicode_escape") for line in lines]
        for mount in sorted((each for each in mounts if each.startswith(below)), key=len, reverse=True):
            subprocess.run([require("umount"), "-l", mount], capture_output=True, check=False)

    @property
    def _cgroup_name(self) -> str:
        return self._network.bridge

    def _cgroups(self) -> list[Path]:
        """The node's group in each version 1 hierarchy, or the one of version 2."""
        if (_CGROUPS / "cgroup.controllers").exists():
            return [_CGROUPS / self._cgroup_name]
        return [
            each / self._cgroup_name for each in sorted(_CGROUPS.iterdir()) if each.is_dir() and not each.is_symlink()
        ]

    def _ctr(self, *argv: str, check: bool = False) -> str:
        command = [require("ctr"), "-a", str(self._socket), "-n", "k8s.io", *argv]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if check and done.returncode:
            raise LabError(f"ctr {' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout


def _may_lower_oom_score() -> bool:
    """Needs CAP_SYS_RESOURCE, which root lacks on some machines; runc then fails with "can't get final child's PID"."""
    status = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in status if line.startswith("CapEff"))
    return bool(int(effective, 16) >> _CAP_SYS_RESOURCE & 1)
