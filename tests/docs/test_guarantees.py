"""docs/guarantees.md: every promise has its mechanism, tests that exist, and a limit, or says that it is not kept yet (A12)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^## (P\d+) [^\n]+\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PART = re.compile(r"^- \*\*(.+?)\.\*\* (.*?)(?=^- \*\*|\n\n|\Z)", re.MULTILINE | re.DOTALL)
PROMISES = dict(SECTION.findall((ROOT / "docs" / "guarantees.md").read_text()))


def test_there_is_a_section_for_each_promise() -> None:
    assert list(PROMISES) == [f"P{number}" for number in range(1, 11)]


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_says_how_it_is_kept_what_shows_it_and_where_it_ends(promise: str) -> None:
    text = PROMISES[promise]
    parts = dict(PART.findall(text))
    if "**Not yet**" in text:
        assert parts == {}, "what is not kept claims nothing"
        return
    assert list(parts) == ["How", "Shown by", "Ends where"]
    named = re.findall(r"`(tests/[^`]+)`", parts["Shown by"])
    assert named, "nothing is promised that no test shows"
    assert [test for test in named if not (ROOT / test).is_file()] == []
