"""What a task is and which arrows it takes (Q1, Q25 to Q29, Q39), as plainly as possible; ``model`` is the store around it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENDED = ("succeeded", "failed", "canceled")
HELD = ("leased", "running")
WAITING = ("ordered", "ready", "suspect", "scheduled", "waiting")
LIMITS = ("max_run_time", "max_tenure", "progress_timeout")
FAILED = ("failed", "process_died", "max_run_time", "progress_timeout")
GIVEN_BACK = ("handed_back", "returned")
LEASE = 10
ALWAYS_ALONE = 9


@dataclass(frozen=True)
class Policy:
    """Of one queue; the names are those of the store, None: no bound."""

    max_deliveries: int = 3
    max_hand_backs: int = 2
    max_snoozes: int = 2
    max_age_seconds: int | None = None
    max_run_time_seconds: float | None = None
    max_tenure_seconds: float | None = None
    progress_timeout_seconds: float | None = None
    backoff_max_elapsed_seconds: int | None = None
    max_waiting: int | None = None
    max_waiting_per_tenant: int | None = None
    concurrency_max: int | None = None
    per_tenant_max: int | None = None
    retry_share_percent: int = 20
    ordering: str = "block"
    task_types: tuple[str, ...] = ()
    paused: bool = False
    paused_task_types: tuple[str, ...] = ()
    suspended_tenants: tuple[str, ...] = ()
    max_payload_bytes: int = 100
    checkpoint_max_bytes: int = 100

    def stops(self, task: "Task") -> str | None:
        """Why nothing of this kind may start (Q12, Q16)."""
        if self.paused or task.type in self.paused_task_types:
            return "queue_paused"
        return "tenant_suspended" if task.tenant in self.suspended_tenants else None

    def limits(self) -> tuple[float | None, ...]:
        """Of the time that a delivery may take (Q21)."""
        return self.max_run_time_seconds, self.max_tenure_seconds, self.progress_timeout_seconds


@dataclass(eq=False)
class Process:
    """One session: alive until its last renewal plus the visibility timeout."""

    renewed: int
    queues: tuple[str, ...] = ("q",)
    types: tuple[str, ...] = ("a.b",)
    ended: bool = False
    turns: int = 0
    received: int = 0
    in_a_row: dict[tuple[str, bool], tuple[int, int]] = field(default_factory=dict)  # claims, and retries among them

    def alive(self, now: int) -> bool:
        return not self.ended and self.renewed + LEASE > now


@dataclass(eq=False)
class Task:
    """One task; ``place`` is its state, with suspect and ordered for ready ones that are held back."""

    policies: Mapping[str, Policy] = field(repr=False)
    taken: Counter[tuple[str, ...]] = field(repr=False)
    queue: str = "q"
    tenant: str = "default"
    type: str = "a.b"
    payload: Any = 1
    ordering_key: str | None = None
    number: int = 0
    expires: int | None = None
    since: int = 0  # elapsed time counts from here
    place: str = "nothing"
    due: int | None = None
    version: int = 0
    deliveries: int = 0
    spent: int = 0
    failures: int = 0
    expiries: int = 0
    hand_backs: int = 0
    snoozes: int = 0
    reason: str | None = None
    canceled: bool = False
    owner: Process | None = None
    turn: int = 0
    apart: bool = False
    alone: bool = False
    misses: int = 0
    started: int = 0
    ran: int = 0
    extended: int = 0
    run_by: float | None = None
    progress_by: float | None = None
    final: bool = False
    checkpoint: Any = None
    saved: tuple[int, int] = (0, 0)
    endings: dict[int, tuple[Process, str]] = field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        """Of its queue, as it is now."""
        return self.policies[self.queue]

    @property
    def state(self) -> str:
        if self.place == "ordered":
            return "ready" if self.due is None else "scheduled"
        return "ready" if self.place == "suspect" else self.place

    def go(self, place: str, by: str) -> None:
        """Every arrow passes here: one version each, and counted."""
        before = self.state
        self.place = place
        self.version += 1
        self.taken[before, self.state, by] += 1
        if place in ENDED:
            self.checkpoint = None
        if place == "dead":
            self.reason = by

    @property
    def again(self) -> bool:
        """Whether its next delivery is a retry (Q13): it failed or expired in its present budget, of which that took something."""
        return self.spent > 0 and self.failures + self.expiries > 0

    def aged(self, now: int) -> bool:
        return self.expires is not None and self.expires <= now

    def lease_end(self) -> int:
        assert self.owner is not None
        return max(self.owner.renewed + LEASE, self.extended)

    # arrows of a delivery

    def claim(self, owner: Process, now: int, *, starts: bool = True, alone: bool = False) -> None:
        """Counted and spent here, whatever becomes of it (Q25)."""
        self.apart, self.alone = self.place == "suspect", alone
        self.misses = self.misses if self.apart else 0
        self.owner, self.turn, self.extended, self.canceled = owner, owner.turns, 0, False
        self.run_by = self.progress_by = None
        self.deliveries += 1
        self.spent += 1
        self.go("running" if starts else "leased", "claim")
        if starts:
            self._run(now)

    def start(self, now: int) -> None:
        self.go("running", "start")
        self._run(now)

    def _run(self, now: int) -> None:
        self.started = now
        self.limit(now)

    def limit(self, now: int) -> None:
        """The ends of its time, by the policy as it is: from its start, progress from now (Q21)."""
        run, tenure, progress = self.policy.limits()
        bounds = [self.started + run if run else None, self.started + tenure - self.ran if tenure else None]
        self.run_by = min((b for b in bounds if b is not None), default=None)
        self.final = self.run_by is not None and self.run_by == bounds[1]
        self.progress_by = now + progress + LEASE // 2 if progress else None

    def progress(self, now: int) -> None:
        if self.policy.progress_timeout_seconds and self.place == "running":
            self.progress_by = now + self.policy.progress_timeout_seconds + LEASE // 2

    def too_long(self, now: int) -> str | None:
        """Which limit of its time this delivery has passed (Q21)."""
        run, progress = self.run_by, self.progress_by
        first = min((b for b in (run, progress) if b is not None), default=None)
        if self.place != "running" or first is None or first > now:
            return None
        if progress is not None and (run is None or progress < run):
            return "progress_timeout"
        return "max_tenure" if self.final else "max_run_time"

    def end(self, outcome: str, now: int, wait: int = 0) -> None:
        """The present delivery ends with this; ``refused``: its start was, which costs nothing (Q16)."""
        assert self.owner is not None
        ran, self.ran = self.place == "running", self.ran + (now - self.started if self.place == "running" else 0)
        free = self._free(outcome)
        dead = self._exhausted(outcome, now, free=free)
        self.spent -= free
        self.failures += outcome in {*FAILED, "dead", "max_tenure"}
        self.expiries += outcome == "expired"
        self.hand_backs += outcome in {*GIVEN_BACK, "refused"}
        self.snoozes += outcome == "snoozed"
        if outcome == "succeeded":
            self.go("succeeded", outcome)
        elif outcome == "canceled" or (self.canceled and outcome not in {"dead", "rejected", "max_tenure"}):
            outcome = "canceled"
            self.go("canceled", outcome)
        elif outcome == "rejected":
            self.go("failed", outcome)
        elif dead:
            self.go("dead", dead)
        elif outcome == "snoozed" or (outcome in FAILED and outcome != "process_died"):
            self.due = now + wait
            self.go("waiting" if outcome == "snoozed" else "scheduled", outcome)
        elif ran and (outcome in {"expired", "process_died"} or self.apart):
            self.misses += outcome == "expired" and self.apart and not self.alone
            self.misses = ALWAYS_ALONE if self.alone else self.misses
            self.go("suspect", outcome)
        else:
            self.go("ready", outcome)
        self.endings[self.deliveries] = self.owner, outcome
        self.owner, self.canceled = None, False

    def _free(self, outcome: str) -> bool:
        """Whether this delivery does not count against the budget."""
        if outcome in GIVEN_BACK:
            return self.hand_backs < self.policy.max_hand_backs
        return outcome in {"snoozed", "refused"} or (outcome == "expired" and self.apart and not self.alone)

    def _exhausted(self, outcome: str, now: int, *, free: bool) -> str | None:
        """The bound that this ending meets, as the reason of a dead letter (Q3, Q28)."""
        if outcome in {"dead", "max_tenure"}:
            return "permanent_error" if outcome == "dead" else "max_tenure"
        if outcome == "snoozed" and self.snoozes >= self.policy.max_snoozes:
            return "snoozes_exhausted"
        if outcome in {*FAILED, *GIVEN_BACK, "expired"} and not free and self.spent >= self.policy.max_deliveries:
            return outcome if outcome in LIMITS else "deliveries_exhausted"
        elapsed = self.policy.backoff_max_elapsed_seconds
        if outcome in FAILED and elapsed is not None and now - self.since > elapsed:
            return outcome if outcome in LIMITS else "failures_exhausted"
        if self.aged(now):
            return outcome if outcome in LIMITS else "max_age"
        return None

    def why_not(self, delivery: int) -> str:
        """Why the token of this delivery, which is not the present one, is refused (Q19)."""
        _, how = self.endings.get(delivery, (None, ""))
        if how in {"canceled", *LIMITS}:
            return how
        if how in {"expired", "returned", "refused"}:
            return "lease_expired"
        return "already_done" if how else "stale_token"

    # arrows of people

    def requeue(self, now: int) -> None:
        self.spent = self.failures = self.expiries = self.hand_backs = self.snoozes = self.ran = self.misses = 0
        self.expires = self.due = self.reason = None
        self.since = now
        self.go("ready" if self.ordering_key is None else "ordered", "requeue")
