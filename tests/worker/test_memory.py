"""Q27: a child that wants more memory than its bound fails alone, before the kernel looks at the container."""

import os
from pathlib import Path
from uuid import uuid4

import pytest

from poolkeeper import Context
from poolkeeper.testing.runner import Notes
from poolkeeper.worker.isolated import LEAST, run_in_child

APPLICATION = Path(__file__).parent


def test_a_child_over_its_memory_bound_is_a_failed_delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q27: 256 MiB within a bound of some 64 MiB; the next child, within it, succeeds."""
    monkeypatch.chdir(APPLICATION)
    monkeypatch.syspath_prepend(str(APPLICATION))
    monkeypatch.setenv("TEST_NOTES", str(tmp_path / "notes"))
    notes = Notes(stopping=False, max_checkpoint=1000)

    def run(size: int) -> tuple[str, str | None, object]:
        ctx = Context(notes, task_id=uuid4(), type="t.memory")
        outcome = run_in_child("application:app", ctx, size, memory=2 * LEAST)
        return outcome.ending, outcome.error_class, outcome.result

    assert run(256 * 1024 * 1024)[:2] == ("failed", "MemoryError")
    assert run(1024) == ("succeeded", None, 1024)
    assert str(os.getpid()) not in (tmp_path / "notes").read_text()
