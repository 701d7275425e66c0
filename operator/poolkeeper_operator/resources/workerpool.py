"""WorkerPool: workers of one image that serve some queues, and how many there are.

Guarantees: only fields that take effect; the names of children fit because the pool's own name is bounded.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from poolkeeper.policy import TaskType
from poolkeeper.policy_parts import rule
from poolkeeper_operator.decide.quota import Use
from poolkeeper_operator.decide.signals import Mode, ScalingPolicy
from poolkeeper_operator.decide.tenants import Tenants
from poolkeeper_operator.decide.windows import MEASURES
from poolkeeper_operator.resources.parts import (
    Conditions,
    Model,
    Name,
    NameRef,
    ObjectName,
    Peers,
    StatusModel,
    map_list,
)
from poolkeeper_operator.resources.placement import Placement
from poolkeeper_operator.resources.podtemplate import PodTemplate
from poolkeeper_operator.resources.scaling import Disruption, Drain, Rollout, Scaling, ScalingMode, tick_stale_after

APP_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"


class QuotaRef(Model):
    """A ProviderQuota, in this namespace or in one whose quota allows it."""

    name: Name = Field(description="Its name.")
    namespace: Name | None = Field(None, description="Its namespace. Absent: the pool's own.")


class PerTask(Model):
    """What one running task uses."""

    concurrent_calls: int = Field(ge=1, le=10_000, description="Calls that one task may have in flight at once.")
    requests: int | None = Field(
        None,
        ge=1,
        le=999_999_999,
        description="Requests that one task may make in one delivery. Absent: not said; a quota with limits.requests lets no task start.",
    )
    tokens: int | None = Field(
        None,
        ge=1,
        le=999_999_999,
        description="Tokens that one task may use in one delivery. Absent: not said; a quota with limits.tokens lets no task start.",
    )


class Provider(Model):
    """An upstream that the pool's tasks call."""

    name: Name = Field(description="The name that handlers know it by.")
    quota_ref: QuotaRef = Field(description="The quota that bounds its use. While it is missing, no task starts.")
    per_task: PerTask = Field(description="What one running task uses.")


class NetworkPolicy(StrEnum):
    """Whether the pods get a network policy."""

    ENFORCED = "Enforced"
    NONE = "None"


class Isolation(Model):
    """What the pods run as, and what they may reach."""

    service_account_name: ObjectName | None = Field(
        None,
        description="A service account of yours. Absent: one of the pool's own, without any right and without a token.",
    )
    network_policy: NetworkPolicy = Field(
        NetworkPolicy.ENFORCED,
        description="Enforced: a NetworkPolicy lets nothing in but probes and metrics, and out to egress, DNS, and the networkPeers of Database and quotas once all of them are given. Your network plugin must enforce policies. None: no NetworkPolicy.",
    )
    egress: Peers = Field((), description="What else the pods may reach.")
    runtime_class_name: ObjectName | None = Field(
        None,
        description="A RuntimeClass of the cluster, such as a sandbox, to run the pods in. Absent: the cluster's default.",
    )
    placement: Placement = Field(Placement(), description="On which nodes the pods may run.")


TenantName = Annotated[str, Field(min_length=1, max_length=200)]


class TenantsServed(Model):
    """Whose tasks the pool takes."""

    model_config = ConfigDict(
        json_schema_extra=rule(
            "!(has(self.only) && has(self.except))", "tenants: set at most one of only and except; remove the other"
        )
    )

    only: tuple[TenantName, ...] = Field(
        (), max_length=100, description="Tasks of these tenants and of no others. Absent or empty: of all."
    )
    but: tuple[TenantName, ...] = Field(
        (), alias="except", max_length=100, description="Tasks of all tenants but these. Absent or empty: of all."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if {"only", "but"} <= self.model_fields_set:
            message = "tenants: set at most one of only and except; remove the other"
            raise ValueError(message)
        return self


class WorkerPoolSpec(Model):
    """Workers of one image that serve some queues."""

    queues: tuple[NameRef, ...] = Field(
        min_length=1,
        max_length=20,
        description="Queues of this namespace that the pool serves; all on one Database.",
        json_schema_extra=map_list("name"),
    )
    task_types: tuple[TaskType, ...] = Field(
        (), max_length=100, description="Task types that the pool takes. Absent or empty: all that the app registers."
    )
    tenants: TenantsServed = Field(
        TenantsServed(), description="Whose tasks the pool takes; of others it is offered nothing."
    )
    app: str = Field(
        min_length=3,
        max_length=500,
        pattern=APP_PATTERN,
        description="The application, as module:attribute for `poolkeeper worker`.",
    )
    concurrency: int = Field(10, ge=1, le=1000, description="Tasks that one pod runs at once.")
    max_running: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Most tasks that all pods together run at once, exact at the claim, draining pods included. Absent: no such bound.",
    )
    replicas: int | None = Field(
        None,
        ge=0,
        le=100_000,
        description="What the scale subresource reads and writes. Obeyed in scaling.mode External only; elsewhere the operator gives it a first value, so that the subresource answers, and scaling decides.",
    )
    template: PodTemplate = Field(description="What the pods run.")
    scaling: Scaling = Field(Scaling(), description="How large the pool may be, and what for.")
    providers: tuple[Provider, ...] = Field(
        (), max_length=20, description="Upstreams that the pool's tasks call.", json_schema_extra=map_list("name")
    )
    drain: Drain = Field(Drain(), description="How long a pod may take to finish its tasks when it goes.")
    isolation: Isolation = Field(Isolation(), description="What the pods run as, and what they may reach.")
    disruption: Disruption = Field(Disruption(), description="What evictions may take at once.")
    rollout: Rollout = Field(Rollout(), description="How a new template replaces the old one.")

    def scaling_policy(self, tick: timedelta, asked: int | None = None) -> ScalingPolicy:
        """For the decision; `tick` is the Database's tickInterval, `asked` what another scaler asks for (mode External)."""
        return ScalingPolicy(
            mode=Mode(self.scaling.mode.value),
            asked=asked,
            minimum=self.scaling.min,
            maximum=self.scaling.max,
            concurrency=self.concurrency,
            max_running=self.max_running,
            target_age=self.scaling.target_age,
            up=self.scaling.up.policy(),
            down=self.scaling.down.policy(),
            to_zero_after=self.scaling.to_zero_after,
            tick=tick,
            stale_after=tick_stale_after(tick),
        )

    def bound_on_running(self) -> int | None:
        """Tasks that it may run at once by its own spec: none in HoldAndDrain; None for no bound."""
        return 0 if self.scaling.mode is ScalingMode.HOLD_AND_DRAIN else self.max_running

    def takes(self) -> Tenants:
        """Its tenants, for what pulls it."""
        return Tenants(self.tenants.only or None, self.tenants.but)

    def uses(self, namespace: str) -> tuple[Use, ...]:
        """Its providers for the division of quotas; `namespace` is the pool's."""
        return tuple(
            Use(
                provider=p.name,
                quota=f"{p.quota_ref.namespace or namespace}/{p.quota_ref.name}",
                calls_per_task=p.per_task.concurrent_calls,
                needs={m: n for m in MEASURES if (n := getattr(p.per_task, m)) is not None},
            )
            for p in self.providers
        )


class Wanted(StatusModel):
    """The last decision in numbers (pods)."""

    replicas: int = Field(description="What the work asks for; in mode External, what another scaler does.")
    limited: int | None = Field(None, description="What limits leave of it.")
    limited_by: str | None = Field(
        None, max_length=64, description="None, Maximum, MaxRunning, ProviderQuota, Connections or PodsCannotStart."
    )
    applied: int = Field(description="What was written to the Deployment.")
    rate_limited_by: str | None = Field(
        None, max_length=64, description="None, UpWindow, UpStep, DownWindow, DownStep, Rollout, Closing or BusyPods."
    )


class DecisionLine(StatusModel):
    """One change of size."""

    time: str = Field(max_length=64, description="When.", json_schema_extra={"format": "date-time"})
    wanted: int = Field(description="What the work asked for.")
    limited: int = Field(description="What limits left of it.")
    goal: int | None = Field(None, description="What windows and steps left of it.")
    applied: int = Field(description="What was written.")
    reason: str | None = Field(None, max_length=64, description="Why it was wanted.")
    sentence: str = Field(max_length=1024, description="The whole in one sentence.")


class GraceStatus(StatusModel):
    """The grace period and what it was made from."""

    applied: str = Field(max_length=32, description="In the template now.")
    needed: str = Field(max_length=32, description="What drains need, before steps and bounds.")
    samples: int = Field(description="Measured drains.")
    censored: int = Field(description="Of these, cut short: they needed longer than was measured.")
    reason: str | None = Field(
        None, max_length=64, description="NoSamples, FewSamples, Measured, CutShort, MinGrace, MaxGrace or Lowering."
    )


class WorkerPoolStatus(StatusModel):
    """What the pool is and why."""

    observed_generation: int | None = Field(None, description="The generation that this status is about.")
    selector: str | None = Field(
        None, max_length=512, description="Label selector of the pods, for the scale subresource."
    )
    replicas: int | None = Field(None, description="Pods that exist.")
    ready_replicas: int | None = Field(None, description="Pods that are ready.")
    mode: str | None = Field(
        None, max_length=16, description="The scaling.mode that is in force; External, once the size was handed over."
    )
    busy_slots: int | None = Field(None, description="Slots in use.")
    wanted: Wanted | None = Field(None, description="The last decision in numbers.")
    decisions: tuple[DecisionLine, ...] = Field(
        (), max_length=10, description="The last changes of size, newest first."
    )
    grace: GraceStatus | None = Field(None, description="The grace period and what it was made from.")
    conditions: Conditions = ()
