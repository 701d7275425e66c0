"""The images of the pods in demo and tests, built from the project's Dockerfile.

Guarantees that what the archives hold is exactly what the sources, pins, Dockerfile and base image of this moment
make: they are named by a hash of all of them, so a second call takes well under a second. Where a Docker engine answers
it builds, on the Dockerfile's own base; else buildah does, as root, on one made here without any registry.
POOLKEEPER_BASE_IMAGE names another base.
"""

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from lab import cache
from lab.base_image import Base, base_image
from lab.build import tell
from lab.buildah import Storage
from lab.docker import Engine
from lab.kind import engine_answers
from lab.wheels import ROOT, Wheels, prepare, wheels

WORKER = "localhost/poolkeeper-worker:dev"
OPERATOR = "localhost/poolkeeper-operator:dev"
_KEPT = 3  # archives per image: other checkouts may be at other commits
_IN_USE = 1800.0  # seconds in which whoever asked for an archive has loaded it


def build_images(say: cache.Say = tell) -> list[Path]:
    """Archives of the worker's and the operator's image, built when something in them changed."""
    base = _base(say)
    parts = wheels(base.python, say)
    recipe = [(ROOT / name).read_bytes() for name in ("Dockerfile", ".dockerignore")]
    key = cache.key((base.tag.encode(), parts.key.encode(), *recipe))
    archives = {WORKER: _archive(WORKER, key), OPERATOR: _archive(OPERATOR, key)}
    if not _found(archives):
        with _lock(say):
            if not _found(archives):
                say("images: building worker and operator from the Dockerfile (about 40 s at first, then 10 s)")
                with _builder(say) as storage:
                    build(storage, archives, base, parts, say)
    return list(archives.values())


def build_app_image(context: Path, tag: str, say: cache.Say = tell) -> Path:
    """Archive of an image whose Dockerfile in `context` starts from the worker's image, as users make theirs."""
    worker = build_images(say)[0]
    files = sorted(path for path in context.rglob("*") if path.is_file() and path.suffix != ".pyc")
    content = (part for path in files for part in (str(path.relative_to(context)).encode(), path.read_bytes()))
    archive = _archive(tag, cache.key((worker.name.encode(), *content)))
    if not _found({tag: archive}):
        with _lock(say):
            if not _found({tag: archive}):
                say(f"images: building {tag} on the worker's image (about 10 s)")
                with _builder(say) as storage:
                    storage.load(worker)  # by its archive: another checkout may have built one of that name since
                    storage.build(context, tag)
                    storage.save(tag, archive)
    return archive


def build(storage: Storage | Engine, archives: dict[str, Path], base: Base, parts: Wheels, say: cache.Say) -> None:
    """Build these of the images from the Dockerfile and write their archives."""
    context = storage.work / "context"
    prepare(context / "dist", parts)
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy(ROOT / name, context)
    if base.archive and not storage.has(base.tag):
        storage.load(base.archive)
    for tag, archive in archives.items():
        target = tag.removeprefix("localhost/poolkeeper-").partition(":")[0]
        storage.build(context, tag, target=target, arguments={"BASE_IMAGE": base.tag})
        storage.save(tag, archive)
        say(f"images: {tag}, {archive.stat().st_size >> 20} MiB")


def _base(say: cache.Say) -> Base:
    named = os.environ.get("POOLKEEPER_BASE_IMAGE")
    if not named and not engine_answers():
        return base_image(say)
    reference = named or _default_base()
    with _lock(say), _builder(say) as storage:
        python = storage.ask(reference, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    return Base(reference, None, python)


def _default_base() -> str:
    """What the Dockerfile itself builds on."""
    (found,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return str(found)


def _builder(say: cache.Say) -> Storage | Engine:
    """The Docker engine where kind is used too, else buildah."""
    return Engine() if engine_answers() else Storage(_folder(), say)


def _folder() -> Path:
    path = cache.folder() / "images"
    path.mkdir(exist_ok=True)
    return path


def _archive(tag: str, key: str) -> Path:
    return _folder() / f"{_slug(tag)}-{key}.tar"


def _found(archives: dict[str, Path]) -> bool:
    """Whether all of them are there; they count as used now, and those unused for long are dropped."""
    for tag, archive in archives.items():
        if not archive.exists():
            return False
        archive.touch()
        known = sorted(_folder().glob(f"{_slug(tag)}-*.tar"), key=_used, reverse=True)
        for old in known[_KEPT:]:
            if time.time() - _used(old) > _IN_USE:
                old.unlink(missing_ok=True)
    return True


def _used(archive: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # dropped by another process
        return archive.stat().st_mtime
    return 0.0


def _lock(say: cache.Say) -> contextlib.AbstractContextManager[None]:
    """For whoever builds: one at a time."""
    return cache.lock(_folder() / "lock", "images", say)


def _slug(tag: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "_", tag.removeprefix("localhost/").lower())
