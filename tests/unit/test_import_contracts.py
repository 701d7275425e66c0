"""The import contracts hold, and each of them would notice a breach (quality §1)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT = Path(sys.executable).with_name("lint-imports")

BREACHES = {
    "the worker's package imports kopf": (
        "worker/poolkeeper/errors.py",
        "import kopf",
        "what workers install knows nothing of Kubernetes",
    ),
    "the worker's package imports the operator": (
        "worker/poolkeeper/errors.py",
        "import poolkeeper_operator",
        "what workers install knows nothing of Kubernetes",
    ),
    "a decision reads the clock": (
        "operator/poolkeeper_operator/decide/scaling.py",
        "import time",
        "decisions are pure",
    ),
    "a decision reads the database": (
        "operator/poolkeeper_operator/decide/quota.py",
        "import poolkeeper.store",
        "decisions are pure",
    ),
    "the operator opens its own connections": (
        "operator/poolkeeper_operator/observe/world.py",
        "import psycopg",
        "the operator touches the database only through poolkeeper.store",
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the tree that may be spoilt."""
    for name in ("worker", "operator"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [LINT, "--no-cache", "--no-logo"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tree / "worker"), str(tree / "operator")))},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_tree_keeps_its_contracts(copy: Path) -> None:
    status, said = lint(copy)
    assert status == 0, said


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_seen(copy: Path, breach: str) -> None:
    """One forbidden import in a copy of the tree breaks exactly the contract that forbids it."""
    path, line, contract = BREACHES[breach]
    module = copy / path
    module.write_text(f"{module.read_text()}\n{line}\n")

    status, said = lint(copy)

    broken = [line.removesuffix("BROKEN").strip() for line in said.splitlines() if line.endswith("BROKEN")]
    assert status == 1, said
    assert [name for name in broken if name.startswith(contract)] == broken != []
