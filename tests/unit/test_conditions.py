"""Conditions and coarse numbers: an unchanged situation is an unchanged status (O2, O3)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolkeeper_operator.decide.conditions import BUCKETS, MESSAGE_BYTES, Condition, coarse, cut, merge

NOW = datetime(2026, 11, 29, 16, 0, 0, 987654, tzinfo=UTC)
READY = Condition("Ready", "True", "Reachable", "schema 7")


def test_a_new_condition_has_all_that_kubernetes_asks_for():
    assert merge([], [READY], generation=3, now=NOW) == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Reachable",
            "message": "schema 7",
            "observedGeneration": 3,
            "lastTransitionTime": "2026-11-29T16:00:00Z",
        }
    ]


def test_the_transition_time_stays_while_the_status_does():
    first = merge([], [READY], generation=3, now=NOW)
    again = merge(first, [Condition("Ready", "True", "Other", "new words")], generation=4, now=NOW + timedelta(hours=1))
    assert again[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert (again[0]["reason"], again[0]["observedGeneration"]) == ("Other", 4)


def test_the_transition_time_moves_with_the_status():
    first = merge([], [READY], generation=3, now=NOW)
    again = merge(first, [Condition("Ready", "False", "Gone", "")], generation=3, now=NOW + timedelta(hours=1))
    assert again[0]["lastTransitionTime"] == "2026-11-29T17:00:00Z"


def test_an_unchanged_situation_is_an_unchanged_list():
    first = merge([], [READY], generation=3, now=NOW)
    assert merge(first, [READY], generation=3, now=NOW + timedelta(days=1)) == first


def test_one_entry_per_type_sorted_and_those_of_others_kept():
    theirs = {"type": "Zebra", "status": "True", "lastTransitionTime": "x"}
    merged = merge([theirs], [READY, Condition("DeadLetters", "False", "None", "")], generation=1, now=NOW)
    assert [c["type"] for c in merged] == ["DeadLetters", "Ready", "Zebra"]
    assert merged[2] == theirs


@given(st.text(max_size=3000))
def test_messages_are_cut_on_a_character_boundary(text):
    short = cut(text)
    assert len(short.encode()) <= MESSAGE_BYTES
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


@pytest.mark.parametrize("character", ["x", "ü", "€", "𝄞"])
def test_a_long_message_is_cut_to_the_bound_with_an_ellipsis(character):
    short = cut(character * 2000)
    assert MESSAGE_BYTES - 4 <= len(short.encode()) <= MESSAGE_BYTES
    assert set(short) == {character, "…"}


def test_a_condition_that_had_no_time_gets_one():
    merged = merge([{"type": "Ready", "status": "True"}], [READY], generation=1, now=NOW)
    assert merged[0]["lastTransitionTime"] == "2026-11-29T16:00:00Z"


def test_a_message_of_exactly_the_bound_is_whole():
    assert cut("x" * MESSAGE_BYTES) == "x" * MESSAGE_BYTES


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (4.9, "0s"),
        (5, "5s"),
        (29, "15s"),
        (31, "30s"),
        (60, "1m"),
        (3599, "30m"),
        (3600, "1h"),
        (90_000, "24h"),
        (200_000, "48h"),
    ],
)
def test_ages_are_rounded_down_to_their_bucket(seconds, text):
    assert coarse(timedelta(seconds=seconds)) == text


def test_an_absent_age_is_absent():
    assert coarse(None) is None


def test_an_age_moves_the_status_rarely():
    """Within a day an ageing task changes the status a few times, not every tick."""
    assert len({coarse(timedelta(seconds=s)) for s in range(86_400)}) == len(BUCKETS) - 1
