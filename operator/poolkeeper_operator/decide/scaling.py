"""How many pods a pool should have.

Guarantees: never above the maximum or a cap except for what still runs; never lower without a reading; to zero only after a whole
`toZeroAfter` of successful readings of zero. Does not choose which pods go (victims.py) nor divide quotas (quota.py).
"""

from datetime import datetime

from poolkeeper_operator.decide.decision import Decision
from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.signals import Blind, ScalingPolicy, Signals


def decide(policy: ScalingPolicy, signals: Signals | Blind, history: History, now: datetime) -> Decision:
    """Decide the size of a pool; a `Blind` reading, or one older than `policy.stale_after`, holds it."""
    raise NotImplementedError
