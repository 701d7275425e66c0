"""Crash evidence: how the workers' processes ended goes to the deliveries that they held (O26).

Guarantees: what a pod's status says is noted with each event about it, so that it is known also where the pod is gone in the next
moment; it is told to the store at once and twice again, since deliveries end later than their process. Telling twice changes nothing.
That it cannot be told now never stops a reconcile. Not guaranteed: evidence of a pod that came and went while no operator watched.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import calls
from poolkeeper_operator.observe.crashes import Crash, crashes
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.runtime import metrics

log = logging.getLogger(__name__)
AGAIN = (20.0, 100.0)  # seconds after the first telling, and after the second
FRESH = timedelta(minutes=5)  # what is older was counted by the operator of before
MOST = 1000  # crashes of one pool that are remembered
Name = tuple[str, str]


@dataclass
class Told:
    """How often a crash was told, and when it is told next; None: no more."""

    times: int = 0
    due: float | None = 0.0


class Crashes:
    """Of all pools."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Name, OrderedDict[Crash, Told]] = {}

    def see(self, namespace: str, pool: str, pod: Mapping[str, Any]) -> None:
        """Note what a pod's status says."""
        found = crashes(pod)
        if not found:
            return
        known = self._known.setdefault((namespace, pool), OrderedDict())
        for crash in found:
            known.setdefault(crash, Told())
        while len(known) > MOST:
            known.popitem(last=False)

    async def tell(self, link: Link, namespace: str, pool: str, pods: Iterable[Mapping[str, Any]]) -> float | None:
        """Tell what is due; the seconds until there is more to tell, None if there is nothing."""
        for pod in pods:
            self.see(namespace, pool, pod)
        known = self._known.get((namespace, pool), OrderedDict())
        now = self._clock()
        due = [crash for crash, told in known.items() if told.due is not None and told.due <= now]
        if due:
            call = calls.report_crashes(
                f"{namespace}/{pool}", [(each.uid, each.at, each.cause) for each in due], term=link.term
            )
            try:
                await link.call(call)
            except (PoolkeeperError, OSError) as error:
                log.warning("crashes.untold: pool %s/%s: %s", namespace, pool, error)
                return AGAIN[0]
        for crash in due:
            self._told(namespace, pool, crash, known[crash], now)
        moments = [told.due for told in known.values() if told.due is not None]
        return max(0.0, min(moments) - now) if moments else None

    def _told(self, namespace: str, pool: str, crash: Crash, told: Told, now: float) -> None:
        if not told.times and datetime.now(UTC) - crash.at < FRESH:
            metrics.CRASHES.labels(namespace, pool, crash.kind).inc()
            where = {"pool": f"{namespace}/{pool}", "pod_uid": crash.uid}
            log.warning("worker.crashed: pool %s/%s: %s", namespace, pool, crash.cause, extra=where)
        told.due = now + AGAIN[told.times] if told.times < len(AGAIN) else None
        told.times += 1

    def forget(self, namespace: str, pool: str) -> None:
        """The pool is gone."""
        self._known.pop((namespace, pool), None)
