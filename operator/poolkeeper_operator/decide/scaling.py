"""How many pods a pool should have.

Guarantees: never raised above the maximum or a cap, but for `minimum` and by pods on nodes that are about to go, which claim nothing; never lower without a reading; to zero only after
a whole `toZeroAfter` of successful readings of zero. Does not choose which pods go (victims.py) nor divide quotas (quota.py).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from poolkeeper_operator.decide.decision import Chain, Decision, Step
from poolkeeper_operator.decide.emptying import empty
from poolkeeper_operator.decide.history import STEP_PERIOD, History
from poolkeeper_operator.decide.pace import obey, pace, pods_for
from poolkeeper_operator.decide.reasons import LimitedBy, RateLimitedBy, Want
from poolkeeper_operator.decide.record import Given, from_record
from poolkeeper_operator.decide.signals import Blind, Mode, ScalingPolicy, Signals
from poolkeeper_operator.decide.sizing import is_idle, size
from poolkeeper_operator.decide.supply import allowance


def decide(policy: ScalingPolicy, signals: Signals | Blind, history: History, now: datetime) -> Decision:
    """Decide the size of a pool; a `Blind` reading, or one older than `policy.stale_after`, holds it."""
    given = Given(policy, signals, history, now)
    if isinstance(signals, Blind):
        return _hold_blind(given, signals.cause or "the queues cannot be read")
    if (stale := now - signals.read_at) > policy.stale_after:
        return _hold_blind(given, f"the last reading is {stale.total_seconds():.0f} s old")
    if policy.mode is Mode.HOLD:
        return _hold(given, signals)
    if policy.mode is Mode.HOLD_AND_DRAIN:
        return _emptied(given, signals)
    return _decide(given, signals)


def recompute(recorded: Mapping[str, Any]) -> Decision:
    """The decision that follows from recorded inputs by the rules of this version (O11)."""
    given = from_record(recorded)
    return decide(given.policy, given.signals, given.history, given.now)


def writable(decision: Decision, *, missing: int, may_go: int, room: int | None = None) -> int:
    """What may be written to the Deployment: shrinking takes replicas without a pod, and victims that end no work (victims.py).

    `room`: the pods for which there are connections (connections.py), where these were too few.
    """
    if decision.goal >= decision.replicas:
        return decision.applied if room is None else min(decision.applied, decision.replicas + room)
    lowered = max(decision.goal, decision.replicas - missing - may_go)
    if decision.reason is Want.HOLD_AND_DRAIN:  # at zero all of them go together
        return max(lowered, decision.applied) if decision.applied else 0
    return lowered


def recompute_written(recorded: Mapping[str, Any]) -> int:
    """The size that followed from a recorded decision and the pods that could go (O11)."""
    return writable(recompute(recorded["inputs"]), **recorded["victims"])


def _decide(given: Given, signals: Signals) -> Decision:
    policy, history, now = given.policy, given.history, given.now
    chain = Chain(signals.replicas)
    external = policy.mode is Mode.EXTERNAL
    reason = _asked(chain, policy) if external else _want(chain, policy, signals, history, now)
    wanted = chain.pods
    limited_by = _limit(chain, policy, signals)
    limited = chain.pods
    paced = obey if external else pace
    rate_limited_by = paced(chain, policy, signals, history, now)
    goal = chain.pods
    if goal < (working := min(signals.busy_pods, signals.replicas)):
        chain.to(
            working,
            RateLimitedBy.BUSY_PODS,
            f"{working} pods still work; those in excess claim nothing more and go when idle",
        )
        rate_limited_by = RateLimitedBy.BUSY_PODS
    # The last pod that waits for zero was not asked for by any work; the window must not add to that wait.
    memory = _remembered(given, signals, recommended=0 if reason is Want.WAITING_FOR_ZERO else limited, applied=goal)
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
        given=given,
        sentence=_told(signals.replicas, chain),
        blind=False,
        needed=_needed(given, signals) if external else wanted,
        history=memory,
    )


def _asked(chain: Chain, policy: ScalingPolicy) -> Want:
    """What another scaler asks for, or the present size until it does; the minimum included."""
    reason, pods = Want.EXTERNAL, chain.pods if policy.asked is None else policy.asked
    sentence = f"spec.replicas asks for {pods} (scaling.mode External)"
    if policy.asked is None:
        sentence = f"scaling.mode is External and no other scaler has set spec.replicas since: the size stays at {pods}"
    chain.to(pods, reason, sentence)
    if pods < policy.minimum:
        reason = Want.MINIMUM
        chain.to(policy.minimum, reason, f"scaling.min is {policy.minimum}")
    return reason


def _needed(given: Given, signals: Signals) -> int:
    """What the work would ask for if the size were ours to decide."""
    chain = Chain(signals.replicas)
    _want(chain, given.policy, signals, given.history, given.now)
    return chain.pods


def _emptied(given: Given, signals: Signals) -> Decision:
    """To zero, whatever the work and the minimum ask for: idle pods first, then those that work, by their grace."""
    chain = Chain(signals.replicas)
    by = empty(chain, signals)
    memory = _remembered(given, signals, recommended=0, applied=chain.pods)
    return Decision(
        wanted=0,
        reason=Want.HOLD_AND_DRAIN,
        limited=0,
        limited_by=LimitedBy.NONE,
        goal=0,
        applied=chain.pods,
        rate_limited_by=by,
        replicas=signals.replicas,
        steps=tuple(chain.steps),
        given=given,
        sentence=_told(signals.replicas, chain),
        blind=False,
        needed=0,
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
    beside = _beside_leaving(policy, signals, chain.pods)
    if beside != chain.pods:
        reason = Want.NODES_LEAVING
        chain.to(beside, reason, f"{_pods(signals.leaving_pods)} on nodes that are about to go claim nothing more")
    return reason


def _beside_leaving(policy: ScalingPolicy, signals: Signals, pods: int) -> int:
    """The size when what was asked for must stand on nodes that stay; those about to go count until others are there for them (O23)."""
    if not pods or not signals.leaving_pods:
        return pods
    staying = max(policy.minimum, pods - signals.leaving_busy // policy.concurrency)  # what runs there ends there
    return max(pods, staying + _leaving(signals, min(staying, policy.maximum)))


def _leaving(signals: Signals, staying: int) -> int:
    """The pods on nodes that are about to go that stay beside so many others: all until these are there, then those that work."""
    return signals.leaving_pods if signals.ready_pods < staying else signals.leaving_busy_pods


def _limit(chain: Chain, policy: ScalingPolicy, signals: Signals) -> LimitedBy:
    """The tightest bound; `minimum` stands above all but the maximum, for idle pods start nothing that the store does not grant."""
    bounds = [(policy.maximum, LimitedBy.MAXIMUM, f"scaling.max is {policy.maximum}")]
    if policy.max_running is not None:
        bounds.append(
            (pods_for(policy.max_running, policy), LimitedBy.MAX_RUNNING, f"maxRunning is {policy.max_running} tasks")
        )
    bounds += [(pods_for(cap.slots, policy), cap.reason, cap.sentence) for cap in signals.caps]
    if signals.leaving_pods:  # they claim nothing, like those that drain
        beside = f", beside {_pods(signals.leaving_pods)} on nodes that are about to go"
        bounds = [(most + _leaving(signals, most), reason, sentence + beside) for most, reason, sentence in bounds]
    if signals.stuck_pods:
        sentence = f"{signals.stuck_pods} of its pods cannot start: {signals.stuck_cause or 'cause unknown'}"
        bounds.append((max(signals.replicas, policy.minimum), LimitedBy.PODS_CANNOT_START, sentence))
    pods, reason, sentence = min(bounds, key=lambda bound: bound[0])
    pods = max(pods, policy.minimum)
    for cap in signals.caps:  # an idle pod is connected as well as a busy one: not even the minimum stands above this
        if cap.reason is LimitedBy.CONNECTIONS and pods_for(cap.slots, policy) < pods:
            pods, reason, sentence = pods_for(cap.slots, policy), cap.reason, cap.sentence
    if chain.pods <= pods:
        return LimitedBy.NONE
    chain.to(pods, reason, sentence)
    return reason


def _remembered(given: Given, signals: Signals, *, recommended: int, applied: int) -> History:
    policy = given.policy
    return given.history.extended(
        now=given.now,
        recommended=recommended,
        applied=applied,
        was=signals.replicas,
        idle=is_idle(signals),
        keep=max(policy.up.window, policy.down.window, STEP_PERIOD, allowance(signals)),
        waiting=signals.runnable,
        recall=policy.target_age,
    )


def _hold(given: Given, signals: Signals) -> Decision:
    pods = signals.replicas
    memory = _remembered(given, signals, recommended=pods, applied=pods)
    return _held(given, pods, Want.HOLD, f"scaling.mode is Hold: the size stays at {pods}", memory)


def _hold_blind(given: Given, cause: str) -> Decision:
    memory, policy, pods = given.history.blinded(given.now), given.policy, given.signals.replicas
    if policy.mode in {Mode.AUTO, Mode.EXTERNAL}:
        pods = max(pods, policy.minimum)
    blind_for = (given.now - (memory.blind_since or given.now)).total_seconds()
    sentence = f"{cause} (for {blind_for:.0f} s): unknown is not zero, the size stays at {pods}"
    return _held(given, pods, Want.SIGNAL_LOST, sentence, memory)


def _held(given: Given, pods: int, reason: Want, sentence: str, history: History) -> Decision:
    replicas = given.signals.replicas
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
        given=given,
        sentence=sentence,
        blind=reason is Want.SIGNAL_LOST,
        needed=pods,
        history=history,
    )


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _told(before: int, chain: Chain) -> str:
    """The chain as one sentence: 'from 2 to 5 pods: 40 tasks can run …; scaling.max is 5'."""
    verb = f"stays at {before} pods" if chain.pods == before else f"from {before} to {chain.pods} pods"
    return f"{verb}: " + "; ".join(step.sentence for step in chain.steps)
