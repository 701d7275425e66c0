"""ProviderQuota: what an upstream allows, and who may use how much of it.

Guarantees (O4): there is no way to write "unlimited"; nothing less than one is accepted; to stop a provider there is `suspended`.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, StrictBool, model_validator

from poolkeeper.durations import Between, Duration
from poolkeeper.policy_parts import rule
from poolkeeper_operator.decide.windows import MEASURES, Window
from poolkeeper_operator.resources.parts import (
    Conditions,
    Model,
    Name,
    NameRef,
    Peers,
    PoolName,
    Rule,
    StatusModel,
    map_list,
)

DATABASE_RULE = "limits per window are granted in one database; name it in databaseRef"
SELECTOR_RULE = "allowedNamespaces.selector goes with from: Selector, and only with it; add the selector or change from"


class PerWindow(Model):
    """So many in any interval of one length."""

    limit: Annotated[
        int,
        Field(le=999_999_999_999),
        Rule("self >= 1", "must be at least 1; to stop a provider set suspended: true", lambda limit: limit >= 1),
    ] = Field(description="The most in any such interval.")
    window: Annotated[Duration, Between("1s", "24h")] = Field(
        description="The length of the interval, on the database's clock; counted for at most five percent longer."
    )


class Limits(Model):
    """What the provider allows to all its users together."""

    concurrent_calls: Annotated[
        int,
        Field(le=1_000_000),
        Rule("self >= 1", "must be at least 1; to stop a provider set suspended: true", lambda calls: calls >= 1),
    ] = Field(description="Calls in flight at once.")
    requests: PerWindow | None = Field(
        None, description="Requests per window, granted with perTask.requests. Absent: not bounded."
    )
    tokens: PerWindow | None = Field(
        None, description="Tokens per window, granted with perTask.tokens. Absent: not bounded."
    )


class From(StrEnum):
    """Which namespaces may refer to the quota."""

    SAME = "Same"
    ALL = "All"
    SELECTOR = "Selector"


class NamespaceSelector(Model):
    """Namespaces by their labels."""

    match_labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(min_length=1, max_length=20)] = (
        Field(description="All of these labels must be on the namespace.")
    )


class AllowedNamespaces(Model):
    """Whose pools may use the quota."""

    model_config = ConfigDict(
        json_schema_extra=rule("has(self.selector) == (has(self.from) && self.from == 'Selector')", SELECTOR_RULE)
    )

    from_: From = Field(
        From.SAME, alias="from", description="Same: this namespace. All: every one. Selector: those that match."
    )
    selector: NamespaceSelector | None = Field(None, description="Namespaces by their labels, with from: Selector.")

    @model_validator(mode="after")
    def _selector_with_from(self) -> Self:
        if (self.selector is not None) != (self.from_ is From.SELECTOR):
            raise ValueError(SELECTOR_RULE)
        return self


class PoolShare(Model):
    """The weight of one pool."""

    namespace: Name = Field(description="The pool's namespace.")
    name: PoolName = Field(description="The pool's name.")
    weight: int = Field(1, ge=1, le=1000, description="Its weight against the others; a pool that is not listed has 1.")


class Shares(Model):
    """How the quota is divided when there is not enough for all."""

    pools: tuple[PoolShare, ...] = Field(
        (), max_length=200, description="Weights of pools.", json_schema_extra=map_list("namespace", "name")
    )


class Adaptive(Model):
    """How the quota follows what workers report: what the provider refuses lowers it at once, time raises it again."""

    cut_percent: int = Field(
        50, ge=1, le=99, description="Percent of what is in force that a refusal (429) takes away; 50 halves it."
    )
    floor_percent: int = Field(10, ge=1, le=100, description="Percent of the whole below which it is never cut.")
    recover_percent_per_minute: int = Field(
        5, ge=1, le=100, description="Percent of the whole that come back in a minute without a refusal."
    )


class ProviderQuotaSpec(Model):
    """What a provider allows."""

    model_config = ConfigDict(
        json_schema_extra=rule(
            "has(self.databaseRef) || !(has(self.limits.requests) || has(self.limits.tokens))", DATABASE_RULE
        )
    )

    database_ref: NameRef | None = Field(
        None,
        description="The Database of this namespace in which limits per window are granted; pools that use the quota are on the same "
        "installation. Needed with limits.requests or limits.tokens.",
    )
    limits: Limits = Field(description="What the provider allows to all its users together.")
    suspended: StrictBool = Field(
        default=False, description="True: no pool starts a task that uses the provider; what runs goes on."
    )
    reserve_percent: int = Field(
        5,
        ge=0,
        le=90,
        description="Percent of the limit, rounded down, that is never given to pools: for users that are none.",
    )
    adaptive: Adaptive = Field(
        Adaptive(), description="How it follows what workers report by ctx.report_provider. Absent: by the defaults."
    )
    allowed_namespaces: AllowedNamespaces = Field(
        AllowedNamespaces(), description="Whose pools may use it. Absent: this namespace's."
    )
    shares: Shares = Field(Shares(), description="How it is divided when there is not enough for all.")
    network_peers: Peers = Field(
        (),
        description="Where the provider is, for the network policies of the pools that use it. Absent or empty: their egress is not restricted.",
    )

    @model_validator(mode="after")
    def _database_of_windows(self) -> Self:
        if self.database_ref is None and (self.limits.requests is not None or self.limits.tokens is not None):
            raise ValueError(DATABASE_RULE)
        return self

    def windows(self) -> dict[str, Window]:
        """What is granted per window, by measure: the limits less the reserve, rounded down."""
        found = {measure: getattr(self.limits, measure) for measure in MEASURES}
        return {
            measure: Window(limit=one.limit - one.limit * self.reserve_percent // 100, width=one.window)
            for measure, one in found.items()
            if one is not None
        }

    def to_divide(self) -> int:
        """Concurrent calls for pools: the limit less the reserve."""
        return self.limits.concurrent_calls - self.limits.concurrent_calls * self.reserve_percent // 100


class Calls(StatusModel):
    """A number of calls."""

    concurrent_calls: int = Field(description="Calls in flight at once.")


class EffectiveCalls(StatusModel):
    """What is divided now."""

    concurrent_calls: int = Field(description="Calls in flight at once.")
    requests: int | None = Field(None, description="Requests in any interval as long as its window.")
    tokens: int | None = Field(None, description="Tokens in any interval as long as its window.")
    reason: str | None = Field(None, max_length=1024, description="Why it is less than the limit, if it is.")


class GrantedPool(StatusModel):
    """What one pool has of it."""

    namespace: str = Field(max_length=63, description="The pool's namespace.")
    name: str = Field(max_length=63, description="The pool's name.")
    share: Calls = Field(description="Its share.")


class ProviderQuotaStatus(StatusModel):
    """Who has how much of it."""

    observed_generation: int | None = Field(None, description="The generation that this status is about.")
    effective: EffectiveCalls | None = Field(None, description="What is divided now.")
    used: Calls | None = Field(None, description="What running tasks declare to use, by their pools' perTask.")
    pools: tuple[GrantedPool, ...] = Field(
        (), max_length=1000, description="Shares of the pools.", json_schema_extra=map_list("namespace", "name")
    )
    conditions: Conditions = ()
