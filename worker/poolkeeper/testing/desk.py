"""What a handler's context talks to while a kit delivers: checkpoints go to the place, and points are passed on the way."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from poolkeeper import jsonsafe
from poolkeeper.codes import Code
from poolkeeper.context import Context, Stopping
from poolkeeper.errors import LeaseLost
from poolkeeper.provider import Report
from poolkeeper.testing.place import Held, Place
from poolkeeper.testing.points import Point
from poolkeeper.testing.runner import through_json

Event = Callable[["Desk", Context], Awaitable[None]]
"""What happens at a point."""


class Crashed(BaseException):
    """The process of this delivery is dead. No handler can catch it for good: every later call of the context raises it again."""


class Desk:
    """One delivery's keeper; see `poolkeeper.context.Keeper`."""

    def __init__(self, place: Place, held: Held, events: Mapping[Point, Event]) -> None:
        self.place = place
        self.held = held
        self.stopping = Stopping()
        self.crashed = False
        self.saved: list[Any] = []
        self.succeeded_in: list[Any] = []
        self.progressed = 0
        self.reported: list[Report] = []
        self.passed: list[Point] = []
        self._events = events
        self._saves = 0
        self._loop = asyncio.get_running_loop()

    async def reach(self, point: Point, ctx: Context) -> None:
        """Pass a point, with what is to happen there."""
        self.passed.append(point)
        event = self._events.get(point)
        if event is not None:
            await event(self, ctx)

    def die(self) -> None:
        """Crash this delivery."""
        self.crashed = True
        self.alive()

    def alive(self) -> None:
        """Raise if it has crashed."""
        if self.crashed:
            raise Crashed(f"the test crashed this delivery {self.passed[-1]}")

    def certain(self) -> bool:
        """Return True: what is lost is told by the store."""
        self.alive()
        return True

    def progress(self) -> None:
        """Count a sign of progress."""
        self.alive()
        self.progressed += 1

    async def save(self, ctx: Context, value: Any) -> bool:
        """Store a checkpoint, at once: the rate of the queue is a worker's to keep."""
        stored = jsonsafe.kept(value, "checkpoint", Code.CHECKPOINT_TOO_LARGE)
        if asyncio.get_running_loop() is not self._loop:  # a handler's own, in a thread
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._save(ctx, stored), self._loop))
        return await self._save(ctx, stored)

    def save_sync(self, ctx: Context, value: Any) -> bool:
        """The same from a thread."""
        stored = jsonsafe.kept(value, "checkpoint", Code.CHECKPOINT_TOO_LARGE)
        return asyncio.run_coroutine_threadsafe(self._save(ctx, stored), self._loop).result()

    async def _save(self, ctx: Context, stored: Any) -> bool:
        self.alive()
        self._saves += 1
        number = self._saves
        await self.reach(Point.before_checkpoint(number), ctx)
        try:
            await asyncio.to_thread(self.place.save, self.held, stored, number, ctx.version)
        except LeaseLost as lost:
            ctx.halt(lost)
            raise
        self.saved.append(through_json(stored, "checkpoint"))
        ctx.checkpoint = stored
        await self.reach(Point.after_checkpoint(number), ctx)
        return True

    async def report(self, ctx: Context, report: Report) -> bool:
        """Tell the place what a provider answered; a kit has no quota, nothing is lowered."""
        if asyncio.get_running_loop() is not self._loop:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._report(ctx, report), self._loop))
        return await self._report(ctx, report)

    def report_sync(self, ctx: Context, report: Report) -> bool:
        """The same from a thread."""
        return asyncio.run_coroutine_threadsafe(self._report(ctx, report), self._loop).result()

    async def _report(self, ctx: Context, report: Report) -> bool:
        self.alive()
        try:
            await asyncio.to_thread(self.place.report, self.held, report)
        except LeaseLost as lost:
            ctx.halt(lost)
            raise
        self.reported.append(report)
        return True

    async def succeed(self, ctx: Context, connection: Any, result: Any) -> bool:
        """End the delivery in the handler's transaction."""
        self.alive()
        first = await self.place.succeed(self.held, ctx, connection, result)
        self.succeeded_in.append(through_json(result, "result"))
        await self.reach(Point.in_transaction, ctx)
        return first

    def succeed_sync(self, ctx: Context, connection: Any, result: Any) -> bool:
        """The same from a thread."""
        self.alive()
        first = self.place.succeed_sync(self.held, ctx, connection, result)
        self.succeeded_in.append(through_json(result, "result"))
        asyncio.run_coroutine_threadsafe(self.reach(Point.in_transaction, ctx), self._loop).result()
        return first
