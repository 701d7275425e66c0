"""The audit of a live store: its invariants, walked page by page from a place that can be written down (Q61).

Guarantees: each page is one statement with a time-out, so it sees one moment and holds no snapshot between two; nothing is
written. A walk that is taken up again at its place looks at nothing twice; what was submitted behind it meanwhile is the next
walk's. A page that takes too long is tried with half of its tasks.
Does not look across pages for a token that repeats.
"""

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from poolkeeper.codes import Code
from poolkeeper.errors import PoolkeeperError, error
from poolkeeper.store import Call, calls, run
from poolkeeper.store.auditing import BLOCKS_OF_A_PAGE, TASKS_OF_A_PAGE, Broken, KeysPage, TasksPage

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
        if walk in {"keys", "counts"} and int(where) >= 0:
            return cls(walk, block=int(where), expired=expired)
        raise ValueError("it begins with tasks:, keys: or counts:")

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

    def next(self, page: int = TASKS_OF_A_PAGE) -> Call[TasksPage] | Call[KeysPage] | Call[list[Broken]]:
        """The call for the next page; its answer goes to ``took``. It does no I/O."""
        if self.walk == "tasks":
            return calls.audit_tasks(self.after, page)
        if self.walk == "keys":
            return calls.audit_keys(self.block, min(max(page // 10, 1), BLOCKS_OF_A_PAGE))
        return calls.audit_counts(self.expired)

    def took(self, answer: TasksPage | KeysPage | list[Broken]) -> list[Broken]:
        """Go on behind that page; what it found."""
        match answer:
            case TasksPage():
                self.looked_tasks += answer.looked
                for queue, count in answer.expired.items():
                    self.expired[queue] = self.expired.get(queue, 0) + count
                self.after = answer.next
                self.walk = "tasks" if answer.next is not None else "keys"
                return answer.broken
            case KeysPage():
                self.looked_keys += answer.looked
                self.block = answer.next or 0
                self.walk = "keys" if answer.next is not None else "counts"
                return answer.broken
        self.walk = "over"
        return answer

    def step(
        self, conn: psycopg.Connection[Any], page: int = TASKS_OF_A_PAGE, timeout: float = PAGE_TIMEOUT
    ) -> list[Broken]:
        """Look at the next page and go on behind it; raises what the store raises, the place is then as before."""
        while True:
            call: Call[Any] = self.next(page)
            try:
                return self.took(_in_time(conn, call, timeout))
            except PoolkeeperError as refused:
                if refused.code is not Code.DATABASE_BUSY or page == 1:
                    raise
                page = max(page // 2, 1)


def _in_time(conn: psycopg.Connection[Any], call: Call[T], timeout: float) -> T:
    """Run one call in a transaction of its own that the server ends: the setting holds behind a pooler too."""
    if conn.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
        raise error(Code.OPTION_INVALID, "an audit needs a connection without a transaction")
    with conn.transaction():
        run(conn, calls.only_look(timeout))
        return run(conn, call)
