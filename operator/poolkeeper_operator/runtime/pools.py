"""Reconciling a WorkerPool: its children take their shape, its size follows its work, its status says why.

Guarantees: what is as wanted is not written; a pool that cannot be understood (unknown queue, several databases, invalid
spec) keeps the Deployment that it has and says what to do; deleting needs nothing of us (owner references). A Deployment is
written as it was seen, or not at all: who was frozen in between changes nothing (O29).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from poolkeeper_operator.act import children, pacing
from poolkeeper_operator.act.compare import digest
from poolkeeper_operator.decide.conditions import Condition
from poolkeeper_operator.decide.grace import Drain, Grace, grace
from poolkeeper_operator.decide.lengthening import Lengthening, lengthen
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.observe.pods import living, rolling
from poolkeeper_operator.resources import DatabaseSpec, ResourceError, WorkerPoolSpec
from poolkeeper_operator.runtime import departures, metrics, poolstatus
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.freshness import Freshness
from poolkeeper_operator.runtime.kinds import (
    DATABASE,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    POOL,
    QUEUE,
    SCALER,
    SERVICE_ACCOUNT,
    Resource,
)
from poolkeeper_operator.runtime.memory import Memory
from poolkeeper_operator.runtime.scaler import Scaler, Sized
from poolkeeper_operator.runtime.shares import Shares
from poolkeeper_operator.runtime.ticks import database_of

log = logging.getLogger(__name__)
AGAIN = 60.0
SOON = 0.1
CONNECTING = 2.0  # seconds until a database that was never tried is asked about again


class Unresolved(Exception):
    """The pool's references do not lead to one database."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Place:
    """Where a pool's queues live."""

    name: str
    spec: DatabaseSpec
    generation: int
    link: Link | None  # None: its Secrets cannot be read (yet)


class Pools:
    """Reconciles WorkerPools."""

    def __init__(self, context: Context, shares: Shares) -> None:
        self._context = context
        self._shares = shares
        self._scaler = Scaler(context, shares)
        self._freshness = Freshness(context)
        self._memory: dict[tuple[str, str], Memory] = {}
        self._children: dict[tuple[str, str, str], str] = {}  # kind and name of a child -> what is in force

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; the seconds until the next."""
        pool = self._context.world.get(POOL.kind, namespace, name)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            self._memory.pop((namespace, name), None)
            metrics.forget(metrics.POOL_GAUGES, namespace, name)
            for kind in (SERVICE_ACCOUNT.kind, DISRUPTION_BUDGET.kind):
                self._children.pop((kind, namespace, name), None)
            return None
        memory = self._memory.get((namespace, name))
        if memory is None or memory.uid != pool["metadata"]["uid"]:
            memory = self._memory[namespace, name] = Memory.of(pool)
        try:
            spec = self._context.spec(WorkerPoolSpec, pool)
            place = self._resolve(namespace, name, spec)
        except ResourceError as error:
            return await self._refuse(pool, "InvalidSpec", str(error))
        except Unresolved as error:
            return await self._refuse(pool, error.reason, str(error))
        return await self._keep(pool, spec, place, memory)

    async def _keep(self, pool: Mapping[str, Any], spec: WorkerPoolSpec, place: Place, memory: Memory) -> float | None:
        meta = pool["metadata"]
        namespace, name = meta["namespace"], meta["name"]
        if place.link is not None and place.link.kept_elsewhere:
            return AGAIN
        if self._context.undecided(namespace, place.name):
            return CONNECTING
        present = self._context.world.get(DEPLOYMENT.kind, namespace, name)
        samples = self._drains(pool, place)
        drains = grace(spec.drain.policy(), samples, _seconds(children.present_grace(present)))
        longer = self._longer(place, present, drains, samples)
        try:
            live: Mapping[str, Any] = await self._shape(pool, spec, place, memory, drains, longer)
            pool = await self._answer_scale(pool, spec, live)
        except KubeError as error:
            if error.conflict:
                return await self._look_again(namespace, name)
            if error.status not in {400, 403, 422}:
                raise
            return await self._refuse(pool, "Refused", f"the API server refuses a child of the pool: {error.message}")
        seen_pods = self._context.world.pods(namespace, name)
        pods = living(seen_pods)
        sized: Sized | None = None
        if place.link is not None:
            await departures.tell(
                place.link, f"{namespace}/{name}", seen_pods, children.present_grace(live) or 0, memory
            )
            await self._freshness.tell(pool, place.link, place.link.blind(self._context.now()))
            try:
                sized = await self._scaler.size(pool, spec, place.link, live, pods, memory)
            except KubeError as error:
                if not error.conflict:
                    raise
                return await self._look_again(namespace, name)
            live = self._context.world.get(DEPLOYMENT.kind, namespace, name) or live
            busy = sized.view.busy if sized.view else None
            metrics.tell_pool(namespace, name, sized.decision, int(live["spec"].get("replicas") or 0), busy)
        seen = poolstatus.Seen(pool, spec, live, pods, memory, drains, sized, place.link, self._allotment(pool, spec))
        status = poolstatus.status(seen, self._freshness, self._context.now())
        again = await self._context.write_status(POOL, pool, status)
        return AGAIN if again is None else min(again, AGAIN)

    def _allotment(self, pool: Mapping[str, Any], spec: WorkerPoolSpec) -> Any:
        if not spec.providers:
            return None
        return self._shares.allotments.get(f"{pool['metadata']['namespace']}/{pool['metadata']['name']}")

    def _resolve(self, namespace: str, name: str, spec: WorkerPoolSpec) -> Place:
        """The one Database of the pool's queues; raises Unresolved with what to do."""
        who = f'pool "{name}" in namespace "{namespace}"'
        found: dict[str, str] = {}
        for ref in spec.queues:
            queue = self._context.world.get(QUEUE.kind, namespace, ref.name)
            if queue is None:
                text = f'{who}: there is no queue "{ref.name}"; apply the TaskQueue, or remove it from spec.queues'
                raise Unresolved("QueueMissing", text)
            found.setdefault(database_of(queue), ref.name)
        if len(found) > 1:
            (a, of_a), (b, of_b) = sorted(found.items())[:2]
            text = f'{who}: queue "{of_a}" is on database "{a}" and "{of_b}" on "{b}"; make one pool for each database'
            raise Unresolved("MixedDatabases", text)
        database = next(iter(found))
        manifest = self._context.world.get(DATABASE.kind, namespace, database)
        if manifest is None:
            text = f'{who}: there is no database "{database}"; apply it, or correct databaseRef of its queues'
            raise Unresolved("DatabaseMissing", text)
        return Place(
            database,
            self._context.spec(DatabaseSpec, manifest),
            manifest["metadata"]["generation"],
            self._context.links.get((namespace, database)),
        )

    def _drains(self, pool: Mapping[str, Any], place: Place) -> list[Drain]:
        reading = place.link.reading if place.link else None
        stats = reading.pools.get(f"{pool['metadata']['namespace']}/{pool['metadata']['name']}") if reading else None
        return [Drain(drain.seconds, drain.truncated, drain.grace) for drain in (stats.drains if stats else ())]

    def _longer(
        self, place: Place, live: Mapping[str, Any] | None, drains: Grace, samples: list[Drain]
    ) -> Lengthening | None:
        """Whether to roll the pool out for a longer grace; nothing is decided on an old reading."""
        present, now = _seconds(children.present_grace(live)), self._context.now()
        if present is None or place.link is None or place.link.blind(now) is not None:
            return None
        last = pacing.last(live)
        answer = lengthen(drains, samples, present, rolling=rolling(live), last=last.at if last else None, now=now)
        return answer if answer.due else None

    async def _shape(
        self,
        pool: Mapping[str, Any],
        spec: WorkerPoolSpec,
        place: Place,
        memory: Memory,
        drains: Grace,
        longer: Lengthening | None,
    ) -> Mapping[str, Any]:
        """Bring the children into shape; the Deployment as it is now."""
        namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
        live = self._context.world.get(DEPLOYMENT.kind, namespace, name)
        known = (DISRUPTION_BUDGET.kind, namespace, name) in self._children
        if live is not None and known and longer is None and memory.shaped == _shape_of(pool, place, live):
            return live
        account = children.build_service_account(pool, spec)
        if account is not None:
            await self._child(SERVICE_ACCOUNT, account, new=live is None)
        await self._child(DISRUPTION_BUDGET, children.build_disruption_budget(pool, spec), new=live is None)
        wanted = children.build_deployment(
            pool,
            spec,
            place.spec,
            live=live,
            grace_seconds=int(drains.applied.total_seconds()),
            lengthen=(longer, self._context.now()) if longer else None,
        )
        why = children.changed(live, wanted)
        mark = digest(wanted)
        if live is not None and (why is None or memory.accepted == (mark, live["metadata"]["generation"])):
            memory.shaped = _shape_of(pool, place, live)
            return live
        answer = await self._context.kube.apply(DEPLOYMENT, children.as_seen(wanted, live))
        log.info("pool.shaped: %s/%s: %s", namespace, name, why, extra={"pool": f"{namespace}/{name}"})
        memory.accepted = (mark, answer["metadata"]["generation"])
        self._context.world.put(DEPLOYMENT.kind, answer)
        if longer is not None and pacing.last(answer) != pacing.last(live):
            await self._context.tell(pool, "Normal", "GraceRollout", longer.sentence)
        return answer

    async def _look_again(self, namespace: str, name: str) -> float:
        """The Deployment was changed meanwhile: what to do is decided anew, from what it is now."""
        live = await self._context.kube.get(DEPLOYMENT, namespace, name)
        if live is None:
            self._context.world.drop(DEPLOYMENT.kind, namespace, name)
        else:
            self._context.world.put(DEPLOYMENT.kind, live)
        return SOON

    async def _child(self, resource: Resource, wanted: dict[str, Any], *, new: bool) -> None:
        """Apply a small child unless it is as wanted; it is not watched, so it is looked at once and when it should change."""
        meta = wanted["metadata"]
        key, mark = (resource.kind, meta["namespace"], meta["name"]), digest(wanted)
        if self._children.get(key) == mark:
            return
        live = None if new else await self._context.kube.get(resource, meta["namespace"], meta["name"])
        if children.changed(live, wanted) is not None:
            await self._context.kube.apply(resource, wanted)
        self._children[key] = mark

    def forget_children(self) -> None:
        """Look at every child again: part of the periodic re-list."""
        self._children.clear()

    async def _answer_scale(
        self, pool: Mapping[str, Any], spec: WorkerPoolSpec, live: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Give spec.replicas a value where it has none, as the scale subresource cannot answer without (O3)."""
        if spec.replicas is not None:
            return pool
        meta = pool["metadata"]
        manifest = {
            "apiVersion": POOL.api_version,
            "kind": POOL.kind,
            "metadata": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
            "spec": {"replicas": int(live["spec"].get("replicas") or 0)},
        }
        answer = await self._context.kube.apply(POOL, manifest, manager=SCALER)
        self._context.world.put(POOL.kind, answer)
        return answer

    async def _refuse(self, pool: Mapping[str, Any], reason: str, message: str) -> float | None:
        """Say what is wrong; what runs is left as it is."""
        status = poolstatus.refused(pool, Condition("Ready", "False", reason, message), self._context.now())
        again = await self._context.write_status(POOL, pool, status)
        return AGAIN if again is None else again


def _seconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _shape_of(pool: Mapping[str, Any], place: Place, live: Mapping[str, Any]) -> tuple[int, int, str]:
    """While these stay, so does what would be rendered: a cheap way to see that nothing is to be done."""
    return pool["metadata"]["generation"], place.generation, live["metadata"]["resourceVersion"]
