"""Programs from the distribution's packages.

Guarantees that packages are installed only as root on Debian or Ubuntu, after naming them; elsewhere the error names
what to install. Starts no service: what a package would start is refused as Debian's policy has it.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from lab.errors import LabError

Say = Callable[[str], None]
_SYSTEM_PATHS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_CNI_PATHS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")

# program -> Debian's package
CONTROL_PLANE = {"openssl": "openssl"}
NODE = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "cni/bridge": "containernetworking-plugins",
    "cni/host-local": "containernetworking-plugins",
    "ip": "iproute2",
    "nft": "nftables",
    "umount": "mount",
}
IMAGE = {"buildah": "buildah", "debootstrap": "debootstrap"}
POOLER = {"pgbouncer": "pgbouncer"}
CLOCK = {"faketime": "faketime"}
RULES = {"promtool": "prometheus"}

_POLICY = Path("/usr/sbin/policy-rc.d")
"""Whom packages ask whether they may start their service; 101 is no."""


def find(program: str) -> str | None:
    """Path of a program, also where the user's PATH leaves the system directories out; `cni/x`: a CNI plugin."""
    if program.startswith("cni/"):
        return shutil.which(program.removeprefix("cni/"), path=os.pathsep.join(_CNI_PATHS))
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_PATHS))
    return shutil.which(program, path=path)


def need(packages: Mapping[str, str], *, purpose: str, say: Say) -> None:
    """Make the programs (keys) available, each from its Debian package (value)."""
    missing = sorted({package for program, package in packages.items() if find(program) is None})
    if not missing:
        return
    names = " ".join(missing)
    if os.geteuid() != 0:
        raise LabError(f"{purpose} needs the packages {names} and a root user; install them: apt-get install {names}")
    if not is_debian():
        raise LabError(
            f"{purpose} needs {names} (Debian's names of the packages); install them with this system's package manager"
        )
    say(f"installing the packages {names} ({purpose}; about 20 s)")
    _apt_get(["update"])
    with _no_service_starts():
        _apt_get(["install", "--yes", "--no-install-recommends", *missing])
    if still := [program for program in packages if find(program) is None]:
        raise LabError(f"{purpose}: {', '.join(still)} not found although {names} are installed")


def require(program: str) -> str:
    """Path of a program, or an error that names its package."""
    found = find(program)
    if found is None:
        package = {**CONTROL_PLANE, **NODE, **IMAGE, **POOLER, **CLOCK, **RULES}.get(program, program)
        raise LabError(f"no {program} here; install the package {package} (Debian's name), or run: python -m lab tools")
    return found


def is_debian() -> bool:
    """Whether apt-get may be used here: Debian, Ubuntu or a system that calls itself like them."""
    release = os_release()
    return bool({"debian", "ubuntu"} & {release.get("ID"), *release.get("ID_LIKE", "").split()}) and bool(
        find("apt-get")
    )


def os_release() -> dict[str, str]:
    """The fields of /etc/os-release; empty where there is none."""
    path = Path("/etc/os-release")
    lines: Iterable[str] = path.read_text().splitlines() if path.exists() else ()
    return {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines) if value}


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Whatever is installed meanwhile stays stopped; a policy that this machine has already stands."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    try:
        _POLICY.chmod(0o755)
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _apt_get(arguments: list[str]) -> None:
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *arguments]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode != 0:
        raise LabError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-800:]}")
