"""The store's rules once more, as plainly as possible: what a task is, what a turn does. For comparison with the real one."""

from dataclasses import dataclass, field
from uuid import UUID

LEASE = 10
MAX_DELIVERIES, MAX_HAND_BACKS, MAX_SNOOZES = 3, 2, 2
ALWAYS_ALONE = 9
ENDED = ("succeeded", "failed", "canceled")


@dataclass
class Task:
    """One task; `place` is its state, with suspect for a ready one that must run apart from others."""

    place: str = "ready"
    due: int = 0
    deliveries: int = 0
    spent: int = 0
    failures: int = 0
    expiries: int = 0
    hand_backs: int = 0
    snoozes: int = 0
    canceled: bool = False
    owner: "Process | None" = None
    apart: bool = False
    alone: bool = False
    misses: int = 0
    turn: int = 0

    @property
    def state(self) -> str:
        return "ready" if self.place == "suspect" else self.place

    def begin(self, owner: "Process", turn: int, *, alone: bool = False) -> None:
        self.apart, self.alone = self.place == "suspect", alone
        self.misses = self.misses if self.apart else 0
        self.place, self.owner, self.turn = "running", owner, turn
        self.deliveries += 1
        self.spent += 1

    def end(self, outcome: str, now: int, wait: int = 0) -> None:
        """The present delivery ends; what follows, as the specification says (Q25 to Q28, Q39)."""
        self.owner = None
        if outcome == "succeeded":
            self.place = "succeeded"
        elif outcome == "rejected":
            self.place = "failed"
        elif outcome == "dead":
            self.failures += 1
            self.place = "dead"
        elif outcome == "canceled" or self.canceled:
            self.place = "canceled"
        else:
            self._again(outcome, now, wait)
        self.canceled = self.canceled and self.place not in {*ENDED, "dead"}

    def _again(self, outcome: str, now: int, wait: int) -> None:
        free, dead = False, False
        if outcome in {"handed_back", "returned"}:
            free = self.hand_backs < MAX_HAND_BACKS
            self.hand_backs += 1
        elif outcome == "snoozed":
            free, dead = True, self.snoozes >= MAX_SNOOZES
            self.snoozes += 1
        elif outcome == "failed":
            self.failures += 1
        else:
            free = self.apart and not self.alone
            self.misses += free
            self.expiries += 1
        dead = dead or (not free and self.spent >= MAX_DELIVERIES)
        self.spent -= free
        if dead:
            self.place = "dead"
        elif outcome in {"failed", "snoozed"}:
            self.place, self.due = ("scheduled" if outcome == "failed" else "waiting"), now + wait
        elif outcome == "expired" or self.apart:
            self.place = "suspect"
            self.misses = ALWAYS_ALONE if self.alone else self.misses
        else:
            self.place = "ready"

    def requeue(self) -> None:
        self.place = "ready"
        self.spent = self.failures = self.expiries = self.hand_backs = self.snoozes = 0


@dataclass(eq=False)
class Process:
    """One session."""

    renewed: int
    ended: bool = False
    turns: int = 0
    received: int = 0

    def alive(self, now: int) -> bool:
        return not self.ended and self.renewed + LEASE > now


@dataclass
class Model:
    """One queue, one pool, time in whole seconds."""

    now: int = 0
    tasks: dict[UUID, Task] = field(default_factory=dict)
    isolating: Process | None = None

    def at(self, *places: str) -> dict[UUID, Task]:
        return {i: t for i, t in self.tasks.items() if t.place in places}

    def wake(self) -> None:
        for task in self.at("scheduled", "waiting").values():
            if task.due <= self.now:
                task.place = "ready"

    def sweep(self) -> None:
        for task in self.at("running").values():
            if task.owner is not None and task.owner.renewed + LEASE <= self.now:
                task.end("expired", self.now)
        self.wake()

    def holds(self, process: Process) -> list[Task]:
        return [t for t in self.at("running").values() if t.owner is process]

    def isolates(self, process: Process, *, alive: bool, isolated: bool) -> bool:
        """Whether this process takes suspects and nothing else, from now on: it holds nothing else, or makes room."""
        if not alive or not self.at("suspect"):
            if self.isolating is process and not any(t.apart for t in self.holds(process)):
                self.isolating = None
            return False
        if isolated or all(t.apart for t in self.holds(process)):
            return True
        if self.isolating is not process and self.isolating is not None and self.isolating.alive(self.now):
            return False
        self.isolating = process
        return True

    def apart(self, process: Process, want: int, room: int) -> tuple[dict[UUID, Task], int, int]:
        """From which suspects it takes, how many at most, and how many may be there then."""
        held = self.holds(process)
        suspects = self.at("suspect")
        if not room or any(t.alone or not t.apart for t in held):
            return {}, 0, 0
        misses = held[0].misses if held else min((t.misses for t in suspects.values()), default=0)
        beside = max(1, (len(held) + want) // 4**misses)
        among = {i: t for i, t in suspects.items() if t.misses == misses}
        return among, max(0, min(room, beside - len(held))), beside
