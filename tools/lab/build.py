"""Builds Kubernetes' own programs, helm and KEDA from pinned Go modules, once per content, into the cache folder.

Guarantees: a program appears under its final name only when whole; an interrupted build goes on where it stopped;
two builds at once do the work once; Go's build caches are removed after success (one named by GOCACHE or GOMODCACHE
is the user's, is used and stays). Does not check what the programs do: the tests of the cluster do.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab import cache, golang
from lab.errors import LabError
from lab.process import die_with_parent
from lab.progress import Meter

_ROOT = Path(__file__).resolve().parents[1]
_COLD_BYTES = 6 * cache.GIB  # 3.2 GB build cache + 1.6 GB modules + programs
_WARM_BYTES = 1 * cache.GIB


@dataclass(frozen=True)
class Module:
    """A Go module of ours and the programs that come out of it.

    Parameters
    ----------
    source: a module that ours pins and that is built by its own go.mod, whose replacements would not count in ours; "": ours is built.
    kept: folders of that module that are wanted beside the programs.
    """

    name: str
    packages: dict[str, str]  # program -> Go package
    expected: float  # seconds from an empty cache on two cores
    ldflags: str = "-s -w"
    names: Sequence[str] = field(default=())  # further names of the first program
    source: str = ""
    kept: Sequence[str] = field(default=())

    @property
    def folder(self) -> Path:
        """Where its go.mod lies."""
        return _ROOT / self.name

    def key(self) -> str:
        """Changes with every source, pin and flag, and with the machine's architecture."""
        machine = os.uname()
        sources = sorted(path for path in self.folder.rglob("*") if path.suffix in {".go", ".mod", ".sum"})
        named = [part for path in sources for part in (str(path.relative_to(self.folder)).encode(), path.read_bytes())]
        flags = f"{self.ldflags} {self.packages} {self.names} {machine.sysname} {machine.machine}"
        flags += f" {self.source} {self.kept}" if self.source else ""
        return cache.key([flags.encode(), *named])

    def built(self) -> Path:
        """The folder of its programs; there is such a folder once they are built."""
        return cache.folder() / f"{self.name}-{self.key()}"


KUBERNETES = Module(
    "kubeall",
    {"kubeall": ".", "pause": "./pause"},
    expected=530,
    ldflags="-s -w -X k8s.io/component-base/version.gitVersion=v1.34.1",
    names=("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
)
HELM = Module(
    "helm",
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    expected=150,
    ldflags="-s -w -X helm.sh/helm/v3/internal/version.version=v3.19.5"
    " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34",
)
KEDA = Module(
    "keda",
    {"keda-operator": "./cmd/operator", "keda-adapter": "./cmd/adapter"},
    expected=560,
    ldflags="-s -w -X github.com/kedacore/keda/v2/version.Version=v2.21.0",
    source="github.com/kedacore/keda/v2",
    kept=("config/crd/bases",),
)
MODULES = (KUBERNETES, HELM)
"""What tests need; KEDA is for its benchmark alone."""


def tell(text: str) -> None:
    """Default of `say`: a line for people."""
    print(text, file=sys.stderr, flush=True)


def ensure(modules: Iterable[Module] = MODULES, say: cache.Say = tell) -> list[Path]:
    """The folders of these modules' programs, built when missing; safe to call from several processes."""
    wanted = list(modules)
    if any(not module.built().exists() for module in wanted):
        with cache.lock(cache.folder() / "build.lock", "building tools", say):
            missing = [module for module in wanted if not module.built().exists()]
            if missing:
                _build_all(missing, say)
    return [module.built() for module in wanted]


def _build_all(missing: list[Module], say: cache.Say) -> None:
    resumed = (cache.folder() / "building").exists()
    own_cache = "GOCACHE" not in os.environ
    cache.require_space(cache.folder(), _COLD_BYTES if own_cache and not resumed else _WARM_BYTES, "building tools")
    scratch = golang.scratch()
    go = golang.find(max(golang.required(module.folder) for module in missing), say)
    names = ", ".join(module.name for module in missing)
    say(
        f"building {names} with {go} into {cache.folder()}: once, then cached{'; going on where it stopped' if resumed else ''}"
    )
    for module in missing:
        _build(module, go, scratch)
    _remove(scratch)


def _build(module: Module, go: golang.Go, scratch: Path) -> None:
    env = _environment(scratch)
    fresh = scratch / module.built().name
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    folder = _copied(module, go, env, scratch) if module.source else module.folder
    total = _total(module, folder, go, env, scratch)
    with Meter(f"building {module.name}", total, module.expected) as meter:
        done = 0
        for program, package in module.packages.items():
            argv = [str(go.program), "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", module.ldflags]
            for _ in _lines([*argv, "-o", str(fresh / program), package], module, folder, go, env, scratch):
                done += 1
                meter.step(done)
    first = next(iter(module.packages))
    for name in module.names:
        (fresh / name).symlink_to(first)
    for kept in module.kept:
        shutil.copytree(folder / kept, fresh / kept)
    fresh.rename(module.built())


def _copied(module: Module, go: golang.Go, env: dict[str, str], scratch: Path) -> Path:
    """The source of the module that ours pins, checked by our go.sum, where Go takes it for the main module."""
    pinned = next(
        line.split() for line in (module.folder / "go.sum").read_text().splitlines() if "/go.mod " not in line
    )
    argv = [str(go.program), "mod", "download", "-json", f"{module.source}@{pinned[1]}"]
    told = [line for line in _lines(argv, module, module.folder, go, env, scratch) if not line.startswith("go: ")]
    found = json.loads("\n".join(told))
    if found["Sum"] != pinned[2]:  # Go says so itself, unless the environment told it not to
        raise LabError(f"{module.source}@{pinned[1]} is {found['Sum']}, {module.folder}/go.sum wants {pinned[2]}")
    copy = scratch / f"{module.name}-source"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(found["Dir"], copy)
    return copy


def _total(module: Module, folder: Path, go: golang.Go, env: dict[str, str], scratch: Path) -> int:
    """How many packages a build from nothing compiles; fetches the modules."""
    argv = [str(go.program), "list", "-deps", *module.packages.values()]
    listed = list(_lines(argv, module, folder, go, env, scratch))
    return sum(not line.startswith("go: ") for line in listed)


def _environment(scratch: Path) -> dict[str, str]:
    own = {
        "GOCACHE": str(scratch / "gocache"),
        "GOMODCACHE": str(scratch / "gomod"),
        "GOTMPDIR": str(scratch),
        "GOFLAGS": "-mod=readonly -modcacherw",
    }
    users = {name: os.environ[name] for name in ("GOCACHE", "GOMODCACHE") if name in os.environ}
    return {**os.environ, **own, **users, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def _lines(
    argv: list[str], module: Module, folder: Path, go: golang.Go, env: dict[str, str], scratch: Path
) -> Iterator[str]:
    """Run Go and yield what it prints; its whole output stays in a log until the build has succeeded."""
    log = scratch / f"{module.name}.log"
    with _child(argv, folder, env) as child, log.open("a") as kept:
        if child.stdout is None:
            raise LabError(f"{argv[0]}: no output to read")
        for line in child.stdout:
            kept.write(line)
            yield line.rstrip("\n")
        status = child.wait()
    if status:
        tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-15:])
        raise LabError(
            f"{go} does not build {module.folder}: install Go {golang.dotted(golang.required(module.folder))} or newer "
            f"(https://go.dev/dl) and put its bin folder first on the PATH; the whole output is in {log}:\n{tail}"
        )


@contextmanager
def _child(argv: list[str], folder: Path, env: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Go in a process group of its own, which is ended whole when we are interrupted."""
    child = subprocess.Popen(
        argv,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGINT),  # noqa: PLW1509  # prctl only: no lock, no allocation
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGINT)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _remove(scratch: Path) -> None:
    shutil.rmtree(scratch)
