"""Copies of this process that handlers make by fork, as multiprocessing does too.

Guarantees: a copy hears SIGTERM, SIGINT and SIGHUP as any program does, and the worker does not take them for its own; a
copy that comes back from its handler ends there: it settles nothing, saves nothing, and takes no step of another handler.
Does not keep a copy from what its handler does in it.
"""

import asyncio
import logging
import os
import signal
import threading

_log = logging.getLogger("poolkeeper.worker")

CAME_BACK = 70
"""Exit code of a copy that returned to the worker's code."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Original:
    """The process that was started, as long as it is this one; `loop` is the event loop in which its handlers run."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._pid = os.getpid()
        self._loop = loop
        self._ours: dict[int, object] = {}
        self.heard()
        self._thread = threading.local()  # `mask`: the signals that a thread which forks had blocked before
        os.register_at_fork(before=self._about_to, after_in_parent=self._unblock, after_in_child=self._copied)

    def heard(self) -> None:
        """Note how signals are heard now: what copies do not take over."""
        self._ours = {number: signal.getsignal(number) for number in SIGNALS}

    def end_copy(self) -> None:
        """End this process if it is a copy."""
        if os.getpid() != self._pid:
            _log.error("a process that a handler forked from %d came back to the worker; it ends", self._pid)
            os._exit(CAME_BACK)

    def _about_to(self) -> None:
        """Hold back what is sent to a copy until it hears for itself."""
        self._thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._thread.mask)

    def _copied(self) -> None:
        signal.set_wakeup_fd(-1)  # else what the copy hears, the worker's loop hears too
        for number, ours in self._ours.items():
            if signal.getsignal(number) is ours and ours is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        self._unblock()
        if self._loop is not None:
            ready = getattr(self._loop, "_ready", None)  # the next steps of others; there is no public way to them
            if ready is not None:
                ready.clear()
            self._loop.stop()
