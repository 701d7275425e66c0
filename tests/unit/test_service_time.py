"""The service time from counters of processes that come and go (O12)."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from poolkeeper_operator.decide.service import HALF_LIFE, ServiceMeter, SessionCount

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def test_nothing_finished_is_no_estimate():
    meter = ServiceMeter().observe([SessionCount("a", 0, 50.0)], NOW)
    assert meter.service_time is None


def test_it_is_slot_time_per_finished_task():
    meter = ServiceMeter().observe([SessionCount("a", 10, 20.0), SessionCount("b", 10, 40.0)], NOW)
    assert meter.service_time == timedelta(seconds=3)


def test_one_finished_task_is_an_estimate():
    assert ServiceMeter().observe([SessionCount("a", 1, 2.0)], NOW).service_time == timedelta(seconds=2)


def test_an_increment_counts_once():
    meter = ServiceMeter().observe([SessionCount("a", 10, 20.0)], NOW)
    for _ in range(5):
        meter = meter.observe([SessionCount("a", 10, 20.0)], NOW)
    assert (meter.finished, meter.busy_seconds) == (10, 20.0)


def test_a_process_that_ended_takes_nothing_back():
    meter = ServiceMeter().observe([SessionCount("a", 10, 20.0)], NOW).observe([], NOW)
    assert meter.service_time == timedelta(seconds=2)


def test_it_follows_a_change_within_a_few_half_lives():
    meter = ServiceMeter().observe([SessionCount("a", 1000, 1000.0)], NOW)
    later = meter.observe([SessionCount("a", 2000, 11_000.0)], NOW + 10 * HALF_LIFE)
    assert timedelta(seconds=9.9) < (later.service_time or timedelta(0)) < timedelta(seconds=10)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.floats(0, 1000)), max_size=3), max_size=8
    )
)
def test_counters_that_go_backwards_never_make_it_negative(readings):
    meter = ServiceMeter()
    for i, counts in enumerate(readings):
        meter = meter.observe([SessionCount(*each) for each in counts], NOW + i * timedelta(seconds=5))
        assert meter.finished >= 0
        assert meter.busy_seconds >= 0


@given(
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)), max_size=5)
)
def test_no_figure_of_a_worker_keeps_a_pool_from_being_sized(told):
    """P6: what a process tells of its work may be senseless; an estimate is none, or a time."""
    meter = ServiceMeter()
    for turn, (finished, busy) in enumerate(told):
        meter = meter.observe([SessionCount("a", finished, busy)], NOW + timedelta(seconds=turn))
        assert meter.service_time is None or meter.service_time >= timedelta(0)
