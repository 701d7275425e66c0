"""ADRs: one screen each, dated, in one form, and found from the architecture (A12)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "docs" / "adr").glob("*.md"))
SCREEN = 50


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_has_the_one_form(record: Path) -> None:
    text = record.read_text()
    number = record.name[:4]
    assert re.match(rf"# {number} .+\n\n\d{{4}}-\d\d-\d\d\b", text), "title with its number, then the date"
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= SCREEN


def test_numbers_are_given_once() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert len(numbers) == len(set(numbers)) > 0


def test_every_decision_is_found_from_the_architecture() -> None:
    linked = set(re.findall(r"\]\(adr/([^)]+)\)", (ROOT / "docs" / "architecture.md").read_text()))
    assert {record.name for record in RECORDS} - linked == set()
