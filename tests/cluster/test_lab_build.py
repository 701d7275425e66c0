"""A build that is interrupted goes on where it stopped, two at once do the work once, and nothing but the programs stays.

With a Go module of a few lines in place of Kubernetes', built by the same code.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab import build

pytestmark = pytest.mark.wide

TOOLS = Path(__file__).parents[2] / "tools"
BUILD = """
import sys
from pathlib import Path
from lab import build
build._ROOT = Path(sys.argv[1])
(folder,) = build.ensure([build.Module("tiny", {"tiny": "."}, expected=20, names=("other",))])
print(folder)
"""
MAIN = 'package main\n\nimport "os"\n\nfunc main() { os.Stdout.WriteString("OK\\n") }\n'


class Tiny:
    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "a tree", folder / "a cache"
        (self.root / "tiny").mkdir(parents=True)
        (self.root / "tiny" / "main.go").write_text(MAIN)
        (self.root / "tiny" / "go.mod").write_text("module example.invalid/tiny\n\ngo 1.24.0\n")

    def start(self) -> "subprocess.Popen[str]":
        env = {name: value for name, value in os.environ.items() if name not in {"GOCACHE", "GOMODCACHE"}}
        env |= {"PYTHONPATH": str(TOOLS), "POOLKEEPER_CACHE": str(self.cache)}
        command = [sys.executable, "-c", BUILD, str(self.root)]
        return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, started: "subprocess.Popen[str]") -> tuple[str, str]:
        said, complained = started.communicate(timeout=170)
        assert started.returncode == 0, complained
        program = Path(said.strip()) / "other"
        assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "OK\n"
        return said.strip(), complained


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    monkeypatch.setattr(build, "_ROOT", tmp_path / "a tree")
    return Tiny(tmp_path)


def test_an_interrupted_build_goes_on_and_only_the_programs_stay(tiny: Tiny) -> None:
    for how in (signal.SIGINT, signal.SIGKILL):
        with tiny.start() as started:
            try:
                started.wait(random.uniform(1, 4))
            except subprocess.TimeoutExpired:
                started.send_signal(how)
            started.communicate(timeout=60)
    kept = (
        sum(1 for _ in (tiny.cache / "building" / "gocache").rglob("*-d")) if (tiny.cache / "building").exists() else 0
    )
    folder, complained = tiny.finish(tiny.start())
    assert "going on where it stopped" in complained or kept == 0
    assert [str(left) for left in tiny.cache.iterdir()] == [folder]
    assert tiny.finish(tiny.start()) == (folder, "")  # the second time nothing is said and nothing built


def test_two_builds_at_once_do_the_work_once(tiny: Tiny) -> None:
    both = [tiny.start(), tiny.start()]
    ended = [tiny.finish(started) for started in both]
    assert ended[0][0] == ended[1][0]
    said = [complained for _, complained in ended]
    assert sum("building tiny: done" in each for each in said) == 1
    assert any("is at it; waiting" in each for each in said)
    assert [str(left) for left in tiny.cache.iterdir()] == [ended[0][0]]
