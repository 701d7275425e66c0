"""Threads for sync handlers and for the parents of child processes.

Guarantees: at most as many as there are slots, begun when first needed; daemons, so that a handler that never ends
cannot keep the process from ending.
"""

import queue
import threading
from collections.abc import Callable


class Threads:
    """Daemon threads for sync handlers, begun when first needed: one that never ends cannot keep the process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def do(self, work: Callable[[], None]) -> None:
        """Run `work` in a free thread, or in a new one."""
        self._work.put(work)
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            threading.Thread(target=self._live, name=f"poolkeeper-slot-{self._count}", daemon=True).start()

    def _live(self) -> None:
        while True:
            self._work.get()()
            self._idle.release()
