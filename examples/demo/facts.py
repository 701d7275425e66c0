"""What happened, as values: the one thing that `verify` collects and `judge` looks at. Pure.

Times are seconds since the epoch: one machine, one clock for the database, the model server and the API server.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Delivery:
    """One ended hand-over of a task, as the store recorded it."""

    number: int
    session: str
    claimed: float
    started: float | None
    ended: float
    outcome: str
    reason: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Task:
    """One accepted task and how it stands."""

    id: str
    key: str | None
    type: str
    state: str
    reason: str | None
    due: float
    deliveries: tuple[Delivery, ...] = ()

    @property
    def waited(self) -> float:
        """Seconds until it was first claimed; its whole life when it never was."""
        return self.deliveries[0].claimed - self.due if self.deliveries else float("inf")


@dataclass(frozen=True)
class Session:
    """One worker process and the pod that it ran in."""

    id: str
    pod: str | None
    slots: int


@dataclass(frozen=True)
class Call:
    """One call that the model server let in; `ended` None: its end is not in the log."""

    task: str
    step: str
    began: float
    ended: float | None
    cut_off: bool


@dataclass(frozen=True)
class Refusal:
    """One call that the model server did not let in (429)."""

    task: str
    step: str
    at: float


@dataclass(frozen=True)
class Resize:
    """One write of the pool's size by the operator, from the API server's own record."""

    at: float
    replicas: int


@dataclass(frozen=True)
class Limit:
    """One time that the operator said what the quota left of what the work asked for, in pods."""

    wanted: int
    limited: int


@dataclass(frozen=True)
class Exit:
    """The end of a container, as the kubelet reported it."""

    pod: str
    code: int


@dataclass(frozen=True)
class Facts:
    """All of it. `resizes`, `exits` and `images` are None where the API server's record cannot be read."""

    tasks: tuple[Task, ...]
    sessions: tuple[Session, ...]
    decisions: tuple[dict[str, Any], ...]
    limits: tuple[Limit, ...]
    calls: tuple[Call, ...]
    refusals: tuple[Refusal, ...]
    dead_letter_events: tuple[str, ...]
    replicas: int
    pods: int
    resizes: tuple[Resize, ...] | None
    exits: tuple[Exit, ...] | None
    images: frozenset[str] | None


@dataclass(frozen=True)
class Promise:
    """What was said before the story began, read from the files and not from what the story applied."""

    keys: frozenset[str]
    poison: str
    steps: tuple[str, ...]
    concurrent_calls: int
    max_deliveries: int
    target_age: float
    retry_after: float
    image: str


@dataclass
class _Open:
    entry: dict[str, Any]
    ended: float | None = None
    cut_off: bool = False


@dataclass
class CallLog:
    """The model server's log, read."""

    calls: tuple[Call, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    _open: dict[int, _Open] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[dict[str, Any]]) -> "CallLog":
        """From the lines of the log, each a JSON object."""
        log = cls()
        for entry in entries:
            log._take(entry)
        log.calls = tuple(
            Call(one.entry["task"], one.entry["step"], one.entry["at"], one.ended, one.cut_off)
            for one in log._open.values()
        )
        return log

    def _take(self, entry: dict[str, Any]) -> None:
        match entry["what"]:
            case "began":
                self._open[entry["call"]] = _Open(entry)
            case "refused":
                self.refusals += (Refusal(entry["task"], entry["step"], entry["at"]),)
            case what:
                self._open[entry["call"]].ended = entry["at"]
                self._open[entry["call"]].cut_off = what == "cut off"


def most_at_once(calls: Iterable[Call]) -> int:
    """The most calls that were in flight at one moment; one that ends as another begins does not overlap it."""
    moments = []
    for call in calls:
        moments.append((call.began, 1))
        if call.ended is not None:
            moments.append((call.ended, -1))
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most
