"""Durable tasks on Postgres: submit, write handlers, work. What is imported here is public, nothing else is."""

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
