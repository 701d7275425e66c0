"""Schedules, as the operator tends them: it fires the slots of its cluster's queues, since at zero pods nobody else does (Q34, O12).

Guarantees: a slot is fired within seconds of its time, by whoever comes first, operator or worker; a reading follows at once, so that
its task starts the pool's first pod. What fails is told once, tried again with the next reading, and keeps nothing else from its turn.
"""

import logging

from poolkeeper.firing import fire_due
from poolkeeper.redact import redact
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.runtime import metrics

log = logging.getLogger(__name__)

ROUNDS = 10
"""Pages of slots between two readings."""


class Schedules:
    """Of all databases."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], str] = {}

    async def fire(self, link: Link) -> None:
        """Fire what is due, and see to it that the next reading comes with the next slot."""
        assert link.reading is not None  # noqa: S101 - a reading that succeeded
        stats = link.reading.stats
        waits = {
            f"{q.namespace}/{q.name}": q.next_slot.total_seconds() for q in stats.queues if q.next_slot is not None
        }
        due = [queue for queue, seconds in waits.items() if seconds <= 0]
        metrics.tell_schedules(*link.key, max(0.0, *(-seconds for seconds in waits.values())) if waits else 0.0)
        coming = [seconds for seconds in waits.values() if seconds > 0]
        if coming:
            link.wake_in(min(coming))
        if not due or stats.held is not None:
            return
        try:
            fired = await self._rounds(link, due)
        except Exception as error:  # noqa: BLE001  (whatever it is: sweeps and upkeep go on)
            problem = redact(" ".join(str(error).split())) or type(error).__name__
            if self._problems.get(link.key) != problem:
                self._problems[link.key] = problem
                log.warning("schedules.failed: %s: %s; it is tried again with each reading", link.name, problem)
            return
        self._problems.pop(link.key, None)
        if fired:
            metrics.FIRED.labels(*link.key).inc(fired)
            link.wake()

    def forget(self, namespace: str, database: str) -> None:
        """The Database is gone."""
        self._problems.pop((namespace, database), None)
        metrics.forget_database(namespace, database)

    async def _rounds(self, link: Link, due: list[str]) -> int:
        fired = 0
        for _ in range(ROUNDS):
            done = await fire_due(link.call, due)
            fired += done.fired
            if not done.fired:
                break
        return fired
