"""How long a pod may take to drain (`terminationGracePeriodSeconds`).

Guarantees (O20, O21): never zero; the p99 of the measured drains with headroom, in coarse steps within the policy's bounds; drains that
were cut short count as "longer than"; up at once, down one step at a time and only on enough samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from poolkeeper_operator.decide.reasons import GraceReason


@dataclass(frozen=True, slots=True, kw_only=True)
class GracePolicy:
    """`spec.drain`."""

    minimum: timedelta = timedelta(seconds=30)
    maximum: timedelta = timedelta(minutes=30)
    headroom_percent: int = 150  # 150: one and a half times the p99
    hand_back_margin: timedelta = timedelta(seconds=5)  # kept for handing back what did not finish
    pre_stop: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Drain:
    """One measured drain of a pod of this pool."""

    seconds: float  # from the signal to the end
    truncated: bool  # cut short by the grace: it would have taken longer than `seconds`


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """The grace period that a pool's next template should carry."""

    applied: timedelta
    needed: timedelta  # before steps and bounds
    samples: int
    censored: int
    reason: GraceReason
    fits: bool  # False: spec.drain.maxGrace is less than what the drains need (DrainBudgetOK=False)
    sentence: str


def grace(policy: GracePolicy, drains: Sequence[Drain], current: timedelta | None) -> Grace:
    """Decide the grace; `current` is that of the present template (None: there is no Deployment yet)."""
    raise NotImplementedError
