"""What follows each reading of a database: quotas are divided, and what the reading may have changed is reconciled.

Guarantees: a failed reading changes nothing but what says that it failed (O18); an unchanged queue or pool is not
reconciled because a tick went by, unless a window or a timer of its own may have run out.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from poolkeeper.store import calls
from poolkeeper_operator.decide.trouble import vacuum_held
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.observe.signals import backlog
from poolkeeper_operator.resources import ResourceError, WorkerPoolSpec
from poolkeeper_operator.runtime import metrics
from poolkeeper_operator.runtime.auditor import Auditor
from poolkeeper_operator.runtime.capability import can_run
from poolkeeper_operator.runtime.connections import Connections
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.kinds import DATABASE, DEPLOYMENT, POOL, QUEUE
from poolkeeper_operator.runtime.schedules import Schedules
from poolkeeper_operator.runtime.shares import Shares

SWEEP_EVERY = 12  # ticks, while there is nothing to do
UPKEEP_EVERY = 60.0  # seconds
PAGES = 5  # of the upkeep between two readings, while there is more to do

log = logging.getLogger(__name__)


class Ticks:
    """Called by every link after each reading."""

    def __init__(self, context: Context, shares: Shares, connections: Connections) -> None:
        self._context = context
        self._shares = shares
        self._connections = connections
        self._count: dict[tuple[str, str], int] = {}
        self._upkeep_at: dict[tuple[str, str], float] = {}
        self._auditor = Auditor()
        self._schedules = Schedules()
        self._swept_at: dict[tuple[str, str], float] = {}
        self._queues: dict[tuple[str, str], object] = {}  # the figures of a queue when it was last reconciled
        self._resting: dict[str, object] = {}  # what a pool at rest looked like when it was last looked at
        self._blind: dict[tuple[str, str], str | None] = {}
        self._held: dict[tuple[str, str], tuple[bool, bool]] = {}  # whether somebody keeps vacuum back, and for long

    async def after_reading(self, link: Link) -> None:
        """One round; raises what the store raises, after which the next reading tries again."""
        context = self._context
        context.loops.ticked(link.loop_name, 60 + 3 * link.interval.total_seconds())
        blind = link.blind(context.now())
        if (blind is None) != (self._blind.get(link.key, "unseen") is None) or link.failures == 1:
            context.enqueue(DATABASE, *link.key)
        was, self._blind[link.key] = self._blind.get(link.key, "unseen"), blind
        if link.failures:
            if blind is not None and was != blind:
                self._enqueue_all(link)
            return
        self._tell_vacuum(link)
        pools, demand = self._pools(link)
        self._connections.divide(link.key, {pool: spec for pool, (spec, of) in pools.items() if of is link})
        await self._shares.divide(link, pools, demand)
        self._enqueue(link)
        await self._housekeeping(link)

    def _tell_vacuum(self, link: Link) -> None:
        """Have the Database say at once that vacuum is held back, or is no more."""
        assert link.reading is not None  # noqa: S101 - a reading that succeeded
        held = link.reading.stats.vacuum
        long = held is not None and vacuum_held(False, seconds=held["seconds"], xids=held["xids"])
        was, self._held[link.key] = self._held.get(link.key, (False, False)), (held is not None, long)
        if was != (held is not None, long):
            self._context.enqueue(DATABASE, *link.key)

    def forget(self, namespace: str, database: str) -> None:
        """The Database is gone: what was found in it is shown no more."""
        self._auditor.forget(namespace, database)
        self._schedules.forget(namespace, database)

    def _pools(self, ticked: Link) -> tuple[dict[str, tuple[WorkerPoolSpec, Link | None]], dict[str, int]]:
        """The pools of this link, and all that share quotas, with their links; and what waits for each."""
        pools: dict[str, tuple[WorkerPoolSpec, Link | None]] = {}
        demand: dict[str, int] = {}
        for manifest in self._context.world.all(POOL.kind):
            meta = manifest["metadata"]
            pool = f"{meta['namespace']}/{meta['name']}"
            try:
                spec = self._context.spec(WorkerPoolSpec, manifest)
            except ResourceError:
                continue
            link = self.link_of(meta["namespace"], spec)
            if link is not ticked and not spec.providers:
                continue
            pools[pool] = (spec, link)
            if link is not None and link.reading is not None:
                names = [queue.name for queue in spec.queues]
                types = can_run(self._context, manifest, spec, link)
                demand[pool] = backlog(link.reading, meta["namespace"], names, types, spec.takes()).runnable
        return pools, demand

    def link_of(self, namespace: str, spec: WorkerPoolSpec) -> Link | None:
        """The link of the database of a pool's first queue that exists."""
        for queue in spec.queues:
            manifest = self._context.world.get(QUEUE.kind, namespace, queue.name)
            if manifest is not None:
                return self._context.links.get((namespace, database_of(manifest)))
        return None

    def _enqueue(self, link: Link) -> None:
        assert link.reading is not None  # noqa: S101 - a reading that succeeded
        namespace, name = link.key
        for manifest in self._context.world.all(QUEUE.kind):
            meta = manifest["metadata"]
            if meta["namespace"] == namespace and database_of(manifest) == name:
                key = (namespace, meta["name"])
                figures = link.reading.queues.get(key)
                if figures is not None:
                    figures = replace(figures, next_slot=None, dead_oldest=None)  # which move all the time
                if key not in self._queues or self._queues[key] != figures:
                    self._queues[key] = figures
                    self._context.enqueue(QUEUE, *key)
        link.attentive = False
        for manifest in self._context.world.all(POOL.kind):
            if self._on(link, manifest):
                pool = manifest["metadata"]["name"]
                deployment = self._context.world.get(DEPLOYMENT.kind, namespace, pool)
                empty = not ((deployment or {}).get("spec") or {}).get("replicas")
                link.attentive = link.attentive or empty
                if not (empty and self._at_rest(link, manifest)):
                    self._context.enqueue(POOL, namespace, pool)

    def _at_rest(self, link: Link, pool: Mapping[str, Any]) -> bool:
        """Whether a pool without pods has nothing to do and nothing about it changed since it was last looked at."""
        assert link.reading is not None  # noqa: S101 - a reading that succeeded
        namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
        key = f"{namespace}/{name}"
        queues = [link.reading.queues.get((namespace, ref["name"])) for ref in pool["spec"]["queues"]]
        stats = link.reading.pools.get(key)
        if self._context.world.pods(namespace, name) or (stats is not None and (stats.running or stats.sessions)):
            self._resting.pop(key, None)
            return False
        if any(queue is None or queue.ready or queue.suspects or queue.running for queue in queues):
            self._resting.pop(key, None)
            return False
        now = (
            pool["metadata"]["generation"],
            self._shares.allotments.get(key),
            stats and (stats.max_running, len(stats.drains)),
            tuple(queue and (queue.dead, queue.paused) for queue in queues),
        )
        before, self._resting[key] = self._resting.get(key), now
        return before == now

    def _enqueue_all(self, link: Link) -> None:
        for resource in (QUEUE, POOL):
            for manifest in self._context.world.all(resource.kind):
                if manifest["metadata"]["namespace"] == link.key[0]:
                    self._context.enqueue(resource, link.key[0], manifest["metadata"]["name"])

    def _on(self, link: Link, pool: Mapping[str, Any]) -> bool:
        namespace = pool["metadata"]["namespace"]
        if namespace != link.key[0]:
            return False
        for ref in pool.get("spec", {}).get("queues") or []:
            queue = self._context.world.get(QUEUE.kind, namespace, ref["name"])
            if queue is not None:
                return database_of(queue) == link.key[1]
        return False

    async def _housekeeping(self, link: Link) -> None:
        """Fire slots that are due; sweep while there is work: without workers nobody else proves that the store can be reached (Q23); each minute what is old goes."""
        assert link.reading is not None  # noqa: S101 - a reading that succeeded
        await self._schedules.fire(link)
        count = self._count[link.key] = self._count.get(link.key, -1) + 1
        stats = link.reading.stats
        work = any(q.ready or q.scheduled or q.leased or q.running or q.waiting or q.ordering for q in stats.queues)
        if work or count % SWEEP_EVERY == 0:
            began, before = time.monotonic(), self._swept_at.pop(link.key, None)  # gone, where it fails
            await link.call(calls.sweep(since=None if before is None else began - before))
            self._swept_at[link.key] = began
        if time.monotonic() >= self._upkeep_at.get(link.key, 0.0):
            await self._upkeep(link)

    async def _upkeep(self, link: Link) -> None:
        self._upkeep_at[link.key] = time.monotonic() + UPKEEP_EVERY  # also where it fails: not with every reading
        for _ in range(PAGES):
            done = await link.call(calls.maintain())
            metrics.tell_upkeep(*link.key, done)
            if done.dead_letters:
                log.warning(
                    "retention.dead_letters: %s: %d dead letters were discarded: nobody looked at them for retention.deadLetters",
                    link.name,
                    done.dead_letters,
                )
            if done.holders:
                log.warning(
                    "limit.held: %s: %d sessions were ended: they kept a limit from others for a minute",
                    link.name,
                    done.holders,
                )
            if not done.more:
                await self._auditor.page(link)
                return
        self._upkeep_at[link.key] = 0.0  # there is more to do: with the next reading


def database_of(queue: Mapping[str, Any]) -> str:
    """The name of a TaskQueue's Database."""
    return str(((queue.get("spec") or {}).get("databaseRef") or {}).get("name", ""))
