"""What may be stored as JSON: only what Postgres and every reader can give back (Q8).

Guarantees: `plain` turns a payload, result or checkpoint into JSON values, or refuses it before anything is sent,
naming the path of the offending value. Cycles and nesting bombs end at `MAX_DEPTH`; nothing here recurses further.
The exact bound of a size is the policy of the queue, and the store's refusal; `kept` refuses what no queue takes.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from poolkeeper.codes import Code
from poolkeeper.errors import Refused

MAX_DEPTH = 100
"""Levels of nesting; far beyond any payload written on purpose, far below what overflows a parser."""

MAX_INT = int(sys.float_info.max)
"""Beyond it a reader that knows only doubles (JavaScript, jq) reads infinity."""

LARGEST = 1 << 20
"""Bytes of JSON that are kept of a result, and that the most generous queue takes of a checkpoint."""

_PLAIN = frozenset({str, int, float, bool, type(None), list, dict, tuple})


def plain(value: Any, what: str = "payload") -> Any:
    """Return `value` as JSON values (models and dataclasses dumped), or raise Refused `payload_invalid` with the path."""
    if value is None or value is True or value is False:
        return value
    dumped = value if type(value) in _PLAIN else _dump(value, what)
    fault = find_fault(dumped)
    if fault is not None:
        raise _refusal(what, *fault)
    return dumped


def kept(value: Any, what: str, code: Code) -> Any:
    """Return a copy of `value` as JSON values, which its owner may go on to change; raises Refused as `plain` does.

    One of more than `LARGEST` bytes is refused with `code`, in short time: neither writing it down nor sending it may
    last so long that leases end meanwhile.
    """
    dumped = value if type(value) in _PLAIN else _dump(value, what)
    size = f"more than {LARGEST}"
    if not _larger(dumped):
        fault = find_fault(dumped)
        if fault is not None:
            raise _refusal(what, *fault)
        if not isinstance(dumped, str | dict | list | tuple):
            return dumped
        text = json.dumps(dumped, ensure_ascii=False)
        if len(text) <= LARGEST and (text.isascii() or len(text.encode()) <= LARGEST):
            return dumped if isinstance(dumped, str) else json.loads(text)
        size = str(len(text.encode()))
    raise Refused(
        code, f"the {what} has {size} bytes as JSON, {LARGEST} are kept; store it elsewhere, keep a reference"
    )


def _larger(value: Any) -> bool:
    """Whether it is larger than `LARGEST` for certain, by a look that ends as soon as that is clear."""
    left, open_ones = LARGEST, [(value, 1)]
    while open_ones:
        one, depth = open_ones.pop()
        left -= len(one) if isinstance(one, str | dict | list | tuple) else 1
        if left < 0:
            return True
        if depth > MAX_DEPTH:  # for another to tell
            return False
        if isinstance(one, dict):
            open_ones += [(item, depth + 1) for item in one.values()]
        elif isinstance(one, list | tuple):
            open_ones += [(item, depth + 1) for item in one]
    return False


def find_fault(value: Any) -> tuple[str, str] | None:
    """Return (path, reason) of the first value that cannot be stored, None when all can; the path starts at `$`."""
    found = _fault(value, 1)
    if found is None:
        return None
    steps, reason = found
    return "$" + "".join(reversed(steps)), reason


def text_fault(text: str) -> str | None:
    """Return why a text cannot be sent to Postgres at all, None when it can."""
    return _string_fault(text)


def parse(text: str, what: str = "payload") -> Any:
    """Return the value of a JSON text; raises ValueError where it is no JSON, Refused where nothing could hold it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        reason = f"is nested deeper than {MAX_DEPTH} levels; flatten it"
    except ValueError:  # an integer of more digits than Python converts
        reason = "holds an integer beyond what a double can hold, other readers would see infinity; send it as text"
    raise _refusal(what, "$", reason)


def _dump(value: Any, what: str) -> Any:
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError) as error:
        raise _refusal(what, "$", str(error)) from error


def _refusal(what: str, path: str, reason: str) -> Refused:
    return Refused(Code.PAYLOAD_INVALID, f"{what} cannot be stored: {path} {reason}")


def _fault(value: Any, depth: int) -> tuple[list[str], str] | None:
    check = _CHECKS.get(type(value))
    if check is None:
        check = next(
            (_CHECKS[kind] for kind in (str, bool, int, float, dict, list, tuple) if isinstance(value, kind)), None
        )
    if check is None:
        return [], f"is a {type(value).__name__}, which JSON has no word for; convert it to text or a number"
    return check(value, depth)


def _string(value: str, _depth: int) -> tuple[list[str], str] | None:
    reason = _string_fault(value)
    return None if reason is None else ([], reason)


def _string_fault(value: str) -> str | None:
    if value.isascii():
        return "holds a NUL character, which Postgres cannot store; remove it" if "\x00" in value else None
    if "\x00" in value:
        return "holds a NUL character, which Postgres cannot store; remove it"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is no Unicode text; decode it properly or replace it"
    return None


def _integer(value: int, _depth: int) -> tuple[list[str], str] | None:
    if -MAX_INT <= value <= MAX_INT:
        return None
    return [], "is an integer beyond what a double can hold, other readers would see infinity; send it as text"


def _number(value: float, _depth: int) -> tuple[list[str], str] | None:
    if value - value == 0.0:  # false for NaN and both infinities
        return None
    return [], "is not a finite number, which JSON cannot express; use null or text"


def _object(value: dict[Any, Any], depth: int) -> tuple[list[str], str] | None:
    if depth > MAX_DEPTH:
        return [], f"is nested deeper than {MAX_DEPTH} levels; flatten it"
    for key, item in value.items():
        if not isinstance(key, str):
            return [f"[{key!r}]"], f"has a {type(key).__name__} as key; JSON keys are text"
        reason = _string_fault(key)
        if reason is not None:
            return [f"[{key!a}]"], f"has a key that {reason}"
        found = _fault(item, depth + 1)
        if found is not None:
            found[0].append(f".{key}" if key.isidentifier() else f"[{key!a}]")
            return found
    return None


def _array(value: list[Any] | tuple[Any, ...], depth: int) -> tuple[list[str], str] | None:
    if depth > MAX_DEPTH:
        return [], f"is nested deeper than {MAX_DEPTH} levels; flatten it"
    for index, item in enumerate(value):
        found = _fault(item, depth + 1)
        if found is not None:
            found[0].append(f"[{index}]")
            return found
    return None


_CHECKS: dict[type, Callable[[Any, int], tuple[list[str], str] | None]] = {
    type(None): lambda _value, _depth: None,
    bool: lambda _value, _depth: None,
    str: _string,
    int: _integer,
    float: _number,
    dict: _object,
    list: _array,
    tuple: _array,
}
