"""The tasks of a kit in a Postgres of its own: the store's functions themselves, on a clock that the kit moves (Q50).

Guarantees: each delivery is a session of its own, as of a worker process of its own, so that one that crashed is silent
from then on. Works only in a database that the kit made (`database.fresh`): elsewhere no clock may be moved.
"""

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import psycopg

from poolkeeper.app import Handler
from poolkeeper.client import Client
from poolkeeper.codes import ALREADY_DONE, IN_TRANSACTION, Code
from poolkeeper.context import Context
from poolkeeper.errors import LeaseLost, Misconfigured, error
from poolkeeper.outcome import Outcome
from poolkeeper.policy import QueuePolicy
from poolkeeper.provider import Report
from poolkeeper.store import Session, Settle, calls, connect, run
from poolkeeper.store.call import Call, nothing, value
from poolkeeper.store.rows import Claimed
from poolkeeper.testing.place import Held, TaskNow
from poolkeeper.worker import owntransaction

POOL = "default/kit"


class _Held(Held):
    def __init__(self, claimed: Claimed, session: Session) -> None:
        super().__init__(claimed)
        self.session = session
        self.turn = 1
        self.own = False  # ends itself, in a transaction of the handler's


class Stored:
    """See the module."""

    name: Literal["process", "postgres"] = "postgres"

    def __init__(self, dsn: str, policy: QueuePolicy) -> None:
        self._conn: psycopg.Connection[Any] = connect(dsn, name="poolkeeper kit")
        self._lock = threading.RLock()
        self._policy = policy
        self._alive = set[Held]()
        self._queues: dict[UUID, tuple[str, str]] = {}  # of each task: its queue, its type
        if not self._ask("is_movable", value):
            self._conn.close()
            raise Misconfigured(
                Code.DSN_INVALID,
                "this database was not made for the testing kit, whose clock is moved; take the DSN of the fixture poolkeeper_dsn",
            )
        self._ask("stand_still", nothing)

    def now(self) -> datetime:
        """Return the database's time."""
        found: datetime = self._ask("now", value)
        return found

    def move(self, seconds: float) -> None:
        """Move the database's clock, renew for those who renew, sweep."""
        with self._lock, self._conn.transaction():
            self._ask("move", nothing, seconds=seconds)
            self._renew()
        self._sweep()

    def submit(self, handler: Handler, payload: Any, wishes: Mapping[str, Any]) -> UUID:
        """Submit to a queue of the task's own, so that nothing else is claimed before it."""
        name = f"test-{self._ask('queues', value) + 1}"  # other kits of the test may have made some
        spec = self._policy.to_store()
        applied = self._run(calls.apply_policy("local", "default", "default", name, spec, who="testing kit"))
        assert applied.code is None  # noqa: S101
        with self._lock:
            verdict = Client(self._conn).submit(f"default/{name}", handler.type, payload, **wishes)
        assert verdict.task_id is not None  # noqa: S101
        self._queues[verdict.task_id] = (f"default/{name}", handler.type)
        return verdict.task_id

    def due(self, task_id: UUID) -> datetime:
        """Return when the next delivery can begin."""
        found: datetime = self._ask("due", value, task_id=task_id)
        return found

    def claim(self, task_id: UUID) -> Held | None:
        """Register a session and take a turn; what may have killed its process runs alone (Q27)."""
        self._sweep()
        queue, type_ = self._place_of(task_id)
        with self._lock, self._conn.transaction() as claiming:
            held = self._claimed(queue, type_)
            if held is not None and held.claimed.task_id != task_id:
                raise psycopg.Rollback(claiming)
        if held is None:
            return None
        if held.claimed.task_id != task_id:  # unharmed: that claim never was
            first = held.claimed.task_id
            raise RuntimeError(f"task {task_id} is not the next one of queue {queue}; deliver {first} first")
        self._alive.add(held)
        return held

    def _claimed(self, queue: str, type_: str) -> _Held | None:
        session = self._run(calls.register_session(POOL, [queue], [type_], concurrency=1, info={"build": "test"}))
        for turn, isolated in ((1, False), (2, True)):
            answer = self._run(calls.turn(session, turn, turn - 1, [], 1, isolated=isolated))
            if answer.claimed:
                held = _Held(answer.claimed[0], session)
                held.turn = turn
                return held
        self._run(calls.end_session(session))
        return None

    def save(self, held: Held, value: Any, sequence: int, version: int) -> None:
        """Store a checkpoint."""
        task_id, token = held.claimed.task_id, held.claimed.token
        self._renew()
        verdict = self._run(calls.checkpoint(task_id, token, value, sequence=sequence, version=version))
        if verdict.code == IN_TRANSACTION:
            raise RuntimeError(
                f"task {task_id}: the transaction in which it called succeed_in is still open; "
                "save checkpoints before succeed_in, or after a rollback"
            )
        if verdict.code in {Code.UNKNOWN_TASK, Code.STALE_TOKEN}:
            raise LeaseLost(Code.STALE_TOKEN, f"task {task_id}: stale_token")
        if verdict.code is not None:
            raise error(
                verdict.code,
                f"task {task_id}: {verdict.code}, {verdict.current} bytes of {verdict.limit}"
                if verdict.limit
                else f"task {task_id}: {verdict.code}",
            )

    def report(self, held: Held, report: Report) -> None:
        """Report as a worker does. The kit's pool has no quota: of a delivery that is not over the store says that it knows no such provider."""
        task_id = held.claimed.task_id
        self._renew()
        verdict = self._run(calls.report_provider(task_id, held.claimed.token, report))
        if verdict.code is not None and verdict.code != Code.UNKNOWN_PROVIDER:
            raise LeaseLost(Code(verdict.code), f"task {task_id}: {verdict.code}")

    async def succeed(self, held: Held, ctx: Context, connection: Any, result: Any) -> bool:
        """End the delivery in the handler's transaction."""
        assert isinstance(held, _Held)  # noqa: S101
        held.own = True
        return await owntransaction.succeed(ctx, held.claimed.token, connection, result)

    def succeed_sync(self, held: Held, ctx: Context, connection: Any, result: Any) -> bool:
        """The same on a blocking connection."""
        assert isinstance(held, _Held)  # noqa: S101
        held.own = True
        return owntransaction.succeed_sync(ctx, held.claimed.token, connection, result)

    def silence(self, held: Held) -> None:
        """Renew no more for this delivery; its lease counts from now."""
        self._renew()
        self._alive.discard(held)

    def died(self, held: Held) -> None:
        """Do nothing: the database knows what was committed."""

    def settle(self, held: Held, outcome: Outcome) -> str | None:
        """Settle by a turn, and end the session."""
        assert isinstance(held, _Held)  # noqa: S101
        claimed = held.claimed
        settle = Settle(
            claimed.task_id,
            claimed.token,
            outcome.ending,
            outcome.result,
            outcome.error_class,
            outcome.error,
            None if outcome.retry_after is None else timedelta(seconds=outcome.retry_after),
            own_transaction=held.own,
        )
        answer = self._run(calls.turn(held.session, held.turn + 1, held.turn, [settle], 0))
        code = answer.verdicts[0].code
        if code == IN_TRANSACTION:
            raise AssertionError(
                f"task {claimed.task_id}: the handler returned while the transaction of its succeed_in is open; commit before returning"
            )
        self._alive.discard(held)
        self._run(calls.end_session(held.session))
        return None if held.own and code == ALREADY_DONE else code

    def cancel(self, task_id: UUID) -> None:
        """Cancel, as a person does."""
        with self._lock:
            Client(self._conn).cancel(task_id, who="testing kit", why="the test wants it")

    def look(self, task_id: UUID) -> TaskNow:
        """Return a task."""
        self._sweep()
        with self._lock:
            view = Client(self._conn).get(task_id)
        history = self._run(calls.timeline(task_id))
        endings = tuple(row.outcome for row in history if row.outcome is not None)
        dead = view.reason if view.state == "dead" else None
        return TaskNow(
            task_id, view.state, dead, view.result, view.checkpoint, view.deliveries, view.cancel_requested, endings
        )

    def close(self) -> None:
        """Let the clock go on, unless another kit is open, and close the connection."""
        if not self._conn.closed:
            self._ask("go_on", nothing)
        self._conn.close()

    def _place_of(self, task_id: UUID) -> tuple[str, str]:
        """The queue and type of a task, also of one that the application submitted by itself."""
        if task_id not in self._queues:
            with self._lock:
                view = Client(self._conn).get(task_id)
            self._queues[task_id] = (view.queue, view.type)
        return self._queues[task_id]

    def _renew(self) -> None:
        sessions = [held.session.id for held in self._alive if isinstance(held, _Held)]
        self._ask("renew", nothing, sessions=sessions)

    def _sweep(self) -> None:
        self._renew()
        while self._run(calls.sweep()):
            pass

    def _ask(self, name: str, read: Any, **params: Any) -> Any:
        return self._run(Call(name, params, read, file="testing.sql"))

    def _run(self, call: Call[Any]) -> Any:
        with self._lock:
            return run(self._conn, call)
