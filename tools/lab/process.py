"""Processes that the lab starts: known by pid and start time, ended by pid.

Guarantees that a pid taken over by another program is never signalled, and that a child started with
`die_with_parent` ends with the thread that started it (Linux). Nothing here searches processes by name.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Process:
    """One process for good: the start time tells it from a later one with the same pid."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has this pid now."""
        return cls(pid, start_time(pid) or "")

    def alive(self) -> bool:
        """Whether it still runs (a zombie does not)."""
        return start_time(self.pid) == self.started

    def send(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM, grace: float = 10.0) -> None:
        """Ask it to end, wait `grace` seconds, then kill it; returns when it is gone."""
        self.send(number)
        if not self._gone_within(grace):
            self.send(signal.SIGKILL)
            self._gone_within(10.0)

    def _gone_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        with contextlib.suppress(ChildProcessError):  # ours: leave no zombie
            os.waitpid(self.pid, os.WNOHANG)
        return True


def start_time(pid: int) -> str | None:
    """Start time of a running process in clock ticks since boot; None when it is gone or a zombie."""
    if sys.platform != "linux":
        return _start_time_by_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _start_time_by_ps(pid: int) -> str | None:
    import subprocess  # noqa: PLC0415, RUF100

    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    stat, _, started = shown.stdout.strip().partition(" ")
    return started.strip() if started and not stat.startswith("Z") else None


def die_with_parent(number: int) -> Callable[[], None]:
    """For `preexec_fn`: the child gets signal `number` when the thread that started it ends.

    Takes effect after a change of user (which would clear it). Does nothing where the system has no such thing.
    """
    parent = os.getpid()

    def before_exec() -> None:
        if _LIBC is None:
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # died between fork and prctl
            os._exit(1)

    return before_exec
