"""A stage for each test of this layer: see fixtures.workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.postgres import Database
from fixtures.workers import Stage


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Iterator[Stage]:
    """An empty stage with one queue, default/q, whose leases last LEASE seconds."""
    made = Stage(database.dsn, tmp_path)
    made.apply()
    yield made
    made.close()
