"""Small faults put into the decisions turn a test red (quality 3). A deep run: a sample within a time budget, and how far it came.

POOLKEEPER_MUTANTS_SECONDS is the budget (600), POOLKEEPER_MUTANTS_SEED the order (printed). Some faults change nothing that anybody could
see (`<` for `<=` where both answers are equal), so a share of survivors is allowed; each is printed to be looked at.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.mutants import mutants

ROOT = Path(__file__).resolve().parents[2]
DECIDE = Path("operator/poolkeeper_operator/decide")
SCALING = (
    "test_scaling",
    "test_scaling_down",
    "test_scaling_fields",
    "test_supply",
    "test_history",
    "test_scaling_properties",
)
TESTS = {
    "sizing": SCALING,
    "supply": SCALING,
    "scaling": SCALING,
    "pace": SCALING,
    "history": SCALING,
    "fairness": ("test_quota_shares",),
    "quota": ("test_quota_shares",),
    "grace": ("test_grace",),
    "lengthening": ("test_lengthening",),
    "victims": ("test_victims", "test_nodes"),
    "hints": ("test_hints",),
    "allowance": ("test_allowance",),
    "conditions": ("test_conditions",),
    "service": ("test_service_time",),
    "leadership": ("test_leadership",),
}
SURVIVORS_ALLOWED = 0.2
RUN = "import sys; sys.path[:0] = sys.argv[1:5]; import pytest; sys.exit(pytest.main(sys.argv[5:]))"


def survives(copy: Path, module: str) -> bool:
    """Whether the tests of a module pass against the copy of the tree."""
    paths = [copy / "operator", copy / "worker", ROOT / "tests", ROOT / "tools"]
    tests = [f"tests/unit/{name}.py" for name in TESTS[module]]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "pythonpath=", "--hypothesis-seed=1", "--timeout=120"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, paths), *options, *tests], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode in {0, 1, 2}, done.stderr.decode()[-2000:]
    return done.returncode == 0


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_faults_in_the_decisions_are_seen(tmp_path):
    for folder in ("operator", "worker"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert all(survives(tmp_path, module) for module in ("sizing", "quota", "grace")), "the copy itself passes"
    every = [(m, *mutant) for m in TESTS for mutant in mutants((ROOT / DECIDE / f"{m}.py").read_text())]
    seed = int(os.environ.get("POOLKEEPER_MUTANTS_SEED") or random.randrange(10**6))
    random.Random(seed).shuffle(every)
    end, tried, alive = time.monotonic() + float(os.environ.get("POOLKEEPER_MUTANTS_SECONDS", "600")), 0, []
    for module, told, source in every:
        if time.monotonic() > end:
            break
        file = tmp_path / DECIDE / f"{module}.py"
        original = file.read_text()
        file.write_text(source)
        tried += 1
        if survives(tmp_path, module):
            alive.append(f"{module}.py {told}")
        file.write_text(original)
    print(f"seed {seed}: {tried} of {len(every)} faults tried, not seen: {alive}")  # noqa: T201 - a deep run says how far it came
    assert tried
    assert len(alive) <= SURVIVORS_ALLOWED * tried
