"""A DSN that may become another one while connections are open, as where its Secret is rotated (O5).

Guarantees: the connection that works is given up only for one that works; a DSN that cannot be read, or leads nowhere, changes nothing, and
nobody waits for it: whoever keeps a connection makes the other one beside it.
"""

import logging
import time
from collections.abc import Callable

from poolkeeper.errors import PoolkeeperError
from poolkeeper.redact import bounded, redact

_log = logging.getLogger("poolkeeper.worker")

LOOK = 1.0
"""Seconds between two looks at the DSN."""

AGAIN = 30.0
"""Seconds until one that did not work is tried again."""


class Rotation:
    """The DSN of one connection."""

    def __init__(self, read: Callable[[], str], what: str) -> None:
        self._read = read
        self._what = what
        self._used: str | None = None
        self._look_at = 0.0

    def first(self) -> str:
        """Return the DSN of this moment, for a connection where there is none; raises Misconfigured."""
        self._used = self._read()
        self._look_at = time.monotonic() + LOOK
        return self._used

    def another(self) -> str | None:
        """Return the DSN if it is another than that in use, at most once in a while."""
        if time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + LOOK
        try:
            found = self._read()
        except PoolkeeperError:
            return None
        return None if self._used is None or found == self._used else found

    def took(self, dsn: str) -> None:
        """Note that a connection was made by it."""
        self._used = dsn
        _log.info("%s: the DSN has changed, and is in use", self._what)

    def failed(self, error: BaseException) -> None:
        """Note that none could be made by the other one."""
        self._look_at = time.monotonic() + AGAIN
        reason = bounded(redact(" ".join(str(error).split())), 300)
        _log.warning(
            "%s: the DSN has changed, and does not work; the connection that there is stays: %s", self._what, reason
        )
