"""Whatever a caller sends: a stable code and a sentence, never an error of ours, never a task that is stuck (contract 9)."""

import pytest

from store.conftest import broken_invariants
from store.fuzzing import Stand, attempts, fault, functions
from store.scene import KINDS, Scene


@pytest.mark.parametrize("kind", KINDS)
def test_no_argument_of_any_function_does_harm(bare_scene: Scene, kind: str) -> None:
    """C46, C52, C54, contract 9: each argument in turn, of each function that this kind of login is the first to have."""
    _try_all(bare_scene, kind, deep=False)


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS)
def test_no_word_of_any_argument_does_harm(bare_scene: Scene, kind: str) -> None:
    """C46, C52, C54, contract 9: the same with every kind of value for every word that a function reads out of JSON."""
    _try_all(bare_scene, kind, deep=True)


def _try_all(scene: Scene, kind: str, *, deep: bool) -> None:
    stand = Stand(scene)
    conn = scene.connect(kind)
    conn.execute("SET statement_timeout = '60s'")
    found = []
    mine = [function for function in functions(scene) if function.kinds[0] == kind]
    for function in mine:
        for words, values in attempts(stand, function, deep=deep):
            wrong, answered = fault(conn, function, values)
            found += [f"{function.name}({words}): {wrong}"] if wrong else []
            if answered:
                stand.put_up()
        assert broken_invariants(scene.owner) == {}, function.name
    stand.work_off()
    assert not found, "\n".join(found)
