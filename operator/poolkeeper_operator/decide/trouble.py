"""When a queue is said to be in trouble (O25). Pure.

Guarantees: no flapping: what is said once stays until the figures are well away from where it began, or the time in which
they are counted has passed. Each decision takes what was said last, so that a new operator goes on where the old one ended.
"""

from collections.abc import Iterable
from datetime import timedelta

WAITED = timedelta(seconds=30)
"""How long a task must have waited for a worker that can run it until that is trouble: a rollout has its moments."""

DYING = 3
"""Deliveries that ended with their worker within ten minutes, from which on that is trouble: one lost node happens."""

HELD, HELD_XIDS = timedelta(minutes=10), 10_000_000
"""How long somebody may keep vacuum back, as `poolkeeper doctor` has it."""

CALM = 5
"""Minutes in which fewer than half of the threshold must die until dead letters are said to grow no more."""


def growing(was: bool, *, last_minute: int, five_minutes: int, threshold: int, fell: bool) -> bool:
    """Whether dead letters come faster than `threshold` a minute; `fell`: their number falls all the same, people are faster."""
    if fell:
        return False
    if last_minute >= threshold:
        return True
    return was and 2 * five_minutes >= CALM * threshold


def too_many(was: bool, *, total: int, most: int | None) -> bool:
    """Whether there are more dead letters than the queue's owner wants to hear of; over when a fifth of them is gone."""
    if most is None:
        return False
    return total >= most or (was and 5 * total > 4 * most)


def too_old(*, oldest: timedelta | None, most: timedelta | None) -> bool:
    """Whether the oldest dead letter waits for longer than it should; its age rises until somebody looks at it."""
    return most is not None and oldest is not None and oldest >= most


def lease_too_short(*, live: int) -> bool:
    """Whether workers that live lost leases within ten minutes: each such task may have run twice."""
    return live > 0


def workers_die(was: bool, *, dead: int) -> bool:
    """Whether workers die with tasks in their hands, and not merely one."""
    return dead >= DYING or (was and dead > 0)


def vacuum_held(was: bool, *, seconds: float | None, xids: int | None) -> bool:
    """Whether somebody keeps dead rows for long, by time or by transactions; over when there is nobody any more."""
    return was or (seconds or 0.0) >= HELD.total_seconds() or (xids or 0) >= HELD_XIDS


def nobody_can(was: bool, waited: Iterable[timedelta | None]) -> bool:
    """Whether tasks wait that no worker can run, by the ages of the oldest of each such type (None: a suspect)."""
    ages = list(waited)
    return bool(ages) and (was or any(age is None or age >= WAITED for age in ages))
