"""The worker's pulse: looks that must be taken again and again beside the turns, and how late the event loop calls them.

Guarantees: a beat each second from when anything runs here until nothing does; at rest one in ten seconds, since each wake-up of an
idle process costs the machine more than what it does (F4).
"""

import asyncio
import time
from collections.abc import Callable

BEAT = 1.0
"""Seconds between two beats while anything runs."""

REST = 10.0
"""Seconds between two while nothing does."""


class Pulse:
    """See the module. Made and used inside an event loop."""

    def __init__(self, look: Callable[[], None], *, resting: Callable[[], bool]) -> None:
        self.longest_stall = 0.0
        self._look = look
        self._resting = resting
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._clock: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at once, and beat from now on."""
        self._due = time.monotonic()
        self._beat()

    def quicken(self) -> None:
        """Note that something begins to run: the next beat comes within a second."""
        if self._clock is not None and self._due > time.monotonic() + BEAT:
            self._clock.cancel()
            self._again(BEAT)

    def stop(self) -> None:
        """Beat no more."""
        if self._clock is not None:
            self._clock.cancel()

    def _beat(self) -> None:
        """Look, and note how late this is called: what user code keeps the event loop from doing."""
        self.longest_stall = max(self.longest_stall, time.monotonic() - self._due)
        try:
            self._look()
        finally:  # the event loop tells what went wrong, and the next look may go well
            self._again(REST if self._resting() else BEAT)

    def _again(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds
        self._clock = self._loop.call_later(seconds, self._beat)
