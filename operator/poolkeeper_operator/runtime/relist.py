"""Lists of our own: everything is read anew from time to time, and soon after a watch may have missed something.

Guarantees (O30): an object that vanished without an event is noticed, and whoever it concerned is reconciled; a kind that
cannot be listed does not keep the others from it; only a complete round counts as a sign of life. While a watch does not
work, rounds follow each other every `SOON` seconds. The loop does not end, whatever a list answers.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from poolkeeper_operator.observe.world import name_of
from poolkeeper_operator.runtime import informer
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import SELECTORS, Resource

log = logging.getLogger(__name__)
EVERY = 240.0  # seconds; kopf alone would never notice an object that vanished during a gap of its watch
SOON = 10.0
FIRST_AGAIN = 5.0
SETTLE = 0.5  # seconds in which the gaps of several watches become one round


class Relist:
    """See the module; `after` is called after each round that was due by time."""

    def __init__(self, context: Context, after: Callable[[], None]) -> None:
        self._context = context
        self._after = after
        self._asked = asyncio.Event()
        self._said: dict[str, str] = {}

    def soon(self) -> None:
        """A watch may have missed something."""
        self._asked.set()

    async def first(self) -> None:
        """The round without which nothing begins, tried until it is complete; wakes nobody."""
        while wrong := await self.once(wake=False):
            self._context.loops.ready = wrong[0]
            self._context.loops.ticked("first list", 60.0)
            await asyncio.sleep(FIRST_AGAIN)
        self._context.loops.ended("first list")

    async def once(self, *, wake: bool = True) -> list[str]:
        """One round over all kinds; what went wrong."""
        wrong = []
        for resource in self._context.watched:
            try:
                await self._list(resource, wake)
            except KubeError as error:
                wrong.append(str(error))
                if self._said.get(resource.kind) != str(error):
                    log.warning("relist.failed: %s", error)
                self._said[resource.kind] = str(error)
            else:
                self._said.pop(resource.kind, None)
        if not wrong:
            self._context.loops.ticked("re-list", 3 * EVERY)
        return wrong

    async def for_ever(self) -> None:
        """Round after round."""
        due = _now() + EVERY
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._asked.wait()
                    await asyncio.sleep(SETTLE)
            self._asked.clear()
            complete = False
            try:
                complete = not await self.once()
            except Exception:
                log.exception("relist.failed")
            if complete and _now() >= due:
                self._after()
            due = _now() + (EVERY * random.uniform(0.9, 1.1) if complete else SOON)  # noqa: S311 - spreads operators
            await asyncio.sleep(SOON)

    async def _list(self, resource: Resource, wake: bool) -> None:
        context = self._context
        since = context.world.newest(resource.kind)
        listed = [
            item
            for namespace in ((context.namespaces if resource.namespaced else ()) or (None,))
            for item in await context.kube.list(resource, namespace, selector=SELECTORS.get(resource, ""))
        ]
        known = {name_of(manifest): manifest for manifest in context.world.all(resource.kind)}
        for namespace, name in context.world.replace(resource.kind, listed, since):
            before, now = known.get((namespace, name)), context.world.get(resource.kind, namespace, name)
            if now is None and before is not None:
                log.info("relist.vanished: %s %s/%s", resource.kind, namespace, name)
                context.forget(before)
            if wake:
                informer.wake(context, resource, before, now)


def _now() -> float:
    return asyncio.get_running_loop().time()
