"""A cluster in Docker, through pytest-kind, where a Docker engine answers.

Guarantees nothing yet: no machine of ours has a Docker engine, so this module has not been tried.
"""

import os
import shutil
import subprocess
from pathlib import Path

from lab.errors import LabError

_VERSION = "v0.30.0"  # brings Kubernetes 1.34


class KindCluster:
    """A cluster that lives until `down`."""

    def __init__(self, name: str) -> None:
        os.environ.setdefault("KIND_VERSION", _VERSION)  # pytest-kind's own default is years old
        from pytest_kind import KindCluster as Made

        self._made = Made(f"poolkeeper-{name}")
        self._made.create()
        self.kubeconfig = Path(self._made.kubeconfig_path)
        self.has_node = True
        self.audit_log: Path | None = None
        self.host_address: str | None = _docker(
            "network", "inspect", "kind", "-f", "{{(index .IPAM.Config 0).Gateway}}"
        )

    def load(self, *archives: Path) -> None:
        """Bring image archives to the node."""
        for archive in archives:
            command = [str(self._made.kind_path), "load", "image-archive", str(archive), "--name", self._made.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise LabError(f"kind load image-archive {archive}: {done.stderr.strip()}")

    def down(self) -> None:
        """Delete it."""
        self._made.delete()


def engine_answers() -> bool:
    """Whether a Docker engine answers; a client on the PATH alone is none."""
    if shutil.which("docker") is None or os.environ.get("POOLKEEPER_TEST_NO_KIND"):
        return False
    try:
        return bool(_docker("version", "--format", "{{.Server.Version}}"))
    except (LabError, subprocess.TimeoutExpired):
        return False


def _docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=False, timeout=10)
    if done.returncode:
        raise LabError(f"docker {argv[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
