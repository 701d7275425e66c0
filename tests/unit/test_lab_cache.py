"""The cache of built tools: one name per content, one builder at a time, no full disk."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import build, cache
from lab.errors import LabError

TOOLS = Path(__file__).parents[2] / "tools"
HOLD = """
import sys, time
from pathlib import Path
from lab import cache
with cache.lock(Path(sys.argv[1]), "building", print):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "build.lock")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TOOLS)}
    ) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "held\n"
        yield made
        made.kill()


@given(st.lists(st.binary()), st.lists(st.binary()))
def test_different_content_has_different_keys(one: list[bytes], other: list[bytes]) -> None:
    assert (cache.key(one) == cache.key(other)) == (one == other)


def test_every_file_of_a_module_is_part_of_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_ROOT", tmp_path)
    module = build.Module("tiny", {"tiny": "."}, expected=1)
    keys = [module.key()]
    for path in ("go.mod", "go.sum", "main.go", "sub/main.go"):
        (tmp_path / "tiny" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tiny" / path).write_text("one")
        keys.append(module.key())
        (tmp_path / "tiny" / path).write_text("two")
        keys.append(module.key())
    assert len(set(keys)) == len(keys)


def test_the_second_waits_until_the_first_ends_and_says_so(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        holder.send_signal(signal.SIGKILL)  # a killed holder holds nothing

    with cache.lock(tmp_path / "build.lock", "building", say):
        assert said == [f"building: process {holder.pid} is at it; waiting for it to finish"]
    assert not (tmp_path / "build.lock").exists()


def test_a_lock_can_be_taken_again_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), cache.lock(tmp_path / "lock", "x", print):
            raise ZeroDivisionError


def test_a_small_disk_is_refused_before_anything_starts(tmp_path: Path) -> None:
    cache.require_space(tmp_path, 6 * cache.GIB, "building", free=6 * cache.GIB)
    with pytest.raises(LabError, match=r"building needs 6\.0 GiB in .*, 1\.5 GiB are free; .*POOLKEEPER_CACHE"):
        cache.require_space(tmp_path, 6 * cache.GIB, "building", free=3 * cache.GIB // 2)


def test_the_cache_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLKEEPER_CACHE", str(tmp_path / "a b" / "cache"))
    assert cache.folder() == tmp_path / "a b" / "cache"
    assert cache.folder().is_dir()
