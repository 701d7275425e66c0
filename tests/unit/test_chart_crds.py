"""The chart installs the same definitions as `kubectl apply -f crds/`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_chart_has_the_generated_definitions() -> None:
    """A6: byte for byte; after a change of crds/: cp crds/*.yaml charts/poolkeeper/files/crds/."""
    generated = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    charted = {path.name: path.read_text() for path in (ROOT / "charts/poolkeeper/files/crds").glob("*.yaml")}
    assert len(generated) == 4
    assert charted == generated
