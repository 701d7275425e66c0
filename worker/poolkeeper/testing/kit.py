"""A kit: tasks of one application, delivered one at a time, with faults at points that the test names (Q50).

Guarantees: the same test gives the same on both places, in this process and on a Postgres. A task is delivered when the
test says so, never before. The clock stands still but for the kit: what is not due yet becomes due, a lease that nobody
renews ends. Each task lies in a queue of its own.
"""

import asyncio
import weakref
from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Protocol, Self, TypedDict, TypeVar, Unpack
from uuid import UUID

from poolkeeper.app import Poolkeeper
from poolkeeper.policy import QueuePolicy, read_policy
from poolkeeper.testing import survival
from poolkeeper.testing.bench import Bench, Events, Named
from poolkeeper.testing.memory import Memory, demand_played
from poolkeeper.testing.place import Delivery, Place, TaskNow
from poolkeeper.testing.points import Point
from poolkeeper.testing.survival import Look, World

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Wishes(TypedDict, total=False):
    """What a test can ask for with a task; see `Client.submit`."""

    tenant: str
    labels: Mapping[str, str] | None
    max_deliveries: int | None
    delay: timedelta | float | None


class Happens(TypedDict, total=False):
    """What happens to a delivery, and at which point of it."""

    crash_at: Point | None
    """Its process dies: nothing that it had not told the store is known to anybody."""
    cancel_at: Point | None
    """Somebody cancels the task."""
    drain_at: Point | None
    """Its worker is told to stop: `ctx.stopping` is set."""
    overtaken_at: Point | None
    """It stands still until its lease is lost and another delivery has ended the task; then it goes on."""


class MakeKit(Protocol[T_co]):
    """What the fixtures give: `poolkeeper_kit: MakeKit[Kit]`. The kits that it makes are closed when the test is over."""

    def __call__(self, app: Poolkeeper, *, policy: Mapping[str, Any] | None = None) -> T_co:
        """Return a kit for the handlers of `app`; `policy`: of the queue, as in a TaskQueue's spec."""
        ...


class Clock:
    """The time by which leases, delays and retries go; it stands still until it is moved. A handler's own `datetime.now()` is not moved."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def now(self) -> datetime:
        """Return the present time."""
        return self._place.now()

    def advance(self, by: timedelta | float) -> None:
        """Let time pass, a timedelta or seconds."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else float(by)
        if seconds < 0:
            raise ValueError(f"time does not go back, not by {-seconds} s")
        self._place.move(seconds)


class _Kit:
    """What both faces have."""

    def __init__(self, app: Poolkeeper, *, dsn: str | None = None, policy: Mapping[str, Any] | None = None) -> None:
        """Take the handlers of `app`; `dsn`: of a database made by the kit, None: in this process. `policy`: of the queue, as in a TaskQueue's spec."""
        read = read_policy(policy or {}, what="policy of the kit")
        self._bench = Bench(app, _place(dsn, read))
        self.clock = Clock(self._bench.place)

    @property
    def on(self) -> str:
        """Where the tasks lie: "process" or "postgres"."""
        return self._bench.place.name

    def submit(self, handler: Named, payload: Any = None, **wishes: Unpack[Wishes]) -> UUID:
        """Submit a task for a handler, named by the function or by its type; nothing runs yet."""
        return self._bench.submit(handler, payload, dict(wishes))

    def get(self, task: UUID) -> TaskNow:
        """Return a task as it is now; raises NotFound."""
        return self._bench.place.look(task)

    def cancel(self, task: UUID) -> None:
        """Cancel a task: at once while it waits, by telling its handler while it runs; raises NotFound, Conflict."""
        self._bench.place.cancel(task)

    def close(self) -> None:
        """Let go of everything; the fixtures do it."""
        self._bench.place.close()


class AsyncKit(_Kit):
    """The face for tests that are coroutines: handlers run in the test's own event loop."""

    async def deliver(self, task: UUID, **happens: Unpack[Happens]) -> Delivery:
        """Make the next delivery of a task, whatever time has to pass before it is due, and return how it went.

        Raises RuntimeError where the task has ended, AssertionError where a point was never come to.
        """
        return await self._bench.deliver(task, Events(**happens))

    async def finish(self, task: UUID) -> Delivery:
        """Deliver until the task has ended; return the last delivery."""
        return await self._bench.finish(task)

    async def run(self, handler: Named, payload: Any = None, **wishes: Unpack[Wishes]) -> Delivery:
        """Submit a task and deliver it until it has ended; return the last delivery."""
        return await self.finish(self.submit(handler, payload, **wishes))

    async def run_twice(
        self,
        handler: Named,
        payload: Any = None,
        *,
        effects: Look | None = None,
        reset: Look | None = None,
        **wishes: Unpack[Wishes],
    ) -> list[Delivery]:
        """Show that a second delivery changes nothing, as after a worker that died before it could say "done".

        Raises AssertionError where outcome, result, or what `effects` returns differ after it. One delivery is all there is
        where the handler ended its task in a transaction of its own.
        """
        return await survival.run_twice(self._bench, handler, payload, dict(wishes), World(reset, effects))

    async def assert_survives_crashes(
        self,
        handler: Named,
        payload: Any = None,
        *,
        effects: Look | None = None,
        reset: Look | None = None,
        **wishes: Unpack[Wishes],
    ) -> list[str]:
        """Crash a task at every point of an undisturbed one, one after the other; return these points.

        Raises AssertionError where state, result or `effects` in the end are not those of the undisturbed one. `reset` puts the world
        into its first state before each.
        """
        return await survival.survives_crashes(self._bench, handler, payload, dict(wishes), World(reset, effects))

    async def assert_survives_lease(
        self,
        handler: Named,
        payload: Any = None,
        *,
        effects: Look | None = None,
        reset: Look | None = None,
        **wishes: Unpack[Wishes],
    ) -> list[str]:
        """Let a task be overtaken at every point of an undisturbed one: the lease is lost, another delivery ends the task, the first goes on.

        Otherwise as `assert_survives_crashes`.
        """
        return await survival.survives_lease(self._bench, handler, payload, dict(wishes), World(reset, effects))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Kit(_Kit):
    """The face for plain tests; the methods are those of `AsyncKit`, and say no more here than what differs.

    Coroutines run in one event loop from the first delivery until `close`, as in a worker: what handlers keep may belong to it.
    """

    _runner: asyncio.Runner | None = None

    def deliver(self, task: UUID, **happens: Unpack[Happens]) -> Delivery:
        """Make the next delivery; see `AsyncKit.deliver`."""
        return self._now(self._bench.deliver(task, Events(**happens)))

    def finish(self, task: UUID) -> Delivery:
        """Deliver until the task has ended; return the last delivery."""
        return self._now(self._bench.finish(task))

    def run(self, handler: Named, payload: Any = None, **wishes: Unpack[Wishes]) -> Delivery:
        """Submit a task and deliver it until it has ended; return the last delivery."""
        return self.finish(self.submit(handler, payload, **wishes))

    def run_twice(
        self,
        handler: Named,
        payload: Any = None,
        *,
        effects: Look | None = None,
        reset: Look | None = None,
        **wishes: Unpack[Wishes],
    ) -> list[Delivery]:
        """Show that a second delivery changes nothing; see `AsyncKit.run_twice`."""
        return self._now(survival.run_twice(self._bench, handler, payload, dict(wishes), World(reset, effects)))

    def assert_survives_crashes(
        self,
        handler: Named,
        payload: Any = None,
        *,
        effects: Look | None = None,
        reset: Look | None = None,
        **wishes: Unpack[Wishes],
    ) -> list[str]:
        """Crash at every point; see `AsyncKit.assert_survives_crashes`."""
        return self._now(survival.survives_crashes(self._bench, handler, payload, dict(wishes), World(reset, effects)))

    def assert_survives_lease(
        self,
        handler: Named,
        payload: Any = None,
        *,
        effects: Look | None = None,
        reset: Look | None = None,
        **wishes: Unpack[Wishes],
    ) -> list[str]:
        """Lose the lease at every point; see `AsyncKit.assert_survives_lease`."""
        return self._now(survival.survives_lease(self._bench, handler, payload, dict(wishes), World(reset, effects)))

    def close(self) -> None:
        """Let go of everything; the fixtures do it."""
        super().close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _now(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._runner is None:
                self._runner = asyncio.Runner()
                weakref.finalize(self, self._runner.close)
            return self._runner.run(work)
        work.close()
        raise RuntimeError(
            "this test is a coroutine; take AsyncKit (fixture poolkeeper_async_kit) and await its methods"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _place(dsn: str | None, policy: QueuePolicy) -> Place:
    demand_played(policy)
    if dsn is None:
        return Memory(policy)
    from poolkeeper.testing.stored import Stored

    return Stored(dsn, policy)
