"""The pages for a cluster, followed one after the other from an empty one to none (A12)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.console import ON_A_CLUSTER, ROOT, blocks, free_port, shell
from fixtures.layers import cannot_run
from lab import cluster

NAME = f"docs-{os.getpid()}"


@pytest.fixture
def lab_name() -> Iterator[str]:
    """Name of the cluster that the pages bring up, gone in any case."""
    if why_not := cluster.why_no_node():
        cannot_run(f"no node: {why_not}")
    yield NAME
    lab = [sys.executable, "-m", "lab", "--name", NAME, "down"]
    subprocess.run(lab, env={**os.environ, "PYTHONPATH": str(ROOT / "tools")}, check=True, capture_output=True)


@pytest.mark.timeout(900)
def test_the_pages_for_a_cluster_can_be_followed_in_order(lab_name: str, tmp_path: Path) -> None:
    """Literally, but for the port of Postgres and the name of the cluster."""
    words = {"54320": free_port(), "python -m lab": f"python -m lab --name {lab_name}"}
    with shell(tmp_path, words, {"TZ": "UTC", "HELM_CACHE_HOME": str(tmp_path / "helm")}) as made:
        for page in ON_A_CLUSTER:
            for block in blocks(page):
                made.run(block)
