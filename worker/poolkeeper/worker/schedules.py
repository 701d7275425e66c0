"""Schedules, as a worker tends them: it fires the slots of its queues when they come, beside its work (Q34).

Guarantees: a worker whose slots are all busy fires all the same; what fails is tried again and stops nothing; a worker without
schedules asks once a minute. Of several workers whoever comes first fires, the others find nothing left to do.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Sequence
from datetime import timedelta

from poolkeeper.firing import fire_due
from poolkeeper.worker.link import Link, Outage, pause

_log = logging.getLogger("poolkeeper.worker")

LOOK = 60.0
"""Seconds between two looks while no slot is known, and half of it again by chance."""

SPREAD = 0.1
"""Seconds over which workers spread that know of the same slot."""


class Schedules:
    """See the module."""

    def __init__(self, link: Link, queues: Sequence[str]) -> None:
        self._link = link
        self._queues = queues
        self._rng = random.Random()  # noqa: S311  (jitter)
        self._at = time.monotonic() + self._rng.uniform(0, 1)
        self._sooner = asyncio.Event()

    def due_in(self, after: timedelta) -> None:
        """Heed what a turn or a renewal told: the next slot comes then."""
        at = time.monotonic() + max(0.0, after.total_seconds())
        if at < self._at:
            self._at = at + self._rng.uniform(0, SPREAD)
            self._sooner.set()

    def changed(self) -> None:
        """Look at whether it is over."""
        self._sooner.set()

    async def fire(self, over: asyncio.Event) -> None:
        """Fire slots until `over`."""
        outage = Outage(_log, "schedules")
        while not over.is_set():
            try:
                self._sooner.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._sooner.wait(), max(0.0, self._at - time.monotonic()))
                    continue
                self._at = time.monotonic() + await self._round()
            except asyncio.CancelledError:  # by a handler, which cancels tasks that are not its own (Q47)
                continue
            except Exception as error:  # noqa: BLE001  (whatever it is, it must not be the last look)
                outage.failed(error)
                self._at = time.monotonic() + pause(outage.failures, self._rng, first=0.5, longest=15.0)
            else:
                outage.over()

    async def _round(self) -> float:
        """Fire a page; return the seconds until the next look."""
        done = await fire_due(self._link.call, self._queues)
        longest = LOOK * self._rng.uniform(1, 1.5)
        if done.fired:
            return 0.0
        return (
            longest
            if done.next_in is None
            else min(longest, done.next_in.total_seconds() + self._rng.uniform(0, SPREAD))
        )
