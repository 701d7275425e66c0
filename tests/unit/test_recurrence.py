"""Slots of cron expressions in their zones, and what becomes of those that nobody fired in time (Q34, C56)."""

from datetime import datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolkeeper.firing import planned
from poolkeeper.recurrence import CATCH_UP, Plan, ScheduleError, check, plan, slots
from poolkeeper.store.recurring import DueSchedule

CHANGES = {
    "Europe/Berlin": ("2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"),
    "America/New_York": ("2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"),
    "Australia/Lord_Howe": ("2026-10-03T15:30:00Z", "2026-04-04T15:00:00Z"),  # by half an hour
}
"""When the clock goes forward, and back."""

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def within(cron: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    return list(takewhile(lambda slot: slot <= end, slots(cron, zone, begin)))


def clock(found: list[datetime], zone: str) -> list[str]:
    """What the clock on the wall shows."""
    return [f"{slot.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for slot in found]


class TestSummerTime:
    """One rule: that of Debian's cron, with the documents' words."""

    @pytest.mark.parametrize(
        ("zone", "cron", "begin", "shown"),
        [
            (
                "Europe/Berlin",
                "30 2 * * *",
                "2026-03-28T12:00Z",
                ["29 03:00 +0200", "30 02:30 +0200", "31 02:30 +0200"],
            ),
            (
                "Europe/Berlin",
                "30 2 * * *",
                "2026-10-24T12:00Z",
                ["25 02:30 +0200", "26 02:30 +0100", "27 02:30 +0100"],
            ),
            (
                "Europe/Berlin",
                "0 2,3 * * *",
                "2026-03-28T12:00Z",
                ["29 03:00 +0200", "30 02:00 +0200", "30 03:00 +0200"],
            ),
            ("America/New_York", "30 2 * * *", "2026-03-07T12:00Z", ["08 03:00 -0400", "09 02:30 -0400"]),
            ("America/New_York", "30 1 * * *", "2026-10-31T12:00Z", ["01 01:30 -0400", "02 01:30 -0500"]),
            ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00Z", ["04 02:30 +1100", "05 02:15 +1100"]),
            ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00Z", ["05 01:45 +1100", "06 01:45 +1030"]),
            ("Asia/Kolkata", "15 0 * * *", "2026-03-28T12:00Z", ["29 00:15 +0530", "30 00:15 +0530"]),
        ],
    )
    def test_a_fixed_time_comes_once_a_day(self, zone: str, cron: str, begin: str, shown: list[str]) -> None:
        """Left out by the clock: at the moment when it goes on; shown twice: the first time."""
        assert clock(list(islice(slots(cron, zone, at(begin)), len(shown))), zone) == shown

    @pytest.mark.parametrize(
        ("zone", "cron", "begin", "shown"),
        [
            ("Europe/Berlin", "0 * * * *", "2026-03-29T00:30Z", ["29 03:00 +0200", "29 04:00 +0200"]),
            ("Europe/Berlin", "0 * * * *", "2026-10-24T23:30Z", ["25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100"]),
            ("America/New_York", "*/30 1 * * *", "2026-11-01T05:15Z", ["01 01:30 -0400", "01 01:00 -0500", "01 01:30 -0500", "02 01:00 -0500"]),
            ("Australia/Lord_Howe", "*/30 * * * *", "2026-10-03T15:15Z", ["04 02:30 +1100", "04 03:00 +1100"]),
            ("Australia/Lord_Howe", "*/30 * * * *", "2026-04-04T14:15Z", ["05 01:30 +1100", "05 01:30 +1030", "05 02:00 +1030"]),
        ],
    )  # fmt: skip
    def test_with_a_star_it_follows_the_clock_on_the_wall(
        self, zone: str, cron: str, begin: str, shown: list[str]
    ) -> None:
        assert clock(list(islice(slots(cron, zone, at(begin)), len(shown))), zone) == shown

    @pytest.mark.parametrize("zone", [*CHANGES, "Asia/Kathmandu"])
    @pytest.mark.parametrize("cron", ["* * * * *", "*/20 * * * *", "7 * * * *", "*/15 1-3 * * *", "0 */2 * * *"])
    def test_it_is_what_a_look_at_each_minute_finds(self, zone: str, cron: str) -> None:
        """Of the wall's clock: found by looking, minute by minute, without the library."""
        minutes, hours = (_numbers(field, most) for field, most in zip(cron.split(), (60, 24), strict=False))
        for change in map(at, CHANGES.get(zone, CHANGES["Europe/Berlin"])):
            every = (change - DAY + n * MINUTE for n in range(1, 2881))
            looked = [m for m in every if (w := m.astimezone(ZoneInfo(zone))).minute in minutes and w.hour in hours]
            assert within(cron, zone, change - DAY, change + DAY) == looked

    @given(
        zone=st.sampled_from([*CHANGES, "UTC"]),
        cron=st.sampled_from(
            ["30 2 * * *", "0,30 1-3 * * *", "*/15 * * * *", "5 */2 * * *", "0 0 * * *", "*/20 30 2 * * *"]
        ),
        change=st.integers(0, 1),
        seconds=st.integers(-100_000, 100_000),
    )
    def test_slots_rise_and_are_the_same_wherever_counting_begins(
        self, zone: str, cron: str, change: int, seconds: int
    ) -> None:
        """A clock that steps back, or a firer that comes later, counts no slot anew and none that was not there."""
        around = at(CHANGES.get(zone, CHANGES["Europe/Berlin"])[change])
        whole = within(cron, zone, around - 2 * DAY, around + 2 * DAY)
        assert all(a < b for a, b in pairwise(whole))
        begin = around + timedelta(seconds=seconds)
        assert within(cron, zone, begin, around + 2 * DAY) == [slot for slot in whole if slot > begin]


def _numbers(field: str, most: int) -> set[int]:
    span, _, step = field.partition("/")
    first, _, last = span.partition("-")
    if span == "*":
        return set(range(0, most, int(step or 1)))
    return set(range(int(first), int(last or first) + 1, int(step or 1)))


class TestRefused:
    """What cannot be is said with its name and the remedy."""

    @pytest.mark.parametrize(
        "cron", ["", "x", "* * * *", "61 * * * *", "0 0 30 2 *", "@daily", "5-1 * * * *", "*/0 * * * *", "\N{ARABIC-INDIC DIGIT ONE} * * * *",
                 "0 0 * * 5#9", "* " * 200, "\0 * * * *", "0 0 31 4,6 *", "L * * * *"],
    )  # fmt: skip
    def test_an_expression_that_makes_no_sense(self, cron: str) -> None:
        with pytest.raises(ScheduleError, match=r"cron expression .* (give minute|ASCII|such as)"):
            check(cron, "UTC", at("2026-01-01T00:00Z"))

    @pytest.mark.parametrize(
        "zone", ["", "Mars/Crater", "localtime", "posixrules", "../UTC", "/etc/passwd", "America", "UTC\n", "CEST", "right/UTC", "x" * 300]
    )  # fmt: skip
    def test_a_zone_that_is_none(self, zone: str) -> None:
        with pytest.raises(ScheduleError, match=r"time zone .* such as Europe/Berlin"):
            check("0 0 * * *", zone, at("2026-01-01T00:00Z"))


class TestCatchUp:
    """A schedule for each ten minutes, last counted at eight."""

    def planned(self, catch_up: str, now: str, limit: int = 100) -> Plan:
        return plan("*/10 * * * *", "UTC", catch_up, limit, at("2026-01-01T08:00Z"), at(f"2026-01-01T{now}Z"))

    @pytest.mark.parametrize("catch_up", CATCH_UP)
    def test_before_the_slot_there_is_nothing_to_do(self, catch_up: str) -> None:
        assert self.planned(catch_up, "08:09:59.9") == Plan((), None, at("2026-01-01T08:10Z"))

    @pytest.mark.parametrize("catch_up", CATCH_UP)
    @pytest.mark.parametrize("now", ["08:10", "08:10:30", "08:11"])
    def test_in_time_the_slot_is_fired(self, catch_up: str, now: str) -> None:
        assert self.planned(catch_up, now) == Plan((at("2026-01-01T08:10Z"),), None, at("2026-01-01T08:20Z"))

    @pytest.mark.parametrize(
        ("catch_up", "limit", "fired", "missed"),
        [
            ("skip", 100, [], "08:50"),
            ("latest", 100, ["08:50"], "08:40"),
            ("all", 100, ["08:10", "08:20", "08:30", "08:40", "08:50"], None),
            ("all", 5, ["08:10", "08:20", "08:30", "08:40", "08:50"], None),
            ("all", 2, ["08:40", "08:50"], "08:30"),
        ],
    )
    def test_what_was_missed_is_made_up_for_as_the_policy_says(
        self, catch_up: str, limit: int, fired: list[str], missed: str | None
    ) -> None:
        found = self.planned(catch_up, "08:55", limit)
        assert [f"{slot:%H:%M}" for slot in found.slots] == fired
        assert (found.missed and f"{found.missed:%H:%M}", found.next) == (missed, at("2026-01-01T09:00Z"))

    def test_of_several_slots_the_one_in_time_is_fired_though_others_are_skipped(self) -> None:
        found = self.planned("skip", "08:30:20")
        assert (found.slots, found.missed) == ((at("2026-01-01T08:30Z"),), at("2026-01-01T08:20Z"))

    @pytest.mark.parametrize("catch_up", CATCH_UP)
    def test_years_of_missed_slots_are_not_counted_one_by_one(self, catch_up: str) -> None:
        """Two million of them: only those are looked at that may be fired."""
        found = plan("* * * * *", "Europe/Berlin", catch_up, 1000, at("2022-01-01T00:00Z"), at("2026-01-01T00:00:30Z"))
        assert len(found.slots) == {"skip": 1, "latest": 1, "all": 1000}[catch_up]
        assert found.slots[-1] == at("2026-01-01T00:00Z")


def test_a_library_that_fails_on_one_schedule_is_told_as_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q34: the others of the page are fired all the same."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("of the library")

    monkeypatch.setattr("poolkeeper.firing.plan", fail)
    moment = at("2026-01-01T00:00Z")
    due = DueSchedule(1, 2, "default/q", "default", "s", "* * * * *", "UTC", "latest", 1, moment, None, moment)
    assert planned(due) == {
        "id": 1,
        "version": 2,
        "problem": "its slots cannot be counted: ZeroDivisionError: of the library; write the expression otherwise",
    }
