"""How many dead letters each queue had within the last minutes, to tell whether people are faster than they come (O25).

Guarantees: a few numbers for each queue, in memory only: after a start nothing is known, and nothing is said to have fallen.
"""

from collections import deque
from datetime import datetime, timedelta

BACK = timedelta(minutes=5)
APART = timedelta(seconds=30)
Name = tuple[str, str]


class Letters:
    """The numbers, by queue."""

    def __init__(self) -> None:
        self._seen: dict[Name, deque[tuple[datetime, int]]] = {}

    def fell(self, queue: Name, total: int, now: datetime) -> bool:
        """Note a number; whether it is smaller than that of five minutes ago, or than the first one since the start if that is a minute old."""
        seen = self._seen.setdefault(queue, deque())
        while len(seen) > 1 and seen[1][0] <= now - BACK:
            seen.popleft()
        if not seen or now - seen[-1][0] >= APART:
            seen.append((now, total))
        at, before = seen[0]
        return now - at >= 2 * APART and total < before

    def forget(self, queue: Name) -> None:
        """The queue is gone."""
        self._seen.pop(queue, None)
