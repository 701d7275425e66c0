"""How fast a pool takes the size that it may have.

Guarantees: a window takes a cautious size of its whole length, and does not shrink a pool that it has not watched for so long; a
step bounds the change within a period; a rollout is never made to shrink. A maximum that was lowered, or a
provider that was closed, needs no window.
"""

from datetime import datetime

from poolkeeper_operator.decide.decision import Chain
from poolkeeper_operator.decide.history import STEP_PERIOD, History
from poolkeeper_operator.decide.reasons import LimitedBy, RateLimitedBy, Want
from poolkeeper_operator.decide.signals import ScalingPolicy, Signals, StepPolicy

LITTLE = 6
"""Shrinking by less than the sixth part spares little."""


def pace(chain: Chain, policy: ScalingPolicy, signals: Signals, history: History, now: datetime) -> RateLimitedBy:
    """Windows and steps between the present size and the limited one."""
    if chain.pods > signals.replicas:
        return _slow_up(chain, policy.up, signals.replicas, history, now)
    if chain.pods < signals.replicas:
        if signals.rolling:
            chain.to(
                signals.replicas, RateLimitedBy.ROLLOUT, "a rollout is under way: the size is not lowered meanwhile"
            )
            return RateLimitedBy.ROLLOUT
        return _slow_down(chain, policy, signals, history, now)
    return RateLimitedBy.NONE


def obey(chain: Chain, policy: ScalingPolicy, signals: Signals, history: History, now: datetime) -> RateLimitedBy:
    """What another scaler asks for is taken at once: it has windows of its own. A cap that moves with others' demand keeps ours."""
    if chain.pods >= signals.replicas:
        return RateLimitedBy.NONE
    asked = signals.replicas if policy.asked is None else max(policy.asked, policy.minimum)
    at_once = min(signals.replicas, asked, ceiling(policy, signals))
    if not signals.rolling and chain.pods == at_once:
        return RateLimitedBy.NONE
    by = pace(chain, policy, signals, history, now)
    if not signals.rolling and chain.pods > at_once:
        chain.to(at_once, Want.EXTERNAL, f"no more than {at_once} are asked for")
    return by


def _slow_up(chain: Chain, up: StepPolicy, replicas: int, history: History, now: datetime) -> RateLimitedBy:
    by = RateLimitedBy.NONE
    if up.window:
        since = now - up.window
        watched = history.watched_since is not None and history.watched_since <= since
        steady = history.lowest_recommended(since, chain.pods) if watched else replicas
        if max(steady, replicas) < chain.pods:
            by = RateLimitedBy.UP_WINDOW
            chain.to(
                max(steady, replicas), by, f"not more was wanted throughout up.window {up.window.total_seconds():.0f} s"
            )
    step = _step(up, base := history.lowest_size(now - STEP_PERIOD, replicas))
    if step is not None and chain.pods > (most := max(replicas, base + step)):
        by = RateLimitedBy.UP_STEP
        chain.to(most, by, f"scaling.up allows {step} more than {base} within {STEP_PERIOD.total_seconds():.0f} s")
    return by


def _slow_down(chain: Chain, policy: ScalingPolicy, signals: Signals, history: History, now: datetime) -> RateLimitedBy:
    by, down, replicas = RateLimitedBy.NONE, policy.down, signals.replicas
    since = now - down.window
    # A bound that the user lowers, or a provider that is closed, counts at once: what was recommended before is cut to it.
    most = ceiling(policy, signals)
    steady = min(_enough(chain.pods, policy, signals, history, now), most)
    if down.window and (history.watched_since is None or history.watched_since > since):
        steady = min(replicas, most)  # not watched for a whole window yet
    steady = min(max(steady, chain.pods), replicas)
    if steady > chain.pods:
        by = RateLimitedBy.DOWN_WINDOW
        chain.to(steady, by, f"more was wanted, or not watched, within down.window {down.window.total_seconds():.0f} s")
    step = _step(down, base := history.highest_size(now - STEP_PERIOD, replicas))
    if step is not None and chain.pods < (least := min(replicas, base - step)):
        by = RateLimitedBy.DOWN_STEP
        chain.to(least, by, f"scaling.down allows {step} less than {base} within {STEP_PERIOD.total_seconds():.0f} s")
    return by


def _enough(wanted: int, policy: ScalingPolicy, signals: Signals, history: History, now: datetime) -> int:
    """The size that `down.window` keeps: what was enough for most of it, where new pods would still come in time for what was not foreseen.

    The most that was wanted in all of it, where they would not, and where less would spare little: such changes follow chance alone.
    """
    since = now - policy.down.window
    usual, highest = max(wanted, history.usual_recommended(since, now)), history.highest_recommended(since, wanted)
    in_time = signals.start_up + policy.tick + policy.up.window <= policy.target_age
    spares_little = (signals.replicas - usual) * LITTLE < signals.replicas
    return highest if spares_little or not in_time else usual


def ceiling(policy: ScalingPolicy, signals: Signals) -> int:
    """The size that no window may keep up, `minimum` excepted.

    An open provider's share is not in it: it moves with the other pools' demand, pods beyond it start nothing that the store does not
    grant, and following it at once would make pools flap.
    """
    slots = [cap.slots for cap in signals.caps if cap.slots == 0 and cap.reason is not LimitedBy.CONNECTIONS]
    if policy.max_running is not None:
        slots.append(policy.max_running)
    return max(policy.minimum, min([policy.maximum, *(pods_for(s, policy) for s in slots)]))


def _step(step: StepPolicy, base: int) -> int | None:
    """The larger of the two bounds, at least 1; None: no bound."""
    sizes = [
        s
        for s in (step.max_step_pods, step.max_step_percent and max(base, 1) * step.max_step_percent // 100)
        if s is not None
    ]
    return max(1, *sizes) if sizes else None


def pods_for(slots: int, policy: ScalingPolicy) -> int:
    """The pods that can use so many slots."""
    return -(-slots // policy.concurrency)
