"""The claim loop: one turn after another, each settling what ended and claiming for free slots, in one round trip.

Guarantees: a settle stays until it was answered, over any number of lost connections (the store says `already_done`);
deliveries of a lost answer are returned by the numbering of turns (Q10). Notifications are hints, polling with jitter is
the truth (Q15). Nothing is claimed while the lease is uncertain, during a drain or under the operator's mark.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

import psycopg

from poolkeeper.codes import ALREADY_DONE, IN_TRANSACTION
from poolkeeper.store import Session, calls
from poolkeeper.store.rows import Claimed, Settle, SettleVerdict, TurnAnswer
from poolkeeper.worker.appetite import Appetite, appetite, one_turn_of_work
from poolkeeper.worker.link import GIVE_UP_HERE, Link, Outage, pause
from poolkeeper.worker.renewal import Contact
from poolkeeper.worker.slots import Slots

_log = logging.getLogger("poolkeeper.worker")

MOST_SETTLES = 1000
"""Settles of one turn."""

LONGEST_AHEAD = 1.0
"""Seconds that a delivery may wait here for a slot before it is handed back unstarted."""

LINGER_FROM = 50
"""Deliveries per turn from which a turn waits for half of the last one's work to be done: fewer, fuller turns."""

LONGEST_LINGER = 0.02
"""Seconds that it waits at most."""

LOOK = 5.0
"""Seconds between two looks at the world when nothing happens: the round that /livez asks for."""

ASK_AGAIN = 0.25
"""Seconds until a settle is sent again that came while the handler's own transaction was open."""

SWEEP_EVERY = 1.0
"""Seconds between two turns that sweep, while turns follow each other; more where the store says that sweeping takes long."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as it was asked for."""

    asked: Appetite
    settles: list[Settle]
    starts: list[Claimed]
    isolated: bool
    hints: int
    began: float


class Turns:
    """See the module. `draining` is SIGTERM, `marked` the operator's mark; both stop claims, only one ends the process."""

    def __init__(
        self,
        link: Link,
        slots: Slots,
        *,
        contact: Contact,
        listening: Callable[[], bool],
        side_by_side: Callable[[], int],
        due_in: Callable[[timedelta], None],
        renewed: Callable[[dict[str, Any]], None],
        begins: Callable[[], None],
    ) -> None:
        self.session: Session | None = None
        self.number = 0
        self.received = 0
        self.draining = False
        self.marked = False
        self.claimed = 0
        self.give_up_at: float | None = None
        self.round_at = time.monotonic()
        self.first_round = asyncio.Event()
        self._link = link
        self._slots = slots
        self._contact = contact
        self._listening = listening  # whether notifications reach this process: then it may come more seldom
        self._side_by_side = side_by_side  # how many suspects this process may run at once
        self._due_in = due_in  # told when the next slot of a schedule comes
        self._renewed = renewed  # told what a turn of an idle worker renewed at (Q24)
        self._begins = begins  # told that something begins to run
        self._event = asyncio.Event()
        self._rng = random.Random()  # noqa: S311  (jitter)
        self._outage = Outage(_log, "claim loop")
        self._hints = 1
        self._answered_hints = 0
        self._poll_at = 0.0
        self._retry_at = 0.0
        self._linger_until = 0.0
        self._swept_at = 0.0
        self._sweep_every = SWEEP_EVERY
        self._put_at = 0.0
        self._ask_again_at = 0.0
        self._left_open = set[object]()  # tasks whose handlers left their own transaction open, as was told
        self._isolate = False  # suspects wait: take nothing else, and them once nothing else runs
        self._apart = False  # what runs are suspects
        self._one_by_one = False
        self._turn_seconds = 0.005

    def begin(self, session: Session) -> None:
        """Take turns of this session from now on; they are numbered from 1 in each."""
        self.session = session
        self.number = self.received = 0
        self._retry_at = 0.0
        self.hint()

    def changed(self) -> None:
        """Look again: something ended, began or was decided."""
        self._event.set()

    def hint(self) -> None:
        """Poll soon: a notification came, or the listener was connected anew."""
        self._hints += 1
        self._event.set()

    def mark(self, marked: bool) -> None:
        """Heed the operator's mark, whichever answer brought it: stop claiming, or claim again."""
        if marked != self.marked:
            self.marked = marked
            _log.info(
                "the operator %s",
                "marked this worker: it claims nothing more" if marked else "took its mark back: claiming again",
            )
            self.hint()

    async def run(self, over: Callable[[], bool]) -> None:
        """Take turns until `over`."""
        while not over():
            try:
                await self._round()
            except asyncio.CancelledError:  # whoever stops this loop says so by `over`
                self._contact.doubted()
                _log.warning("claim loop: cancelled by a handler, which cancels tasks that are not its own; it goes on")

    async def _round(self) -> None:
        now = time.monotonic()
        self.round_at = now
        if self._needed(now):
            await self._turn()
            return
        self._event.clear()
        clock = asyncio.get_running_loop().call_at(self._next_look(now), self._event.set)
        try:
            await self._event.wait()
        finally:
            clock.cancel()

    def _needed(self, now: float) -> bool:
        slots = self._slots
        if (slots.waiting or slots.leased) and (self.draining or now >= self._put_at + LONGEST_AHEAD):
            slots.return_waiting()
            slots.typical = max(slots.typical, LONGEST_AHEAD)  # not so short after all: do not claim them again at once
        slots.fill()
        if slots.put_off and now >= self._ask_again_at:
            slots.bring_back()
        if now < self._retry_at or (now < self._linger_until and self._plenty()):
            return False
        if slots.settles:
            return True
        if self._apart and not slots.running and not slots.waiting:
            self._apart = False
        asked = self._appetite()
        hungry = self._isolate or self._hints != self._answered_hints or now >= self._poll_at
        return asked.starts > 0 or (hungry and asked.want > 0)

    def _plenty(self) -> bool:
        """Whether half a turn of work is still here: more of it will be done when the next turn leaves a little later."""
        one_turn = self._one_turn()
        return one_turn >= LINGER_FROM and 2 * (len(self._slots.running) + len(self._slots.waiting)) > one_turn

    def _one_turn(self) -> int:
        slots = self._slots
        return one_turn_of_work(
            capacity=slots.capacity, finished=slots.finished, typical=slots.typical, turn=self._turn_seconds
        )

    def _next_look(self, now: float) -> float:
        times = [now + LOOK]
        if self._linger_until > now:
            times.append(self._linger_until)
        if self._retry_at > now:
            times.append(self._retry_at)
        elif self._appetite().want > 0:
            times.append(self._poll_at)
        if self._slots.waiting or self._slots.leased:
            times.append(self._put_at + LONGEST_AHEAD)
        if self._slots.put_off:
            times.append(self._ask_again_at)
        return min(times)

    def _appetite(self) -> Appetite:
        slots = self._slots
        if self.draining or self._one_by_one or not self._contact.certain():
            return Appetite()
        busy = len(slots.running) + len(slots.waiting)
        if self.marked or self._isolate or self._apart:  # what is leased still gets its slot, nothing more is claimed
            starts = min(len(slots.leased), max(0, slots.capacity - busy))
            only_suspects = (self._apart or not busy) and not slots.leased
            room = max(0, self._side_by_side() - busy) if only_suspects and not self.marked else 0
            return Appetite(starts, room, room)
        return appetite(capacity=slots.capacity, busy=busy, leased=len(slots.leased), one_turn=self._one_turn())

    async def _turn(self) -> None:
        assert self.session is not None  # noqa: S101  (registered before the first turn)
        asked = self._appetite()
        turn = Turn(
            asked,
            list(islice(self._slots.settles, 1 if self._one_by_one else MOST_SETTLES)),
            list(islice(self._slots.leased, asked.starts)),
            isolated=(self._isolate or self._apart) and asked.want > 0,
            hints=self._hints,
            began=time.monotonic(),
        )
        since = turn.began - self._swept_at if self._swept_at else None
        sweep = since is None or since >= (self._sweep_every if self._slots.running else SWEEP_EVERY)
        self.number += 1
        call = calls.turn(
            self.session, self.number, self.received, turn.settles, asked.want,
            sweep=sweep, isolated=turn.isolated, slots=asked.slots, starts=turn.starts, since=since,
            idle=self._listening() and self._contact.fades() and not (self._slots.running or self._slots.held()),
        )  # fmt: skip
        try:
            answer = await self._link.call(call, within=self._patience())
        except Exception as error:  # noqa: BLE001  (whatever it is, what runs goes on, and the next turn tries again)
            self._failed(error, turn.settles)
            return
        self._outage.over()
        self._one_by_one = False
        self._swept_at = turn.began if sweep else self._swept_at
        self._heed(turn, answer, time.monotonic())

    def _patience(self) -> float:
        """Seconds to wait for an answer: in a drain not beyond its end."""
        left = GIVE_UP_HERE if self.give_up_at is None else self.give_up_at - time.monotonic()
        return max(0.5, min(GIVE_UP_HERE, left))

    def _heed(self, turn: "Turn", answer: TurnAnswer, now: float) -> None:
        self._turn_seconds += (min(now - turn.began, 0.1) - self._turn_seconds) * 0.1
        for settle, verdict in zip(turn.settles, answer.verdicts, strict=True):
            if verdict.code == IN_TRANSACTION:
                self._slots.ask_again(settle)
                self._ask_again_at = now + ASK_AGAIN
            self._slots.settles.popleft()
            if verdict.code is not None and settle.task_id not in self._left_open:
                _tell(verdict)
            (self._left_open.add if verdict.code == IN_TRANSACTION else self._left_open.discard)(settle.task_id)
        want = turn.asked.want
        if len(answer.claimed) < want:
            self._answered_hints = max(self._answered_hints, turn.hints)
        if len(answer.claimed) < want or not want:
            self._poll_at = now + answer.come_again.total_seconds() * self._rng.uniform(0.6, 1.0)
        if answer.slot_in is not None:
            self._due_in(answer.slot_in)
        if answer.sweep_in is not None:
            self._sweep_every = max(SWEEP_EVERY, answer.sweep_in.total_seconds())
        if answer.position is not None and self.session is not None:
            self._contact.vouched(turn.began, self.session.visibility_timeout.total_seconds())
            self._renewed(answer.position)
        self.claimed += len(answer.claimed)
        self.mark(answer.draining)
        self._apart = self._apart or any(claimed.suspect for claimed in answer.claimed)
        # after an isolated turn that was filled the next one takes more suspects; else there are no more now
        self._isolate = len(answer.claimed) == want if turn.isolated else answer.isolate
        if turn.starts or answer.claimed:
            self._begins()
            self._put_at = now
            self._linger_until = now + min(self._turn_seconds, LONGEST_LINGER)
            self._slots.take(turn.starts, answer.refused, answer.claimed, start=not self.draining)
        self.received = self.number  # last: whoever reads it must find the deliveries in their slots
        self.first_round.set()

    def _failed(self, error: Exception, settles: list[Settle]) -> None:
        self._outage.failed(error)
        self._contact.doubted()
        self._swept_at = 0.0  # what comes next cannot say that the store could be reached meanwhile (Q23)
        self._retry_at = time.monotonic() + pause(self._outage.failures, self._rng)
        if not settles or not _is_about_data(error):
            return
        if not self._one_by_one:
            self._one_by_one = True  # one of them may be what the store cannot take: find it
            self._retry_at = 0.0
            return
        bad = self._slots.settles.popleft()
        _log.error("task %s: the store refused how it ended (%s): %s", bad.task_id, bad.outcome, error)
        if bad.outcome != "dead":
            self._slots.settles.append(
                Settle(
                    task_id=bad.task_id,
                    token=bad.token,
                    outcome="dead",
                    error_class="result_invalid",
                    error=str(error)[:500],
                )
            )


def _is_about_data(error: Exception) -> bool:
    """Whether trying the same again cannot help: a value that the database or JSON does not take."""
    return isinstance(error, psycopg.DataError | psycopg.IntegrityError | TypeError | ValueError)


def _tell(verdict: SettleVerdict) -> None:
    if verdict.code == IN_TRANSACTION:
        _log.warning(
            "task %s: its handler has returned, and the transaction in which it called succeed_in is still open; commit or roll back first",
            verdict.task_id,
        )
        return
    level = logging.DEBUG if verdict.code == ALREADY_DONE else logging.WARNING
    _log.log(level, "task %s: settle answered %s, its state is %s", verdict.task_id, verdict.code, verdict.state)
