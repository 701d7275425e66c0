"""Where the tasks of a kit lie, as the kit sees it; `memory` and `stored` are the two there are, and must not differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal, Protocol
from uuid import UUID

from poolkeeper.app import Handler
from poolkeeper.context import Context
from poolkeeper.outcome import Outcome
from poolkeeper.provider import Report
from poolkeeper.store.rows import Claimed
from poolkeeper.testing.points import Point
from poolkeeper.testing.runner import TestResult

NO_TASK = UUID(int=0)

ENDED = frozenset({"succeeded", "failed", "canceled", "dead"})
"""States in which nothing more is delivered."""


class Held:
    """One delivery that somebody has in hand."""

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed


@dataclass(frozen=True)
class TaskNow:
    """One task as it is now. `reason` is a dead letter's; `endings` say how its deliveries ended, in order."""

    id: UUID
    state: str
    reason: str | None
    result: Any
    checkpoint: Any
    deliveries: int
    cancel_requested: bool
    endings: tuple[str, ...]


@dataclass(frozen=True)
class Delivery(TestResult):
    """How one delivery went. `number` counts the deliveries of the task, `state` is where the task went.

    `outcome` is "crashed" where the test crashed it, and "lost" where the store refused its ending, as the task was another's by then.
    `passed` are the points that it came to.
    """

    __test__: ClassVar[bool] = False

    task_id: UUID = NO_TASK
    number: int = 0
    state: str = ""
    passed: tuple[Point, ...] = ()


class Place(Protocol):
    """Keeps tasks, leases, checkpoints and the clock. Its calls may come from any thread."""

    name: Literal["process", "postgres"]

    def now(self) -> datetime:
        """Return the time by the place's clock."""
        ...

    def move(self, seconds: float) -> None:
        """Let time pass: who is silent loses what it holds when its time is over, all others renew meanwhile."""
        ...

    def submit(self, handler: Handler, payload: Any, wishes: Mapping[str, Any]) -> UUID:
        """Accept a task."""
        ...

    def due(self, task_id: UUID) -> datetime:
        """Return when the next delivery can begin, unless somebody holds the task and renews."""
        ...

    def claim(self, task_id: UUID) -> Held | None:
        """Begin the next delivery of a task, None if there is none to begin."""
        ...

    def save(self, held: Held, value: Any, sequence: int, version: int) -> None:
        """Store a checkpoint; raises Refused and LeaseLost."""
        ...

    def report(self, held: Held, report: Report) -> None:
        """Take what a provider answered; raises LeaseLost."""
        ...

    async def succeed(self, held: Held, ctx: Context, connection: Any, result: Any) -> bool:
        """End the delivery in a transaction of the handler's."""
        ...

    def succeed_sync(self, held: Held, ctx: Context, connection: Any, result: Any) -> bool:
        """The same on a blocking connection."""
        ...

    def silence(self, held: Held) -> None:
        """Renew no more for this delivery: its process has died, or stands still."""
        ...

    def died(self, held: Held) -> None:
        """Note that the process died when its handler had returned, before it could settle."""
        ...

    def settle(self, held: Held, outcome: Outcome) -> str | None:
        """Tell how the delivery ended; return the code of the refusal."""
        ...

    def cancel(self, task_id: UUID) -> None:
        """Cancel a task; raises Conflict where it has ended."""
        ...

    def look(self, task_id: UUID) -> TaskNow:
        """Return a task; raises NotFound."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
