"""For the tests of applications: run handlers, deliver twice, lose leases, crash where it hurts (Q50).

Guarantees: payloads, checkpoints and results go through the same JSON rules and the same judgement of exceptions as in a
worker; what a `Kit` shows in this process, it shows on a Postgres. Does not isolate: `isolation="process"` runs in this
process too, a crash is an exception that no handler can hold, and a handler's own clock is not moved.

The names are imported when they are asked for: finding a Postgres needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poolkeeper.testing.kit import AsyncKit, Kit, MakeKit
    from poolkeeper.testing.place import Delivery, TaskNow
    from poolkeeper.testing.points import Point
    from poolkeeper.testing.runner import TestResult, arun_task, run_task

__all__ = ["AsyncKit", "Delivery", "Kit", "MakeKit", "Point", "TaskNow", "TestResult", "arun_task", "run_task"]

_HOMES = {
    "kit": ("AsyncKit", "Kit", "MakeKit"),
    "place": ("Delivery", "TaskNow"),
    "points": ("Point",),
    "runner": ("TestResult", "arun_task", "run_task"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
