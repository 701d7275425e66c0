"""Q8: what cannot be read back is refused before it is sent, with the path of the offending value."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from poolkeeper import jsonsafe
from poolkeeper.codes import Code
from poolkeeper.errors import Refused


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": "x\x00y"}, "$.a"),
        ({"a\x00b": 1}, "$['a\\x00b']"),
        ([1, {"name": "\ud800"}], "$[1].name"),
        ({"\udfff": 1}, "$['\\udfff']"),
        ([float("nan")], "$[0]"),
        ({"x": {"y": float("inf")}}, "$.x.y"),
        (float("-inf"), "$"),
        ({"n": 10**309}, "$.n"),
        ([-(10**5000)], "$[0]"),
        ({"two words": {1, 2}}, "$['two words']"),
        ({"price": Decimal("1.5")}, "$.price"),
        ([b"bytes"], "$[0]"),
        ({1: "x"}, "$[1]"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "$.at"),
    ],
)
def test_the_path_of_the_offending_value_is_named(value: Any, path: str) -> None:
    """Q8: and the refusal is payload_invalid."""
    with pytest.raises(Refused, match="cannot be stored") as refused:
        jsonsafe.plain(value)
    assert refused.value.code == Code.PAYLOAD_INVALID
    assert f"stored: {path} " in str(refused.value)


@pytest.mark.parametrize("value", [nested(101), nested(100_000), cycle()], ids=["101", "100000", "cycle"])
def test_nesting_bombs_and_cycles_end_at_a_bound(value: Any) -> None:
    """Q8: no recursion error, no endless loop."""
    with pytest.raises(Refused, match="nested deeper than 100 levels"):
        jsonsafe.plain(value)


def test_a_hundred_levels_are_fine() -> None:
    """Q8: the bound is the bound."""
    assert jsonsafe.plain(nested(100)) == nested(100)


class Order(BaseModel):
    id: UUID
    at: datetime
    lines: list[str]


@dataclass
class Point:
    x: int
    y: float


def test_models_and_dataclasses_become_json() -> None:
    """Q46: as pydantic writes them."""
    order = Order(id=UUID(int=5), at=datetime(2026, 1, 2, tzinfo=UTC), lines=["a"])
    assert jsonsafe.plain(order) == {"id": str(UUID(int=5)), "at": "2026-01-02T00:00:00Z", "lines": ["a"]}
    assert jsonsafe.plain(Point(1, 2.5)) == {"x": 1, "y": 2.5}


def test_a_model_is_checked_too() -> None:
    """Q8: a NaN in a dataclass has a path as well."""
    with pytest.raises(Refused, match=r"\$\.y is not a finite number"):
        jsonsafe.plain(Point(1, float("nan")))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_what_is_accepted_is_read_back_as_it_was(value: Any) -> None:
    """Q8: through UTF-8 JSON without NaN, and without NUL, which is all that Postgres takes."""
    try:
        accepted = jsonsafe.plain(value)
    except Refused:
        return
    text = json.dumps(accepted, allow_nan=False, ensure_ascii=False)
    assert json.loads(text.encode()) == accepted
    assert "\\u0000" not in text


@given(json_values)
def test_what_is_kept_is_a_copy_of_what_is_accepted(value: Any) -> None:
    """Q30: whoever handed it over may go on to change it."""
    try:
        kept = jsonsafe.kept(value, "result", Code.PAYLOAD_TOO_LARGE)
    except Refused:
        with pytest.raises(Refused):
            jsonsafe.plain(value)
        return
    assert kept == value
    assert kept is not value or not isinstance(value, dict | list)


def test_the_size_of_what_is_kept_is_judged_before_it_is_written_down() -> None:
    """Q20: hundreds of megabytes, or what would become so, hold up nobody; the bound is that of the store."""
    many: list[Any] = []
    for _ in range(60):
        many = [many] * 10
    for large in ("x" * (300 << 20), many, list(range(jsonsafe.LARGEST)), "ü" * (jsonsafe.LARGEST // 2)):
        with pytest.raises(Refused, match="1048576 are kept") as refused:
            jsonsafe.kept(large, "result", Code.PAYLOAD_TOO_LARGE)
        assert refused.value.code == Code.PAYLOAD_TOO_LARGE
    assert jsonsafe.kept("x" * (jsonsafe.LARGEST - 2), "result", Code.PAYLOAD_TOO_LARGE)
