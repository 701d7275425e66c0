"""The peers, each from its own registry and at the best settings of its documentation.

A peer is a program that knows the verbs about, install, bulk, submit, drain and pickup (see node/peer.mjs), takes its own times in the same
way as the others, and is given a fresh database of the same server. What could not be installed here is told, and left out.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "peers"
WAIT = 600.0  # seconds for one answer


@dataclass(frozen=True)
class Peer:
    """One peer. `share`: of the tasks that the others get, for one that would take minutes."""

    name: str
    command: tuple[str, ...]
    share: float = 1.0
    about: dict[str, Any] = field(default_factory=dict)

    def ask(self, verb: str, *arguments: object) -> dict[str, Any]:
        """What it answers; raises with what it printed when it fails."""
        command = [*self.command, verb, *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        if done.returncode:
            raise RuntimeError(f"{self.name} {verb}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    def of(self, count: int) -> int:
        """How many tasks it is given where others get `count`."""
        return max(1, int(count * self.share))


def installed(names: set[str] | None = None) -> list[Peer]:
    """The peers that can run here, `names` only, with their versions and settings."""
    found = []
    for make in (_python, _node, _go):
        try:
            found += [peer for peer in make(names) if names is None or peer.name in names]
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"  not measured: the peers of {make.__name__[1:]}: {error}", flush=True)
    return [Peer(peer.name, peer.command, peer.share, peer.ask("about")) for peer in found]


def _python(_names: set[str] | None) -> list[Peer]:
    shares = {"pgqueuer": 1.0, "procrastinate": 0.05, "chancy": 0.2, "awa": 0.2}
    return [
        Peer(name, (sys.executable, "-m", "benchmarks.peers.python", name), share) for name, share in shares.items()
    ]


def _node(names: set[str] | None) -> list[Peer]:
    programs = {"graphile-worker": "graphile.mjs", "pg-boss": "pgboss.mjs"}
    if names is not None and not names & set(programs):
        return []
    home = _copied("node")
    if not (home / "node_modules" / ".bin" / "node").exists():
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("npm is not installed")
        flags = ("--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
        subprocess.run([npm, "install", *flags], cwd=home, check=True, stdout=subprocess.DEVNULL)
    node = str(home / "node_modules" / ".bin" / "node")
    return [Peer(name, (node, str(home / program))) for name, program in programs.items()]


def _go(names: set[str] | None) -> list[Peer]:
    if names is not None and "river" not in names:
        return []
    home = _copied("go")
    go = shutil.which("go") or "/usr/local/go/bin/go"
    subprocess.run([go, "build", "-o", str(home / "river"), "."], cwd=home, check=True)
    return [Peer("river", (str(home / "river"),))]


def _copied(language: str) -> Path:
    """Our programs beside what their package manager will bring, outside the tree."""
    home = BUILD / language
    home.mkdir(parents=True, exist_ok=True)
    for each in (HERE / language).iterdir():
        if each.is_file():
            shutil.copy2(each, home / each.name)
    return home
