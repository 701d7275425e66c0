"""The committed definitions are the generated ones, and the chart installs the same as `kubectl apply -f crds/`."""

from pathlib import Path

import pytest

from poolkeeper_operator.resources.cli import rendered

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", sorted(rendered()))
def test_the_committed_definition_is_the_generated_one(name: str) -> None:
    assert (ROOT / "crds" / name).read_text() == rendered()[name], "run: poolkeeper crds --write crds"


def test_there_is_no_other_definition_in_the_folder() -> None:
    assert {path.name for path in (ROOT / "crds").iterdir()} == set(rendered())


def test_the_chart_has_the_generated_definitions() -> None:
    """A6: byte for byte; after a change of crds/: cp crds/*.yaml charts/poolkeeper/files/crds/."""
    generated = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    charted = {path.name: path.read_text() for path in (ROOT / "charts/poolkeeper/files/crds").glob("*.yaml")}
    assert len(generated) == 4
    assert charted == generated
