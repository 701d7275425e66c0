"""Whether people take dead letters away faster than they come (O25)."""

from datetime import UTC, datetime, timedelta

from poolkeeper_operator.runtime.letters import Letters

START = datetime(2030, 1, 1, tzinfo=UTC)
MAIL = ("team", "mail")


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def test_fewer_than_five_minutes_ago_have_fallen() -> None:
    letters = Letters()
    assert not letters.fell(MAIL, 100, at(0))
    assert not letters.fell(MAIL, 90, at(30)), "just started: nobody knows"
    assert letters.fell(MAIL, 90, at(60))
    assert not letters.fell(MAIL, 101, at(120))
    for second in range(150, 600, 30):
        letters.fell(MAIL, 101 - second // 100, at(second))
    assert not letters.fell(MAIL, 101, at(600)), "what was five minutes ago counts, not the beginning"
    assert letters.fell(MAIL, 90, at(600))


def test_each_queue_by_itself_and_forgotten_with_it() -> None:
    letters = Letters()
    letters.fell(MAIL, 100, at(0))
    assert not letters.fell(("team", "other"), 1, at(90))
    letters.forget(MAIL)
    assert not letters.fell(MAIL, 1, at(90))
