"""What a policy is made of: its groups of fields, each with its bounds, and the form in which all of them are written.

Guarantees: a misspelt field is refused; what depends on two fields is said here and, as a rule, to the API server as well.
"""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from poolkeeper.durations import Between, Duration, Size, parse_duration, parse_size


class PolicyModel(BaseModel):
    """Frozen, camelCase outside, and strict about names: a misspelt limit must not mean "no limit"."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules on a whole object, each with its message, for `ConfigDict(json_schema_extra=…)`."""
    return {"x-kubernetes-validations": [{"rule": cel, "message": message} for cel, message in pairs]}


def rule(cel: str, message: str) -> dict[str, Any]:
    """One CEL rule on a whole object."""
    return rules((cel, message))


class Backoff(PolicyModel):
    """When a failed task is tried again: full jitter below initial times factor to the power of failures, never above max."""

    model_config = ConfigDict(
        json_schema_extra=rule(
            "duration(has(self.initial) ? self.initial : '1s') <= duration(has(self.max) ? self.max : '10m')",
            "backoff.initial must not be longer than backoff.max; lower initial or raise max (defaults 1s and 10m)",
        )
    )

    initial: Annotated[Duration, Between("1ms", "24h")] = Field(
        parse_duration("1s"), description="Upper bound of the delay after the first failure."
    )
    max: Annotated[Duration, Between("1ms", "168h")] = Field(
        parse_duration("10m"), description="Upper bound of every delay."
    )
    factor_percent: int = Field(
        200, ge=100, le=1000, description="Growth of the delay per failure, in percent; 200 doubles it."
    )
    max_elapsed: Annotated[Duration, Between("1s", "8760h")] | None = Field(
        None,
        description="A task that fails later than this after its submission becomes a dead letter. Absent: no such bound.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.initial > self.max:
            message = "backoff.initial must not be longer than backoff.max; lower initial or raise max"
            raise ValueError(message)
        return self


class Priority(PolicyModel):
    """Which of a tenant's tasks goes first: the higher number."""

    model_config = ConfigDict(
        json_schema_extra=rule(
            "(has(self.min) ? self.min : 0) <= (has(self.default) ? self.default : 4) "
            "&& (has(self.default) ? self.default : 4) <= (has(self.max) ? self.max : 9)",
            "priority must satisfy min <= default <= max; set all three (defaults 0, 4 and 9)",
        )
    )

    min: int = Field(0, ge=0, le=100, description="The lowest priority that a task may ask for.")
    max: int = Field(9, ge=0, le=100, description="The highest priority that a task may ask for.")
    default: int = Field(4, ge=0, le=100, description="Priority of a task that asks for none.")
    age_every: Annotated[Duration, Between("1s", "168h")] = Field(
        parse_duration("5m"),
        description="A waiting task rises by one step per this time, so that the lowest priority still runs.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min <= self.default <= self.max:
            message = "priority must satisfy min <= default <= max; set all three"
            raise ValueError(message)
        return self


class Admission(PolicyModel):
    """What submit accepts."""

    max_payload_size: Annotated[Size, Between("1", "8Mi")] = Field(
        parse_size("64Ki"), description="Largest payload; a larger one is refused with payload_too_large."
    )
    max_waiting: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Most tasks that wait (ready, scheduled or waiting); beyond it submit refuses with queue_limit. Above 1000 it is "
        "read from a count of the last second, and passed by about what is submitted in that time. Absent: no such bound.",
    )
    max_waiting_per_tenant: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="The same for each tenant; beyond it submit refuses with tenant_queue_limit. Absent: no such bound.",
    )


class TenantLimits(PolicyModel):
    """What one tenant of the queue may have, in place of what all may have."""

    name: str = Field(min_length=1, max_length=200, description="The tenant, as its tasks name it.")
    max: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Most of its tasks that run at once, exact at the claim. Absent: perTenant.",
    )
    weight: int = Field(
        1,
        ge=1,
        le=1000,
        description="Its share of the claims while others have work too: in each round over the tenants it gets so many tasks.",
    )
    max_waiting: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Most of its tasks that wait. Absent: admission.maxWaitingPerTenant.",
    )


class Concurrency(PolicyModel):
    """How many tasks of the queue run at once, in all pools together."""

    max: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Most tasks of this queue that run at once, exact at the claim. Absent: no such bound.",
    )
    per_tenant: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Most tasks of one tenant that run at once, exact at the claim. Absent: no such bound.",
    )
    tenants: Annotated[
        tuple[TenantLimits, ...],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field((), max_length=1000, description="Tenants with bounds of their own.")

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [t.name for t in self.tenants]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            message = f'concurrency.tenants names "{twice}" twice; keep one of them'
            raise ValueError(message)
        return self


class Checkpoint(PolicyModel):
    """Bounds on checkpoints."""

    max_size: Annotated[Size, Between("1", "1Mi")] = Field(
        parse_size("64Ki"),
        description="Largest checkpoint; a larger one is refused with checkpoint_too_large and the previous one stays.",
    )
    max_per_second: int = Field(
        10,
        ge=1,
        le=1000,
        description="Checkpoints per second and task that are written; beyond it the newest is kept until it may be written.",
    )


_KEPT = {"payload": "168h", "result": "168h", "checkpoint": "24h", "events": "720h", "dead_letters": "2160h"}
_KEYS = "2160h"


class Retention(PolicyModel):
    """How long what has ended is kept. Nothing goes that has not ended, whatever its age."""

    model_config = ConfigDict(
        json_schema_extra=rule(
            " && ".join(
                f"duration(has(self.keys) ? self.keys : '{_KEYS}') >= duration(has(self.{to_camel(name)}) ? self.{to_camel(name)} : '{default}')"
                for name, default in _KEPT.items()
            ),
            "retention.keys must not be shorter than any other retention, or a repeated submit would make a second task; raise keys "
            f"(default {_KEYS}) or lower the others",
        )
    )

    payload: Annotated[Duration, Between("1h", "87600h")] = Field(
        parse_duration(_KEPT["payload"]), description="The payload is emptied this long after the task's end."
    )
    result: Annotated[Duration, Between("1h", "87600h")] = Field(
        parse_duration(_KEPT["result"]), description="The result is emptied this long after the task's end."
    )
    checkpoint: Annotated[Duration, Between("1h", "87600h")] = Field(
        parse_duration(_KEPT["checkpoint"]),
        description="The checkpoint of a dead letter is removed this long after its death; requeued later, the task begins anew.",
    )
    events: Annotated[Duration, Between("1h", "87600h")] = Field(
        parse_duration(_KEPT["events"]),
        description="The task and its whole history are removed this long after its end.",
    )
    dead_letters: Annotated[Duration, Between("1h", "87600h")] = Field(
        parse_duration(_KEPT["dead_letters"]),
        description="A dead letter that nobody requeued or discarded is discarded this long after its death.",
    )
    keys: Annotated[Duration, Between("1h", "87600h")] = Field(
        parse_duration(_KEYS),
        description="An idempotency key is free again this long after the end of its task. Not shorter than any other retention.",
    )

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        longer = [to_camel(name) for name in _KEPT if getattr(self, name) > self.keys]
        if longer:
            message = f"retention.keys must not be shorter than retention.{longer[0]}; raise keys or lower {longer[0]}"
            raise ValueError(message)
        return self


class DeadLetter(PolicyModel):
    """Who hears of a task on which automatic recovery has stopped."""

    owner: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="Who looks after dead letters of this queue; without it the queue is not Ready (NoOwner).",
    )
    runbook_url: str | None = Field(
        None,
        alias="runbookURL",
        min_length=1,
        max_length=2000,
        pattern="^https?://",
        description="What to do about one; shown with each dead letter. Without it the queue is not Ready (NoOwner).",
    )
