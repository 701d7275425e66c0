"""The policy of one queue: TaskQueue.spec without what only Kubernetes needs, so that `poolkeeper queue apply` works without it.

Guarantees: every field is honoured by the store; unknown fields are refused, never dropped; `to_store()` is the value that
`poolkeeper.apply_policy` takes. Bounds here are those of the store; the TaskQueue resource narrows some of them.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StrictBool, ValidationError

from poolkeeper.choices import Ordering, WakeUp
from poolkeeper.durations import Between, Duration, parse_duration
from poolkeeper.policy_parts import (
    Admission,
    Backoff,
    Checkpoint,
    Concurrency,
    DeadLetter,
    PolicyModel,
    Priority,
    Retention,
)

TASK_TYPE_PATTERN = r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)*$"
TaskType = Annotated[str, Field(min_length=1, max_length=100, pattern=TASK_TYPE_PATTERN)]

# Fields of a TaskQueue's spec that say where the policy applies and not what it is.
NOT_POLICY = frozenset({"databaseRef", "deletionPolicy"})

# Of its dead letters, what the operator does; the store knows nothing of it.
NOT_OF_LETTERS = frozenset({"alert", "webhook"})


class PolicyError(ValueError):
    """A policy that cannot be read; the message names each field and the remedy."""


class QueuePolicy(PolicyModel):
    """All settings of one queue; absent ones have the documented default."""

    visibility_timeout: Annotated[Duration, Between("500ms", "1h")] = Field(
        parse_duration("15s"),
        description="Length of a lease. A worker that has not renewed for this long is taken for dead and its tasks are given to others.",
    )
    max_age: Annotated[Duration, Between("1s", "8760h")] | None = Field(
        None,
        description="A task that has not started this long after it was due becomes a dead letter (max_age). Absent: none.",
    )
    max_run_time: Annotated[Duration, Between("1s", "8760h")] | None = Field(
        None,
        description="A delivery that runs for longer than this is ended and counts as failed (max_run_time), also while its worker renews. Absent: none.",
    )
    max_tenure: Annotated[Duration, Between("1s", "8760h")] | None = Field(
        None,
        description="A task whose deliveries ran for longer than this, together, becomes a dead letter (max_tenure). Absent: none.",
    )
    progress_timeout: Annotated[Duration, Between("1s", "8760h")] | None = Field(
        None,
        description="A delivery without a checkpoint or ctx.progress() for this long is ended and counts as failed (progress_timeout). Absent: none.",
    )
    max_deliveries: int = Field(
        5, ge=1, le=100, description="Deliveries that may fail or expire before the task becomes a dead letter."
    )
    max_hand_backs: int = Field(
        20,
        ge=1,
        le=10_000,
        description="Times that a task may be handed back by draining workers before that costs a delivery.",
    )
    max_snoozes: int = Field(
        100, ge=1, le=32_766, description="Times that a task may put itself off before it becomes a dead letter."
    )
    task_types: tuple[TaskType, ...] = Field(
        (),
        max_length=100,
        description="Types that submit accepts; others are refused with unknown_type. Absent or empty: any.",
    )
    paused_task_types: tuple[TaskType, ...] = Field(
        (),
        max_length=100,
        description="Types of which nothing is claimed; what runs goes on, and submit accepts them. Absent or empty: none.",
    )
    suspended_tenants: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        (),
        max_length=1000,
        description="Tenants of which nothing is claimed; what runs goes on, and submit refuses theirs with tenant_suspended. "
        "Absent or empty: none.",
    )
    ordering: Ordering = Field(
        Ordering.BLOCK,
        description="What a dead letter with an ordering key does to later tasks of its key. Block: they wait until it is requeued or discarded. Skip: they go on.",
    )
    wake_up: WakeUp = Field(
        WakeUp.NOTIFY,
        description="Notify: workers are woken when a task is submitted. Poll: they look on their own, and submit stays free of NOTIFY.",
    )
    backoff: Backoff = Field(Backoff(), description="When a failed task is tried again.")
    priority: Priority = Field(Priority(), description="Which of a tenant's tasks goes first.")
    admission: Admission = Field(Admission(), description="What submit accepts.")
    concurrency: Concurrency = Field(Concurrency(), description="How many tasks of the queue run at once.")
    checkpoint: Checkpoint = Field(Checkpoint(), description="Bounds on checkpoints.")
    retention: Retention = Field(Retention(), description="How long what has ended is kept.")
    dead_letter: DeadLetter = Field(
        DeadLetter(), description="Who hears of tasks on which automatic recovery has stopped."
    )
    retry_share_percent: int = Field(
        20,
        ge=1,
        le=100,
        description="Most of the claims that go to tasks that have failed or expired before, while others are ready. 100: no difference is made.",
    )
    paused: StrictBool = Field(
        default=False,
        description="True: submit refuses with queue_paused and nothing is claimed; what runs goes on.",
    )

    def to_store(self) -> dict[str, Any]:
        """The policy as `apply_policy` takes it: snake_case keys, seconds and bytes."""
        elapsed = self.backoff.max_elapsed
        return {
            "visibility_timeout_seconds": self.visibility_timeout.total_seconds(),
            **{
                f"{name}_seconds": None if (limit := getattr(self, name)) is None else limit.total_seconds()
                for name in ("max_age", "max_run_time", "max_tenure", "progress_timeout")
            },
            "max_deliveries": self.max_deliveries,
            "max_hand_backs": self.max_hand_backs,
            "max_snoozes": self.max_snoozes,
            "task_types": list(self.task_types),
            "paused_task_types": list(self.paused_task_types),
            "suspended_tenants": list(self.suspended_tenants),
            "ordering": self.ordering.lower(),
            "wake_up": self.wake_up.lower(),
            "backoff_initial_seconds": self.backoff.initial.total_seconds(),
            "backoff_max_seconds": self.backoff.max.total_seconds(),
            "backoff_factor_percent": self.backoff.factor_percent,
            "backoff_max_elapsed_seconds": None if elapsed is None else elapsed.total_seconds(),
            "priority_min": self.priority.min,
            "priority_max": self.priority.max,
            "priority_default": self.priority.default,
            "priority_age_seconds": self.priority.age_every.total_seconds(),
            "max_payload_bytes": self.admission.max_payload_size,
            "max_waiting": self.admission.max_waiting,
            "max_waiting_per_tenant": self.admission.max_waiting_per_tenant,
            "concurrency_max": self.concurrency.max,
            "retry_share_percent": self.retry_share_percent,
            "per_tenant_max": self.concurrency.per_tenant,
            "tenants": [
                {"name": t.name, "max_running": t.max, "weight": t.weight, "max_waiting": t.max_waiting}
                for t in self.concurrency.tenants
            ],
            "checkpoint_max_bytes": self.checkpoint.max_size,
            "checkpoint_max_per_second": self.checkpoint.max_per_second,
            **{
                f"retention_{name}_seconds": getattr(self.retention, name).total_seconds()
                for name in Retention.model_fields
            },
            "dead_letter_owner": self.dead_letter.owner,
            "dead_letter_runbook": self.dead_letter.runbook_url,
            "paused": self.paused,
        }


def read_policy(spec: Mapping[str, Any], *, what: str) -> QueuePolicy:
    """Read a TaskQueue's spec (or the same without Kubernetes); `what` names it in the error: 'queue "agents" in file q.yaml'."""
    policy = {key: value for key, value in spec.items() if key not in NOT_POLICY}
    if isinstance(letter := policy.get("deadLetter"), Mapping):
        policy["deadLetter"] = {key: value for key, value in letter.items() if key not in NOT_OF_LETTERS}
    try:
        return QueuePolicy.model_validate(policy)
    except ValidationError as error:
        faults = "; ".join(fault(e["loc"], e["msg"]) for e in error.errors())
        message = f"{what}: {faults}"
        raise PolicyError(message) from error


def fault(where: tuple[int | str, ...], message: str) -> str:
    """One fault of a validation as "spec.backoff.max: …"."""
    path = "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    text = message.removeprefix("Value error, ")
    if text == "Extra inputs are not permitted":
        text = "there is no such field; check its spelling or remove it"
    return f"{path}: {text}"
