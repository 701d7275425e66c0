"""The examples' own tests, run as their user runs them: in a folder of their own, by the kit, in this process and on a Postgres (Q50, A12)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.console import ROOT

STRICT = ("-W", "error", "-p", "no:asyncio", "-p", "no:hypothesispytest")
"""Plugins of other makers warn of settings that these tests do not need."""

TESTED = sorted({path.parent for path in (ROOT / "examples").rglob("test_*.py")})


def test_every_example_that_handles_tasks_has_tests() -> None:
    """Q50."""
    applications = {path.parent for path in (ROOT / "examples").rglob("*.py") if "= Poolkeeper()" in path.read_text()}
    assert applications == set(TESTED)


@pytest.mark.wide
@pytest.mark.parametrize("example", TESTED, ids=lambda path: path.name)
def test_an_examples_tests_pass_in_both_places(example: Path, tmp_path: Path, pg_dsn: str) -> None:
    """Q50: with the plugin that is installed, and nothing of this suite."""
    folder = tmp_path / example.name
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("__pycache__"))
    given = {name: value for name, value in os.environ.items() if not name.startswith(("POOLKEEPER_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", *STRICT, "--poolkeeper-on=both", "--poolkeeper-dsn", pg_dsn]
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_without_a_named_server_one_is_started_and_gone_afterwards(tmp_path: Path) -> None:
    """Q50: the embedded Postgres, its data and its processes."""
    shutil.copy(ROOT / "examples/hello/hello.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import psycopg\n"
        "def test_it(poolkeeper_dsn):\n"
        "    with psycopg.connect(poolkeeper_dsn) as conn:\n"
        "        print(*conn.execute(\"SELECT pg_read_file('postmaster.pid'), current_setting('data_directory')\").fetchone())\n"
    )
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("POOLKEEPER_TEST_DSN", "PYTEST_"))
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", *STRICT]
    done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    server, data = done.stdout.split()[0], Path(next(word for word in done.stdout.split() if word.endswith("/data")))
    assert data.parent.name.startswith("poolkeeper-kit-")
    assert not data.parent.exists()
    assert not Path(f"/proc/{server}").exists()


@pytest.mark.wide
def test_the_wheel_brings_the_kit(tmp_path: Path, pg_dsn: str) -> None:
    """Q50: what a user installs, and nothing of this checkout, tests the smallest example in both places."""
    build: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ROOT,
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("poolkeeper-*.whl")
    place, folder = tmp_path / "installed", tmp_path / "hello"
    install: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        place,
        wheel,
    ]
    subprocess.run(install, check=True, capture_output=True)
    shutil.copytree(ROOT / "examples" / "hello", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "test_place.py").write_text(
        f"import poolkeeper.testing\ndef test_it(): assert poolkeeper.testing.__file__.startswith({str(place)!r})\n"
    )
    given = {name: value for name, value in os.environ.items() if not name.startswith(("POOLKEEPER_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", *STRICT, "--poolkeeper-on=both", "--poolkeeper-dsn", pg_dsn]
    env = {**given, "PYTHONPATH": str(place)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
