"""What is left of a quota that its provider refused, in numbers and words (O15)."""

from datetime import UTC, datetime, timedelta
from typing import Any

from poolkeeper_operator.decide.throttle import Throttle, least, throttle
from poolkeeper_operator.resources import ProviderQuotaSpec

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def after(**minutes: float) -> datetime:
    return NOW + timedelta(**minutes)


def cut(**more: Any) -> Throttle | None:
    seen = {"percent": 50.0, "cut_to": 50.0, "cut_at": NOW, "retry_at": None, "recover": 5, "now": NOW}
    return throttle(**{**seen, **more})


def test_a_quota_that_was_never_refused_or_is_back_is_whole() -> None:
    """O15: nothing to tell, nothing to lower."""
    assert cut(cut_at=None, percent=100.0) is None
    assert cut(percent=100.0, now=after(minutes=10)) is None
    assert cut(percent=100.0, retry_at=after(minutes=1), now=after(minutes=2)) is None


def test_the_words_say_when_what_and_until_when_and_do_not_move() -> None:
    """O15, O2: an unchanged situation is an unchanged status, although more comes back all the while."""
    early, late = cut(), cut(percent=70.0, now=after(minutes=4))
    assert early is not None
    assert late is not None
    assert early.sentence("platform/model-api") == (
        "429 from model-api, cut to 50 % at 2026-11-30T12:00:00Z; all of it is back at 2026-11-30T12:10:00Z if it refuses no more"
    )
    assert late.sentence("platform/model-api") == early.sentence("platform/model-api")
    assert late.state == early.state
    closed = cut(retry_at=after(minutes=1))
    assert closed is not None
    assert "nothing starts before 2026-11-30T12:01:00Z; all of it is back at 2026-11-30T12:11:00Z" in closed.sentence(
        "a/b"
    )
    assert closed.state != early.state


def test_the_least_of_several_databases_counts() -> None:
    """O15: one that is closed before one that has less, the longest first."""
    half, tenth = cut(), cut(percent=10.0)
    short, long = cut(retry_at=after(minutes=1)), cut(percent=90.0, retry_at=after(minutes=2))
    known = [one for one in (half, short, long, tenth) if one is not None]
    assert least(known) is long
    assert least(one for one in known if one.opens is None) is tenth
    assert least([]) is None


def test_a_share_is_at_least_one_and_rounded_down() -> None:
    """O15: so that somebody finds out when there is more; of nothing nothing."""
    third = cut(percent=33.4)
    assert third is not None
    assert [third.share(whole) for whole in (0, 1, 2, 3, 10, 100)] == [0, 1, 1, 1, 3, 33]


def test_the_reserve_is_rounded_down() -> None:
    """O4: five percent of little is nothing, so that a limit of one can be used; none is given away by rounding."""

    def left(limit: int, **more: Any) -> int:
        return ProviderQuotaSpec.model_validate({"limits": {"concurrentCalls": limit}, **more}).to_divide()

    assert [left(limit) for limit in (1, 19, 20, 40, 100)] == [1, 19, 19, 38, 95]
    assert left(40, reservePercent=0) == 40
    assert left(40, reservePercent=90) == 4
