"""What a quota grants per window, and how many slots that keeps busy (Q40, O15).

Guarantees: the store alone grants; here sizes and words follow from the same numbers. A pool is not sized beyond what could be granted, so
that no pods are started for tasks that wait for a window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

MEASURES = ("requests", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """So many of one measure in any interval of one length, the reserve taken off."""

    limit: int
    width: timedelta

    @property
    def seconds(self) -> float:
        """Its length, as the store takes it."""
        return self.width.total_seconds()

    def slots(self, need: int, service_time: timedelta | None, percent: float = 100) -> int:
        """Slots that what is granted can keep busy, where one task needs so much and takes so long; at least one.

        The limit divided by what a busy slot uses in a window. While nothing is measured: as many as could hold their need at once.
        """
        tasks = self.limit * percent / 100 / need
        if service_time is None or not service_time:
            return max(1, int(tasks))
        return max(1, -int(-(tasks * (service_time / self.width)) // 1))

    def words(self, measure: str) -> str:
        """For a sentence."""
        return f"{self.limit} {measure} in any {self.seconds:g} s"


def told(windows: Mapping[str, Window]) -> str:
    """Behind a sentence about concurrent calls."""
    return "".join(f", {windows[measure].words(measure)}" for measure in MEASURES if measure in windows)
