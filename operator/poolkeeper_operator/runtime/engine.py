"""The operator as one object: checks, first list, kopf as informer, leadership, work queue, re-list, orderly end.

Guarantees: nothing is reconciled before a complete first list is in, nor before this operator leads (O29); every object is reconciled
again after each re-list; liveness follows the loops, not the process (O30). A standby sees all that the leader sees, so it acts at
once when it leads. Who loses the leadership ends, well; who is told to end gives it up when nothing of it writes any more.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import kopf

from poolkeeper_operator.observe.world import name_of
from poolkeeper_operator.runtime import checks, informer, leadership, login, metrics
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.databases import Databases
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.health import HealthServer, Loops
from poolkeeper_operator.runtime.kinds import (
    DATABASE,
    DEPLOYMENT,
    MANAGER,
    NAMESPACE,
    OURS,
    POD,
    POOL,
    POOL_LABEL,
    QUEUE,
    QUOTA,
    WATCHED,
)
from poolkeeper_operator.runtime.kube import Kube
from poolkeeper_operator.runtime.pools import Pools
from poolkeeper_operator.runtime.queues import Queues
from poolkeeper_operator.runtime.quotas import Quotas
from poolkeeper_operator.runtime.shares import Shares
from poolkeeper_operator.runtime.ticks import Ticks
from poolkeeper_operator.runtime.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)
RELIST = 240.0  # seconds; kopf alone would never notice an object that vanished during a gap of its watch
PULSE = 5.0
LATE = 60.0
DRAIN = 10.0
RETRY = 5.0
SELECTORS = {DEPLOYMENT: f"app.kubernetes.io/managed-by={MANAGER}", POD: POOL_LABEL}


@dataclass(frozen=True)
class Options:
    """How the process was started; no namespaces means all."""

    kubeconfig: str | None = None
    namespaces: tuple[str, ...] = ()
    http_address: str = "127.0.0.1:8080"
    lease: str | None = None  # default: by the namespaces kept, see leadership.post
    lease_namespace: str | None = None


class Engine:
    """One operator. `run` lasts until `stop` is set or the process is told to end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._post = leadership.post(options.namespaces, options.lease, options.lease_namespace)
        self.loops = Loops()
        self.health: HealthServer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until stopped; raises Misconfigured if it never can, and whatever ended a watch."""
        self.health = HealthServer(self._options.http_address, self.loops)
        try:
            settings = await login.load(self._options.kubeconfig)
            async with _client(Kube(settings)) as kube:
                await self._until_allowed(kube)
                context = await self._context(kube)
                await self._serve(context, lambda: login.connection(settings), stop)
        finally:
            self.health.close()

    async def _until_allowed(self, kube: Kube) -> None:
        """Wait for what is missing, and say it once: roles and schemas are often applied a moment later."""
        said: list[str] = []
        while True:
            try:
                lacks = await checks.failures(kube, self._options.namespaces, self._post)
            except KubeError as error:
                lacks = [str(error)]
            if not lacks:
                return
            if lacks != said:
                for lack in lacks:
                    log.error("not_ready: %s", lack)
            said = lacks
            self.loops.ready = lacks[0]
            self.loops.ticked("checks", LATE)
            await asyncio.sleep(RETRY)

    async def _context(self, kube: Kube) -> Context:
        self.loops.ended("checks")
        system = await kube.get(NAMESPACE, None, "kube-system")
        if system is None:
            raise RuntimeError("there is no namespace kube-system: its UID is the cluster's identity")
        leads = leadership.Leadership(kube, self._post, self.loops)
        kube.permit = leads.permit
        metrics.LEADER.set_function(lambda: float(leads.leads))
        made = Context(kube, system["metadata"]["uid"], leads, self._options.namespaces, loops=self.loops)
        metrics.CONTESTED.set_function(lambda: sum(link.kept_elsewhere for link in list(made.links.values())))
        return made

    async def _serve(self, context: Context, connect: informer.Login, stop: asyncio.Event | None) -> None:
        shares = Shares(context)
        databases = Databases(context, Ticks(context, shares))
        pools = Pools(context, shares)
        work = {
            DATABASE.kind: databases.reconcile,
            QUEUE.kind: Queues(context).reconcile,
            QUOTA.kind: Quotas(context, shares).reconcile,
            POOL.kind: pools.reconcile,
        }

        async def reconcile(key: Key) -> float | None:
            return await work[key.kind](key.namespace, key.name)

        context.queue = WorkQueue(reconcile)
        over = stop or asyncio.Event()
        listed = asyncio.Event()
        # begun out here: kopf waits for what was begun while it runs, and the Lease is renewed until the last writer has stopped
        office = [
            asyncio.create_task(self._campaign(context, listed, over), name="leadership"),
            asyncio.create_task(self._take_office(context, over), name="office"),
        ]

        async def begin() -> None:
            await self._first_list(context)
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._relist_for_ever(context, pools), name="relist"),
                loop.create_task(self._pulse(context), name="pulse"),
            ]
            self.loops.ready = None
            self._announce("operator.standby")
            listed.set()

        async def end() -> None:
            over.set()  # or kopf's own wait for it counts as a task that hangs, for 5 s
            self.loops.ready = "stopping"
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await context.queue.drain(DRAIN)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN):
                    await databases.close()

        namespaces = self._options.namespaces
        try:
            await kopf.operator(
                registry=informer.registry(context, connect, begin, end),
                settings=informer.settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=over,
            )
        finally:
            for task in office:
                task.cancel()
            ended = await asyncio.gather(*office, return_exceptions=True)
            await context.leadership.release()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    @staticmethod
    async def _campaign(context: Context, listed: asyncio.Event, over: asyncio.Event) -> None:
        """Stand by and lead; the process ends when the leadership is lost, or this fails."""
        try:
            await listed.wait()
            await context.leadership.campaign()
        finally:
            over.set()

    async def _take_office(self, context: Context, over: asyncio.Event) -> None:
        """Begin to act; who cannot must not lead."""
        try:
            await context.leadership.leading.wait()
            self.loops.role = "leader"
            self._enqueue_all(context, spread=0.0)
            context.queue.start()
            self._announce("operator.ready")
        except BaseException:
            over.set()
            raise

    def _announce(self, what: str) -> None:
        port = self.health.port if self.health else 0
        log.info(what, extra={"namespaces": ",".join(self._options.namespaces) or "all", "port": port})

    async def _first_list(self, context: Context) -> None:
        """Nothing begins without it, so it is tried until it works."""
        while True:
            try:
                return await self._relist(context)
            except KubeError as error:
                log.warning("relist.failed: %s", error)
                self.loops.ready = str(error)
                await asyncio.sleep(RETRY)

    async def _relist(self, context: Context) -> None:
        """Read everything anew and reconcile what changed or vanished without an event."""
        for resource in WATCHED:
            since = context.world.newest(resource.kind)
            listed = [
                item
                for namespace in (self._options.namespaces or (None,))
                for item in await context.kube.list(resource, namespace, selector=SELECTORS.get(resource, ""))
            ]
            context.world.replace(resource.kind, listed, since)
        self.loops.ticked("re-list", 3 * RELIST)

    async def _relist_for_ever(self, context: Context, pools: Pools) -> None:
        while True:
            await asyncio.sleep(RELIST * random.uniform(0.9, 1.1))  # noqa: S311 - spreads operators
            try:
                await self._relist(context)
            except KubeError as error:
                log.warning("relist.failed: %s", error)
                continue
            pools.forget_children()
            self._enqueue_all(context, spread=RELIST / 4)

    @staticmethod
    def _enqueue_all(context: Context, *, spread: float) -> None:
        """Databases first: the others wait for their readings."""
        for resource in OURS:
            for manifest in context.world.all(resource.kind):
                after = spread * random.random() + (0.0 if resource == DATABASE else 0.05)  # noqa: S311 - no secret
                context.enqueue(resource, *name_of(manifest), after=after)

    async def _pulse(self, context: Context) -> None:
        """The event loop turns, and the work queue's dispatcher went round lately."""
        while True:
            self.loops.ticked("event loop", LATE)
            turned = context.queue.last_turn
            if turned is not None and asyncio.get_running_loop().time() - turned < LATE / 2:
                self.loops.ticked("work queue", LATE)
            await asyncio.sleep(PULSE)


@asynccontextmanager
async def _client(kube: Kube) -> AsyncIterator[Kube]:
    try:
        yield kube
    finally:
        await kube.close()
