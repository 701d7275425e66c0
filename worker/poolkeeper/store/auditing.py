"""The calls of the audit: pages of tasks, pages of idempotency keys, and the sum at the end (Q61).

Each is one statement of one moment, which writes nothing; a login of people, readers or the operator may make it, without limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Json

from poolkeeper.store.call import Call, Row, nothing

TASKS_OF_A_PAGE = 500
BLOCKS_OF_A_PAGE = 50


@dataclass(frozen=True)
class Broken:
    """An invariant that does not hold: how many break it, and the first of them by id."""

    invariant: str
    violations: int
    first: list[str]


@dataclass(frozen=True)
class TasksPage:
    """One page of tasks; ``next`` None: the last one. ``expired``: deliveries ended by expiry, by id of the queue."""

    next: UUID | None
    looked: int
    expired: dict[str, int]
    broken: list[Broken]


@dataclass(frozen=True)
class KeysPage:
    """One page of idempotency keys; ``next`` None: the last one."""

    next: int | None
    looked: int
    broken: list[Broken]


def only_look(seconds: float) -> Call[None]:
    """Let this transaction write nothing, and each statement of it last no longer."""
    return Call("only_look", {"milliseconds": max(int(seconds * 1000), 1)}, nothing)


def audit_tasks(after: UUID | None = None, most: int = TASKS_OF_A_PAGE) -> Call[TasksPage]:
    """Look at the next tasks behind ``after``."""

    def read(rows: list[Row]) -> TasksPage:
        page = rows[0]
        return TasksPage(page.next_id, page.looked, page.expired, _broken(rows[1:]))

    return Call("audit_tasks", {"after": after, "most": most}, read)


def audit_keys(block: int = 0, most: int = BLOCKS_OF_A_PAGE) -> Call[KeysPage]:
    """Look at the keys in the next blocks of their table."""

    def read(rows: list[Row]) -> KeysPage:
        return KeysPage(rows[0].next_block, rows[0].looked, _broken(rows[1:]))

    return Call("audit_keys", {"block": block, "most": most}, read)


def audit_counts(expired: Mapping[str, int]) -> Call[list[Broken]]:
    """Compare what all pages counted with the counters of queues."""
    return Call("audit_counts", {"expired": Json(dict(expired))}, _broken)


def _broken(rows: list[Any]) -> list[Broken]:
    return [Broken(row.invariant, row.violations, row.first) for row in rows]
