"""Images by a Docker engine, where one answers: macOS, or Linux without root.

Guarantees the same images by the same Dockerfile as buildah does; they stay in the engine's own store under their
names. The base is fetched by the engine unless it is there.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.errors import LabError


class Engine:
    """The engine that the docker client talks to; `work` is a temporary folder for contexts."""

    def __init__(self) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="poolkeeper-images-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.work)

    def has(self, tag: str) -> bool:
        """Whether an image of this name is here already."""
        return bool(self._run("images", "--quiet", tag).strip())

    def load(self, archive: Path) -> None:
        """Take an image from an archive, with the name that it has there."""
        self._run("load", "--quiet", "--input", str(archive))

    def build(self, context: Path, tag: str, *, target: str = "", arguments: dict[str, str] | None = None) -> None:
        """Build a context's Dockerfile."""
        command = ["build", "--quiet", "--network=none", f"--tag={tag}"]
        command += [f"--target={target}"] if target else []
        command += [f"--build-arg={name}={value}" for name, value in (arguments or {}).items()]
        self._run(*command, str(context))

    def save(self, tag: str, archive: Path) -> None:
        """Write an image as an archive."""
        partial = archive.with_suffix(".part")
        self._run("save", "--output", str(partial), tag)
        partial.rename(archive)

    def ask(self, image: str, *command: str) -> str:
        """What a command prints in a container of this image, fetched if need be."""
        return self._run("run", "--rm", "--network=none", "--entrypoint", command[0], image, *command[1:]).strip()

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["docker", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise LabError(f"docker {arguments[0]} failed:\n{tail}")
        return done.stdout
