"""What a pool or a quota says of windows that cannot be, or does not say, lets nothing start (O4, Q40)."""

from typing import Any

import psycopg
import pytest

from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import calls
from store.scene import Scene
from store.windowing import entry, use, window

MINUTE = {"requests": window(60)}


@pytest.fixture(autouse=True)
def plenty(scene: Scene) -> None:
    scene.queue(visibility_timeout_seconds=300)
    scene.submit_many(200)


@pytest.mark.parametrize("needs", [{}, {"tokens": 5}])
def test_a_need_that_was_not_said_lets_nothing_start(scene: Scene, needs: dict[str, int]) -> None:
    """O4: no task is free of a bound by accident; nor does one start that could never have room."""
    use(scene, entry(**needs, windows=MINUTE))
    assert scene.worker().claim(5) == []
    use(scene, entry(61, windows=MINUTE))
    assert scene.worker().claim(5) == []
    use(scene, entry(60, windows=MINUTE))
    assert len(scene.worker().claim(5)) == 1


WRONG: list[dict[str, Any]] = [
    {"requests": 0}, {"requests": -1}, {"tokens": "many"}, {"requests": 10**9}, {"requests": 1.5},
    *({"windows": {"requests": one}} for one in (
        {"limit": 0, "window": 60}, {"limit": -5, "window": 60}, {"limit": 10}, {"window": 60}, {"limit": 10, "window": 0}, {"limit": 10, "window": 0.5},
        {"limit": 10, "window": 86401}, {"limit": 10, "window": "1m"}, {"limit": 10**12, "window": 60}, {"limit": None, "window": 60}, 7, None)),
    {"windows": []}, {"windows": "none"}, {"windows": {"calls": window(5)}},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_windows_that_cannot_be_are_refused_and_change_nothing(scene: Scene, wrong: dict[str, Any]) -> None:
    """O4, contract 9: and what was told before stands."""
    use(scene, entry(20, windows=MINUTE))
    with pytest.raises((PoolkeeperError, psycopg.Error), match="providers cannot be"):
        scene.ask("operator", calls.set_providers("local/p", [entry(20, windows=MINUTE) | wrong]))
    assert len(scene.worker().claim(9)) == 3
