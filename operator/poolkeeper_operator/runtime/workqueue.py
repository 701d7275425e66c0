"""A queue of keys to reconcile.

Guarantees: a key is queued once however often it is added; one run per key at a time; a key added while it runs
runs once more; a failing key backs off alone, and a success or `fresh=True` (its spec changed) forgets the failures, but
not how long the API server asked to wait; at most `parallel` runs at once, those not counted that have been waiting for an
answer for long: a few objects that hang do not hold up the others. Not guaranteed: order between keys, or one run per event.
"""

import asyncio
import contextlib
import heapq
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from poolkeeper.errors import PoolkeeperError
from poolkeeper_operator.runtime import metrics

log = logging.getLogger(__name__)

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 60.0  # seconds; bounds how long a mended fault still hurts
SLOW = 2.0  # seconds after which a run no longer takes a place
MOST = 100  # runs at once, slow ones included


@dataclass(frozen=True, order=True)
class Key:
    """What to reconcile: one object by kind, namespace and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


Work = Callable[[Key], Awaitable[float | None]]


def backoff(failures: int, luck: float) -> float:
    """Seconds until the next try after so many failures in a row; `luck` in [0, 1) spreads them over the upper half."""
    whole = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures - 1, 30))
    return whole * (0.5 + luck / 2)


class WorkQueue:
    """Runs `work` for keys; a run may return the seconds after which it wants to run again."""

    def __init__(self, work: Work, *, parallel: int = 8, luck: Callable[[], float] = random.random) -> None:
        self._work = work
        self._parallel = parallel
        self._luck = luck
        self._due: dict[Key, float] = {}  # the truth; the heap may hold older entries of a key, skipped when popped
        self._heap: list[tuple[float, Key]] = []
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._again: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}
        self._asked: dict[Key, float] = {}  # until when the API server asked to be left alone
        self._since: dict[Key, float] = {}
        self._wake = asyncio.Event()
        self._dispatcher: asyncio.Task[None] | None = None
        self.last_turn: float | None = None  # loop time at which the dispatcher last went round, for liveness

    def start(self) -> None:
        """Begin to run keys; needs a running event loop."""
        self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch(), name="workqueue")

    def add(self, key: Key, *, after: float = 0.0, fresh: bool = False) -> None:
        """Run `key` in `after` seconds; the earlier of two wishes wins, and a back-off outlasts both unless `fresh`."""
        if fresh:
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
        at = max(self._now() + after, self._not_before.get(key, 0.0), self._asked.get(key, 0.0))
        if key in self._running:
            self._again[key] = min(at, self._again.get(key, at))
        else:
            self._schedule(key, at)

    def failures(self, key: Key) -> int:
        """How often the key has failed in a row."""
        return self._failures.get(key, 0)

    def __len__(self) -> int:
        return len(self._due) + len(self._running)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - a budget for the whole stop, not for one await
        """Stop taking keys, let the running ones finish within `timeout` seconds, cancel the rest; True if none was cut."""
        if self._dispatcher is not None:
            self._dispatcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._dispatcher
        running = list(self._running.values())
        if not running:
            return True
        _, late = await asyncio.wait(running, timeout=timeout)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return not late

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _schedule(self, key: Key, at: float) -> None:
        known = self._due.get(key)
        if known is not None and known <= at:
            return
        self._due[key] = at
        heapq.heappush(self._heap, (at, key))
        self._wake.set()

    async def _dispatch(self) -> None:
        while True:
            self.last_turn = self._now()
            self._wake.clear()
            wait = self._start_due()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait, 5.0)):  # wait_for may swallow a cancellation on 3.11
                    await self._wake.wait()

    def _start_due(self) -> float:
        """Start what is due and fits; the seconds until more could be started."""
        while self._heap:
            at, key = self._heap[0]
            if self._due.get(key) != at:
                heapq.heappop(self._heap)
                continue
            if at > self._now():
                return at - self._now()
            if self._full():
                return SLOW / 2
            heapq.heappop(self._heap)
            del self._due[key]
            self._since[key] = self._now()
            self._running[key] = asyncio.get_running_loop().create_task(self._run(key), name=str(key))
        return 5.0

    def _full(self) -> bool:
        recent = self._now() - SLOW
        return len(self._running) >= MOST or sum(at > recent for at in self._since.values()) >= self._parallel

    async def _run(self, key: Key) -> None:
        again: float | None = None
        try:
            after = await self._work(key)
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
            self._asked.pop(key, None)
            again = None if after is None else self._now() + after
        except Exception as error:  # noqa: BLE001 - whatever a key's run raises delays that key alone
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            asked: float = getattr(error, "not_before", 0.0)
            if asked:
                self._asked[key] = self._now() + asked
            again = self._not_before[key] = self._now() + max(asked, backoff(failures, self._luck()))
            metrics.FAILED.labels(key.kind).inc()
            expected = getattr(error, "expected", isinstance(error, (PoolkeeperError, OSError)))
            say = log.warning if expected else log.exception
            say("reconcile.failed: %s: %s", key, error, extra={"key": str(key), "failures": failures})
        finally:
            del self._running[key], self._since[key]
            wished = self._again.pop(key, None)
            if wished is not None:
                wished = max(wished, self._not_before.get(key, 0.0))
            times = [t for t in (again, wished) if t is not None]
            if times:
                self._schedule(key, min(times))
            self._wake.set()
