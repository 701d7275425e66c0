"""A base image without a registry: Debian's or Ubuntu's own packages, by debootstrap from the mirror that apt uses here.

Guarantees one archive per release, architecture and list of packages, kept in the cache and made again only when one
of them changes; an interrupted run leaves nothing that a later one would take for whole. Needs root.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from lab import cache, packages
from lab.buildah import discard
from lab.errors import LabError

_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_DROP = (
    "usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bash-completion",
    "var/cache", "var/lib/apt/lists", "var/log", "tmp", "run", "dev", "proc", "sys",
)  # fmt: skip
_KEPT = 2  # archives: another checkout may be at another commit
_FORM = "1"  # counts the changes of how a base is made out of these
_PYTHON = "poolkeeper.dev/python"  # label: the version in the base image
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Base:
    """What to build on: the image's name, its archive where it is not fetched by name, the Python in it as "3.11"."""

    tag: str
    archive: Path | None
    python: str


@dataclass(frozen=True)
class Mirror:
    """Where apt gets the release's packages from, and how it trusts them."""

    url: str
    suite: str
    keyring: str | None = None
    trusted: bool = False


def base_image(say: cache.Say) -> Base:
    """The base image, made if it is not in the cache."""
    suite = packages.os_release().get("VERSION_CODENAME", "")
    key = cache.key(part.encode() for part in (suite, platform.machine(), *_PACKAGES, *_DROP, _FORM))
    archive = cache.folder() / f"base-{suite}-{key}.tar"
    tag = f"localhost/poolkeeper-base:{key}"
    if not archive.exists():
        with cache.lock(archive.parent / "base.lock", "base image", say):
            if not archive.exists():
                _make(mirror(suite), tag, archive, say)
    return Base(tag, archive, _labels(archive)[_PYTHON])


def mirror(suite: str, etc: Path = Path("/etc/apt")) -> Mirror:
    """The first archive in apt's own lists that carries this release."""
    for path in (etc / "sources.list", *sorted(etc.glob("sources.list.d/*"))):
        if path.suffix in {".list", ".sources"} and path.exists():
            entries = _stanzas(path.read_text()) if path.suffix == ".sources" else _lines(path.read_text())
            for entry in entries:
                if entry.suite == suite:
                    return entry
    raise LabError(
        f"no entry for {suite or 'this release'} in {etc}/sources.list or sources.list.d: the base image needs the mirror that apt uses"
    )


def _lines(text: str) -> list[Mirror]:
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<url>\S+)\s+(?P<suite>\S+)\s+\S", line)
        if match:
            options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
            found.append(
                Mirror(match["url"], match["suite"], options.get("signed-by"), options.get("trusted") == "yes")
            )
    return found


def _stanzas(text: str) -> list[Mirror]:
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields = {
            name.strip().lower(): value.strip()
            for name, colon, value in (line.partition(":") for line in stanza.splitlines() if line[:1] not in "# \t")
            if colon
        }
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes") == "no":
            continue
        keyring = fields.get("signed-by", "")
        for url in fields.get("uris", "").split():
            found += [
                Mirror(url, suite, keyring if keyring.startswith("/") else None, fields.get("trusted") == "yes")
                for suite in fields.get("suites", "").split()
            ]
    return found


def _make(source: Mirror, tag: str, archive: Path, say: cache.Say) -> None:
    packages.need(packages.IMAGE, purpose="the base image", say=say)
    if os.geteuid() != 0:
        raise LabError("making a base image needs root: run as root, or name an image in POOLKEEPER_BASE_IMAGE")
    cache.require_space(archive.parent, cache.GIB, "the base image")
    say(f"base image: {source.suite} with Python, from the mirror that apt uses here (about 45 s, once)")
    begun = time.monotonic()
    for stale in archive.parent.glob("base-*/"):  # of one that was killed
        discard(stale)
    work = Path(tempfile.mkdtemp(prefix="base-", dir=archive.parent))
    root = work / "root"
    try:
        _debootstrap(source, root, say)
        for name in _DROP:
            for entry in (root / name).glob("*"):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        made = _write(root, work, tag)
        made.rename(archive)
    finally:
        discard(work)
    for old in sorted(archive.parent.glob("base-*.tar"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        old.unlink()
    say(f"base image: {archive.stat().st_size >> 20} MiB after {time.monotonic() - begun:.0f} s")


def _debootstrap(source: Mirror, root: Path, say: cache.Say) -> None:
    command = [packages.require("debootstrap"), "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    command += [f"--arch={_ARCH.get(platform.machine(), platform.machine())}"]
    if packages.os_release().get("ID") == "ubuntu":
        command.append("--components=main,universe")  # python3-venv is in universe there
    if source.trusted:
        command.append("--no-check-gpg")
    elif source.keyring:
        command.append(f"--keyring={source.keyring}")
    command += [source.suite, str(root), source.url]
    lines: list[str] = []
    phase = ""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            word = line.removeprefix("I: ").partition(" ")[0]
            if word != phase and word in {"Retrieving", "Extracting", "Unpacking", "Configuring"}:
                phase = word
                say(f"base image: {word.lower()} packages")
    if process.returncode != 0:
        tail = "\n".join(lines[-12:])
        raise LabError(f"debootstrap of {source.suite} failed (is the mirror in /etc/apt reachable?):\n{tail}")


def _environment() -> dict[str, str]:
    """Ours, with the proxy that apt was told to use, since debootstrap fetches by wget."""
    shown = subprocess.run(
        ["apt-config", "shell", "PROXY", "Acquire::http::Proxy"], capture_output=True, text=True, check=False
    )
    proxy = re.match(r"PROXY='([^']+)'", shown.stdout)
    return {**os.environ, "LC_ALL": "C", **({"http_proxy": proxy[1]} if proxy else {})}


def _write(root: Path, work: Path, tag: str) -> Path:
    """The tree as a docker archive of one layer; file times stay, since the library's bytecode depends on them."""
    layer = work / "layer.tar"
    subprocess.run(["tar", "--sort=name", "--numeric-owner", "-C", str(root), "-cf", str(layer), "."], check=True)
    with layer.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    python = (root / "usr/bin/python3").readlink().name.removeprefix("python")
    config = {
        "architecture": _ARCH.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["python3"], "Labels": {_PYTHON: python}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "debootstrap"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    for name, content in (("config.json", config), ("manifest.json", manifest)):
        (work / name).write_text(json.dumps(content))
    made = work / "base.tar"
    with tarfile.open(made, "w") as tar:
        for name in ("manifest.json", "config.json", "layer.tar"):
            tar.add(work / name, name)
    return made


def _labels(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as tar:
        member = tar.extractfile("config.json")
        labels: dict[str, str] = json.load(member)["config"]["Labels"] if member else {}
    return labels
