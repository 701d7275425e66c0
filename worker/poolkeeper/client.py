"""Submitting tasks, looking them up, cancelling them, scheduling them: on a connection of the caller's or on one of its own (Q4).

Guarantees: on the caller's connection everything is part of the caller's transaction: the task exists if and only if
that commits; on one that commits each statement it exists at once (`connections`). What is no JSON is refused before
anything is sent (Q8). `submit` raises what the store refuses, so that nothing is lost by not looking; `submit_many`
returns a verdict per task. Repeats nothing: submit with a `key` to be able to.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast
from uuid import UUID

from poolkeeper.codes import Code
from poolkeeper.connections import areach, reach
from poolkeeper.errors import NotFound, error
from poolkeeper.refusals import accepted
from poolkeeper.scheduling import AsyncSchedules, Schedules
from poolkeeper.store import Call, TaskView, Verdict, aconnect, arun, calls, connect, run
from poolkeeper.store.prepared import aprepare, prepare
from poolkeeper.store.rows import Changed
from poolkeeper.wishes import Task, Wishes, numbered, sendable, text
from poolkeeper.wishes import task_id as an_id

if TYPE_CHECKING:
    import psycopg

    from poolkeeper.connections import AnyAsyncConnection, SyncConnection

T = TypeVar("T")

PAGE = 10_000
"""Tasks of one call to the store."""


class Client(Schedules):
    """The synchronous face. `connection`: of the caller's, of psycopg, SQLAlchemy (a Session too) or Django; else `dsn`, of its own."""

    def __init__(self, connection: "SyncConnection | None" = None, *, dsn: str | None = None) -> None:
        self._given = connection
        self._dsn = _one_of(connection, dsn)
        self._own: psycopg.Connection[Any] | None = None

    def submit(self, queue: str, type: str, payload: Any = None, **wishes: Unpack[Wishes]) -> Verdict:  # noqa: A002
        """Submit one task and return its id; raises Refused, Conflict and NotFound with the store's code."""
        return accepted(queue, {**wishes, "type": type}, self._run(_submit(queue, type, payload, wishes)))

    def submit_many(self, queue: str, tasks: Iterable[Task]) -> list[Verdict]:
        """Submit tasks, up to 10,000 in one round trip; returns their verdicts in order, raises for none of them.

        On the client's own connection each page of 10,000 is a transaction of its own.
        """
        return [verdict for page in _pages(queue, tasks) for verdict in self._run(page)]

    def get(self, task_id: UUID) -> TaskView:
        """Return a task as it is now; raises NotFound."""
        return _found(task_id, self._run(calls.task(an_id(task_id))))

    def cancel(self, task_id: UUID, *, who: str, why: str) -> Changed:
        """Cancel a task: at once while it waits, by telling its handler while it runs; raises NotFound, Conflict."""
        return _changed(task_id, self._run(_cancel(an_id(task_id), who, why)))

    def close(self) -> None:
        """Close the connection that is the client's own."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Call[T]) -> T:
        if self._dsn is None:
            return run(reach(cast("SyncConnection", self._given)), call)
        if self._own is None or self._own.closed:
            self._own = connect(self._dsn, name="poolkeeper client")
            prepare(self._own)
        return run(self._own, call)


class AsyncClient(AsyncSchedules):
    """The asynchronous face. `connection`: an AsyncConnection of psycopg or SQLAlchemy (an AsyncSession too) of the caller's; else `dsn`, of its own."""

    def __init__(self, connection: "AnyAsyncConnection | None" = None, *, dsn: str | None = None) -> None:
        self._given = connection
        self._dsn = _one_of(connection, dsn)
        self._own: psycopg.AsyncConnection[Any] | None = None

    async def submit(self, queue: str, type: str, payload: Any = None, **wishes: Unpack[Wishes]) -> Verdict:  # noqa: A002
        """Submit one task and return its id; raises Refused, Conflict and NotFound with the store's code."""
        return accepted(queue, {**wishes, "type": type}, await self._run(_submit(queue, type, payload, wishes)))

    async def submit_many(self, queue: str, tasks: Iterable[Task]) -> list[Verdict]:
        """Submit tasks, up to 10,000 in one round trip; returns their verdicts in order, raises for none of them.

        On the client's own connection each page of 10,000 is a transaction of its own.
        """
        return [verdict for page in _pages(queue, tasks) for verdict in await self._run(page)]

    async def get(self, task_id: UUID) -> TaskView:
        """Return a task as it is now; raises NotFound."""
        return _found(task_id, await self._run(calls.task(an_id(task_id))))

    async def cancel(self, task_id: UUID, *, who: str, why: str) -> Changed:
        """Cancel a task: at once while it waits, by telling its handler while it runs; raises NotFound, Conflict."""
        return _changed(task_id, await self._run(_cancel(an_id(task_id), who, why)))

    async def close(self) -> None:
        """Close the connection that is the client's own."""
        if self._own is not None:
            await self._own.close()
            self._own = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: Call[T]) -> T:
        if self._dsn is None:
            return await arun(await areach(cast("AnyAsyncConnection", self._given)), call)
        if self._own is None or self._own.closed:
            self._own = await aconnect(self._dsn, name="poolkeeper client")
            await aprepare(self._own)
        return await arun(self._own, call)


def _one_of(connection: Any, dsn: str | None) -> str | None:
    if (connection is None) == (dsn is None):
        raise TypeError("give either a connection of yours or a dsn")
    return dsn


def _submit(queue: str, type: str, payload: Any, wishes: Wishes) -> Call[Verdict]:  # noqa: A002
    task = sendable({**wishes, "type": type, "payload": payload})
    return calls.submit(text(queue, "queue"), **task)


def _pages(queue: str, tasks: Iterable[Task]) -> Iterator[Call[list[Verdict]]]:
    text(queue, "queue")
    several = numbered(tasks)
    while page := list(islice(several, PAGE)):
        yield calls.submit_many(queue, [sendable(task, f"tasks[{index}].") for index, task in page])


def _cancel(found: UUID, who: str, why: str) -> Call[Changed]:
    return calls.cancel(found, who=text(who, "who"), why=text(why, "why"))


def _found(task_id: UUID, view: TaskView | None) -> TaskView:
    if view is None:
        raise NotFound(Code.UNKNOWN_TASK, f"there is no task {task_id}")
    return view


def _changed(task_id: UUID, changed: Changed) -> Changed:
    if changed.code is None:
        return changed
    raise error(changed.code, f"task {task_id}: {changed.code}, its state is {changed.state or 'unknown'}")
