"""Buildah on a storage of its own, below the cache folder.

Guarantees no trace in the machine's own container storage, no network while building, and archives that appear only
when whole. Layers are kept for the next build where the kernel has overlays, up to a bound; elsewhere they are plain
copies that go away with the work. Needs root: `chroot` isolation works where namespaces do not. One user at a time.
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

_KEPT_BYTES = 3 * cache.GIB


class Storage:
    """A storage below `folder`; images are named in it as elsewhere."""

    def __init__(self, folder: Path, say: cache.Say) -> None:
        packages.need(packages.IMAGE, purpose="building images", say=say)
        if os.geteuid() != 0:
            raise LabError("building images needs root here; run as root, or leave out what needs a node")
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("work-*"):  # of one that was killed: only one at a time is here
            discard(stale)
        cache.require_space(folder, 2 * cache.GIB, "building images")
        self.work = Path(tempfile.mkdtemp(prefix="work-", dir=folder))
        self._root, self._layers = folder / "layers", True
        if self._root.exists():
            unmount_below(self._root)
            if size(self._root) > _KEPT_BYTES:
                shutil.rmtree(self._root)
        if not self._works():
            self._root, self._layers = self.work / "layers", False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        discard(self.work)
        if error and self._root.exists():  # whatever is wrong with it must not meet the next build
            discard(self._root)

    def has(self, tag: str) -> bool:
        """Whether an image of this name is here already."""
        return bool(self._run("images", "--quiet", "--filter", f"reference={tag}").strip())

    def load(self, archive: Path) -> None:
        """Take an image from an archive, with the name that it has there."""
        link = self.work / "loaded.tar"  # the transport's syntax has no room for every path
        link.symlink_to(archive)
        self._run("pull", "--quiet", "docker-archive:loaded.tar")
        link.unlink()

    def build(self, context: Path, tag: str, *, target: str = "", arguments: dict[str, str] | None = None) -> None:
        """Build a context's Dockerfile; the same content makes the same image."""
        command = ["bud", "--isolation=chroot", "--timestamp=0", "--pull-never", f"--tag={tag}"]
        command += ["--layers"] if self._layers else []
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

    def _works(self) -> bool:
        """Whether layers can be overlays in this folder; what an interrupted build left is tidied up."""
        try:
            self._run("rm", "--all")
        except LabError:
            return False
        return True

    def _run(self, *arguments: str) -> str:
        storage = ["--root", str(self._root), "--runroot", str(self.work / "state")]
        storage.append(f"--storage-driver={'overlay' if self._layers else 'vfs'}")
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


def size(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def unmount_below(folder: Path) -> None:
    """End the mounts that a program cut off in the middle may have left."""
    mounts = [line.split()[1].replace("\\040", " ") for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((point for point in mounts if point.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=True)


def discard(folder: Path) -> None:
    """Remove a tree, mounts below it first."""
    unmount_below(folder)
    shutil.rmtree(folder)
