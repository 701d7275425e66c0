"""The store's upkeep by a worker that no operator stands behind: what is old goes, and months of the history are made (Q52).

Guarantees: pages so small that turns and renewals hardly wait; of many workers one works, since the store lets the others go
again at once; what fails is tried again later and stops nothing. In a pod the operator does it.
"""

import asyncio
import contextlib
import logging
import random

import psycopg

from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import calls
from poolkeeper.worker.link import Link, Outage

_log = logging.getLogger("poolkeeper.worker")

FIRST = 5.0
"""Seconds within which the first page follows the start."""

EVERY = 60.0
"""Seconds between two looks, and half of it again by chance."""

NEXT_PAGE = 0.5
"""Seconds until the next page while there is more to do."""

PAGE = 200
"""Rows of each kind in one page."""


async def tend(link: Link, over: asyncio.Event) -> None:
    """Do the upkeep until `over`."""
    rng, outage = random.Random(), Outage(_log, "upkeep")  # noqa: S311  (jitter)
    pause = rng.uniform(0, FIRST)
    while not over.is_set():
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), pause)
                return
            pause = EVERY * rng.uniform(1, 1.5)
            done = await link.call(calls.maintain(PAGE))
        except asyncio.CancelledError:  # by a handler, which cancels tasks that are not its own (Q47)
            continue
        except (PoolkeeperError, psycopg.Error, OSError) as error:
            outage.failed(error)
            continue
        outage.over()
        if done.dead_letters:
            _log.warning(
                "%d dead letters were discarded: nobody looked at them for retention.deadLetters", done.dead_letters
            )
        if done.holders:
            _log.warning("%d sessions were ended: they kept a limit from others for a minute", done.holders)
        if done.more:
            pause = NEXT_PAGE
