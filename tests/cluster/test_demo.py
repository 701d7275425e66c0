"""`make demo` is true: it succeeds as it is, and fails when any one of its causes is left out (quality 6).

Each run has a cluster of its own in a network namespace of its own, beside the one of this test run. The causes left
out and the interrupted run are deep: two minutes each.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures.layers import cannot_run
from lab import build, image, packages, state
from lab import cluster as clusters
from lab.packages import find

ROOT = Path(__file__).resolve().parents[2]
AGENT_IMAGE = "localhost/example-agent:dev"
LONGEST = 600.0  # seconds: five times what it takes on a quiet machine
IN_A_NAMESPACE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


class Demo:
    """A demo that runs, and the network namespace that all of its processes share."""

    def __init__(self, broken: str | None) -> None:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}/examples:{ROOT}/tools", "PYTHONUNBUFFERED": "1"}
        env |= {"DEMO_BREAK": broken} if broken else {}
        self._process = subprocess.Popen(
            [*IN_A_NAMESPACE, sys.executable, "-m", "demo"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid  # `exec` keeps it
        self.namespace = ""
        self.said = ""

    def read(self, *, until: str = "") -> str:
        """What it says, up to a line with these words, or to its end."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            self.namespace = self.namespace or _namespace(self._process.pid)
            if until and until in line:
                break
        return self.said

    def interrupt(self) -> None:
        """What Ctrl-C on a terminal does: every process of the group gets it."""
        os.killpg(self._process.pid, signal.SIGINT)

    def exit_code(self) -> int:
        self.read()
        return self._process.wait(LONGEST)

    def close(self) -> None:
        """Interrupted, however this test ended; it then takes down what it started."""
        if self._process.poll() is None:
            self.interrupt()
        self._process.wait(LONGEST)
        if self._process.stdout is not None:
            self._process.stdout.close()
        print(self.said)  # noqa: T201  # shown when the test fails, also by its time limit

    def left(self) -> list[str]:
        """Programs that still run in its network namespace."""
        pids = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [_command(pid) for pid in pids if self.namespace and _namespace(int(pid)) == self.namespace]


@contextmanager
def demo(broken: str | None = None) -> Iterator[Demo]:
    running = Demo(broken)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def _built() -> None:
    """What needs a network is made before: a namespace of its own has none."""
    build.ensure()
    packages.need(packages.CONTROL_PLANE | packages.NODE, purpose="a node", say=build.tell)
    image.build_app_image(ROOT / "examples" / "agent", AGENT_IMAGE)


@pytest.fixture(autouse=True)
def _possible_here(request: pytest.FixtureRequest) -> None:
    """A node needs root on Linux; where the demo would use another cluster, it is not isolated from this run's."""
    if why_not := clusters.why_no_node():
        cannot_run(f"no node: {why_not}")
    if find("unshare") is None or find("ip") is None:
        cannot_run("unshare and ip are needed for a network namespace (packages util-linux, iproute2)")
    if os.environ.get("POOLKEEPER_TEST_KUBECONFIG"):
        cannot_run("a cluster is named: the demo would install its chart into it")
    request.getfixturevalue("_built")


def assert_gone(run: Demo) -> None:
    """Nothing of it runs, and its cluster's folder is gone."""
    end = time.monotonic() + 20
    while run.left() and time.monotonic() < end:
        time.sleep(0.1)
    assert run.left() == []
    assert not state.place(f"demo-{run.pid}").exists


@pytest.mark.timeout(LONGEST)
def test_the_demo_shows_the_whole_main_job_and_leaves_nothing() -> None:
    """Burst, growth by age, quota, kill and resumption, poison and Event, drain: found by the second program."""
    with demo() as run:
        assert run.exit_code() == 0, run.said
        assert "NOT" not in run.said
        assert "kubectl get tq,wp,pq -n demo" in run.said
        assert "poolkeeper pool explain agents" in run.said
        assert "█" in run.said
        assert "in all" in run.said
        assert_gone(run)


@pytest.mark.deep
@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        ("kill", "no worker was killed and resumed"),
        ("poison", "no poison task was submitted"),
        ("quota", "which is more than was promised"),
        ("drain", "the pool is not at zero"),
    ],
)
def test_without_one_of_its_causes_the_demo_fails(cause: str, sentence: str) -> None:
    with demo(cause) as run:
        assert run.exit_code() == 1, run.said
        assert sentence in run.said.partition("Did all of that happen?")[2], run.said
        assert_gone(run)


@pytest.mark.deep
@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("moment", ["comes up on this machine", "A burst:", "SIGKILL"])
def test_ctrl_c_ends_everything(moment: str) -> None:
    with demo() as run:
        run.read(until=moment)
        run.interrupt()
        assert run.exit_code() == 130, run.said
        assert_gone(run)


def test_an_unknown_cause_is_refused_before_anything_starts() -> None:
    with demo("everything") as run:
        assert run.exit_code() == 2
        assert "it is one of kill, poison, quota, drain" in run.said


def _namespace(pid: int) -> str:
    try:
        found = str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""
    return "" if found == state.our_netns() else found


def _command(pid: str) -> str:
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_text().replace(chr(0), ' ')}"
    except OSError:
        return pid
