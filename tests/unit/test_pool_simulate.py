"""`poolkeeper pool simulate`: a policy tried on a trace, by the operator's own decision (O10 to O14, F26)."""

import json
import subprocess
import sys

import pytest

POOL = """
apiVersion: poolkeeper.dev/v1alpha1
kind: WorkerPool
metadata: {name: mail}
spec:
  queues: [{name: mail}]
  app: demo:app
  concurrency: 4
  template: {image: example.com/mail:1}
  scaling: {max: 5, targetAge: 30s}
"""


@pytest.fixture
def simulate(tmp_path):
    def ask(trace, *options, pool=POOL):
        (tmp_path / "pool.yaml").write_text(pool)
        (tmp_path / "trace.csv").write_text(trace)
        files = ["--policy", str(tmp_path / "pool.yaml"), "--trace", str(tmp_path / "trace.csv")]
        command = [sys.executable, "-m", "poolkeeper", "pool", "simulate", *files, *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return ask


def test_a_burst_is_told_with_its_waits_its_cost_and_the_reasons(simulate):
    trace = "at,seconds\n" + "".join(f"{n / 10},5\n" for n in range(40))
    told = simulate(trace)
    assert told.returncode == 0, told.stderr
    assert "40 tasks, 0.00% started later than targetAge 30 s" in told.stdout
    assert "can run, the oldest for" in told.stdout
    found = json.loads(simulate(trace, "-o", "json").stdout)
    assert found["tasks"] == 40
    assert found["work_pod_seconds"] == 50
    assert max(found["sizes"]) == found["most_pods"] <= 5
    assert found["sizes"][-1] == 0, "it is played until the pool is at rest"
    assert found["decisions"][0]["pods"] >= 1


def test_moments_may_be_iso_8601_and_a_bound_that_is_too_low_is_told(simulate):
    trace = "at,seconds\n" + "2026-11-30T10:00:00Z,600\n" * 400
    told = simulate(trace, pool=POOL.replace("max: 5", "max: 1"))
    assert told.returncode == 0, told.stderr
    assert "tasks had not started at the end: scaling.max or another bound is too low" in told.stdout


@pytest.mark.parametrize(
    ("trace", "pool", "says"),
    [
        ("when,how\n1,2\n", POOL, "trace.csv: line 1: give a CSV"),
        ("at,seconds\n", POOL, "trace.csv: line 2: there is no task"),
        ("at,seconds\nnoon,2\n", POOL, "line 2: at is 'noon'; give seconds"),
        ("at,seconds\ninf,2\n", POOL, "line 2: at is 'inf'; give a finite"),
        ("at,seconds\n1\n", POOL, "line 2: seconds is ''; give how long"),
        ("at,seconds\n1,-3\n", POOL, "line 2: seconds is '-3'; give how long"),
        ("at,seconds\n1,nan\n", POOL, "line 2: seconds is 'nan'; give how long"),
        ("at,seconds\n0,1\n604801,1\n", POOL, "longer than a week; cut it"),
        ("at,seconds\n0,1\n", "kind: [", "pool.yaml: no YAML"),
        ("at,seconds\n0,1\n", "kind: TaskQueue", "holds 0 WorkerPools"),
        ("at,seconds\n0,1\n", POOL.replace("max: 5", "max: 0"), "spec.scaling.max"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place_and_the_remedy(simulate, trace, pool, says):
    told = simulate(trace, pool=pool)
    assert told.returncode not in {0, 1}, told.stdout
    assert says in told.stderr
    assert "Traceback" not in told.stderr
