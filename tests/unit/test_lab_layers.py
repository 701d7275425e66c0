"""The closing lines count passed, failed and not run per layer, and CI takes no run for proof that skipped something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
TESTS = {
    "unit/test_u.py": "def test_a(): pass\ndef test_b(): pass\n",
    "store/test_s.py": "import pytest\n@pytest.fixture\ndef broken(): raise OSError('x')\ndef test_a(broken): pass\n",
    "cluster/test_c.py": (
        "import pytest\nfrom fixtures.layers import cannot_run\n"
        "@pytest.fixture(scope='session')\ndef node(): cannot_run('no root')\n"
        "def test_a(node): pass\ndef test_b(node): pass\n"
    ),
}


def run(tree: Path, *argv: str, ci: bool) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if name != "CI"}
    env |= {"PYTHONPATH": str(HERE), **({"CI": "true"} if ci else {})}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "fixtures.layers", "-p", "no:cacheprovider", *argv]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib\n")
    for path, text in TESTS.items():
        (tmp_path / "tests" / path).parent.mkdir(parents=True)
        (tmp_path / "tests" / path).write_text(text)
    return tmp_path


def test_every_layer_is_counted_with_the_reasons(tree: Path) -> None:
    status, said = run(tree, ci=False)
    assert status == 1
    assert "unit      2 passed, 0 failed, 0 not run" in said
    assert "store     0 passed, 1 failed, 0 not run" in said
    assert "cluster   0 passed, 0 failed, 2 not run" in said
    assert "not run (2): no root" in said
    assert "docs      0 passed, 0 failed, 0 not run" in said  # a run of everything names the empty layers too


def test_what_cannot_run_is_no_failure_at_home_and_one_in_ci(tree: Path) -> None:
    assert run(tree, "tests/cluster", "tests/unit", ci=False)[0] == 0
    status, said = run(tree, "tests/cluster", "tests/unit", ci=True)
    assert status == 1
    assert "CI is set: 2 tests not run" in said
    assert run(tree, "tests/unit", ci=True)[0] == 0


def test_a_layer_without_tests_is_a_failure_of_a_whole_run_in_ci(tree: Path) -> None:
    for path in ("store", "cluster"):
        (next((tree / "tests" / path).iterdir())).write_text("def test_a(): pass\n")
    assert run(tree, ci=False)[0] == 0
    status, said = run(tree, ci=True)
    assert status == 1
    assert "no tests in worker, operator, docs" in said
