"""Q27: a child that wants more memory than its bound fails alone, before the kernel looks at the container."""

import os
from pathlib import Path
from uuid import uuid4

import pytest

from poolkeeper import Context
from poolkeeper.testing.runner import Notes
from poolkeeper.worker.isolated import LEAST, Rooms, run_in_child, run_suspect

APPLICATION = Path(__file__).parent


def ready(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(APPLICATION)
    monkeypatch.syspath_prepend(str(APPLICATION))
    monkeypatch.setenv("TEST_NOTES", str(folder / "notes"))


def test_a_child_over_its_memory_bound_is_a_failed_delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q27: 256 MiB within a bound of some 64 MiB; the next child, within it, succeeds."""
    ready(monkeypatch, tmp_path)
    notes = Notes(stopping=False, max_checkpoint=1000)

    def run(size: int) -> tuple[str, str | None, object]:
        ctx = Context(notes, task_id=uuid4(), type="t.memory")
        outcome = run_in_child("application:app", ctx, size, memory=2 * LEAST, token=str)
        return outcome.ending, outcome.error_class, outcome.result

    assert run(256 * 1024 * 1024)[:2] == ("failed", "MemoryError")
    assert run(1024) == ("succeeded", None, 1024)
    assert str(os.getpid()) not in (tmp_path / "notes").read_text()


def test_a_suspect_that_needs_more_than_its_share_is_handed_back_to_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q27, C10: its share beside others is no proof against it; alone it has all, and to want more than that is its failure."""
    ready(monkeypatch, tmp_path)
    notes = Notes(stopping=False, max_checkpoint=1000)
    rooms = Rooms(4, 12 * LEAST, 16 * LEAST)

    def run(size: int, beside: int) -> tuple[str, str | None]:
        outcome = run_suspect(
            "application:app", Context(notes, task_id=uuid4(), type="t.memory"), size, rooms, beside, str
        )
        return outcome.ending, outcome.error_class

    assert run(4 * LEAST, 4) == ("handed_back", "memory_share")
    assert run(4 * LEAST, 1) == ("succeeded", None)
    assert run(17 * LEAST, 1) == ("failed", "MemoryError")
