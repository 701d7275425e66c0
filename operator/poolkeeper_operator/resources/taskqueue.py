"""TaskQueue: the policy of one queue, and what its tasks are doing.

Guarantees: its spec is `poolkeeper.policy.QueuePolicy` with a database and narrower bounds, so a queue means the same with and without
Kubernetes.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from poolkeeper.durations import Between, Duration, parse_duration
from poolkeeper.policy import QueuePolicy
from poolkeeper.policy_parts import DeadLetter, PolicyModel
from poolkeeper_operator.resources.parts import IMMUTABLE, Conditions, Model, NameRef, ObjectName, StatusModel


class DeletionPolicy(StrEnum):
    """What becomes of the tasks when the TaskQueue is deleted."""

    RETAIN = "Retain"
    REFUSE = "Refuse"
    PURGE = "Purge"


class DeadLetterAlert(PolicyModel):
    """When dead letters are trouble: conditions, `status.trouble` and metrics say so."""

    count: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="So many dead letters are too many (DeadLettersTooMany). Absent: no bound.",
    )
    growth_per_minute: int = Field(
        5,
        ge=1,
        le=1_000_000,
        description="So many new ones within a minute are growth (DeadLettersGrowing), while they are not taken away as fast.",
    )
    age: Annotated[Duration, Between("1m", "8760h")] | None = Field(
        None,
        description="A dead letter that nobody looked at for this long is too old (DeadLettersTooOld). Absent: no bound.",
    )


class WebhookSecretRef(Model):
    """A key of a Secret in the same namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: str = Field(
        "token", min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$", description="Key in the Secret."
    )


class Webhook(Model):
    """Where batches of dead letters are posted, as signed CloudEvents."""

    url: str = Field(
        min_length=1,
        max_length=2000,
        pattern="^https?://[^/ ]+",
        description="Its address. Each batch of new dead letters is posted there, at least once, until it answers 2xx, for a week at most.",
    )
    secret_ref: WebhookSecretRef = Field(
        description="The key of the signature in the header webhook-signature (HMAC-SHA256, as Standard Webhooks has it)."
    )


class QueueDeadLetter(DeadLetter):
    """Who hears of a task on which automatic recovery has stopped, and when."""

    alert: DeadLetterAlert = Field(DeadLetterAlert(), description="When dead letters are trouble.")
    webhook: Webhook | None = Field(None, description="Who is told of them by HTTP. Absent: nobody.")


class TaskQueueSpec(QueuePolicy):
    """Policy of the queue `namespace/name`."""

    database_ref: Annotated[NameRef, IMMUTABLE] = Field(
        description="The Database in this namespace that keeps the tasks. Cannot be changed: the tasks would stay behind."
    )
    visibility_timeout: Annotated[Duration, Between("5s", "1h")] = Field(
        parse_duration("15s"),
        description="Length of a lease. A worker that has not renewed for this long is taken for dead and its tasks are given to others.",
    )
    dead_letter: QueueDeadLetter = Field(
        QueueDeadLetter(), description="Who hears of tasks on which automatic recovery has stopped, and when."
    )
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="Retain: the tasks stay in the database, and a TaskQueue of this name in this namespace finds them again. "
        "Purge: deletion waits until they are removed. Refuse: the TaskQueue cannot be deleted, by the chart's admission policy.",
    )


class HeldBack(StatusModel):
    """Tasks that could run but for a reason."""

    isolation: int | None = Field(None, description="Wait for a run of their own after they killed a worker.")
    ordering: int | None = Field(
        None, description="Wait for an earlier task of their ordering key; not counted as ready, and ask for no pods."
    )
    no_capable_worker: int | None = Field(
        None, description="Are of types that no worker of any pool of the queue can run; they ask for no pods."
    )
    tenant_limit: int | None = Field(
        None, description="Their tenant runs as many tasks as it may; they ask for no pods."
    )
    tenant_suspended: int | None = Field(None, description="Their tenant is suspended; they ask for no pods.")
    type_paused: int | None = Field(None, description="Are of a type that is paused; they ask for no pods.")
    retry_share: int | None = Field(
        None, description="Have failed or expired before, and are more than retrySharePercent of what is ready."
    )


class Depth(StatusModel):
    """Tasks by state; counts of ready, scheduled and waiting stop at 10000."""

    ready: int = Field(0, description="Could run now.")
    scheduled: int = Field(0, description="Due later: asked for, or backing off.")
    leased: int = Field(0, description="Granted to a worker, not started.")
    running: int = Field(0, description="In user code.")
    waiting: int = Field(0, description="Gave their lease back until later.")
    held_back: HeldBack | None = Field(None, description="Ready, but held back.")


class DeadLetters(StatusModel):
    """Tasks on which automatic recovery has stopped."""

    total: int = Field(0, description="All that wait for a person.")
    growth_per_minute: int = Field(0, description="New ones within the last minute.")


class TaskQueueStatus(StatusModel):
    """What the queue's tasks are doing; written at most every 30 seconds while it only moves, at once when something is wrong."""

    observed_generation: int | None = Field(None, description="The generation that this status is about.")
    policy_version: int | None = Field(None, description="Version of the policy in force in the store.")
    depth: Depth | None = Field(None, description="Tasks by state.")
    oldest_runnable_age: str | None = Field(
        None,
        max_length=32,
        description="Age of the oldest task that could run now, rounded down to 0s 5s 15s 30s 1m 2m 5m ...",
    )
    dead_letters: DeadLetters | None = Field(None, description="Tasks on which automatic recovery has stopped.")
    trouble: str | None = Field(
        None,
        max_length=300,
        description="What is wrong, in the words of the conditions that say more, with commas; None while all is well.",
    )
    lease_expiries: int | None = Field(None, description="Leases that ended by expiry, in total.")
    conditions: Conditions = ()
