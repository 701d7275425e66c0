"""The worker's pulse: looks each second while anything runs, seldom while nothing does (F4)."""

import asyncio
import time
from typing import Any

import pytest

from poolkeeper.worker import pulse
from poolkeeper.worker.pulse import Pulse


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "BEAT", 0.02)
    monkeypatch.setattr(pulse, "REST", 600.0)


async def reached(looks: list[None], number: int) -> None:
    async with asyncio.timeout(30):
        while len(looks) < number:
            await asyncio.sleep(0.01)


async def test_it_rests_while_nothing_runs_and_beats_as_soon_as_something_does() -> None:
    looks: list[None] = []
    rests = True
    beats = Pulse(lambda: looks.append(None), resting=lambda: rests)
    beats.start()
    assert len(looks) == 1
    await asyncio.sleep(0.2)
    assert len(looks) == 1
    rests = False
    beats.quicken()
    await reached(looks, 5)
    rests = True
    beats.quicken()
    await reached(looks, 6)
    await asyncio.sleep(0.2)
    seen = len(looks)
    await asyncio.sleep(0.2)
    assert len(looks) == seen
    beats.quicken()
    beats.stop()
    await asyncio.sleep(0.2)
    assert len(looks) == seen


async def test_a_look_that_fails_is_not_the_last_one() -> None:
    looks: list[None] = []
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.append(what))

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:
            raise RuntimeError("such as a signal that cannot be heard")

    beats = Pulse(look, resting=lambda: False)
    beats.start()
    await reached(looks, 4)
    beats.stop()
    assert [str(each["exception"]) for each in told] == ["such as a signal that cannot be heard"]


async def test_it_tells_for_how_long_the_event_loop_was_kept() -> None:
    looks: list[None] = []
    beats = Pulse(lambda: looks.append(None), resting=lambda: False)
    beats.start()
    time.sleep(0.3)
    await reached(looks, 2)
    beats.stop()
    assert beats.longest_stall > 0.2
