"""Many dead letters at once, by a filter, page by page (Q29). Nothing here is automatic.

Each page is a transaction of its own. Pages go from the oldest to what was dead when the first was asked for; the next call takes the
``cursor`` of the last. Of two at once each letter is done by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Json

from poolkeeper.codes import Code
from poolkeeper.store.call import Call, Row, many, one

PAGE = 1000


@dataclass(frozen=True)
class Filter:
    """Which dead letters of a queue; None: any. ``before`` and ``after``: when they died, aware of their time zone."""

    type: str | None = None
    tenant: str | None = None
    reason: str | None = None
    error_class: str | None = None
    before: datetime | None = None
    after: datetime | None = None

    def wire(self) -> dict[str, str]:
        """As the store takes it."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
            if value is not None
        }


@dataclass(frozen=True)
class Matching:
    """A dead letter that a filter names."""

    task_id: UUID
    type: str
    tenant: str
    died_at: datetime
    reason: str
    error_class: str | None
    error: str | None
    state_version: int


@dataclass(frozen=True)
class Found:
    """A page of a look; ``cursor`` None: the last."""

    code: Code | None
    cursor: dict[str, Any] | None
    letters: list[Matching]


@dataclass(frozen=True)
class Done:
    """The tasks of a page that were requeued or discarded; ``cursor`` None: the last."""

    code: Code | None
    cursor: dict[str, Any] | None
    task_ids: list[UUID]


def dead_matching(
    queue: str, chosen: Filter, *, cursor: Mapping[str, Any] | None = None, want: int = PAGE, most: int = PAGE
) -> Call[Found]:
    """Look at the letters that match, up to ``want`` of the next ``most``; nothing changes."""

    def read(rows: list[Row]) -> Found:
        letters = many(Matching)([row for row in rows if row.task_id is not None])
        return Found(None if rows[-1].code is None else Code(rows[-1].code), rows[-1].cursor, letters)

    return Call("dead_matching", _params(queue, chosen, cursor, want, most), read)


def requeue_matching(
    queue: str,
    chosen: Filter,
    *,
    who: str,
    why: str,
    cursor: Mapping[str, Any] | None = None,
    want: int = PAGE,
    most: int = PAGE,
) -> Call[Done]:
    """Requeue the letters that match, each as ``requeue`` does."""
    params = {"who": who, "why": why, **_params(queue, chosen, cursor, want, most)}
    return Call("requeue_matching", params, one(Done))


def discard_matching(
    queue: str,
    chosen: Filter,
    *,
    who: str,
    why: str,
    cursor: Mapping[str, Any] | None = None,
    want: int = PAGE,
    most: int = PAGE,
) -> Call[Done]:
    """Discard the letters that match, each as ``discard`` does."""
    params = {"who": who, "why": why, **_params(queue, chosen, cursor, want, most)}
    return Call("discard_matching", params, one(Done))


def _params(queue: str, chosen: Filter, cursor: Mapping[str, Any] | None, want: int, most: int) -> dict[str, Any]:
    place = None if cursor is None else Json(dict(cursor))
    return {"queue": queue, "filter": Json(chosen.wire()), "cursor": place, "want": want, "most": most}
