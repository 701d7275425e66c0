"""Durations and sizes: nothing is lost between the text and the number, and errors say what to write."""

from datetime import timedelta
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from poolkeeper.durations import Between, Duration, Size, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1h30m", 5400), ("500ms", 0.5), ("0s", 0), ("1h1m1s1ms", 3661.001), ("168h", 604_800)],
)
def test_durations_are_read_as_written(text, seconds):
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "30", "s", "1.5h", "-5s", "5 m", "30s5m", "1d", "1e3s", "9999999h", "30S", "٣s"])
def test_what_is_not_a_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not a duration; write whole numbers") as refused:
        parse_duration(text)
    assert f'"{text}"' in str(refused.value)


@given(st.integers(min_value=0, max_value=999_999 * 3_600_000))
def test_a_written_duration_reads_back_as_the_same(milliseconds):
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value


def test_a_negative_duration_is_never_written():
    with pytest.raises(ValueError, match="negative"):
        format_duration(timedelta(seconds=-1))


@pytest.mark.parametrize(("text", "size"), [("64Ki", 65536), ("1Mi", 2**20), ("2Gi", 2**31), ("10k", 10_000), ("7", 7)])
def test_sizes_are_read_as_kubernetes_reads_quantities(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64KiB", "1.5Mi", "-1", "Ki", "64 Ki", "1e3"])
def test_what_is_not_a_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match='such as "64Ki"'):
        parse_size(text)


@given(st.integers(min_value=0, max_value=999_999_999_999))
def test_a_written_size_reads_back_as_the_same(size):
    assert parse_size(format_size(size)) == size


def test_a_number_without_a_unit_is_no_duration_but_a_size():
    with pytest.raises(ValidationError, match='"30" is not a duration'):
        TypeAdapter(Duration).validate_python(30)
    assert TypeAdapter(Size).validate_python(4096) == 4096


def test_bounds_include_their_ends_and_name_both_when_passed():
    bounded = TypeAdapter(Annotated[Duration, Between("5s", "1h")])
    assert bounded.validate_python("5s") == timedelta(seconds=5)
    assert bounded.validate_python("1h") == timedelta(hours=1)
    for text in ("4s999ms", "1h1ms"):
        with pytest.raises(ValidationError, match=f'"{text}" is out of bounds; set it from 5s to 1h'):
            bounded.validate_python(text)
    with pytest.raises(ValidationError, match='"2Ki" is out of bounds; set it from 1 to 1Ki'):
        TypeAdapter(Annotated[Size, Between("1", "1Ki")]).validate_python("2Ki")
