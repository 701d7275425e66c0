"""Everything that a program may hand to the Python face by mistake, and what counts as an answer (contract 9, Q8).

An answer is a verdict, a view or an error of ``poolkeeper.errors`` whose text names the argument. The values are of every kind
that a program has by accident: none, another type, out of bounds, what Postgres or JSON cannot hold, what fails when it is
looked at.
"""

import math
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn
from uuid import UUID

from poolkeeper import PoolkeeperError

NIL = UUID(int=0)


class Color(Enum):
    """A value of an enumeration."""

    RED = "red"


class OwnError(Exception):
    """What the program's own code raises, which is the program's to hear."""


class Hostile:
    """Fails however it is looked at."""

    def _fail(self, *_: object) -> NoReturn:
        raise OwnError

    __str__ = __repr__ = __iter__ = __len__ = __bool__ = __float__ = __index__ = __fspath__ = _fail


class Text(str):
    """A text that is called something else."""

    __slots__ = ()


def bomb(levels: int) -> list[Any]:
    """Lists in lists."""
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def cycle() -> list[Any]:
    """A list that holds itself."""
    made: list[Any] = []
    made.append(made)
    return made


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "10**30": lambda: 10**30,
    "10**5000": lambda: 10**5000,
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "Decimal nan": lambda: Decimal("nan"),
    "Decimal": lambda: Decimal("1e400"),
    "complex": lambda: 1j,
    "empty": lambda: "",
    "blank": lambda: " ",
    "a word": lambda: "word",
    "a subclass of str": lambda: Text("word"),
    "NUL": lambda: "a\0b",
    "surrogate": lambda: "a\ud800",
    "unprintable": lambda: "a\u202eb",
    "201 characters": lambda: "x" * 201,
    "10 MB": lambda: "x" * 10_000_000,
    "bytes": lambda: b"word",
    "no UTF-8": lambda: b"\xff",
    "bytearray": lambda: bytearray(b"word"),
    "memoryview": lambda: memoryview(b"word"),
    "list": lambda: ["word"],
    "tuple": lambda: ("word",),
    "set": lambda: {"word"},
    "dict": lambda: {"word": "word"},
    "keys that are no text": lambda: {1: "word", None: 2},
    "another mapping": lambda: UserDict(word="word"),
    "generator": lambda: (n for n in range(3)),
    "function": lambda: len,
    "class": lambda: Hostile,
    "object": object,
    "fails when looked at": Hostile,
    "enumeration": lambda: Color.RED,
    "naive datetime": lambda: datetime(2030, 1, 1),  # noqa: DTZ001
    "last datetime": lambda: datetime.max.replace(tzinfo=UTC),
    "last datetime, west": lambda: datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
    "first datetime": lambda: datetime.min.replace(tzinfo=UTC),
    "date": lambda: date(2030, 1, 1),
    "longest": lambda: timedelta.max,
    "shortest": lambda: timedelta.min,
    "UUID": lambda: NIL,
    "text of a UUID": lambda: str(NIL),
    "cycle": cycle,
    "bomb": lambda: bomb(50_000),
    "deep enough": lambda: bomb(90),
    "an exception": lambda: ValueError("word"),
}


def fault(name: str, attempt: Callable[[], Any]) -> str | None:
    """Try it; what is wrong with the answer, or None."""
    try:
        attempt()
    except PoolkeeperError as refused:
        text = str(refused)
        if name not in text:
            return f"does not name it: {ascii(text)[:200]}"
        if len(text) > 2000:
            return f"says {len(text)} characters"
        return None
    except OwnError:
        return None
    except Exception as error:  # noqa: BLE001  (whatever it is, it is found)
        return f"{type(error).__name__}: {ascii(str(error))[:160]}"
    return None


def attempts(face: Any, task: Callable[[], UUID]) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Each argument with each value: what the error must name, words about it, the call. `task` makes one that waits."""
    for words, make in VALUES.items():
        for name in ("queue", "type", "payload", *WISHES):
            yield name, f"submit({name}={words})", _call(face.submit, _single, {name: make})
            if name == "queue":
                continue
            named = f"payload of {SECOND}" if name == "payload" else f"{SECOND}.{name}"
            yield named, f"submit_many([…, {{{name}: {words}}}])", _call(face.submit_many, _in_a_list, {name: make})
        for name in ("queue", "tasks"):
            yield name, f"submit_many({name}={words})", _call(face.submit_many, _several, {name: make})
        yield from _scheduling(face, words, make)
        yield SECOND, f"submit_many([…, {words}])", _call(face.submit_many, _second, {"it": make})
        yield "task", f"get({words})", _call(face.get, dict, {"task_id": make})
        for name in ("task_id", "who", "why"):
            known = {"task_id": task, "who": lambda: "me", "why": lambda: "because"}
            yield name[:4], f"cancel({name}={words})", _call(face.cancel, dict, {**known, name: make})


def _scheduling(face: Any, words: str, make: Callable[[], Any]) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    for name in SCHEDULED:
        yield name, f"schedule({name}={words})", _call(face.schedule, _scheduled, {name: make})
    for method in (face.remove_schedule, face.pause_schedule, face.run_schedule):
        for name in ("queue", "name", "tenant"):
            known = {"queue": lambda: "q", "name": lambda: "s"}
            yield name, f"…_schedule({name}={words})", _call(method, dict, {**known, name: make})
    yield "queue", f"schedules({words})", _call(face.schedules, dict, {"queue": make})


SECOND = "tasks[1]"


def _call(
    method: Callable[..., Any], arguments: Callable[..., dict[str, Any]], made: Mapping[str, Callable[[], Any]]
) -> Callable[[], Any]:
    return lambda: method(**arguments(**{name: make() for name, make in made.items()}))


def _single(**given: Any) -> dict[str, Any]:
    return {"queue": "q", "type": "a.b", "payload": 1, **given}


def _scheduled(**given: Any) -> dict[str, Any]:
    return {"queue": "q", "name": "s", "cron": "0 0 1 1 *", "type": "a.b", "payload": 1, **given}


def _several(**given: Any) -> dict[str, Any]:
    return {"queue": "q", "tasks": [{"type": "a.b", "payload": 1}], **given}


def _second(it: Any) -> dict[str, Any]:
    return _several(tasks=[{"type": "a.b"}, it])


def _in_a_list(**given: Any) -> dict[str, Any]:
    return _second({"type": "a.b", **given})


WISHES = (
    "tenant", "key", "priority", "run_at", "delay", "max_age", "max_deliveries", "labels", "traceparent", "ordering_key",
)  # fmt: skip
SCHEDULED = (
    "queue", "name", "cron", "type", "payload", "zone", "catch_up", "catch_up_limit", "who", "tenant", "priority", "max_age", "max_deliveries", "labels", "ordering_key",
)  # fmt: skip
