"""TaskQueue: the policy of one queue, and what its tasks are doing.

Guarantees: its spec is `poolkeeper.policy.QueuePolicy` with a database and narrower bounds, so a queue means the same with and without
Kubernetes.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from poolkeeper.durations import Between, Duration, parse_duration
from poolkeeper.policy import QueuePolicy
from poolkeeper_operator.resources.parts import IMMUTABLE, Conditions, NameRef, StatusModel


class DeletionPolicy(StrEnum):
    """What becomes of the tasks when the TaskQueue is deleted."""

    RETAIN = "Retain"
    REFUSE = "Refuse"
    PURGE = "Purge"


class TaskQueueSpec(QueuePolicy):
    """Policy of the queue `namespace/name`."""

    database_ref: Annotated[NameRef, IMMUTABLE] = Field(
        description="The Database in this namespace that keeps the tasks. Cannot be changed: the tasks would stay behind."
    )
    visibility_timeout: Annotated[Duration, Between("5s", "1h")] = Field(
        parse_duration("15s"),
        description="Length of a lease. A worker that has not renewed for this long is taken for dead and its tasks are given to others.",
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
    lease_expiries: int | None = Field(None, description="Leases that ended by expiry, in total.")
    conditions: Conditions = ()
