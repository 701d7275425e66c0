"""How many pods a pool should have.

Guarantees: never raised above the maximum or a cap, but for `minimum`; never lower without a reading; to zero only after
a whole `toZeroAfter` of successful readings of zero. Does not choose which pods go (victims.py) nor divide quotas (quota.py).
"""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from poolkeeper_operator.decide.decision import Chain, Decision, Step
from poolkeeper_operator.decide.history import STEP_PERIOD, History
from poolkeeper_operator.decide.pace import pace, pods_for
from poolkeeper_operator.decide.reasons import LimitedBy, RateLimitedBy, Want
from poolkeeper_operator.decide.signals import Blind, Mode, ScalingPolicy, Signals
from poolkeeper_operator.decide.sizing import is_idle, size


def decide(policy: ScalingPolicy, signals: Signals | Blind, history: History, now: datetime) -> Decision:
    """Decide the size of a pool; a `Blind` reading, or one older than `policy.stale_after`, holds it."""
    if isinstance(signals, Blind):
        return _hold_blind(policy, signals.replicas, signals.cause or "the queues cannot be read", {}, history, now)
    inputs = _inputs(policy, signals)
    if (stale := now - signals.read_at) > policy.stale_after:
        cause = f"the last reading is {stale.total_seconds():.0f} s old"
        return _hold_blind(policy, signals.replicas, cause, inputs, history, now)
    if policy.mode is Mode.HOLD:
        return _hold(policy, signals, inputs, history, now)
    return _decide(policy, signals, inputs, history, now)


def _decide(
    policy: ScalingPolicy, signals: Signals, inputs: dict[str, Any], history: History, now: datetime
) -> Decision:
    chain = Chain(signals.replicas)
    reason = _want(chain, policy, signals, history, now)
    wanted = chain.pods
    limited_by = _limit(chain, policy, signals)
    limited = chain.pods
    rate_limited_by = pace(chain, policy, signals, history, now)
    goal = chain.pods
    if goal < signals.replicas and goal < (working := min(signals.busy_pods, signals.replicas)):
        chain.to(
            working,
            RateLimitedBy.BUSY_PODS,
            f"{working} pods still work; those in excess claim nothing more and go when idle",
        )
        rate_limited_by = RateLimitedBy.BUSY_PODS
    memory = history.extended(
        now=now,
        # The last pod that waits for zero was not asked for by any work; the window must not add to that wait.
        recommended=0 if reason is Want.WAITING_FOR_ZERO else limited,
        applied=goal,
        was=signals.replicas,
        idle=is_idle(signals),
        keep=max(policy.up.window, policy.down.window, STEP_PERIOD),
    )
    return Decision(
        wanted=wanted,
        reason=reason,
        limited=limited,
        limited_by=limited_by,
        goal=goal,
        applied=chain.pods,
        rate_limited_by=rate_limited_by,
        replicas=signals.replicas,
        steps=tuple(chain.steps),
        inputs=inputs,
        sentence=_told(signals.replicas, chain),
        blind=False,
        history=memory,
    )


def _want(chain: Chain, policy: ScalingPolicy, signals: Signals, history: History, now: datetime) -> Want:
    """What the work asks for, the last pod's waiting time and the minimum included."""
    asked = size(policy, signals, history, now)
    chain.to(asked.pods, asked.reason, asked.sentence)
    reason = asked.reason
    idle_for = now - (history.idle_since or now)
    if asked.pods == 0 and signals.replicas > 0 and policy.minimum == 0 and idle_for < policy.to_zero_after:
        reason = Want.WAITING_FOR_ZERO
        waited, needed = idle_for.total_seconds(), policy.to_zero_after.total_seconds()
        chain.to(1, reason, f"idle for {waited:.0f} s of toZeroAfter {needed:.0f} s: the last pod stays")
    if chain.pods < policy.minimum:
        reason = Want.MINIMUM
        chain.to(policy.minimum, reason, f"scaling.min is {policy.minimum}")
    return reason


def _limit(chain: Chain, policy: ScalingPolicy, signals: Signals) -> LimitedBy:
    """The tightest bound; `minimum` stands above all but the maximum, for idle pods start nothing that the store does not grant."""
    bounds = [(policy.maximum, LimitedBy.MAXIMUM, f"scaling.max is {policy.maximum}")]
    if policy.max_running is not None:
        bounds.append(
            (pods_for(policy.max_running, policy), LimitedBy.MAX_RUNNING, f"maxRunning is {policy.max_running} tasks")
        )
    bounds += [(pods_for(cap.slots, policy), cap.reason, cap.sentence) for cap in signals.caps]
    if signals.stuck_pods:
        sentence = f"{signals.stuck_pods} of its pods cannot start: {signals.stuck_cause or 'cause unknown'}"
        bounds.append((max(signals.replicas, policy.minimum), LimitedBy.PODS_CANNOT_START, sentence))
    pods, reason, sentence = min(bounds, key=lambda bound: bound[0])
    pods = max(pods, policy.minimum)
    if chain.pods <= pods:
        return LimitedBy.NONE
    chain.to(pods, reason, sentence)
    return reason


def _hold(policy: ScalingPolicy, signals: Signals, inputs: dict[str, Any], history: History, now: datetime) -> Decision:
    sentence = f"scaling.mode is Hold: the size stays at {signals.replicas}"
    memory = history.extended(
        now=now,
        recommended=signals.replicas,
        applied=signals.replicas,
        was=signals.replicas,
        idle=is_idle(signals),
        keep=max(policy.up.window, policy.down.window, STEP_PERIOD),
    )
    return _held(signals.replicas, signals.replicas, Want.HOLD, sentence, inputs, memory, blind=False)


def _hold_blind(
    policy: ScalingPolicy, replicas: int, cause: str, inputs: dict[str, Any], history: History, now: datetime
) -> Decision:
    memory = history.blinded(now)
    pods = replicas if policy.mode is Mode.HOLD else max(replicas, policy.minimum)
    blind_for = (now - (memory.blind_since or now)).total_seconds()
    sentence = f"{cause} (for {blind_for:.0f} s): unknown is not zero, the size stays at {pods}"
    return _held(replicas, pods, Want.SIGNAL_LOST, sentence, inputs, memory, blind=True)


def _held(
    replicas: int, pods: int, reason: Want, sentence: str, inputs: dict[str, Any], history: History, *, blind: bool
) -> Decision:
    return Decision(
        wanted=pods,
        reason=reason,
        limited=pods,
        limited_by=LimitedBy.NONE,
        goal=pods,
        applied=pods,
        rate_limited_by=RateLimitedBy.NONE,
        replicas=replicas,
        steps=(Step(str(reason), replicas, pods, sentence),),
        inputs=inputs,
        sentence=sentence,
        blind=blind,
        history=history,
    )


def _told(before: int, chain: Chain) -> str:
    """The chain as one sentence: 'from 2 to 5 pods: 40 tasks can run …; scaling.max is 5'."""
    verb = f"stays at {before} pods" if chain.pods == before else f"from {before} to {chain.pods} pods"
    return f"{verb}: " + "; ".join(step.sentence for step in chain.steps)


def _inputs(policy: ScalingPolicy, signals: Signals) -> dict[str, Any]:
    """Everything that the decision was made from but the history, JSON-able."""
    return {"policy": _plain(asdict(policy)), "signals": _plain(asdict(signals))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else value
