"""Killing a worker from outside of its pod: the process is found by the pod's uid in its control group, and ended by pid.

Guarantees that only a process whose control group names that pod is signalled. Works where the node's processes are
visible: on Linux, on the machine itself.
"""

import os
import re
import signal
from pathlib import Path

PROC = Path("/proc")


def worker_process(pod_uid: str, proc: Path = PROC) -> int:
    """The pid, on this machine, of the first process of the pod's worker container."""
    named = re.compile(f"pod({pod_uid}|{pod_uid.replace('-', '_')})")
    found = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit() and _belongs(entry, named)]
    first = [pid for pid in found if _is_first(proc / str(pid))]
    if len(first) != 1:
        raise LookupError(f"pod {pod_uid}: {len(first)} worker processes found on this machine, not 1")
    return first[0]


def kill(pid: int) -> None:
    """SIGKILL: no handler, no farewell."""
    os.kill(pid, signal.SIGKILL)


def _belongs(entry: Path, named: re.Pattern[str]) -> bool:
    return named.search(_read(entry / "cgroup")) is not None


def _is_first(entry: Path) -> bool:
    """Process 1 of its own pid namespace, and not the `pause` that keeps the pod's network."""
    pids = re.search(r"^NSpid:\s+(.*)$", _read(entry / "status"), re.MULTILINE)
    return pids is not None and pids[1].split()[-1] == "1" and "pause" not in _read(entry / "comm")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""
