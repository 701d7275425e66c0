"""What a scaling decision is made from: the pool's policy and one reading of the world.

Guarantees: plain frozen values with a unit each; nothing here reads or computes. Times are those of the operator's clock, ages and
counts those of the database. A reading that failed is `None` in place of `Signals`, never a `Signals` full of zeros.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from poolkeeper_operator.decide.reasons import LimitedBy


class Mode(StrEnum):
    """`spec.scaling.mode`."""

    AUTO = "Auto"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"
    EXTERNAL = "External"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPolicy:
    """How fast a pool may change in one direction; of the two step bounds the larger one counts, both absent means no bound."""

    window: timedelta  # the recommendation must have stood this long (the cautious one of the window is taken)
    max_step_percent: int | None = None  # of the size at the beginning of the step period
    max_step_pods: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """A WorkerPool's wishes about its size (`spec.scaling`, `spec.concurrency`, `spec.maxRunning`)."""

    mode: Mode = Mode.AUTO
    asked: int | None = None  # pods that another scaler asks for, in mode External; None: none has asked yet
    minimum: int = 0  # pods
    maximum: int  # pods
    concurrency: int  # slots per pod
    max_running: int | None = None  # running tasks in all pods together, enforced by the store; None: no bound
    target_age: timedelta = timedelta(seconds=30)  # a runnable task should start before it is this old
    up: StepPolicy = StepPolicy(window=timedelta(0))
    down: StepPolicy = StepPolicy(window=timedelta(minutes=2), max_step_percent=25, max_step_pods=10)
    to_zero_after: timedelta = timedelta(minutes=5)  # nothing runnable and nothing running for this long
    tick: timedelta = timedelta(seconds=5)  # the Database's tickInterval: nobody can react faster
    stale_after: timedelta = timedelta(seconds=30)  # a reading older than this counts as none


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """An upper bound on the slots of a pool, from outside of its spec.

    The store enforces the exact number of slots at the claim; pods are capped at the number that can use them,
    `ceil(slots / concurrency)`.
    """

    reason: LimitedBy
    slots: int  # running tasks, >= 0; 0 closes the pool
    sentence: str  # shown as it is: 'the quota platform/model-api leaves 12 of 40 concurrent calls'


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """One successful reading of a pool's queues, sessions and pods, taken together.

    Tasks that the pool could not run now do not count as runnable: other task types, paused queues, queues at their own concurrency
    limit, scheduled, backing off, waiting. Tasks that wait only for one of the pool's own limits (quota, maxRunning) do.
    """

    read_at: datetime  # when the reading was taken, operator's clock (`now` of decide minus this = staleness)
    runnable: int  # tasks of this pool's queues and types that could start now (a capped count is fine)
    runnable_capped: bool = False  # the count stopped at the store's cap: there are at least that many
    oldest_runnable: timedelta | None = None  # age of the oldest of them; None when there is none
    suspects: int = 0  # tasks that wait for an isolated run
    running: int = 0  # leases of this pool (PoolStats.running)
    busy: int = 0  # busy slots that its sessions report; the larger of running and busy counts
    busy_pods: int = 0  # pods with at least one busy slot; marked ones count, terminating ones do not
    replicas: int = 0  # spec.replicas of the Deployment now (0 when it does not exist)
    ready_pods: int = 0  # pods with a live session that may claim (not marked, not terminating)
    starting_pods: int = 0  # pods of the present template that have no session yet and no failure
    stuck_pods: int = 0  # pods that cannot start (image, crash loop, unschedulable, quota)
    stuck_cause: str = ""  # one line about one of them, for people
    closed: bool = False  # the store starts no task for it (max_running 0), as of this reading
    rolling: bool = False  # a rollout of the Deployment is under way, or its controller has not seen the last change
    replacing: bool = False  # pods of an older template are there: the controller chooses who goes
    living: int = 0  # pods that were not told to end
    leaving_pods: int = 0  # pods with a session, on nodes that are about to go: they claim nothing more (O23)
    leaving_busy_pods: int = 0  # of these, with at least one busy slot
    leaving_busy: int = 0  # their busy slots
    service_time: timedelta | None = None  # mean slot time per finished task (service.py); None: not measured yet
    start_up: timedelta = timedelta(seconds=10)  # from raising replicas to a new pod's first claim
    caps: tuple[Cap, ...] = ()  # provider quotas, and what else bounds the slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Blind:
    """Why there is no reading, for the sentence of a held decision."""

    cause: str = ""  # 'database main: connection refused'
    replicas: int = 0  # spec.replicas of the Deployment now, which the API server tells even when the database does not
