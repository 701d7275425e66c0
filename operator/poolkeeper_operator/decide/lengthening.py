"""Whether the operator itself rolls a pool out for a longer grace period.

Guarantees (O21): only where several drains were cut by the very grace that the template has now, so that those cut by an
earlier one, as its own rollout brings them, never cause another; never for a shorter grace; never while a rollout is under
way; at most one in an interval. Everything else rides on the next rollout that the user causes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from poolkeeper_operator.decide.grace import Drain, Grace
from poolkeeper_operator.decide.reasons import LengthenReason

CUTS = 3  # drains cut by the present grace: one may be an accident, and each rollout drains every pod
INTERVAL = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengthening:
    """The answer, with its reason."""

    due: bool
    grace: timedelta  # of the new template
    pause: timedelta  # from one pod to the next: as long as the drain of a pod with the present grace may take
    reason: LengthenReason
    sentence: str


def lengthen(
    wanted: Grace, drains: Sequence[Drain], present: timedelta, *, rolling: bool, last: datetime | None, now: datetime
) -> Lengthening:
    """Decide; `present` is the template's grace, `last` when the operator last did this to the pool."""
    cuts = sum(_cut_by(drain, present) for drain in drains)
    told = f"{cuts} drains were cut by the present grace of {_text(present)}"
    if wanted.applied <= present:
        reason, why = LengthenReason.LONG_ENOUGH, f"{_text(present)} is long enough, or as long as it may be"
    elif cuts < CUTS:
        reason, why = (
            LengthenReason.FEW_CUTS,
            f"{told}, {CUTS} would make a rollout worth it; the next one takes it along",
        )
    elif rolling:
        reason, why = LengthenReason.ROLLING, f"{told}; a rollout is under way, and has to end first"
    elif last is not None and now - last < INTERVAL:
        reason, why = LengthenReason.TOO_SOON, f"{told}; the last rollout for that was less than {_text(INTERVAL)} ago"
    else:
        reason, why = LengthenReason.DRAINS_CUT, f"{told}: rolled out, a pod every {_text(present)}"
    return Lengthening(
        due=reason is LengthenReason.DRAINS_CUT,
        grace=wanted.applied,
        pause=present,
        reason=reason,
        sentence=f"grace {_text(present)} to {_text(wanted.applied)}: {why}",
    )


def _cut_by(drain: Drain, present: timedelta) -> bool:
    """Whether it says that the present grace is too short: not if its pod had been promised less, by an older template or a node."""
    return drain.truncated and drain.promised is not None and drain.promised >= present.total_seconds()


def _text(value: timedelta) -> str:
    return f"{value.total_seconds():.0f} s"
