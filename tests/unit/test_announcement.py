"""The text of the Event about a batch of dead letters: readable, bounded, what matters first (O24, C40)."""

import unicodedata
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolkeeper.store.rows import DeadBatch
from poolkeeper_operator.act.announcement import announcement, plain
from poolkeeper_operator.decide.conditions import JOINER, cut
from poolkeeper_operator.resources import TaskQueueSpec

TASK = UUID("0192f0c4-7b1e-7c55-9a2f-5d9a3c1e7b10")
FAMILY = JOINER.join("👩👩👧")
SPEC = TaskQueueSpec.model_validate(
    {"databaseRef": {"name": "main"}, "deadLetter": {"owner": "ann", "runbookURL": "https://r.example.com"}}
)


def batch(**changes):
    values: dict[str, Any] = {
        "number": 1, "count": 1, "first_task": TASK, "first_reason": "retries_exhausted", "first_error_class": "ValueError",
        "first_error": "no such user", "types": {"a.b": 1}, "reasons": {"retries_exhausted": 1}, "tenants": 1,
        "at": datetime(2026, 11, 29, tzinfo=UTC),
    }  # fmt: skip
    return DeadBatch(**values | changes)


def test_one_dead_letter():
    assert announcement(batch(), SPEC) == (
        f"task {TASK}: retries_exhausted; 1 dead letter: a.b 1 (retries_exhausted 1); error: no such user; "
        f"`poolkeeper task timeline {TASK}` tells what happened; owner ann; runbook https://r.example.com"
    )


def test_many_of_many_kinds():
    types = {f"t.{n}": n for n in range(1, 9)}
    text = announcement(batch(count=36, types=types, reasons={"max_age": 36}, tenants=3), SPEC)
    assert (
        "36 dead letters of 3 tenants: t.8 8, t.7 7, t.6 6, t.5 5, t.4 4, others 6 (max_age 36); first error: no such"
        in text
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"first_error": ""}, "; error: ValueError without a message; "),
        ({"first_error": None}, "; error: ValueError without a message; "),
        ({"first_error": None, "first_error_class": None}, None),
        ({"first_error_class": None}, "; error: no such user; "),
        ({"first_error": "\x1b[1;31mred\x1b[0m\r\n\tand\x00 \u202eback\u202c"}, "; error: red and back; "),
    ],
)
def test_what_stands_for_the_error(changes, said):
    text = announcement(batch(**changes), SPEC)
    assert (said in text) if said else ("error" not in text)


@given(
    st.text(), st.dictionaries(st.text("ab.", min_size=1, max_size=100), st.integers(1, 99), min_size=1, max_size=20)
)
def test_whatever_the_error_says_the_rest_is_there(error, types):
    """One line, without what a terminal or an editor would act on; id, reason, timeline and owner are never pushed out."""
    text = announcement(batch(first_error=error * 50, types=types, count=99), SPEC)
    assert text.startswith(f"task {TASK}: retries_exhausted; 99 dead letters")
    assert text.endswith("tells what happened; owner ann; runbook https://r.example.com")
    assert len(text.encode()) <= 1024
    assert not [c for c in text if unicodedata.category(c) in {"Cc", "Zl", "Zp"}]


def test_what_writing_needs_is_kept():
    for text in (FAMILY, "نمی\u200cخواهم", "née", "e\u0301", "誤り 🏴"):  # noqa: RUF001 - Persian
        assert plain(text) == text


@pytest.mark.parametrize("one", ["x", "é", "e\u0301", "誤", FAMILY, "👍\U0001f3fd", "❤\ufe0f"])
def test_a_cut_takes_whole_characters_as_they_show(one):
    for limit in range(8, 80):
        text = cut(one * 100, limit)
        assert len(text.encode()) <= limit
        assert set(text.removesuffix("…").split(one)) == {""}
        assert text.endswith("…")


@given(st.text(), st.integers(4, 200))
def test_a_cut_fits_and_is_a_beginning(text, limit):
    made = cut(text, limit)
    assert len(made.encode()) <= max(limit, 0) or made == text
    assert text.startswith(made.removesuffix("…"))


def test_marks_without_end_are_cut_somewhere():
    """No writing: the cut does not lose the whole text over it."""
    assert len(cut("a" + "\u0301" * 1000, 200)) > 50
