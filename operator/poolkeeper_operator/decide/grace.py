"""How long a pod may take to drain (`terminationGracePeriodSeconds`).

Guarantees (O20, O21): never zero; the p99 of the measured drains with headroom, in coarse steps within the policy's bounds; drains that
were cut short count as "longer than"; up at once, down one step at a time and only on enough samples. A drain far longer than all
others counts in full only when a second one like it was seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from math import ceil

from poolkeeper_operator.decide.reasons import GraceReason

# Coarse, so that a value moves rarely; beyond them whole hours.
STEPS = (15, 30, 45, 60, 90, 120, 180, 300, 450, 600, 900, 1200, 1800, 2700, 3600)
LONGEST = 30 * 86_400.0  # seconds; a worker that tells of more, or of less than nothing, miscounts
SAFE_DEFAULT = timedelta(seconds=60)  # while nothing was measured
ENOUGH = 20  # samples below which a short measured value is not trusted
QUANTILE = 0.99
COMPARABLE = 5  # samples from which one that is far longer than all others is told from the rest
FAR = 2  # times the next longest


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
    promised: float | None = None  # seconds of grace that the pod had; None: unknown


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
    drains = [replace(drain, seconds=min(max(drain.seconds, 0.0), LONGEST)) for drain in drains]
    censored = sum(drain.truncated for drain in drains)
    needed, reason, why = _needed(policy, drains)
    wanted = _stepped(needed)
    if reason is GraceReason.CUT_SHORT and current is not None:
        wanted = max(wanted, current)  # what was killed early by something else says nothing against the present grace
    applied = min(max(wanted, policy.minimum, timedelta(seconds=1)), max(policy.maximum, timedelta(seconds=1)))
    if applied > wanted:
        reason, why = GraceReason.MINIMUM, f"{why}; drain.minGrace is {_text(policy.minimum)}"
    if applied < needed:
        reason, why = GraceReason.MAXIMUM, f"{why}; drain.maxGrace is {_text(policy.maximum)}, which cuts drains short"
    if current is not None and applied < (lowered := _lowered(policy, current, enough=len(drains) >= ENOUGH)):
        applied, reason = lowered, GraceReason.LOWERING
        why = f"{why}; lowered by one step per rollout, from {_text(current)}"
    return Grace(
        applied=applied,
        needed=needed,
        samples=len(drains),
        censored=censored,
        reason=reason,
        fits=applied >= needed,
        sentence=f"grace {_text(applied)}: {why}",
    )


def _needed(policy: GracePolicy, drains: Sequence[Drain]) -> tuple[timedelta, GraceReason, str]:
    """What a drain needs in all, before steps and bounds."""
    around = policy.hand_back_margin + policy.pre_stop
    if not drains:
        return SAFE_DEFAULT + around, GraceReason.NO_SAMPLES, "no drain was measured yet, the safe default"
    p99, beyond = quantile(_tempered(drains))
    measured = timedelta(seconds=p99 * policy.headroom_percent / 100)
    if beyond:
        # The true value is hidden behind the cut: twice what is known. Not "more than the present grace": drains that were
        # cut by an earlier, shorter one would then raise it with every look (O21).
        measured = max(measured, timedelta(seconds=2 * p99))
        return measured + around, GraceReason.CUT_SHORT, f"drains were cut short after {p99:.0f} s, so they need longer"
    if len(drains) < ENOUGH and measured < SAFE_DEFAULT:
        why = f"only {len(drains)} drains measured (p99 {p99:.1f} s), not below the safe default"
        return SAFE_DEFAULT + around, GraceReason.FEW_SAMPLES, why
    why = f"p99 of {len(drains)} drains is {p99:.1f} s, {policy.headroom_percent} % of it and {_text(around)} around it"
    return measured + around, GraceReason.MEASURED, why


def _tempered(drains: Sequence[Drain]) -> Sequence[Drain]:
    """One drain that is far longer than all others counts for twice the next longest: with few samples it would be the p99 alone."""
    if len(drains) < COMPARABLE:
        return drains
    *others, next_longest, longest = sorted(drains, key=lambda drain: drain.seconds)
    most = FAR * next_longest.seconds
    if longest.truncated or longest.seconds <= most:
        return drains
    return [*others, next_longest, replace(longest, seconds=most)]


def quantile(drains: Sequence[Drain], q: float = QUANTILE) -> tuple[float, bool]:
    """The q-quantile by Kaplan and Meier (1958), and whether it lies beyond the longest sample because that was cut short."""
    surviving, at_risk = 1.0, len(drains)
    ordered = sorted(drains, key=lambda drain: drain.seconds)
    for seconds, same in groupby(ordered, key=lambda drain: drain.seconds):
        group = list(same)
        ended = sum(not drain.truncated for drain in group)
        surviving *= 1 - ended / at_risk
        at_risk -= len(group)
        if surviving <= 1 - q + 1e-12:
            return seconds, False
    return ordered[-1].seconds, True


def _stepped(needed: timedelta) -> timedelta:
    """The next step that is long enough."""
    seconds = needed.total_seconds()
    for step in STEPS:
        if seconds <= step:
            return timedelta(seconds=step)
    return timedelta(hours=ceil(seconds / 3600))


def _lowered(policy: GracePolicy, current: timedelta, *, enough: bool) -> timedelta:
    """The lowest value that a lowering may reach: one step down on enough samples, else where it is; bounds always hold."""
    shorter = [timedelta(seconds=step) for step in STEPS if timedelta(seconds=step) < current]
    hourly = current - timedelta(hours=1)
    below = max([*shorter, hourly]) if enough else current
    return min(below, policy.maximum)


def _text(value: timedelta) -> str:
    return f"{value.total_seconds():.0f} s"
