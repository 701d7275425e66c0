"""The parts of a WorkerPool that say how large it may be and how its pods go.

Guarantees: every bound has its reason in the message that refuses it; the same values as frozen inputs for `decide/`.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from poolkeeper.durations import Between, Duration, parse_duration
from poolkeeper.policy_parts import rule, rules
from poolkeeper_operator.decide.grace import GracePolicy
from poolkeeper_operator.decide.signals import StepPolicy
from poolkeeper_operator.resources.parts import IntOrPercent, Model, Rule, is_zero

NO_TIME = "drain.maxGrace must be longer than preStop and handBackMargin together, or no task could ever finish; raise maxGrace"
_MAX_GRACE = "duration(has(self.maxGrace) ? self.maxGrace : '30m')"
_AROUND = "duration(has(self.preStop) ? self.preStop : '0s') + duration(has(self.handBackMargin) ? self.handBackMargin : '5s')"
MIN_OVER_MAX = "scaling.min must not be greater than scaling.max; lower min or raise max (defaults 0 and 10)"
GRACE_BOUNDS = (
    "drain.minGrace must not be longer than drain.maxGrace; lower minGrace or raise maxGrace (defaults 30s and 30m)"
)
NO_ROLLOUT = (
    "maxSurge and maxUnavailable cannot both be 0, for then no rollout could move; raise one (defaults 1 and 0)"
)
NO_DRAIN = "must be at least 1 (or 1%); 0 would block every node drain"


class ScalingMode(StrEnum):
    """Who decides on the size."""

    AUTO = "Auto"
    HOLD = "Hold"
    HOLD_AND_DRAIN = "HoldAndDrain"
    EXTERNAL = "External"


class Up(Model):
    """How fast a pool may grow."""

    window: Annotated[Duration, Between("0s", "1h")] = Field(
        parse_duration("0s"), description="Grow only to what was wanted throughout this time; 0s is at once."
    )
    max_step_percent: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Grow by at most this share of its size within 15 seconds. With maxStepPods, the larger of both counts. Both absent: no bound.",
    )
    max_step_pods: int | None = Field(
        None, ge=1, le=10_000, description="Grow by at most so many pods within 15 seconds, from zero too."
    )

    def policy(self) -> StepPolicy:
        """For the decision."""
        return StepPolicy(window=self.window, max_step_percent=self.max_step_percent, max_step_pods=self.max_step_pods)


class Down(Model):
    """How fast a pool may shrink."""

    window: Annotated[Duration, Between("0s", "1h")] = Field(
        parse_duration("2m"),
        description="Shrink to what was enough for three fifths of this time; to the most that was wanted within it where new pods would come too late.",
    )
    max_step_percent: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Shrink by at most this share of its size within 15 seconds. With maxStepPods, the larger of both counts. Both absent: 25 percent or 10 pods.",
    )
    max_step_pods: int | None = Field(
        None, ge=1, le=10_000, description="Shrink by at most so many pods within 15 seconds."
    )

    def policy(self) -> StepPolicy:
        """For the decision, with the defaults."""
        percent, pods = self.max_step_percent, self.max_step_pods
        if percent is None and pods is None:
            percent, pods = 25, 10
        return StepPolicy(window=self.window, max_step_percent=percent, max_step_pods=pods)


class Scaling(Model):
    """How large the pool may be, and what for."""

    model_config = ConfigDict(
        json_schema_extra=rule("(has(self.min) ? self.min : 0) <= (has(self.max) ? self.max : 10)", MIN_OVER_MAX)
    )

    mode: ScalingMode = Field(
        ScalingMode.AUTO,
        description="Auto: the operator decides on the size. Hold: the present size stays. HoldAndDrain: no worker claims anything more, what runs is finished or handed back, the size goes to zero; the condition Drained says when nothing runs. External: another scaler asks for a size through the scale subresource (an HPA, kubectl scale), and gets it within min, max and quotas.",
    )
    min: int = Field(0, ge=0, le=10_000, description="Fewest pods.")
    max: Annotated[
        int,
        Field(le=10_000),
        Rule("self >= 1", "must be at least 1; to stop a pool's work pause its queues", lambda pods: pods >= 1),
    ] = Field(10, description="Most pods.")
    target_age: Annotated[Duration, Between("1s", "24h")] = Field(
        parse_duration("30s"), description="A task that can run should start before it is this old."
    )
    up: Up = Field(Up(), description="How fast the pool may grow.")
    down: Down = Field(Down(), description="How fast the pool may shrink.")
    to_zero_after: Annotated[Duration, Between("0s", "24h")] = Field(
        parse_duration("5m"), description="The last pod goes when nothing was there to do for this time (with min: 0)."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(MIN_OVER_MAX)
        return self


class Drain(Model):
    """How long a pod may take to finish its tasks when it goes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (f"duration(has(self.minGrace) ? self.minGrace : '30s') <= {_MAX_GRACE}", GRACE_BOUNDS),
            (f"{_MAX_GRACE} > {_AROUND}", NO_TIME),
        )
    )

    min_grace: Annotated[Duration, Between("1s", "24h")] = Field(
        parse_duration("30s"), description="The grace period is never shorter."
    )
    max_grace: Annotated[Duration, Between("1s", "24h")] = Field(
        parse_duration("30m"), description="The grace period is never longer; DrainBudgetOK says when drains need more."
    )
    headroom_percent: int = Field(
        150, ge=100, le=1000, description="The grace period as a share of the 99th percentile of measured drains."
    )
    hand_back_margin: Annotated[Duration, Between("1s", "10m")] = Field(
        parse_duration("5s"), description="How long before its end unfinished tasks are handed back to the queue."
    )
    pre_stop: Annotated[Duration, Between("0s", "10m")] = Field(
        parse_duration("0s"), description="Wait this long before the worker is told to stop."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_grace > self.max_grace:
            raise ValueError(GRACE_BOUNDS)
        if self.max_grace <= self.pre_stop + self.hand_back_margin:
            raise ValueError(NO_TIME)
        return self

    def policy(self) -> GracePolicy:
        """For the decision."""
        return GracePolicy(
            minimum=self.min_grace,
            maximum=self.max_grace,
            headroom_percent=self.headroom_percent,
            hand_back_margin=self.hand_back_margin,
            pre_stop=self.pre_stop,
        )


class Disruption(Model):
    """What evictions may take at once (a PodDisruptionBudget)."""

    max_unavailable: Annotated[
        IntOrPercent,
        Rule("type(self) == int ? self >= 1 : self != '0%'", NO_DRAIN, lambda value: not is_zero(value)),
    ] = Field(1, description="Pods, or a share of them in percent, that node drains may evict at once.")


class Rollout(Model):
    """How a new template replaces the old one."""

    model_config = ConfigDict(
        json_schema_extra=rule(
            "!(has(self.maxSurge) && (type(self.maxSurge) == int ? self.maxSurge == 0 : self.maxSurge == '0%') "
            "&& (!has(self.maxUnavailable) "
            "|| (type(self.maxUnavailable) == int ? self.maxUnavailable == 0 : self.maxUnavailable == '0%')))",
            NO_ROLLOUT,
        )
    )

    max_surge: IntOrPercent = Field(1, description="Pods beyond the size during a rollout, as a number or in percent.")
    max_unavailable: IntOrPercent = Field(
        0, description="Pods below the size during a rollout, as a number or in percent."
    )

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if is_zero(self.max_surge) and is_zero(self.max_unavailable):
            raise ValueError(NO_ROLLOUT)
        return self


def tick_stale_after(tick: timedelta) -> timedelta:
    """How old a reading may be before it counts as none: six ticks, at least half a minute."""
    return max(6 * tick, timedelta(seconds=30))
