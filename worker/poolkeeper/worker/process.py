"""One worker process from start to exit: connect, register, work, drain (Q47 to Q49).

Guarantees: what cannot work is refused before anything starts; a database that is away is waited for, for ever; a drain
settles or hands back everything, reports, and ends the process with exit code 0; a second SIGTERM changes nothing.
"""

import asyncio
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg

from poolkeeper.app import Poolkeeper
from poolkeeper.codes import Code
from poolkeeper.context import Context, HandedBack, Stopping
from poolkeeper.errors import LeaseLost, Misconfigured, PoolkeeperError
from poolkeeper.outcome import Outcome
from poolkeeper.store import Session, calls
from poolkeeper.store.migrate import check_version
from poolkeeper.store.rows import Claimed, RenewAnswer
from poolkeeper.worker.checkpoints import Writer
from poolkeeper.worker.copies import SIGNALS, Original
from poolkeeper.worker.drain import Drain
from poolkeeper.worker.health import Health
from poolkeeper.worker.isolated import Rooms, rooms, run_in_child, run_suspect
from poolkeeper.worker.link import Link, Outage, pause
from poolkeeper.worker.loop import Turns
from poolkeeper.worker.pulse import Pulse
from poolkeeper.worker.renewal import Contact, Renewal
from poolkeeper.worker.schedules import Schedules
from poolkeeper.worker.settings import Settings
from poolkeeper.worker.slots import Slots
from poolkeeper.worker.upkeep import tend

_log = logging.getLogger("poolkeeper.worker")


class Worker:
    """See the module. Made and run inside an event loop."""

    def __init__(self, app: Poolkeeper, settings: Settings, original: Original) -> None:
        self._settings = settings
        self._original = original
        self._handlers = _chosen(app, settings)
        self._loop = asyncio.get_running_loop()
        self._rng = random.Random()  # noqa: S311  (jitter)
        self._stopping = Stopping()
        self._contact = Contact()
        self._link = Link(settings.dsn.read, name="poolkeeper worker", pooled=settings.pooler == "transaction")
        writer = Writer(
            self._link.call,
            certain=self._contact.certain,
            stopping=self._stopping,
        )
        self.slots = Slots(
            self._handlers,
            capacity=settings.concurrency,
            writer=writer,
            in_child=self._in_child,
            changed=self._changed,
            came_back=original.end_copy,
        )
        self._schedules = Schedules(self._link, settings.queues)
        self.pulse = Pulse(self._listen, resting=lambda: not (self.slots.running or self.slots.held()))
        self.turns = Turns(
            self._link,
            self.slots,
            contact=self._contact,
            listening=lambda: self.renewal.listening,
            side_by_side=self._suspects_side_by_side,
            due_in=self._schedules.due_in,
            renewed=self._renewed_by_turn,
            begins=self.pulse.quicken,
        )
        self._rooms = Rooms(1, None, None)
        self._session: Session | None = None
        self._drain: Drain | None = None
        self._real_grace: float | None = None
        self._watching: asyncio.TimerHandle | None = None
        # what the store has acknowledged, for when it comes back as another (Q24)
        self._position: dict[str, Any] | None = None
        self._held: str | None = None
        self._telling = self._told = 0  # of the tasks that ended here the last renewal told so many
        self._progress: set[UUID] = set()  # what the next answered renewal tells
        self._named: dict[UUID, int] = {}  # the deliveries that the last renewal named
        self._heard: dict[signal.Signals, Any] = {}
        self._told_to_stop = asyncio.Event()
        self._registering: asyncio.Task[bool] | None = None
        self._tending: list[asyncio.Task[None]] = []
        self.renewal = Renewal(
            (settings.direct_dsn or settings.dsn).read,
            listens=settings.listens,
            direct=settings.direct_dsn is not None,
            contact=self._contact,
            interval=lambda: self._session.renew_every.total_seconds() if self._session else 1.0,
            idle=self._idle,
            describe=self._describe,
            answered=self._renewed,
            unknown=lambda: self._soon(self._unknown_session),
            hint=lambda: self._soon(self.turns.hint),
        )

    async def run(self) -> int:
        """Work until told to stop; return the exit code."""
        for dsn in (self._settings.dsn, self._settings.direct_dsn):
            if dsn is not None:
                dsn.read()  # said at once; later, a DSN that cannot be read is one more reason to wait
        health = Health(self._settings.http_host, self._settings.http_port, self)
        health.start()
        self.pulse.start()
        try:
            if not await self._register_or_stop():
                return 0
            self.renewal.start()
            _log.info(
                "working: session %s, %d slots, types %s",
                self._session.id if self._session else "",
                self.slots.capacity,
                ", ".join(sorted(self._handlers)),
            )
            if not self._settings.pod.get("pod_name"):  # in a pod the operator does it
                _log.info("outside of a pod: this worker does the store's upkeep too")
                self._tending.append(self._loop.create_task(tend(self._link, self._told_to_stop)))
            self._tending.append(self._loop.create_task(self._schedules.fire(self._told_to_stop)))
            await self.turns.run(self._over)
            return await self._leave()
        finally:
            self.pulse.stop()
            self.renewal.stop()
            await self._link.close()
            health.stop()

    def _listen(self) -> None:
        """Hear what says stop, and see to it that this stays so: handlers may set signals as they like."""
        heard = {number: signal.getsignal(number) for number in SIGNALS}
        for number, present in heard.items():
            if number == signal.SIGHUP and present is signal.SIG_IGN:
                continue  # nohup
            if self._heard.get(number, present) is not present:
                _log.warning("a handler of a task changed how this worker hears %s; changed back", number.name)
            self._loop.add_signal_handler(number, self.stop)
            self._heard[number] = signal.getsignal(number)
        self._original.heard()

    @property
    def leaves_by(self) -> float:
        """The monotonic time at which this process must have ended."""
        return time.monotonic() if self._drain is None else self._drain.give_up_at

    def stop(self) -> None:
        """Begin the drain; once begun, calling again changes nothing."""
        if self._drain is not None:
            return
        settings, running = self._settings, len(self.slots.running)
        self._drain = Drain(time.monotonic(), settings.grace, settings.hand_back_margin, started=running)
        if self._real_grace is not None:
            self._drain.shorten(self._real_grace)
        _log.info("draining: %d deliveries in flight, %.0f s of grace", running, self._drain.grace)
        self.turns.draining = True
        self.slots.return_waiting()
        self._stopping.set()
        self._told_to_stop.set()
        self.renewal.leave()
        self._schedules.changed()
        self._watch_drain(self._drain)
        self.turns.changed()

    def _watch_drain(self, drain: Drain) -> None:
        """Do what is due of the drain, and look again when the next thing is."""
        if self._watching is not None:
            self._watching.cancel()
        self.turns.give_up_at = drain.give_up_at  # the grace may have become shorter
        now = time.monotonic()
        if now >= drain.hand_back_at and not drain.truncated and self.slots.running:
            drain.truncated = True
            drain.handed_back_before = self.slots.endings.get("handed_back", 0)
            _log.warning(
                "draining: handing back %d deliveries at their last checkpoint, %.0f s before the grace ends",
                len(self.slots.running),
                drain.margin,
            )
            for task_id, run in list(self.slots.running.items()):
                lost = HandedBack(Code.LEASE_EXPIRED, f"task {task_id}: the worker stops, the task is handed back")
                self.slots.halt(task_id, run.claimed.delivery, "handed_back", lost)
        if now >= drain.force_at and self.slots.running:
            self.slots.abandon()
        self.turns.changed()
        due = [at for at in (drain.hand_back_at, drain.force_at, drain.give_up_at) if at > now]
        if due:
            self._watching = self._loop.call_at(min(due[0], now + 1.0), self._watch_drain, drain)

    def _over(self) -> bool:
        drain = self._drain
        if drain is None:
            return False
        if time.monotonic() >= drain.give_up_at:
            return True
        slots = self.slots
        return not (slots.running or slots.waiting or slots.leased or slots.settles or slots.put_off)

    async def _leave(self) -> int:
        drain = self._drain
        assert drain is not None  # noqa: S101  (the loop ends only by a drain)
        assert self._session is not None  # noqa: S101
        abandoned = len(self.slots.running) + len(self.slots.settles) + len(self.slots.put_off)
        if drain.truncated:
            drain.handed_back = self.slots.endings.get("handed_back", 0) - drain.handed_back_before
        report = drain.report(time.monotonic(), abandoned=abandoned)
        _log.info("drained: %s", ", ".join(f"{name} {value}" for name, value in report.items()))
        left = max(0.5, drain.began + drain.grace - time.monotonic())
        try:
            await self._link.call(calls.report_drain(self._session, report), within=left)
            await self._link.call(calls.end_session(self._session), within=left)
        except (PoolkeeperError, psycopg.Error, OSError) as error:
            _log.warning("draining: the report did not reach the store: %s", error)
        return 5 if abandoned else 0

    async def _register_or_stop(self) -> bool:
        """Register, however long the database is away; False when told to stop before that."""
        registering = self._loop.create_task(self._register())
        told = self._loop.create_task(self._told_to_stop.wait())
        await asyncio.wait({registering, told}, return_when=asyncio.FIRST_COMPLETED)
        for task in (registering, told):
            task.cancel()
        await asyncio.wait({registering, told})
        return not registering.cancelled() and registering.result()

    async def _register(self) -> bool:
        """Register a session, waiting for the database if need be; False when a drain began meanwhile."""
        settings, outage = self._settings, Outage(_log, "start")
        call = calls.register_session(
            settings.pool,
            list(settings.queues),
            sorted(self._handlers),
            concurrency=settings.concurrency,
            info={**_info(settings), **({"position": self._position} if self._position else {})},
            tenants=settings.tenants,
            tenants_except=settings.tenants_except,
        )
        while self._drain is None:
            self.turns.round_at = time.monotonic()
            try:
                check_version((await self._link.call(calls.installation())).schema_version)
                session = await self._link.call(call)
            except (PoolkeeperError, psycopg.Error, OSError) as error:
                outage.failed(error)
                await asyncio.sleep(pause(outage.failures, self._rng))
                continue
            outage.over()
            self._session = session  # nothing is claimed before the renewal thread had its first answer
            self.turns.begin(session)
            if session.unknown_queues:
                _log.warning("unknown queues, worked off once they exist: %s", ", ".join(session.unknown_queues))
            return True
        return False

    @property
    def left(self) -> bool:
        """Whether handlers still run although their leases went back: the process must not wait for them."""
        return bool(self.slots.running) or self.slots.abandoned > 0

    def _changed(self) -> None:
        self.turns.changed()

    def _describe(self) -> tuple[Session, int, list[UUID], dict[str, Any]]:
        """Return what the renewal thread sends; called there."""
        assert self._session is not None  # noqa: S101  (the thread begins after registration)
        slots = self.slots
        self._telling = slots.finished
        stats: dict[str, Any] = {
            "finished": self._telling,
            "busy_seconds": round(slots.busy_seconds, 3),
            "busy": len(slots.running),
        }
        if self._position is not None:
            stats["position"] = self._position
        self._progress |= slots.progressed()
        if self._progress:
            stats["progress"] = [str(task_id) for task_id in self._progress]
        self._named = slots.held()
        return self._session, self.turns.received, list(self._named), stats

    def _idle(self) -> bool:
        """Whether a renewal would keep nothing and tell nothing; called by its thread."""
        slots = self.slots
        return not (slots.running or slots.held() or slots.finished != self._told or self._progress)

    def _renewed_by_turn(self, position: dict[str, Any]) -> None:
        self._position = position

    def _renewed(self, answer: RenewAnswer) -> None:
        """Heed a renewal's answer; called in its thread, so that blocked event loops do not keep threads from hearing it."""
        self._progress.clear()
        self._told = self._telling
        self._position = answer.position
        if answer.held != self._held:
            self._held = answer.held
            _log.log(
                logging.ERROR if answer.held else logging.INFO,
                f"the installation is held ({answer.held}): nothing is claimed until somebody runs `poolkeeper db accept`"
                if answer.held
                else "the installation was accepted: claiming again",
            )
        canceled = {task_id: self._named[task_id] for task_id in answer.canceled}
        lost = {task_id: self._named[task_id] for task_id in answer.lost}
        for task_id, delivery in canceled.items():
            told = LeaseLost(Code.CANCELED, f"task {task_id}: canceled on request")
            self.slots.halt(task_id, delivery, "canceled", told)
        for task_id, delivery in lost.items():
            code = answer.codes[task_id]
            told = LeaseLost(code, f"task {task_id}: its lease is lost ({code})")
            if self.slots.halt(task_id, delivery, "lost", told):
                _log.warning("task %s: its lease is lost (%s), the handler is stopped", task_id, code)
        self._soon(lambda: self._renewed_here(answer, lost))

    def _renewed_here(self, answer: RenewAnswer, lost: dict[UUID, int]) -> None:
        self.slots.drop_waiting(lost)
        if answer.visibility_timeout is not None and self._session is not None:  # the policy has changed, perhaps
            self._session.visibility_timeout = answer.visibility_timeout
            self._session.renew_every = answer.visibility_timeout / 4
        if answer.grace is not None:
            self._real_grace = answer.grace.total_seconds()
            if self._drain is not None:
                self._drain.shorten(self._real_grace)
                self._watch_drain(self._drain)
        if answer.slot_in is not None:
            self._schedules.due_in(answer.slot_in)
        self.turns.mark(answer.draining)
        stuck = self.slots.stuck(time.monotonic() - self._settings.grace)
        if stuck and self._drain is None:
            _log.error(
                "%d handlers go on although their leases were lost long ago; this worker ends to be rid of them", stuck
            )
            self.stop()
        if answer.lost or self.slots.waiting or self.slots.leased:
            self.turns.changed()

    def _unknown_session(self) -> None:
        """Become a new session: the store knows this one no more, after a restore or a very long outage."""
        if self._registering is None or self._registering.done():
            _log.warning("the store does not know this session any more, registering a new one")
            self._registering = self._loop.create_task(self._register())

    def _suspects_side_by_side(self) -> int:
        if not self.slots.running:  # while some run their shares are given away
            self._rooms = rooms(self.slots.capacity)
        return self._rooms.most

    def _in_child(self, ctx: Context, claimed: Claimed, token: Callable[[], str]) -> Outcome:
        if not claimed.suspect:
            return run_in_child(self._settings.app, ctx, claimed.payload, memory=None, token=token)
        return run_suspect(self._settings.app, ctx, claimed.payload, self._rooms, claimed.beside, token)

    def _soon(self, work: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)


def _chosen(app: Poolkeeper, settings: Settings) -> dict[str, Any]:
    handlers = app.handlers
    unknown = [name for name in settings.task_types if name not in handlers]
    if unknown:
        raise Misconfigured(
            Code.APP_NOT_IMPORTABLE,
            f'POOLKEEPER_TASK_TYPES names {", ".join(unknown)}, for which "{settings.app}" registers no handler; it has {", ".join(sorted(handlers))}',
        )
    return {name: handlers[name] for name in settings.task_types} if settings.task_types else handlers


def _info(settings: Settings) -> dict[str, Any]:
    from importlib.metadata import version

    pod = settings.pod
    return {
        "pod_name": pod.get("pod_name") or None,
        "pod_namespace": pod.get("pod_namespace") or None,
        "pod_uid": pod.get("pod_uid") or None,
        "node": pod.get("node_name") or None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "build": settings.build,
        "image": settings.image or None,
        "version": version("poolkeeper"),
    }
