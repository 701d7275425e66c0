"""What the store answers, as values. Ages and waits are durations, moments are aware datetimes of the database."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from poolkeeper.codes import Code
from poolkeeper.store.signs import BuildStats, Expired, ProviderStats, ScheduleTrouble


@dataclass(frozen=True)
class Verdict:
    """Answer to one submit (Q6, Q7). ``code`` None: accepted; ``created`` False: the key was known, this is the first task."""

    task_id: UUID | None
    code: Code | None
    created: bool
    retry_after: timedelta | None
    limit: int | None
    current: int | None
    state: str | None
    result: Any


@dataclass
class Session:
    """What a worker process remembers of its registration; ``cursor`` is where the store's walk over lanes stopped."""

    id: UUID
    secret: str = field(repr=False)
    renew_every: timedelta
    visibility_timeout: timedelta
    unknown_queues: list[str]
    instance_id: UUID
    cursor: dict[str, list[int]] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class Settle:
    """How a delivery ended, as its worker sees it.

    ``outcome``: succeeded, failed (retry by the policy), rejected (final), dead, snoozed, handed_back or canceled.
    ``started`` False: user code never began. ``retry_after``: for failed and snoozed. ``own_transaction``: the handler called
    succeed in a transaction of its own, which may not have ended yet (Q18).
    """

    task_id: UUID
    token: str = field(repr=False)
    outcome: str
    result: Any = None
    error_class: str | None = None
    error: str | None = None
    retry_after: timedelta | None = None
    started: bool = True
    own_transaction: bool = False


@dataclass(slots=True)
class SettleVerdict:
    """``code`` None: settled now, ``already_done``: settled before (both well), ``in_transaction``: ask again; else why it was refused (Q19)."""

    task_id: UUID
    code: str | None
    state: str | None


class Claimed(NamedTuple):
    """One delivery with all that its handler needs.

    ``state``: running, or leased where it was claimed ahead and must be started first (Q16). ``suspect``: it runs in
    a process of its own, beside nothing but other suspects; ``beside``: at most so many, itself included (Q27).
    """

    state: str
    task_id: UUID
    token: str
    delivery: int
    queue: str
    type: str
    tenant: str
    payload: Any
    checkpoint: Any
    checkpoint_version: int | None
    labels: dict[str, Any] | None
    traceparent: str | None
    submitted_at: datetime
    failures: int
    deliveries_spent: int
    max_deliveries: int
    suspect: bool
    beside: int = 0

    def __repr__(self) -> str:
        """Without the token and the payload: neither belongs in a log (Q17)."""
        return f"Claimed({self.type} {self.task_id}, delivery {self.delivery})"


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """Answer to a turn.

    ``isolate``: stop claiming and, once only suspects run, call with isolated=True; ``come_again``: poll by then;
    ``refused``: starts that were refused, with their codes.
    """

    verdicts: list[SettleVerdict]
    claimed: list[Claimed]
    draining: bool
    isolate: bool
    come_again: timedelta
    refused: dict[UUID, str] = field(default_factory=dict)
    slot_in: timedelta | None = None  # until a schedule is due, where a turn that sweeps told
    position: dict[str, Any] | None = None  # where it renewed the session too
    sweep_in: timedelta | None = None  # until the next turn should sweep, where this one did


@dataclass(frozen=True)
class RenewAnswer:
    """``lost``: held in vain; ``canceled``: asked to stop; ``grace``: the real one of a terminating pod, if known; ``codes`` say why."""

    lost: list[UUID]
    canceled: list[UUID]
    draining: bool
    grace: timedelta | None
    visibility_timeout: timedelta | None
    codes: dict[UUID, Code] = field(default_factory=dict)
    position: dict[str, Any] | None = None
    held: str | None = None
    slot_in: timedelta | None = None  # until a schedule is due


@dataclass(frozen=True)
class CheckpointVerdict:
    """``code`` None: saved; ``in_transaction``: the handler's own transaction holds the lease, ask again (Q18).

    ``limit`` and ``current`` in bytes where it was too large; ``per_second`` by the policy.
    """

    code: str | None
    limit: int | None
    current: int | None
    per_second: float | None

    @property
    def canceled(self) -> bool:
        """Whether the task was asked to stop."""
        return self.code is Code.CANCELED


@dataclass(frozen=True)
class Extended:
    """``code`` None: the lease lasts until ``until``."""

    code: Code | None
    until: datetime | None


@dataclass(frozen=True)
class Changed:
    """Answer to cancel, requeue, discard: the state now, and the code of a refusal."""

    code: Code | None
    state: str | None
    state_version: int | None


@dataclass(frozen=True)
class TaskView:
    """One task as it is now."""

    id: UUID
    queue: str
    type: str
    tenant: str
    priority: int
    state: str
    reason: str | None
    state_version: int
    accepted_at: datetime
    run_at: datetime
    expires_at: datetime | None
    payload: Any
    result: Any
    labels: dict[str, Any] | None
    checkpoint: Any
    deliveries: int
    cancel_requested: bool
    erased: list[str]  # of payload, result, checkpoint: what retention has taken; it is None now and was not
    ordering_key: str | None = None


@dataclass(frozen=True)
class HistoryRow:
    """One thing that happened to a task; ``state`` is where it went; ``state_version`` None: after its end."""

    at: datetime
    what: str
    delivery: int | None
    outcome: str | None
    reason: str | None
    actor: str | None
    error_class: str | None
    error: str | None
    build: str | None
    session_id: UUID | None
    state_version: int | None
    state: str | None


@dataclass(frozen=True)
class DeadLetter:
    """A task on which recovery has stopped, with all that a person needs to decide (Q29)."""

    task_id: UUID
    queue: str
    type: str
    tenant: str
    died_at: datetime
    reason: str
    sentence: str
    action: str
    error_class: str | None
    error: str | None
    build: str | None
    deliveries: int
    spent: int
    failures: int
    expiries: int
    hand_backs: int
    snoozes: int
    state_version: int
    payload: Any
    checkpoint: Any
    owner: str | None
    runbook: str | None


@dataclass(frozen=True)
class Applied:
    """Answer to apply_policy: ``code`` queue_owned where another cluster or namespace, the ``owner``, has the name."""

    code: Code | None
    queue_id: int
    policy_version: int
    changed: bool
    owner: str | None


@dataclass(frozen=True)
class TypeStats:
    """Ready tasks of one type in a queue (counted up to a cap), the age of the oldest, and who can run them (Q11).

    ``live``: a session that may claim now; ``known``: that, or the last session of a pool, or nobody was ever seen there.
    """

    type: str
    ready: int  # suspects apart
    oldest: timedelta | None  # of these
    suspects: int = 0
    live: bool = True
    known: bool = True
    tenant: str | None = None  # one that some session or pool names; None: all the others together


@dataclass(frozen=True)
class HeldBack:
    """Ready tasks that may not run now, by the reason; each stops at 10,000."""

    tenant_limit: int = 0  # their tenant runs as many as it may
    tenant_suspended: int = 0
    type_paused: int = 0
    retry_share: int = 0  # retries beyond their share; more slots would take them (Q13)

    @property
    def total(self) -> int:
        """Those that more slots would not help."""
        return self.tenant_limit + self.tenant_suspended + self.type_paused


@dataclass(frozen=True)
class QueueStats:
    """One queue now. Counts of tasks not running stop at 10,000; ``lease_expiries`` is a total since ever."""

    queue_id: int
    namespace: str
    name: str
    policy_version: int
    paused: bool
    concurrency_max: int | None  # of the policy; None: no bound
    ready: int
    scheduled: int
    leased: int
    running: int
    waiting: int
    dead: int
    dead_recent: int
    dead_unannounced: bool  # some are in no confirmed batch (O24)
    oldest_runnable: timedelta | None
    next_due: timedelta | None
    lease_expiries: int
    suspects: int
    ordering: int  # ready but for an earlier task of their ordering key; not among `ready` (Q9)
    no_capable_worker: int  # ready, suspects included, of types that nobody can run, as far as sessions told (Q11)
    types: list[TypeStats]  # what could run: those held back are not in it
    held_back: HeldBack = HeldBack()
    oldest_retry: timedelta | None = None  # of the ready ones that have failed or expired before
    next_slot: timedelta | None = None  # until a schedule is to be looked at; negative: overdue (Q34)
    named: list[str] = field(default_factory=list)  # tenants that `types` tells apart
    posts: int = 0  # batches that a webhook has not taken yet, counted up to 1,000 (O24)
    dead_lately: int = 0  # dead letters that died within five minutes
    dead_oldest: timedelta | None = None  # age of the oldest dead letter
    expired: Expired = field(default_factory=Expired)
    schedules: ScheduleTrouble = field(default_factory=ScheduleTrouble)


@dataclass(frozen=True)
class SessionStats:
    """One worker process now; ``finished`` and ``busy_seconds`` are its own totals, ``busy`` the leases it holds."""

    session_id: UUID
    pod_name: str | None
    pod_uid: str | None
    build: str | None
    busy: int
    concurrency: int
    draining: bool
    renewed_ago: timedelta
    registered_ago: timedelta
    idle_for: timedelta | None
    finished: int
    busy_seconds: float


@dataclass(frozen=True)
class DrainSample:
    """One drain: how long it took; ``truncated``: it was cut, the true figure is larger (O20); ``grace``: seconds that it had."""

    ended_ago: timedelta
    seconds: float
    truncated: bool
    grace: float | None = None


@dataclass(frozen=True)
class PoolStats:
    """One pool now; ``builds`` are those of its live sessions and of its last one; empty before the first (Q11)."""

    pool: str
    running: int
    max_running: int | None
    sessions: list[SessionStats]
    drains: list[DrainSample]
    builds: list[BuildStats]
    providers: dict[str, str] | None = None  # the quota ("namespace/name") of each provider of its tasks, by its name
    needs: dict[str, dict[str, int]] | None = None  # requests and tokens that one task needs of each


@dataclass(frozen=True)
class Stats:
    """Everything that the operator's tick reads, of one moment."""

    now: datetime
    instance_id: UUID
    schema_version: int
    server_version: str
    queues: list[QueueStats]
    pools: list[PoolStats]
    held: str | None
    position: dict[str, Any]
    vacuum: dict[str, Any] | None = (
        None  # who keeps vacuum back for longest, as `poolkeeper doctor` is told it; None: nobody
    )
    providers: tuple[ProviderStats, ...] = ()


@dataclass(frozen=True)
class DeadBatch:
    """Dead letters to announce together; ``number`` names the announcement (O24)."""

    number: int
    count: int
    first_task: UUID
    first_reason: str
    first_error_class: str | None
    first_error: str | None
    types: dict[str, int]
    reasons: dict[str, int]
    tenants: int
    at: datetime


@dataclass(frozen=True)
class Installation:
    """What is installed in this database."""

    instance_id: UUID
    schema_version: int | None
