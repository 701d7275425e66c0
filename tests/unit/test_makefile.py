"""What make does after Ctrl-C: the Makefile's own lines, with a stand-in for tests and demo."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.layers import cannot_run
from fixtures.workers import eventually
from lab.process import Process

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"
TRAP = "trap : INT TERM; "
PYTHON = f"""#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"  # also from a folder with a space in its name
' '''
import os, signal, subprocess, sys, time
from pathlib import Path

cluster = Path(__file__).with_name("cluster")
try:
    if "lab" not in sys.argv:  # a process that is cut short, and its cluster, which Ctrl-C does not reach
        held = subprocess.Popen(["sleep", "600"], start_new_session=True)
        cluster.with_name("new").write_text(str(held.pid))
        cluster.with_name("new").rename(cluster)
        time.sleep(600)
    elif sys.argv[1:] == ["-m", "lab", "down"]:
        os.kill(int(cluster.read_text()), signal.SIGKILL)
except KeyboardInterrupt:
    if "demo" in sys.argv:  # takes down what it started, which takes a while
        time.sleep(0.5)
        held.kill()
        os._exit(130)
    os._exit(2)  # as pytest says that it was interrupted
"""


class Run:
    """One `make TARGET` in a folder that has the Makefile and two stand-ins."""

    def __init__(self, folder: Path, target: str, *, trap: bool) -> None:
        if not shutil.which("make"):
            cannot_run("no make here")
        text = MAKEFILE.read_text()
        assert TRAP in text
        (folder / "Makefile").write_text(text if trap else text.replace(TRAP, ""))
        for name, script in ((".venv/bin/python", PYTHON), ("tools/bootstrap", "#!/bin/sh\n")):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        self._folder = folder
        self.make = subprocess.Popen(
            ["make", target],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # as in a terminal
        )
        found = folder / ".venv/bin/cluster"
        eventually(found.exists, "the tests have begun")
        self.cluster = Process.of(int(found.read_text()))
        assert self.cluster.alive()

    def interrupt(self, number: int) -> int:
        """What a terminal does: every process of the group gets it. Returns how make ended, when it has."""
        os.killpg(self.make.pid, number)
        return self.make.wait(60)

    def left(self) -> list[str]:
        """Processes in the folder, and those of make's session."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [f"process {pid}" for pid in pids if _session(pid) == self.make.pid]

    def close(self) -> None:
        self.cluster.stop(signal.SIGKILL)
        if self.make.poll() is None:
            os.killpg(self.make.pid, signal.SIGKILL)
            self.make.wait()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("target", ["test", "test-wide", "test-long"])
def test_after_ctrl_c_no_process_of_a_run_is_left(tmp_path: Path, runs: list[Run], target: str, number: int) -> None:
    """Quality 6: neither of make's own nor of the cluster that a process which was cut short could not take down."""
    runs.append(run := Run(tmp_path, target, trap=True))
    assert run.interrupt(number) != 0
    assert not run.cluster.alive()
    eventually(lambda: not run.left(), "all of make's processes have ended")


def test_make_waits_for_a_demo_that_takes_down_what_it_started(tmp_path: Path, runs: list[Run]) -> None:
    """Quality 6: the prompt comes back when all is gone; that the demo takes it down is shown in tests/cluster/test_demo.py."""
    runs.append(run := Run(tmp_path, "demo", trap=True))
    assert run.interrupt(signal.SIGINT) != 0
    assert not run.cluster.alive()
    eventually(lambda: not run.left(), "all of make's processes have ended")


def test_without_the_trap_the_cluster_would_stay(tmp_path: Path, runs: list[Run]) -> None:
    """That the test above can fail: the shell ends with the signal, before it has tidied up."""
    runs.append(run := Run(tmp_path, "test", trap=False))
    run.interrupt(signal.SIGINT)
    eventually(lambda: not run.left(), "all of make's processes have ended")
    assert run.cluster.alive()
