"""The operator as one object: checks, first list, kopf as informer, leadership, work queue, re-list, orderly end.

Guarantees: nothing is reconciled before a complete first list is in, nor before this operator leads (O29); every object is reconciled
again after each re-list; liveness follows the loops, not the process (O30). A standby sees all that the leader sees, so it acts at
once when it leads. Who loses the leadership ends, well; who is told to end gives it up when nothing of it writes any more.
"""

import asyncio
import contextlib
import logging
import os
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import kopf
from kubernetes.aio.client import Configuration

from poolkeeper_operator.decide.allowance import Allowance
from poolkeeper_operator.observe.world import name_of
from poolkeeper_operator.resources.templatepolicy import TemplatePolicy
from poolkeeper_operator.runtime import checks, informer, leadership, login, metrics, rights
from poolkeeper_operator.runtime.connections import Connections
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.databases import Databases
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.health import HealthServer, Loops
from poolkeeper_operator.runtime.kinds import (
    DATABASE,
    NAMESPACE,
    OURS,
    POOL,
    QUEUE,
    QUOTA,
)
from poolkeeper_operator.runtime.kube import Kube, Manifest
from poolkeeper_operator.runtime.pools import Pools
from poolkeeper_operator.runtime.queues import Queues
from poolkeeper_operator.runtime.quotas import Quotas
from poolkeeper_operator.runtime.relist import EVERY, Relist
from poolkeeper_operator.runtime.shares import Shares
from poolkeeper_operator.runtime.ticks import Ticks
from poolkeeper_operator.runtime.watches import Watches
from poolkeeper_operator.runtime.workqueue import Key, WorkQueue

log = logging.getLogger(__name__)
PULSE = 5.0
LATE = 60.0
DRAIN = 10.0
PATIENCE = 25.0  # seconds for an orderly end, less than the grace of a pod
RETRY = 5.0


@dataclass(frozen=True)
class Options:
    """How the process was started; no namespaces means all."""

    kubeconfig: str | None = None
    namespaces: tuple[str, ...] = ()
    http_address: str = "127.0.0.1:8080"
    lease: str | None = None  # default: by the namespaces kept, see leadership.post
    lease_namespace: str | None = None
    templates: TemplatePolicy = field(default_factory=TemplatePolicy)
    node_graces: tuple[Allowance, ...] = ()  # how much grace nodes allow


class Engine:
    """One operator. `run` lasts until `stop` is set or the process is told to end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._post = leadership.post(options.namespaces, options.lease, options.lease_namespace)
        self.loops = Loops()
        self.health: HealthServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._patience = threading.Timer(PATIENCE, _end_now)
        self._patience.daemon = True

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until stopped; raises Misconfigured if it never can, and whatever ended a watch."""
        self.health = HealthServer(self._options.http_address, self.loops)
        try:
            settings = await login.load(self._options.kubeconfig)
            async with _client(Kube(settings)) as kube:
                context = self._context(kube, await self._until_allowed(kube), await self._left_out(kube))
                await self._serve(context, settings, stop)
        finally:
            self._patience.cancel()
            self.health.close()

    async def _until_allowed(self, kube: Kube) -> Manifest | None:
        """Wait for what is missing, and say it once: roles and schemas are often applied a moment later. The cluster's namespace."""
        said: list[str] = []
        while True:
            try:
                lacks = await checks.failures(kube, self._options.namespaces, self._post)
                system = None if lacks else await kube.get(NAMESPACE, None, "kube-system")
            except KubeError as error:
                lacks = [str(error)]
            if not lacks:
                self.loops.ended("checks")
                return system
            if lacks != said:
                for lack in lacks:
                    log.error("not_ready: %s", lack)
            said = lacks
            self.loops.ready = lacks[0]
            self.loops.ticked("checks", LATE)
            await asyncio.sleep(RETRY)

    async def _left_out(self, kube: Kube) -> tuple[str, ...]:
        """The rights that are missed, and without which it starts all the same; looked at once, at the start (O31)."""
        while True:
            try:
                lacks = await rights.missing(kube, self._options.namespaces, self._post, optional=True)
            except KubeError as error:
                log.error("not_ready: %s", error)  # noqa: TRY400 - no answer is no bug
                await asyncio.sleep(RETRY)
                continue
            for lack in lacks:
                log.warning("%s; it starts without, and looks again when it is started anew", lack)
            return tuple(lacks)

    def _context(self, kube: Kube, system: Manifest | None, lacks: tuple[str, ...]) -> Context:
        if system is None:
            raise RuntimeError("there is no namespace kube-system: its UID is the cluster's identity")
        leads = leadership.Leadership(kube, self._post, self.loops)
        kube.permit = leads.permit
        metrics.LEADER.set_function(lambda: float(leads.leads))
        options = self._options
        made = Context(
            kube,
            system["metadata"]["uid"],
            leads,
            options.namespaces,
            options.templates,
            options.node_graces,
            lacks,
            loops=self.loops,
        )
        metrics.CONTESTED.set_function(lambda: sum(link.kept_elsewhere for link in list(made.links.values())))
        return made

    async def _serve(self, context: Context, settings: Configuration, stop: asyncio.Event | None) -> None:
        shares = Shares(context)
        connections = Connections(context)
        databases = Databases(context, Ticks(context, shares, connections))
        pools = Pools(context, shares, connections)
        queues = Queues(context)
        work = {
            DATABASE.kind: databases.reconcile,
            QUEUE.kind: queues.reconcile,
            QUOTA.kind: Quotas(context, shares).reconcile,
            POOL.kind: pools.reconcile,
        }

        async def reconcile(key: Key) -> float | None:
            return await work[key.kind](key.namespace, key.name)

        context.queue = WorkQueue(reconcile)
        relist = Relist(context, lambda: self._enqueue_all(context, spread=EVERY / 4))
        watches = Watches(settings, self.loops, relist.soon)
        over = stop or asyncio.Event()
        listed = asyncio.Event()
        # begun out here: kopf waits for what was begun while it runs, and the Lease is renewed until the last writer has stopped
        office = [
            asyncio.create_task(self._campaign(context, listed, over), name="leadership"),
            asyncio.create_task(self._take_office(context, over), name="office"),
        ]

        async def begin() -> None:
            await relist.first()
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(relist.for_ever(), name="relist"),
                loop.create_task(self._pulse(context), name="pulse"),
            ]
            self.loops.ready = None
            self._announce("operator.standby")
            listed.set()

        async def end() -> None:
            over.set()  # or kopf's own wait for it counts as a task that hangs, for 5 s
            self.loops.ready = "stopping"
            self._patience.start()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await context.queue.drain(DRAIN)
            await queues.webhooks.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN):
                    await databases.close()

        namespaces = self._options.namespaces
        try:
            await kopf.operator(
                registry=informer.registry(context, watches.login, begin, end),
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


def _end_now() -> None:
    """Kopf, when one of its watchers failed, waits for the others for ever: a process that watches nothing must not live on."""
    log.critical("operator.stuck: it did not end within %.0f s, and is ended", PATIENCE)
    os._exit(1)


@asynccontextmanager
async def _client(kube: Kube) -> AsyncIterator[Kube]:
    try:
        yield kube
    finally:
        await kube.close()
