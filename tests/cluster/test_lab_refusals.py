"""A machine that lacks something: no root, no programs, no space. The lab says in one line what, and what to do; no traceback."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fixtures.layers import cannot_run
from lab.packages import find

TOOLS = Path(__file__).parents[2] / "tools"
NOBODY = 65534
UNPRIVILEGED = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
WHY = "from lab import cluster, packages, build; print(cluster.why_no_node()); packages.need({'no-such': 'package-x'}, purpose='a test', say=print)"


def lab(
    *argv: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    command = [*before, sys.executable, "-m", "lab", *argv]
    given = {**os.environ, "PYTHONPATH": str(TOOLS), **(env or {})}
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=100)


def one_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The error, which must be the lab's own."""
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("lab: "))


def on_a_small_disk(folder: Path) -> list[str]:
    """Programs that see a folder of 16 MiB: in a mount namespace of their own, which goes with them."""
    if os.geteuid() != 0:
        cannot_run("only root can mount a small disk")
    folder.mkdir()
    return [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs -o size=16m,mode=777 tmpfs "{folder}" && exec "$@"',
        "sh",
    ]


def test_no_space_for_the_tools_is_said_before_anything_is_built(tmp_path: Path) -> None:
    """Quality 5: how much is needed, how much there is, and how to build elsewhere; nothing of it is begun."""
    cache = tmp_path / "small disk"
    env = {"POOLKEEPER_CACHE": str(cache)}
    said = one_line(lab("tools", "--no-image", env=env, before=on_a_small_disk(cache)))
    assert f"needs 6.0 GiB in {cache}, 0.0 GiB are free; make room there, or set POOLKEEPER_CACHE" in said
    assert list(cache.iterdir()) == []


def test_no_space_for_a_database_is_said_with_its_folder(tmp_path: Path) -> None:
    """Quality 5: and nothing of it is left."""
    disk = tmp_path / "disk"
    said = one_line(lab("postgres", env={"TMPDIR": str(disk)}, before=on_a_small_disk(disk)))
    assert f"(enough space in {disk}?)" in said


@pytest.mark.parametrize(
    ("folder", "why"), [("/dev/null/x", "cannot be made: Not a directory"), ("/proc/x", "cannot be made")]
)
def test_a_cache_folder_that_cannot_be(folder: str, why: str) -> None:
    """Quality 5: the folder and the variable."""
    said = one_line(lab("tools", "--no-image", env={"POOLKEEPER_CACHE": folder}))
    assert f"the cache folder {folder} {why}" in said
    assert "set POOLKEEPER_CACHE to a folder of yours" in said


def test_without_programs_and_without_a_package_manager_the_error_names_them() -> None:
    """Quality 5: no Docker, no Go, nothing on the PATH; the names are Debian's."""
    said = one_line(lab("tools", "--no-image", env={"PATH": "/nonexistent"}))
    assert "a control plane needs openssl (Debian's names of the packages); install them" in said


def test_without_root_a_node_is_left_out_and_packages_are_named() -> None:
    """Quality 3: what cannot run is said with the reason; nothing is installed behind anybody's back."""
    if os.geteuid() != 0:
        cannot_run("this test gives root up, and there is none")
    command = [*UNPRIVILEGED, sys.executable, "-c", WHY]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(TOOLS)}, capture_output=True, text=True, check=False
    )
    assert "need root, and you are not root" in done.stdout
    assert "a test needs the packages package-x and a root user; install them: apt-get install package-x" in done.stderr


def test_without_root_the_database_runs_all_the_same() -> None:
    """Quality 3: as whoever starts it."""
    if os.geteuid() != 0:
        cannot_run("this test gives root up, and there is none")
    program = "from lab.postgres import Server\nwith Server(fsync=False) as server: print(server.dsn())"
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("postgresql://"), done.stderr


LEFT_BEHIND = """
from lab import network
planned = network.plan("00000000", *network.in_use())
network.make(planned)
network._ip("link", "del", planned.bridge)
print("route" if network._ip("route", "show", "table", str(planned.table)) else "nothing")
again = network.plan("00000000", *network.in_use())
assert again.table != planned.table, again
network.make(again)
"""


def test_what_a_killed_cluster_left_of_its_network_is_stepped_around() -> None:
    """Quality 5: its bridge went with its routes, but for the one without a device; the next cluster takes another table."""
    if os.geteuid() != 0 or find("unshare") is None or find("ip") is None:
        cannot_run("root, unshare and ip are needed for a bridge (packages util-linux, iproute2)")
    env = {**os.environ, "PYTHONPATH": str(TOOLS)}
    command = ["unshare", "--net", sys.executable, "-c", LEFT_BEHIND]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "route\n"), done.stderr
