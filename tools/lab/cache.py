"""The folder where built programs stay, so that another clone finds them.

Guarantees that two processes never build the same thing at once (the second waits and says so), and that a build
does not start on a disk too small for it. `POOLKEEPER_CACHE` moves the folder; nothing else of the user's is used.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from lab.errors import LabError

GIB = 1 << 30
Say = Callable[[str], None]
_ELSEWHERE = "set POOLKEEPER_CACHE to a folder of yours"


def folder() -> Path:
    """The cache folder; made when missing."""
    named = os.environ.get("POOLKEEPER_CACHE")
    path = Path(named).absolute() if named else Path.home() / ".cache" / "poolkeeper"
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError as error:
        raise LabError(f"the cache folder {path} cannot be made: {error.strerror}; {_ELSEWHERE}") from error
    if not writable:
        raise LabError(f"the cache folder {path} cannot be written to; {_ELSEWHERE}")
    return path


def key(parts: Iterable[bytes]) -> str:
    """A short name for exactly this content; no two lists of parts that differ share one."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def lock(path: Path, what: str, say: Say) -> Iterator[None]:
    """Hold the lock file `path`; says so when another process holds it and waits until that one ends."""
    with _locked(path, what, say) as file:
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is held; whoever waits for this file looks again


def _locked(path: Path, what: str, say: Say) -> IO[str]:
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            say(f"{what}: process {file.read().strip() or '?'} is at it; waiting for it to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                file.truncate(0)
                return file
        file.close()  # removed by its last holder: not the lock any more


def require_space(path: Path, needed: int, what: str, *, free: int | None = None) -> None:
    """Refuse to start what would fill the disk; sizes in bytes."""
    available = shutil.disk_usage(path).free if free is None else free
    if available < needed:
        raise LabError(
            f"{what} needs {needed / GIB:.1f} GiB in {path}, {available / GIB:.1f} GiB are free; "
            "make room there, or set POOLKEEPER_CACHE to a folder on a larger disk"
        )
