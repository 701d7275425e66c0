"""Q28, Q54: every exception is exactly one outcome; its text is bounded and redacted."""

import asyncio
import time
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolkeeper import Dead, LeaseLost, Reject, RetryAfter, Snooze
from poolkeeper.codes import Code
from poolkeeper.outcome import judge
from poolkeeper.redact import MAX_TEXT, bounded, redact


@pytest.mark.parametrize(
    ("error", "ending", "retry_after"),
    [
        (Reject("no such order"), "rejected", None),
        (Dead("gone"), "dead", None),
        (RetryAfter(5), "failed", 5.0),
        (Snooze(60), "snoozed", 60.0),
        (LeaseLost(Code.CANCELED, "x"), "canceled", None),
        (LeaseLost(Code.LEASE_EXPIRED, "x"), "handed_back", None),
        (asyncio.CancelledError(), "failed", None),
        (SystemExit(3), "failed", None),
        (KeyboardInterrupt(), "failed", None),
        (MemoryError(), "failed", None),
        (ValueError("boom"), "failed", None),
    ],
)
def test_each_kind_of_exception_has_its_outcome(error: BaseException, ending: str, retry_after: float | None) -> None:
    """Q28: retry is the default."""
    outcome = judge(error)
    assert (outcome.ending, outcome.retry_after) == (ending, retry_after)


class Broken(ExceptionGroup):
    """A group whose own code fails."""

    def derive(self, excs: object) -> NoReturn:
        raise ZeroDivisionError(excs)


REJECTS, LOST = Reject("no such order"), LeaseLost(Code.CANCELED, "x")


@pytest.mark.parametrize(
    ("errors", "ending", "error", "retry_after"),
    [
        ([REJECTS], "rejected", "no such order", None),
        ([ExceptionGroup("inner", [REJECTS]), Reject("nor such")], "rejected", "no such order", None),
        ([Dead("gone")], "dead", "gone", None),
        ([RetryAfter(5), RetryAfter(50), RetryAfter(7)], "failed", "retry after 50 s", 50.0),
        ([Snooze(60)], "snoozed", "snoozed for 60 s", 60.0),
        ([ValueError("boom"), LOST], "canceled", None, None),
        ([REJECTS, ValueError("boom")], "failed", "ExceptionGroup: several (2 sub-exceptions)", None),
        ([REJECTS, Dead("gone")], "failed", "ExceptionGroup: several (2 sub-exceptions)", None),
        ([ValueError("boom")], "failed", "ExceptionGroup: several (1 sub-exception)", None),
    ],
)
def test_a_task_group_ends_as_all_its_tasks_say(
    errors: list[Exception], ending: str, error: str | None, retry_after: float | None
) -> None:
    """Q28: a group of one kind is that kind, a lost lease is one whatever else went wrong; anything else is an error."""
    outcome = judge(ExceptionGroup("several", errors))
    assert (outcome.ending, outcome.error, outcome.retry_after) == (ending, error, retry_after)


def test_a_group_that_cannot_be_looked_into_is_an_error() -> None:
    """Q28: every exception has an outcome, whatever its own code does."""
    assert judge(Broken("odd", [REJECTS, ValueError("boom")])).ending == "failed"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_impossible_waits_are_refused_where_they_are_raised(seconds: float) -> None:
    """Q28: they must not reach the database."""
    with pytest.raises(ValueError, match="seconds"):
        RetryAfter(seconds)
    with pytest.raises(ValueError, match="seconds"):
        Snooze(seconds)


def test_an_error_tells_class_message_and_place_but_no_secret() -> None:
    """Q54."""

    def fails() -> None:
        raise RuntimeError("login postgresql://joe:hunter2@db:5432/x failed")

    try:
        fails()
    except RuntimeError as error:
        outcome = judge(error)
    assert outcome.error_class == "RuntimeError"
    assert outcome.error is not None
    assert outcome.error.startswith("RuntimeError: login postgresql://joe:***@db:5432/x failed (in fails, ")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://joe:hunter2@db/x", "hunter2"),
        ("host=db user=joe password=hunter2 dbname=x", "hunter2"),
        ("password='hunter two'", "hunter two"),
        ("Authorization: Bearer abc.def-ghi123", "abc.def-ghi123"),
        ('{"api_key": "sk-12345678"}', "sk-12345678"),
        ("token pkt_AbC-123_xyz was refused", "AbC-123_xyz"),
        ("amqp://:hunter2@mq//", "hunter2"),
    ],
)
def test_what_looks_like_a_credential_is_masked(text: str, secret: str) -> None:
    """Q54, Q17: tokens are in no error and no log."""
    assert secret not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text", ["task 5 failed", "https://example.com/a:b@c", "the token has expired", "", "user joe: 3 passwords"]
)
def test_what_is_no_credential_stays(text: str) -> None:
    """Q54: an error must stay readable."""
    assert redact(text) == text


@given(st.text(max_size=5000), st.integers(10, MAX_TEXT))
def test_a_bounded_text_keeps_its_bound_and_ends_at_a_whole_character(text: str, limit: int) -> None:
    """Q54: in bytes, as it is stored; what fits is unchanged."""
    cut = bounded(redact(text), limit)
    assert len(cut.encode()) <= limit
    assert "\x00" not in cut
    if len(redact(text).encode()) <= limit:
        assert cut == redact(text)


@pytest.mark.parametrize("text", ["E", "a://", "a://b:", "password='", "bearer ", "token   ", "pkt_", 'secret="x'])
def test_masking_takes_no_more_time_than_the_text_is_long(text: str) -> None:
    """Q47, Q54: an error with a picture or a page in its text stops no event loop; hours where it is not so."""
    began = time.monotonic()
    redact(text * (1_000_000 // len(text)))
    assert time.monotonic() - began < 60
