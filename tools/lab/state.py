"""What a cluster of ours has on this machine: one folder with a record of everything that must go again.

Guarantees that the record is written before the thing it names is made, and that a process of the cluster is found
even when its starter was killed before it could note the pid: all carry the folder's name in their environment.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from lab.errors import LabError
from lab.network import Network
from lab.process import Process

_PREFIX = "pk-"
_PLACE = Path("/tmp")  # noqa: S108  # short: paths of Unix sockets below it are limited to 107 bytes
_MARK = "POOLKEEPER_LAB_STATE"
Say = Callable[[str], None]


class Facts(BaseModel):
    """The record, kept as cluster.json."""

    netns: str = ""  # the network namespace that its bridge and tables are in
    owner: Process | None = None  # whose end makes this an orphan; None: stays until `down`
    ready: bool = False
    server: str = ""
    audit: bool = False
    network: Network | None = None  # None: no node
    processes: dict[str, Process] = {}
    sysctls: dict[str, str] = {}  # what they were before us
    made: list[Path] = []  # fixed places of Kubernetes' that were not there before us


class State:
    """The folder of one cluster and the processes that belong to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.facts = _read(root / "cluster.json")

    @property
    def exists(self) -> bool:
        """Whether there is anything of this cluster."""
        return self.root.exists()

    @property
    def pki(self) -> Path:
        """Folder of keys and certificates."""
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """Folder of what the processes wrote."""
        return self.root / "logs"

    def begin(self, facts: Facts) -> None:
        """Make the folder and its record."""
        self.root.mkdir(mode=0o711)
        self.logs.mkdir()
        self.facts = facts
        self.save()

    def save(self) -> None:
        """Write the record, whole or not at all."""
        fresh = self.root / "cluster.json.new"
        fresh.write_text(self.facts.model_dump_json(indent=1))
        fresh.replace(self.root / "cluster.json")

    def remove(self) -> None:
        """Forget everything: the last step of `down`."""
        self.facts = Facts()
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def has_node_here(self) -> bool:
        """Whether it has a bridge and a kube-proxy in our own network namespace."""
        return self.facts.network is not None and self.facts.netns == our_netns()

    def set_sysctl(self, path: str, value: str) -> None:
        """Set a kernel parameter that `restore_sysctls` sets back; nothing where the kernel lacks it."""
        place = Path("/proc/sys") / path
        if place.exists() and (before := place.read_text().strip()) != value:
            self.facts.sysctls.setdefault(path, before)
            self.save()
            place.write_text(value)

    def restore_sysctls(self) -> None:
        """Set the kernel's parameters back; those of another network namespace end with it."""
        if self.facts.netns != our_netns():
            return
        for path, before in self.facts.sysctls.items():
            with contextlib.suppress(OSError):
                (Path("/proc/sys") / path).write_text(before)

    def start(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Start a process of the cluster in a session of its own."""
        with (self.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we then stop it in order
                cwd=self.root,
                env={**os.environ, **(env or {}), _MARK: str(self.root)},
            )
        child.returncode = 0  # Process waits for it, not Popen
        self.facts.processes[name] = Process.of(child.pid)
        self.save()

    def alive(self, name: str) -> bool:
        """Whether a process of that name was started and runs."""
        found = self.facts.processes.get(name)
        return found is not None and found.alive()

    def stop(self, name: str, grace: float = 5.0) -> None:
        """End a process of the cluster; nothing when it has ended."""
        found = self.facts.processes.pop(name, None)
        if found is not None:
            found.stop(grace=grace)

    def stop_all(self) -> None:
        """Kill whatever of the cluster still runs, noted or not."""
        for process in [*self.facts.processes.values(), *marked(self.root)]:
            process.stop(signal.SIGKILL)

    def wait(self, what: str, ready: Callable[[], object], needs: Iterable[str] = (), timeout: float = 120.0) -> None:
        """Wait until `ready()` is true; a needed process that ends meanwhile is an error with its last words."""
        end = time.monotonic() + timeout
        last: Exception | None = None
        while True:
            try:
                if ready():
                    return
            except (OSError, LabError, ValueError) as error:  # not up yet
                last = error
            for name in needs:
                if not self.alive(name):
                    raise LabError(f"{name} ended while the lab waited for {what}:\n{self.tail(name)}")
            if time.monotonic() > end:
                logs = "".join(f"\n{name}:\n{self.tail(name, 1000)}" for name in needs)
                raise LabError(f"{what}: not within {timeout:.0f} s ({last}){logs}")
            time.sleep(0.05)

    def tail(self, name: str, size: int = 3000) -> str:
        """The end of what a process wrote."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace")[-size:] if path.exists() else ""


def place(name: str) -> State:
    """The state of the cluster of that name of this checkout and user."""
    ident = hashlib.sha256(f"{os.getuid()} {Path(__file__).resolve()} {name}".encode()).hexdigest()[:8]
    return State(_PLACE / f"{_PREFIX}{ident}")


def our_netns() -> str:
    """Names the network namespace that we are in."""
    place = Path("/proc/self/ns/net")
    return str(place.readlink()) if place.exists() else ""


def all_states() -> Iterator[State]:
    """Every cluster of this user on this machine, of whatever checkout."""
    for record in _PLACE.glob(f"{_PREFIX}*/cluster.json"):
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            if record.stat().st_uid == os.getuid():
                yield State(record.parent)


def marked(root: Path) -> list[Process]:
    """Processes that carry this state folder in their environment."""
    wanted = f"{_MARK}={root}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(Process.of(int(folder.name)))
    return [process for process in found if process.started]


def another_in(netns: str, root: Path) -> int | None:
    """A process in a network namespace that is not part of the cluster of this state folder; None: with the cluster it ends."""
    mine = {process.pid for process in marked(root)}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) not in mine and str((folder / "ns/net").readlink()) == netns:
                return int(folder.name)
    return None


def _read(record: Path) -> Facts:
    try:
        return Facts.model_validate_json(record.read_text())
    except FileNotFoundError:
        return Facts()
