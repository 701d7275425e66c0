"""When pods ask node scalers to be left alone (O17)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poolkeeper_operator.decide.hints import Spell, asks, spell
from poolkeeper_operator.observe.pods import seen

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("busy", "seconds", "asking", "answer"),
    [
        (True, 59, False, False),
        (True, 60, False, True),
        (True, 0, True, True),
        (False, 59, True, True),
        (False, 60, True, False),
        (False, 0, False, False),
        (False, 600, False, False),
    ],
)
def test_after_a_minute_of_work_and_until_a_minute_without(
    busy: bool, seconds: float, asking: bool, answer: bool
) -> None:
    assert asks(Spell(busy, ago(seconds)), NOW, asking=asking) is answer


def test_a_spell_goes_on_until_it_changes() -> None:
    busy = spell(None, busy=True, now=ago(90))
    assert spell(busy, busy=True, now=NOW) == busy
    idle = spell(busy, busy=False, now=NOW)
    assert idle == Spell(busy=False, since=NOW)
    assert spell(idle, busy=True, now=NOW + timedelta(seconds=5)).since == NOW + timedelta(seconds=5)


def test_work_that_was_seen_counts_more_than_what_a_session_says() -> None:
    """A session that has not renewed while it worked believes to have been idle throughout."""
    busy = spell(None, busy=True, now=ago(90))
    assert spell(busy, busy=False, now=NOW, idle_for=timedelta(seconds=600)) == Spell(busy=False, since=NOW)


def test_an_idle_worker_says_itself_since_when() -> None:
    """So a restarted operator does not leave the hint on for another minute."""
    assert spell(None, busy=False, now=NOW, idle_for=timedelta(seconds=300)) == Spell(busy=False, since=ago(300))


@pytest.mark.parametrize(
    ("annotations", "asking"),
    [
        ({}, False),
        ({"poolkeeper.dev/busy": "true", "karpenter.sh/do-not-disrupt": "true"}, True),
        ({"karpenter.sh/do-not-disrupt": "true"}, None),
        ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, None),
    ],
)
def test_what_the_template_says_itself_is_left_as_it_is(annotations: dict[str, str], asking: bool | None) -> None:
    metadata: dict[str, Any] = {"name": "a", "uid": "u", "creationTimestamp": "2026-11-29T12:00:00Z"}
    assert seen({"metadata": {**metadata, "annotations": annotations}}).asking is asking
