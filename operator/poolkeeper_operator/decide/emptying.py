"""How a pool goes to zero by draining (`scaling.mode: HoldAndDrain`).

Guarantees (O3, O17): nobody is ended before a reading shows that the store starts nothing more for the pool, so that who is idle in it
stays idle; no pod that works is ended while an idle one exists, outside of rollouts; those that work to the last finish their tasks or
hand them back within the grace of their pods.
"""

from poolkeeper_operator.decide.decision import Chain
from poolkeeper_operator.decide.reasons import RateLimitedBy, Want
from poolkeeper_operator.decide.signals import Signals


def empty(chain: Chain, signals: Signals) -> RateLimitedBy:
    """Take the size towards zero, as far as it may go with this reading."""
    chain.to(0, Want.HOLD_AND_DRAIN, "scaling.mode is HoldAndDrain: its workers claim nothing more and go")
    if not signals.replicas:
        return RateLimitedBy.NONE
    if not signals.closed:
        chain.to(signals.replicas, RateLimitedBy.CLOSING, "the store is told first to start nothing more for it")
        return RateLimitedBy.CLOSING
    working = min(signals.busy_pods, signals.replicas)
    leaving = signals.rolling or signals.living > signals.replicas
    if working and leaving and not signals.replacing:
        chain.to(signals.replicas, RateLimitedBy.BUSY_PODS, "the idle ones that were asked to go are still there")
        return RateLimitedBy.BUSY_PODS
    if 0 < working < signals.replicas and not signals.replacing:  # a rollout chooses its victims itself
        chain.to(working, RateLimitedBy.BUSY_PODS, f"the idle ones go first: {working} pods still work")
        return RateLimitedBy.BUSY_PODS
    if working:
        chain.to(
            0, Want.HOLD_AND_DRAIN, f"{working} pods that work finish their tasks or hand them back in their grace"
        )
    return RateLimitedBy.NONE
