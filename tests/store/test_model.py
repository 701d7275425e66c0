"""Random interleavings of everything, beside a small model of the rules (quality 3).

Several processes, submitters, people, policies, time and lost answers on two queues. The clock stands still between steps,
so that nothing depends on how fast they run. ``model_taken`` lists the arrows and refusals that must have been taken.
"""

import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from store.model_compare import Comparison
from store.model_taken import forgotten, rare, told
from store.scene import Scene

_FROZEN = """
    CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT timestamptz ''2100-01-01 00:00Z'' + (SELECT o.by FROM poolkeeper.clock_offset AS o)';
"""


def compare(scene: Scene, examples: int, steps: int) -> type[Comparison]:
    """Run so many random lives, each from an empty store."""
    scene.owner.execute(_FROZEN)
    kind = type("Comparison", (Comparison,), {"scene": scene, "arrows": Counter(), "refusals": Counter()})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=examples < 100,
        phases=[Phase.generate] if examples < 100 else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(kind, settings=chosen)
    return kind


def tell(kind: type[Comparison], capsys: pytest.CaptureFixture[str]) -> None:
    """Print how often each arrow and refusal was taken."""
    with capsys.disabled():
        sys.stdout.write(told(kind.arrows, kind.refusals))


def test_the_lists_of_arrows_and_refusals_are_complete() -> None:
    """Q1, Q3, contract 2: every pair of states of the specification, every code and every reason has its place."""
    assert forgotten() == {}


def test_random_interleavings_agree_with_the_model(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Q1, Q6, Q7, Q9, Q10, Q12, Q16, Q18 to Q22, Q25 to Q30, Q39: a few lives, the same in every run."""
    kind = compare(scene, 8, 20)
    tell(kind, capsys)
    assert rare(kind.arrows, kind.refusals, 0) == set()


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_many_random_interleavings_agree_with_the_model(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """The same, other lives in every run, until each arrow and each refusal was taken a hundred times."""
    kind = compare(scene, 1500, 50)
    tell(kind, capsys)
    assert rare(kind.arrows, kind.refusals, 100) == set()
