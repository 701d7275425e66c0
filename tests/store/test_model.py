"""Random interleavings of everything, beside a small model of the rules (quality 3).

Several processes, submitters, people, policies, time and lost answers on two queues. The clock stands still between steps,
so that nothing depends on how fast they run. ``model_taken`` lists the arrows and refusals that must have been taken.

Lives come in rounds. The first seed of the wide and the deep form is printed, and `POOLKEEPER_MODEL_SEED` takes it again.
"""

import os
import secrets
import sys

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from store.model_compare import Comparison
from store.model_taken import Course, forgotten
from store.scene import Scene

_FROZEN = """
    CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT timestamptz ''2100-01-01 00:00Z'' + (SELECT o.by FROM poolkeeper.clock_offset AS o)';
"""


def live(scene: Scene, course: Course, first: int, rounds: int, lives: int = 16, *, shrink: bool = False) -> None:
    """So many rounds of random lives, each life from an empty store; fewer when all was taken often enough."""
    scene.owner.execute(_FROZEN)
    chosen = settings(
        max_examples=lives,
        stateful_step_count=25,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for number in range(rounds):
        # a seed for each round: by itself Hypothesis either takes another one every time or, derandomized, always the same
        kind = seed(first + number)(
            type("Comparison", (Comparison,), {"scene": scene, "course": course, "taken": course.taken})
        )
        try:
            run_state_machine_as_test(kind, settings=chosen)
        except BaseException as error:
            error.add_note(f"round {number} of POOLKEEPER_MODEL_SEED={first}")
            raise
        if not course.rare():
            return
        course.steer()


def any_seed() -> int:
    """Another one every time, unless it is named."""
    return int(os.environ.get("POOLKEEPER_MODEL_SEED", secrets.randbelow(10**9)))


def tell(course: Course, capsys: pytest.CaptureFixture[str], first: int) -> None:
    """Print how often each arrow and refusal was taken."""
    with capsys.disabled():
        sys.stdout.write(f"\nPOOLKEEPER_MODEL_SEED={first}{course.table()}")


def test_the_lists_of_arrows_and_refusals_are_complete() -> None:
    """Q1, Q3, contract 2: every pair of states of the specification, every code and every reason has its place."""
    assert forgotten() == {}


def test_random_interleavings_agree_with_the_model(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Q1, Q6, Q7, Q9, Q10, Q12, Q13, Q16, Q18 to Q22, Q25 to Q30, Q39: a few lives, the same in every run."""
    course = Course(0)
    live(scene, course, 1, rounds=1, lives=6)
    tell(course, capsys, 1)
    assert course.rare() == set()


@pytest.mark.wide
def test_each_arrow_and_refusal_agrees_with_the_model(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """The same, other lives in every run, until each arrow and each refusal was taken."""
    course, first = Course(1), any_seed()
    live(scene, course, first, rounds=100, lives=10)
    tell(course, capsys, first)
    assert course.rare() == set()


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_many_random_interleavings_agree_with_the_model(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """The same, until each was taken a hundred times."""
    course, first = Course(100), any_seed()
    live(scene, course, first, rounds=1000, shrink=True)
    tell(course, capsys, first)
    assert course.rare() == set()
