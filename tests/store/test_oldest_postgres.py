"""What the store does on the oldest Postgres that it supports, where the other tests run on a newer one (F1 to F8 are pinned by plans)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.layers import cannot_run
from poolkeeper.testing.postgres_binaries import PostgresMissing, find

OLDEST = "15"
ROOT = Path(__file__).resolve().parents[2]
FILES = ("plans", "marks", "claim", "fencing", "keys", "submit", "migrate", "catalog")


@pytest.mark.wide
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FILES)
def test_it_holds_on_the_oldest_postgres_too(name: str) -> None:
    """Plans, claims, tokens, keys and the catalog, by the same tests."""
    try:
        find(OLDEST)
    except PostgresMissing as error:
        cannot_run(str(error))
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not (wide or deep)", f"tests/store/test_{name}.py"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    run = subprocess.run(
        command, cwd=ROOT, env={**env, "POOLKEEPER_TEST_PG": OLDEST}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert "passed" in run.stdout
