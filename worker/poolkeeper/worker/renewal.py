"""The renewal thread: keeps all leases of this process alive, apart from user code and event loop (Q20).

Guarantees: renews at least three times per visibility timeout over its own connection while anything is held, each renewal bounded by a
time-out shorter than the interval; reconnects for ever, and after each reconnect has the queues polled once a renewal was
answered. Between two renewals it listens: a notification is a hint to poll. A process that is told to end renews at once, and half a second
after each hint, for it may be told that it has less time than it was promised (O20). Does not help against native code that holds the interpreter
lock for longer than a lease; the stall is measured.
"""

import contextlib
import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import psycopg

from poolkeeper.store import Session, calls, connect, run
from poolkeeper.store.prepared import prepare
from poolkeeper.store.rows import RenewAnswer
from poolkeeper.worker.link import Outage, cut, pause
from poolkeeper.worker.rotation import Rotation

_log = logging.getLogger("poolkeeper.worker")

Line = tuple["psycopg.Connection[Any]", bool]
"""A connection, and whether notifications come by it."""

UNKNOWN_SESSION = "PK401"
"""The SQLSTATE of a session that the store does not know (any more)."""

SHORTEST_TIMEOUT = 0.25
"""Seconds: even with very short leases (tests) an answer may take this long."""


SPARED_FOR = 60.0
"""Seconds for which turns of an idle worker may stand in for its renewals, which look after the connection that listens, too."""


DOUBT = 60.0
"""Seconds after a lost answer in which each renewal compares what the process holds with what the store believes: the turn may come late."""

LEAVING = 5.0
"""Seconds between two renewals of a process that was told to end, at most, however long its leases are."""

HURRIED = 0.5
"""Seconds between two of them where it hears something."""

COMPLETE = 8
"""Every so many renewals compare it in any case; it costs a look at what the session has ever held, where vacuum is kept away."""


class Contact:
    """Until when the leases are known to be held: the last answered renewal was sent less than their length ago."""

    def __init__(self) -> None:
        self._until = 0.0
        self._vouched_until = 0.0
        self._doubt_until = 0.0
        self._vouch_at = 0.0
        self.vouched_at = 0.0

    def answered(self, sent: float, length: float) -> None:
        """Note that a renewal sent at monotonic time `sent` was answered."""
        self._until = max(self._until, sent + length)

    def vouched(self, sent: float, length: float) -> None:
        """Note that a turn sent then renewed the session, which held nothing."""
        self.answered(sent, length)
        self.vouched_at, self._vouch_at, self._vouched_until = sent, sent + length / 8, sent + length / 2

    def doubted(self) -> None:
        """Note that the answer to a turn is lost: the next renewals are to find out what became of it, perhaps late."""
        self._vouched_until = 0.0
        self._doubt_until = time.monotonic() + DOUBT

    def in_doubt(self) -> bool:
        """Return whether a turn of which nobody heard may be at work still."""
        return time.monotonic() < self._doubt_until

    def fades(self) -> bool:
        """Return whether a turn should renew a session that holds nothing: at most eight times in the length of a lease."""
        return time.monotonic() >= self._vouch_at

    def spares(self) -> bool:
        """Return whether a session that holds nothing needs no renewal yet."""
        return time.monotonic() < self._vouched_until

    def certain(self) -> bool:
        """Return whether the leases are held for certain now."""
        return time.monotonic() < self._until


class Renewal(threading.Thread):
    """See the module. The callbacks are called in this thread."""

    def __init__(
        self,
        dsn: Callable[[], str],
        *,
        listens: bool,
        direct: bool,
        contact: Contact,
        interval: Callable[[], float],
        idle: Callable[[], bool],
        describe: Callable[[], tuple[Session, int, list[UUID], dict[str, Any]]],
        answered: Callable[[RenewAnswer], None],
        unknown: Callable[[], None],
        hint: Callable[[], None],
    ) -> None:
        super().__init__(name="poolkeeper-renewal", daemon=True)
        self._rotation = Rotation(dsn, "renewal")
        self._listens, self._direct = listens, direct
        self._contact = contact
        self._interval = interval
        self._idle = idle
        self._describe = describe
        self._answered = answered
        self._unknown = unknown
        self._hint = hint
        self._over = threading.Event()
        self._told = False
        self._leaving = False
        self._renewals = 0
        self._moving: tuple[str, Future[Line]] | None = None  # to another DSN
        self._bell, self._rope = os.pipe()
        self._closing = threading.Lock()
        self._closed = False
        self._rng = random.Random()  # noqa: S311  (jitter)
        self.listening = False
        self.round_at = time.monotonic()
        self.renewed_at = self.round_at

    def stop(self) -> None:
        """End the thread after what it is doing; renewal outlives the last handler, so this comes last."""
        self._over.set()
        self._ring(b".")

    def leave(self) -> None:
        """Renew at once, and more often from here on: the process was told to end, and how much time it has may be told any moment."""
        self._leaving = True
        self._ring(b"!")

    def _ring(self, what: bytes) -> None:
        """Have the thread look what there is."""
        with self._closing:
            if not self._closed:
                os.write(self._rope, what)

    def run(self) -> None:
        """Connect, renew, listen; again and again."""
        try:
            self._renew_for_ever()
        finally:
            self._stay()
            with self._closing:
                self._closed = True
                os.close(self._bell)
                os.close(self._rope)

    def _renew_for_ever(self) -> None:
        outage = Outage(_log, "renewal")
        while not self._over.is_set():
            try:
                line: Line | None = self._open(self._rotation.first())
                while line is not None:
                    with contextlib.closing(line[0]):
                        line = self._serve(line, outage)
            except Exception as error:  # noqa: BLE001  (whatever it is, leases must be kept: connect anew and go on)
                self.listening = False
                self.round_at = time.monotonic()
                outage.failed(error)
                self._await(pause(outage.failures, self._rng, longest=self._interval()))

    def _timeout(self) -> float:
        return max(SHORTEST_TIMEOUT, 0.8 * self._interval())

    def _open(self, dsn: str) -> Line:
        conn = connect(dsn, name="poolkeeper renewal")
        if not self._listens:  # behind a pooler in transaction mode
            return conn, False
        try:
            with self._bounded(conn):
                alone = prepare(conn)
                # else it would stay with some backend, which the pooler ends when a notification comes
                if alone or self._direct:
                    conn.add_notify_handler(lambda _notify: self._hint())
                    run(conn, calls.listen())
        except BaseException:
            conn.close()
            raise
        if not alone and not self._told:
            self._told = True
            _log.warning(
                "listening leads through a connection pooler: nothing wakes this worker; set POOLKEEPER_DIRECT_DSN past it"
            )
        return conn, alone

    @contextlib.contextmanager
    def _bounded(self, conn: "psycopg.Connection[Any]") -> Iterator[None]:
        clock = threading.Timer(self._timeout(), cut, [conn])
        clock.daemon = True
        clock.start()
        try:
            yield
        finally:
            clock.cancel()

    def _look_elsewhere(self) -> None:
        """Begin to connect by another DSN where there is one: in a thread, for that may last longer than a lease."""
        dsn = self._rotation.another()
        if dsn is None or (self._moving is not None and self._moving[0] == dsn):
            return
        self._stay()
        made: Future[Line] = Future()
        self._moving = dsn, made

        def attempt() -> None:
            try:
                made.set_result(self._open(dsn))
            except Exception as error:  # noqa: BLE001  (whatever it is, the leases are kept by the connection that there is)
                made.set_exception(error)
            self._ring(b"?")

        threading.Thread(target=attempt, name="poolkeeper-renewal-move", daemon=True).start()

    def _moved(self) -> "Line | None":
        """The connection by another DSN, once it was made."""
        if self._moving is None or not self._moving[1].done():
            return None
        (dsn, made), self._moving = self._moving, None
        if (error := made.exception()) is not None:
            self._rotation.failed(error)
            return None
        self._rotation.took(dsn)
        return made.result()

    def _stay(self) -> None:
        """Nobody takes the connection that is being made."""
        if self._moving is not None:
            self._moving[1].add_done_callback(_hang_up)
            self._moving = None

    def _serve(self, line: Line, outage: Outage) -> Line | None:
        """Renew and listen until told to end (None), or until there is another connection to go on with."""
        conn, self.listening = line
        due = time.monotonic()
        fresh = True
        while not self._over.is_set():
            if time.monotonic() >= due:
                every = min(self._interval(), LEAVING) if self._leaving else self._interval()
                due = time.monotonic() + every * self._rng.uniform(0.85, 1.0)
                if fresh or self._leaving or not self._spared():
                    self._renew(conn)
                    outage.over()
                self.round_at = time.monotonic()
                if fresh:  # what came meanwhile was not heard; and only now is it certain that leases can be kept
                    self._hint()
                fresh = False
                self._look_elsewhere()
            if (moved := self._moved()) is not None:
                return moved
            if self._listen(conn, due - time.monotonic()):  # perhaps of a cancel: ask soon, but not once per submit
                soon = self._interval() / 4
                due = min(due, self.renewed_at + (min(soon, HURRIED) if self._leaving else soon))
        return None

    def _spared(self) -> bool:
        """Whether the turns of an idle worker have renewed for it (Q20)."""
        return self._contact.spares() and time.monotonic() < self.renewed_at + SPARED_FOR and self._idle()

    def age(self) -> float:
        """Seconds since the session was renewed, by a renewal or a turn."""
        return time.monotonic() - max(self.renewed_at, self._contact.vouched_at)

    def _renew(self, conn: "psycopg.Connection[Any]") -> None:
        self._renewals += 1
        complete = self._contact.in_doubt() or self._renewals % COMPLETE == 0
        session, received, held, stats = self._describe()
        sent = time.monotonic()
        try:
            with self._bounded(conn):
                answer = run(conn, calls.renew(session, received, held, complete=complete, stats=stats))
        except psycopg.Error as error:
            if error.sqlstate == UNKNOWN_SESSION:
                self._unknown()
            raise
        self.renewed_at = time.monotonic()
        self._contact.answered(sent, session.visibility_timeout.total_seconds())
        self._answered(answer)

    def _listen(self, conn: "psycopg.Connection[Any]", seconds: float) -> bool:
        """Wait for a notification, or for the order to leave, for at most `seconds`; return whether one came."""
        for descriptor in self._await(seconds, conn.fileno()):
            if descriptor == self._bell:
                return not self._over.is_set()
            conn.pgconn.consume_input()  # raises when the connection is gone
            heard = False
            while conn.pgconn.notifies() is not None:
                heard = True
            if heard:
                self._hint()
                return True
        return False

    def _await(self, seconds: float, *descriptors: int) -> list[int]:
        """Wait until one of these or the bell can be read, for at most `seconds`; not by select(), which knows no descriptor from 1024 on."""
        poller = select.poll()
        for descriptor in (self._bell, *descriptors):
            poller.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000)]
        if self._bell in ready:
            os.read(self._bell, 64)
        return ready


def _hang_up(made: "Future[Line]") -> None:
    if made.exception() is None:
        made.result()[0].close()
