"""The audit of a live store: its invariants, walked page by page from a place that can be written down (Q61).

Guarantees: each page is one statement with a time-out, so it sees one moment and holds no snapshot between two; nothing is
written. A walk that is taken up again at its place looks at nothing twice; what was submitted behind it meanwhile is the next
walk's. A page that takes too long is tried with half of its tasks.
Does not look across pages for a token that repeats.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from poolkeeper.codes import Code
from poolkeeper.errors import PoolkeeperError, error
from poolkeeper.store import Call, calls, run
from poolkeeper.store.auditing import BLOCKS_OF_A_PAGE, TASKS_OF_A_PAGE, Broken

T = TypeVar("T")

PAGE_TIMEOUT = 10.0
"""Seconds that one page may take."""


@dataclass
class Audit:
    """One walk: first over tasks, then over idempotency keys, at last the counters.

    ``place`` names where it is: text that ``Audit.at`` takes. It holds no content: an id, a number of a block, ids of queues.
    """

    walk: str = "tasks"
    after: UUID | None = None
    block: int = 0
    expired: dict[str, int] = field(default_factory=dict)
    looked_tasks: int = 0
    looked_keys: int = 0

    @classmethod
    def at(cls, place: str) -> "Audit":
        """Take a walk up again; raises ValueError for what is no place."""
        walk, _, rest = place.strip().partition(":")
        where, _, tally = rest.partition(":")
        expired = {str(int(name)): int(count) for name, count in json.loads(tally or "{}").items()}
        if walk == "tasks":
            return cls(after=UUID(where), expired=expired)
        if walk == "keys" and int(where) >= 0:
            return cls(walk, block=int(where), expired=expired)
        raise ValueError("it begins with tasks: or keys:")

    @property
    def place(self) -> str:
        """Where the next page begins; empty at the beginning and at the end."""
        where = self.after if self.walk == "tasks" else self.block
        tally = ":" + json.dumps(self.expired, separators=(",", ":")) if self.expired else ""
        return "" if where is None or self.done else f"{self.walk}:{where}{tally}"

    @property
    def done(self) -> bool:
        """Whether everything was looked at."""
        return self.walk == "over"

    def step(
        self, conn: psycopg.Connection[Any], page: int = TASKS_OF_A_PAGE, timeout: float = PAGE_TIMEOUT
    ) -> list[Broken]:
        """Look at the next page and go on behind it; raises what the store raises, the place is then as before."""
        if self.walk == "tasks":
            tasks = _patiently(conn, page, timeout, lambda most: calls.audit_tasks(self.after, most))
            self.looked_tasks += tasks.looked
            for queue, count in tasks.expired.items():
                self.expired[queue] = self.expired.get(queue, 0) + count
            self.after = tasks.next
            self.walk = "tasks" if tasks.next is not None else "keys"
            return tasks.broken
        block, blocks = self.block, min(max(page // 10, 1), BLOCKS_OF_A_PAGE)
        keys = _patiently(conn, blocks, timeout, lambda most: calls.audit_keys(block, most))
        self.looked_keys += keys.looked
        if keys.next is not None:
            self.block = keys.next
            return keys.broken
        counted = _in_time(conn, calls.audit_counts(self.expired), timeout)
        self.walk = "over"
        return [*keys.broken, *counted]


def _patiently(conn: psycopg.Connection[Any], most: int, timeout: float, page: Callable[[int], Call[T]]) -> T:
    while True:
        try:
            return _in_time(conn, page(most), timeout)
        except PoolkeeperError as refused:
            if refused.code is not Code.DATABASE_BUSY or most == 1:
                raise
            most = max(most // 2, 1)


def _in_time(conn: psycopg.Connection[Any], call: Call[T], timeout: float) -> T:
    """Run one call in a transaction of its own that the server ends: the setting holds behind a pooler too."""
    if conn.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
        raise error(Code.OPTION_INVALID, "an audit needs a connection without a transaction")
    with conn.transaction():
        run(conn, calls.only_look(timeout))
        return run(conn, call)
