"""`python -m lab up` and `down` leave nothing behind, also when they are interrupted at any moment.

In a network namespace of its own, so that other clusters on this machine are neither seen nor disturbed.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.layers import cannot_run
from fixtures.stage import until
from lab import build
from lab.cluster import why_no_node
from lab.errors import LabError
from lab.state import State, marked, place
from lab.teardown import take_down, take_down_orphans

pytestmark = pytest.mark.wide

TOOLS = Path(__file__).parents[2] / "tools"


class Place:
    """A network namespace, held by a process, and a cluster's name that only this test uses."""

    def __init__(self, holder: int) -> None:
        self.holder = holder
        self.name = f"lifecycle-{os.getpid()}-{holder}"
        self.state = place(self.name)

    def lab(self, *argv: str) -> "subprocess.Popen[str]":
        inside = ["nsenter", "--net", "--target", str(self.holder), "--"] if os.geteuid() == 0 else []
        return subprocess.Popen(
            [*inside, sys.executable, "-m", "lab", "--name", self.name, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TOOLS)},
        )

    def run(self, *argv: str) -> str:
        with self.lab(*argv) as started:
            said, _ = started.communicate(timeout=150)
        assert started.returncode == 0, said
        return said

    def pids(self) -> dict[str, int]:
        """Of the cluster's components, all of which are alive."""
        return {name: found["pid"] for name, found in json.loads(self.run("status")).items() if "dead" not in found}

    def what_is_there(self) -> dict[str, set[str]]:
        """All that a cluster leaves in the kernel and in the file system."""
        return {
            "processes": {str(process.pid) for process in marked(self.state.root)},
            "in the network namespace": self._processes_inside(),
            "listening": self._listening(),
            "network": self._network(),
            "mounts": {line for line in Path("/proc/mounts").read_text().splitlines() if str(self.state.root) in line},
            "control groups": {str(found) for found in Path("/sys/fs/cgroup").glob(f"*/pk{self.state.root.name[-8:]}")},
            "folders": {str(self.state.root)} if self.state.root.exists() else set(),
        }

    def _processes_inside(self) -> set[str]:
        mine = Path(f"/proc/{self.holder}/ns/net").readlink()
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "ns/net").readlink() == mine:
                    found.add(folder.name)
            except OSError:  # ended meanwhile, or a zombie
                continue
        return found

    def _listening(self) -> set[str]:
        listen = "0A"
        lines = Path(f"/proc/{self.holder}/net/tcp").read_text().splitlines()[1:]
        return {line.split()[1] for line in lines if line.split()[3] == listen}

    def _network(self) -> set[str]:
        looks = [
            "ip -o link",
            "ip -o addr",
            "ip rule",
            "ip route show table all",
            "nft list tables",
            "sysctl net.ipv4.ip_forward",
        ]
        inside = ["nsenter", "--net", "--target", str(self.holder), "--"]
        return {
            f"{look}: {line}"
            for look in looks
            for line in subprocess.run(
                [*inside, *look.split()], capture_output=True, text=True, check=True
            ).stdout.splitlines()
        }


@pytest.fixture
def lab() -> Iterator[Place]:
    if why_not := why_no_node():
        cannot_run(f"no node: {why_not}")
    build.ensure([build.KUBERNETES])
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep 1000"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    there = Place(holder.pid)
    try:
        yield there
    finally:
        there.run("down")
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_up_twice_is_a_no_op_and_down_leaves_what_was_there_before(lab: Place) -> None:
    before = lab.what_is_there()
    first = lab.run("up", "--node", "--audit").splitlines()[-1]
    listening, pids = lab.what_is_there()["listening"], lab.pids()
    assert len(pids) == 7
    assert "up already" in (again := lab.run("up", "--node"))
    assert again.splitlines()[-1] == first == lab.run("kubeconfig").strip()
    assert lab.pids() == pids
    assert lab.what_is_there()["listening"] == listening
    addresses = {bytes.fromhex(each[:8])[::-1] for each in listening}  # the kernel's own byte order
    assert {address[0] for address in addresses} == {127, 10}  # loopback and the bridge
    lab.run("down")
    assert lab.what_is_there() == before


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_up_that_is_told_to_stop_takes_down_what_it_started(lab: Place, how: signal.Signals) -> None:
    before = lab.what_is_there()
    moment = interrupt(lab, how)
    assert lab.what_is_there() == before, f"after {how.name} at {moment:.2f} s"


def test_what_a_killed_up_left_is_taken_down_by_the_next(lab: Place) -> None:
    before = lab.what_is_there()
    moments = [interrupt(lab, signal.SIGKILL) for _ in range(2)]
    lab.run("up", "--node")
    lab.run("down")
    assert lab.what_is_there() == before, f"after kills at {moments}"


def test_what_a_killed_up_left_stays_for_somebody_of_its_network_namespace(lab: Place) -> None:
    """From elsewhere its bridge and rules cannot be reached, and would be forgotten."""
    before = lab.what_is_there()
    with lab.lab("up", "--node") as started:
        until(lambda: lab.what_is_there()["network"] != before["network"], timeout=60, what="a bridge is there")
        started.kill()
        started.communicate(timeout=60)
    take_down_orphans(print)
    assert lab.state.root.exists()
    with pytest.raises(LabError, match=f"nsenter --net --target {lab.holder}"):
        take_down(State(lab.state.root))
    lab.run("down")
    assert lab.what_is_there() == before


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_any_row_of_interruptions_ends_in_success(lab: Place) -> None:
    before = lab.what_is_there()
    hows = [signal.SIGINT, signal.SIGKILL, signal.SIGTERM]
    moments = [(how.name, interrupt(lab, how)) for _ in range(15) for how in random.sample(hows, 3)]
    lab.run("up", "--node")
    lab.run("down")
    assert lab.what_is_there() == before, f"after {moments}"


def interrupt(lab: Place, how: signal.Signals) -> float:
    """Send a signal to `up` at a random moment; returns the moment in seconds."""
    moment = random.uniform(0.1, 5.0)
    with lab.lab("up", "--node") as started:
        try:
            started.wait(moment)
        except subprocess.TimeoutExpired:
            started.send_signal(how)
        said, _ = started.communicate(timeout=60)
        if "Kubernetes is up" in said:  # it was quicker: what has been said to be up stays up
            lab.run("down")
        assert started.returncode in {0, 1, 130, 143, -how}, said
    return moment
