"""Dead letters of a queue become Events, one for each numbered batch (O24).

Guarantees: the batch is numbered in the store before its Event is posted, the Event is named by queue and number, and the
mark in the store comes after it: an operator killed anywhere between repeats the same name, which the API server refuses.
At most one batch per queue and `PACE`; what dies meanwhile is in the next. An Event that cannot be posted now is tried
again; nothing about it stops a reconcile.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from poolkeeper.store import calls
from poolkeeper.store.rows import QueueStats
from poolkeeper_operator.act.announcement import announcement
from poolkeeper_operator.act.news import news
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.resources import TaskQueueSpec
from poolkeeper_operator.runtime.context import Context

PACE = 15.0  # seconds
Name = tuple[str, str]


class Announcer:
    """Remembers only when each queue's last batch was asked for; what was announced, the store knows."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._next: dict[Name, float] = {}

    async def announce(
        self, manifest: Mapping[str, Any], spec: TaskQueueSpec, stats: QueueStats, link: Link
    ) -> float | None:
        """Announce what is new; the seconds until the next look, None if there is nothing."""
        if not stats.dead_unannounced or link.reading is None:
            return None
        key = (stats.namespace, stats.name)
        wait = self._next.get(key, 0.0) - self._clock()
        if wait > 0:
            return wait
        self._next[key] = self._clock() + PACE
        batch = await link.call(calls.dead_batch(stats.queue_id, term=link.term))
        if batch is None:
            return None
        if spec.dead_letter.webhook is not None:
            await link.call(calls.keep_post(stats.queue_id, batch.number, news(batch, spec), term=link.term))
            link.wake()
        instance = str(link.reading.stats.instance_id)[-8:]
        suffix = f"dead-{instance}-{stats.queue_id}-{batch.number}"
        told = await self._context.tell(manifest, "Warning", "DeadLetters", announcement(batch, spec), suffix=suffix)
        if told:
            await link.call(calls.dead_batch_announced(stats.queue_id, batch.number, term=link.term))
        return PACE

    def forget(self, key: Name) -> None:
        """The queue is gone."""
        self._next.pop(key, None)
