"""Durable tasks on Postgres: submit, write handlers, work. What is named here is public, nothing else is.

The names are imported when they are asked for: the program `poolkeeper` begins here too, and must be able to hear Ctrl-C
before it has imported anything that takes time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poolkeeper.app import Poolkeeper
    from poolkeeper.client import AsyncClient, Client
    from poolkeeper.context import Context
    from poolkeeper.errors import (
        Conflict,
        Forbidden,
        LeaseLost,
        Misconfigured,
        NotFound,
        PoolkeeperError,
        Refused,
        Unavailable,
    )
    from poolkeeper.outcome import Dead, Reject, RetryAfter, Snooze

__all__ = [
    "AsyncClient",
    "Client",
    "Conflict",
    "Context",
    "Dead",
    "Forbidden",
    "LeaseLost",
    "Misconfigured",
    "NotFound",
    "Poolkeeper",
    "PoolkeeperError",
    "Refused",
    "Reject",
    "RetryAfter",
    "Snooze",
    "Unavailable",
]

_HOMES = {
    "app": ("Poolkeeper",),
    "client": ("AsyncClient", "Client"),
    "context": ("Context",),
    "outcome": ("Dead", "Reject", "RetryAfter", "Snooze"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOME.get(name, 'errors')}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
