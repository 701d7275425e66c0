"""The wheels that the images are made of: ours, and our dependencies' for the Python of the base image.

Guarantees the pinned versions of constraints.txt, wheels only (no code of a dependency runs here), and that a folder
of wheels appears under its name only when whole. A change of our own code builds one wheel and fetches nothing.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import cache
from lab.errors import LabError

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = ("worker/poolkeeper", "operator/poolkeeper_operator", "pyproject.toml", "README.md", "LICENSE")
_LIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")  # newer ones are not in every base


@dataclass(frozen=True)
class Wheels:
    """A folder of dependencies and the key of everything that goes into an image."""

    dependencies: Path
    key: str


def wheels(python: str, say: cache.Say) -> Wheels:
    """The dependencies for this Python ("3.11"), from the cache or the package index."""
    pins = (ROOT / "constraints.txt").read_bytes()
    wanted = requirements()
    key = cache.key((python.encode(), platform.machine().encode(), pins, repr(wanted).encode()))
    folder = cache.folder() / f"wheels-{key}"
    if not folder.exists():
        with cache.lock(cache.folder() / "wheels.lock", "wheels", say):
            if not folder.exists():
                say(f"wheels: the images' dependencies for Python {python} (about 10 s, once)")
                _download(wanted, python, folder)
    return Wheels(folder, cache.key((key.encode(), source_digest())))


def requirements() -> dict[str, list[str]]:
    """What each image needs, as pyproject.toml says it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    worker: list[str] = project["dependencies"]
    return {"worker": sorted(worker), "operator": sorted([*worker, *project["optional-dependencies"]["operator"]])}


def source_digest() -> bytes:
    """Changes with every file that goes into our own wheel."""
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def prepare(dist: Path, made: Wheels) -> None:
    """Lay out what the Dockerfile copies: the dependencies in `wheels`, ours in `poolkeeper`; same sources, same bytes."""
    for name in ("wheels", "poolkeeper"):
        shutil.rmtree(dist / name, ignore_errors=True)
    shutil.copytree(made.dependencies, dist / "wheels")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist / "poolkeeper")]
    _checked(command, "building the wheel of poolkeeper", {"SOURCE_DATE_EPOCH": "315532800"})


def _files() -> Iterator[Path]:
    for name in _SOURCES:
        path = ROOT / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (each for each in found if each.is_file() and each.suffix != ".pyc")


def _download(wanted: dict[str, list[str]], python: str, folder: Path) -> None:
    for stale in folder.parent.glob("wheels-*.*"):  # of one that was killed
        shutil.rmtree(stale)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    machine = platform.machine()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        str(partial),
    ]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    command += [f"--platform={libc}_{machine}" for libc in _LIBC]
    command += [f"--constraint={ROOT / 'constraints.txt'}", *wanted["operator"]]
    try:
        _checked(command, f"downloading the dependencies for Python {python}")
        for target, lines in wanted.items():
            (partial / f"{target}.txt").write_text("".join(f"{line}\n" for line in lines))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _checked(command: list[str], what: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LabError(f"{what} failed:\n{done.stdout.strip()[-1500:]}")
