"""Buildah on a storage of its own that goes away with the work.

Guarantees no trace in the machine's own container storage, no network while building, and archives that appear only
when whole. Needs root: `chroot` isolation and plain copies of layers work where overlays and namespaces do not.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from lab import cache, packages
from lab.errors import LabError


class Storage:
    """A temporary storage below `folder`; images are named in it as elsewhere."""

    def __init__(self, folder: Path, say: cache.Say) -> None:
        packages.need(packages.IMAGE, purpose="building images", say=say)
        if os.geteuid() != 0:
            raise LabError("building images needs root here; run as root, or leave out what needs a node")
        folder.mkdir(parents=True, exist_ok=True)
        cache.require_space(folder, 2 * cache.GIB, "building images")
        self.work = Path(tempfile.mkdtemp(prefix="work-", dir=folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        discard(self.work)

    def load(self, archive: Path) -> None:
        """Take an image from an archive, with the name that it has there."""
        link = self.work / "loaded.tar"  # the transport's syntax has no room for every path
        link.symlink_to(archive)
        self._run("pull", "--quiet", "docker-archive:loaded.tar")
        link.unlink()

    def build(self, context: Path, tag: str, *, target: str = "", arguments: dict[str, str] | None = None) -> None:
        """Build a context's Dockerfile; the same content makes the same image."""
        command = ["bud", "--isolation=chroot", "--timestamp=0", "--pull-never", f"--tag={tag}"]
        command += [f"--target={target}"] if target else []
        command += [f"--build-arg={name}={value}" for name, value in (arguments or {}).items()]
        self._run(*command, str(context))

    def save(self, tag: str, archive: Path) -> None:
        """Write an image as an archive that `ctr images import` and `docker load` take."""
        self._run("push", "--quiet", tag, f"docker-archive:saved.tar:{tag}")
        (self.work / "saved.tar").rename(archive)

    def ask(self, image: str, *command: str) -> str:
        """What a command prints in a container of this image, fetched if need be."""
        container = self._run("from", image).strip()
        said = self._run("run", "--isolation=chroot", container, "--", *command)
        self._run("rm", container)
        return said.strip()

    def _run(self, *arguments: str) -> str:
        storage = ["--root", str(self.work / "s"), "--runroot", str(self.work / "r"), "--storage-driver=vfs"]
        done = subprocess.run(
            [packages.require("buildah"), *storage, *arguments],
            cwd=self.work,
            env={**os.environ, "TMPDIR": str(self.work)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise LabError(f"buildah {arguments[0]} failed:\n{tail}")
        return done.stdout


def discard(folder: Path) -> None:
    """Remove a tree below which a program cut off in the middle may have left mounts."""
    mounts = [line.split()[1].replace("\\040", " ") for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((point for point in mounts if point.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=True)
    shutil.rmtree(folder)
