"""Durations ("30s", "1h30m", "500ms") and sizes ("64Ki") as people write them in resources, files and options.

Guarantees: whole numbers only, so that nothing is lost between the text, Python and the database; `parse(format(x)) == x` down to the
millisecond; an error names the value and shows how to write it. The JSON schema of the types carries a pattern and CEL rules.
"""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

# At most six digits each: 999999h is 114 years, which still fits into Go's (and CEL's) 64-bit nanoseconds.
DURATION_PATTERN = "^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?([0-9]{1,6}ms)?$"
SIZE_PATTERN = "^[0-9]{1,12}(Ki|Mi|Gi|k|M|G)?$"
_DURATION = re.compile(DURATION_PATTERN)
_SIZE = re.compile("^([0-9]{1,12})(Ki|Mi|Gi|k|M|G)?$")
_UNITS = (3_600_000, 60_000, 1_000, 1)
_SUFFIXES = ("h", "m", "s", "ms")
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def parse_duration(text: str) -> timedelta:
    """Read "30s", "5m", "1h30m", "500ms"; ValueError names the value and an example."""
    match = _DURATION.match(text) if text else None
    if match is None:
        message = f'"{text}" is not a duration; write whole numbers with units, such as "30s", "5m", "1h30m" or "500ms"'
        raise ValueError(message)
    milliseconds = sum(
        int(part.removesuffix(suffix)) * unit
        for part, unit, suffix in zip(match.groups(), _UNITS, _SUFFIXES, strict=True)
        if part
    )
    return timedelta(milliseconds=milliseconds)


def format_duration(value: timedelta) -> str:
    """Write a duration in its shortest form: 90 seconds are "1m30s"; what is below a millisecond is dropped."""
    rest = value // timedelta(milliseconds=1)
    if rest < 0:
        message = f"a duration cannot be negative: {value}"
        raise ValueError(message)
    parts = []
    for unit, suffix in zip(_UNITS, _SUFFIXES, strict=True):
        count, rest = divmod(rest, unit)
        if count:
            parts.append(f"{count}{suffix}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Read "64Ki", "1Mi", "10k" or "4096" as a number of bytes; ValueError names the value and an example."""
    match = _SIZE.match(text)
    if match is None:
        message = f'"{text}" is not a size; write a whole number of bytes, or one with a unit, such as "64Ki" or "1Mi"'
        raise ValueError(message)
    return int(match[1]) * _FACTORS[match[2] or ""]


def format_size(value: int) -> str:
    """Write a number of bytes with the largest binary unit that loses nothing."""
    for unit in ("Gi", "Mi", "Ki"):
        if value and value % _FACTORS[unit] == 0:
            return f"{value // _FACTORS[unit]}{unit}"
    return str(value)


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    return parse_duration(value if isinstance(value, str) else str(value))


def _size(value: object) -> int:
    # A bare number of bytes is what YAML makes of `maxSize: 4096`.
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return parse_size(str(value))


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 2, "maxLength": 28, "pattern": DURATION_PATTERN}),
]
Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 14, "pattern": SIZE_PATTERN}),
]


class Between:
    """Bounds of a `Duration` or `Size`, both included, written as in a resource: `Annotated[Duration, Between("5s", "1h")]`."""

    def __init__(self, low: str, high: str) -> None:
        self.low, self.high = low, high
        self._is_size = _SIZE.match(low) is not None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the bounds after the type's own reading."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        low, high = (parse_size(b) if self._is_size else parse_duration(b) for b in (self.low, self.high))
        if not low <= value <= high:
            shown = format_size(value) if self._is_size else format_duration(value)
            message = f'"{shown}" is out of bounds; set it from {self.low} to {self.high}'
            raise ValueError(message)
        return value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The same bounds as a CEL rule, which the API server checks at apply."""
        json_schema = dict(handler(schema))
        if self._is_size:
            rule = (
                f"quantity(self).compareTo(quantity('{self.low}')) >= 0 "
                f"&& quantity(self).compareTo(quantity('{self.high}')) <= 0"
            )
        else:
            rule = f"duration(self) >= duration('{self.low}') && duration(self) <= duration('{self.high}')"
        message = f"must be from {self.low} to {self.high}"
        json_schema["x-kubernetes-validations"] = [{"rule": rule, "message": message}]
        return json_schema
