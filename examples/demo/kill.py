"""Killing a worker from outside of its pod: the process is found by the pod's uid in its control group, and ended by pid.

Guarantees that only a process whose control group names that pod is signalled. Works where the node's processes are
visible: on Linux, on the machine itself.
"""

import json
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from poolkeeper.store import calls, run

PROC = Path("/proc")
LEFT = 0.4  # seconds that a call must still have, so that the kill falls into it


@dataclass(frozen=True)
class Victim:
    """A worker process that is in the middle of a step."""

    pid: int
    pod: str
    task: str
    step: str
    busy_pods: int


def in_the_middle(conn: Any, cluster: str, log: Path, *, first: str) -> Victim | None:
    """A worker that the model server is answering now, in a step that is not the first; another one must be at work too."""
    for call in in_flight(log.read_text().splitlines()):
        if call["step"] == first or call["at"] + call["seconds"] - time.time() < LEFT:
            continue
        pools = run(conn, calls.stats(cluster=cluster)).pools
        busy = [session for pool in pools for session in pool.sessions if session.busy]
        holder = run(conn, calls.timeline(UUID(call["task"])))[-1].session_id
        session = next((each for each in busy if each.session_id == holder), None)
        if session and session.pod_uid and session.pod_name and len(busy) > 1:
            return Victim(worker_process(session.pod_uid), session.pod_name, call["task"], call["step"], len(busy))
    return None


def in_flight(lines: list[str]) -> list[dict[str, Any]]:
    """The calls that the model server is at, by its log; those that take longest first."""
    entries = [json.loads(line) for line in lines]
    ended = {entry["call"] for entry in entries if entry["what"] in {"answered", "cut off"}}
    now = [entry for entry in entries if entry["what"] == "began" and entry["call"] not in ended]
    return sorted(now, key=lambda entry: -float(entry["at"] + entry["seconds"]))


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
