"""Which pods go when a pool shrinks.

Guarantees (O17): idle pods first, longest idle first; a busy pod is only told to claim nothing more, and goes once it is idle; a
pod leaves the count only after it was seen marked *and* idle, so the lowering follows the marking by one reading.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One pod of the pool as last seen; terminating pods are not listed."""

    name: str
    created_at: datetime
    busy: int = 0  # busy slots of its session
    marked: bool = False  # its session was told to claim nothing (SessionStats.draining)
    has_session: bool = True  # False: still starting, or it cannot start
    stuck: bool = False  # cannot start
    idle_for: timedelta | None = None  # since when it has had no task; None: busy or unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimPlan:
    """What to do with the pods for a goal."""

    mark: tuple[str, ...]  # tell these sessions to claim nothing
    unmark: tuple[str, ...]  # these were marked and are wanted again
    costs: tuple[str, ...]  # the pods that carry the negative deletion cost; all others carry none
    replicas: int  # what may be written to the Deployment now


def plan(pods: Sequence[PodState], *, goal: int, replicas: int) -> VictimPlan:
    """Choose the victims for shrinking from `replicas` to `goal`."""
    raise NotImplementedError
