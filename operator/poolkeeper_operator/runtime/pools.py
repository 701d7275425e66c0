"""Reconciling a WorkerPool: its children take their shape, its size follows its work, its status says why.

Guarantees: what is as wanted is not written; a pool that cannot be understood (unknown queue, several databases, invalid
spec) keeps the Deployment that it has and says what to do; deleting needs nothing of us (owner references). A Deployment is
written as it was seen, or not at all: who was frozen in between changes nothing (O29).
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from poolkeeper_operator.act import children, loginsecret, networkpolicy, pacing
from poolkeeper_operator.decide.allowance import Allowance, tightest
from poolkeeper_operator.decide.conditions import Condition
from poolkeeper_operator.decide.grace import Drain, Grace, grace
from poolkeeper_operator.decide.lengthening import Lengthening, lengthen
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.observe.nodes import SHUTTING_DOWN
from poolkeeper_operator.observe.pods import PodSeen, living, present_pods, rolling
from poolkeeper_operator.resources import DatabaseSpec, ProviderQuotaSpec, ResourceError, WorkerPoolSpec
from poolkeeper_operator.resources.database import Roles
from poolkeeper_operator.runtime import departures, metrics, poolstatus
from poolkeeper_operator.runtime.capability import unable
from poolkeeper_operator.runtime.connections import Connections
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.failures import KubeError, Taken
from poolkeeper_operator.runtime.freshness import Freshness
from poolkeeper_operator.runtime.kinds import DATABASE, DEPLOYMENT, POOL, QUEUE, QUOTA
from poolkeeper_operator.runtime.logins import LoginProblem, Logins
from poolkeeper_operator.runtime.memory import Memory
from poolkeeper_operator.runtime.scaler import Scaler, Sized
from poolkeeper_operator.runtime.shaper import Shape, Shaper, Vanished
from poolkeeper_operator.runtime.shares import Shares
from poolkeeper_operator.runtime.ticks import database_of

log = logging.getLogger(__name__)
AGAIN = 60.0
SOON = 0.1
DENIED = {400, 403, 422}  # answers that waiting does not change
MISTAKEN = {404, 409, 422}  # answers to a write that took for present what has changed or gone
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

    def for_pods(self, pool: str) -> DatabaseSpec:
        """The Database as a pool's pods are to know it."""
        return loginsecret.mounted(self.spec, pool) if self.spec.roles is Roles.PER_POOL else self.spec


class Pools:
    """Reconciles WorkerPools."""

    def __init__(self, context: Context, shares: Shares, connections: Connections) -> None:
        self._context = context
        self._shares = shares
        self._connections = connections
        self._scaler = Scaler(context, shares, connections)
        self._shaper = Shaper(context)
        self._logins = Logins(context)
        self._freshness = Freshness(context)
        self._memory: dict[tuple[str, str], Memory] = {}

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; the seconds until the next."""
        pool = self._context.world.get(POOL.kind, namespace, name)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            self._memory.pop((namespace, name), None)
            self._connections.forget(f"{namespace}/{name}")
            metrics.forget(metrics.POOL_GAUGES, namespace, name)
            self._context.crashes.forget(namespace, name)
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
        wait = self._not_yet(namespace, place)
        if wait is not None:
            return wait
        present = self._context.world.get(DEPLOYMENT.kind, namespace, name)
        samples = self._drains(pool, place)
        drains = grace(spec.drain.policy(), samples, _seconds(children.present_grace(present)))
        longer = self._longer(place, present, drains, samples)
        reach = self._reach(namespace, spec, place)
        wanted = Shape(pool, spec, place.for_pods(name), place.generation, drains, reach, longer)
        try:
            held = await self._held(pool, spec, place, memory, present)
            if held and (present is None or children.owner(present) != meta["uid"]):
                return await self._refuse(pool, *held, poolstatus.template(held))
            live, problem = await self._shape(wanted, memory, present if held else None)
        except KubeError as error:
            await self._denied(pool, "a child of the pool", error)
            raise
        except Vanished:
            return 0.0
        if problem is not None and problem.not_before:  # the API server asks to be left alone, with the size as well
            raise problem
        pool = self._context.world.get(POOL.kind, namespace, name) or pool
        try:
            sized = await self._size(pool, spec, place, live, memory)
        except KubeError as error:
            if error.status in MISTAKEN:
                await self._shaper.look_again(DEPLOYMENT, namespace, name)
            if error.conflict and memory.conflicts == 0:  # it was changed meanwhile: decided anew from what it is now
                memory.conflicts += 1
                return SOON
            await self._denied(pool, "the size of the pool", error)
            raise
        memory.conflicts = 0
        live = self._context.world.get(DEPLOYMENT.kind, namespace, name) or live
        manifests = self._context.world.pods(namespace, name)
        pods = living(manifests, self._context.node)
        refusal = _sentence("a child of the pool", problem) if problem and problem.status in DENIED else ""
        share = self._allotment(pool, spec)
        lowered = self._shares.providers.of(f"{namespace}/{name}", spec)
        throttled = lowered[1].sentence(lowered[0]) if lowered else ""
        nobody = self._unable(namespace, spec, place) if sized is not None and sized.view is not None else ()
        seen = poolstatus.Seen(
            pool,
            spec,
            live,
            pods,
            memory,
            drains,
            sized,
            place.link,
            share,
            reach,
            present_pods(manifests),
            refusal,
            nobody,
            held,
            throttled,
            self._context.lacks,
            self._allowed(pods),
        )
        status = poolstatus.status(seen, self._freshness, self._context.now())
        metrics.tell_pool_conditions(namespace, name, status["conditions"])
        again = await self._context.write_status(POOL, pool, status)
        waits = [AGAIN, *(wait for wait in (again, memory.crashes_due) if wait is not None)]
        if memory.hold is not None:
            waits.append(max(0.0, (memory.hold.until - self._context.now()).total_seconds()))
        return min(waits)

    def _not_yet(self, namespace: str, place: Place) -> float | None:
        """The seconds until it can be told what to do with a pool on this database; None: now."""
        if place.link is not None and place.link.kept_elsewhere:
            return AGAIN
        return CONNECTING if self._context.undecided(namespace, place.name) else None

    async def _held(
        self,
        pool: Mapping[str, Any],
        spec: WorkerPoolSpec,
        place: Place,
        memory: Memory,
        present: Mapping[str, Any] | None,
    ) -> tuple[str, str] | None:
        """Why no template may be made of the pool as it is now: reason and text; None if one may."""
        refused = self._template(pool)
        if refused:
            return poolstatus.TEMPLATE_REFUSED, refused
        try:
            await self._logins.keep(pool, spec, place.spec, place.link, memory)
        except LoginProblem as problem:
            return problem.reason, str(problem)
        except KubeError as error:
            if present is None or error.status not in DENIED:
                raise
            return "Refused", _sentence("the Secret with the pool's login", error)
        return None

    async def _shape(
        self, wanted: Shape, memory: Memory, kept: Mapping[str, Any] | None
    ) -> tuple[Mapping[str, Any], KubeError | None]:
        """Its Deployment in shape; `kept`: the one that a pool that is held has keeps its template, and its size follows its work."""
        return (kept, None) if kept is not None else await self._shaper.shape(wanted, memory)

    async def _size(
        self, pool: Mapping[str, Any], spec: WorkerPoolSpec, place: Place, live: Mapping[str, Any], memory: Memory
    ) -> Sized | None:
        """Size a pool whose database is known; None if it is not."""
        if place.link is None:
            return None
        namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
        pods = self._context.world.pods(namespace, name)
        grace_seconds = children.present_grace(live) or 0
        await departures.tell(place.link, f"{namespace}/{name}", pods, grace_seconds, memory, self._left)
        if memory.generation not in {0, pool["metadata"]["generation"]}:
            place.link.wake()  # what the store is told of a pool follows a reading
        memory.generation = pool["metadata"]["generation"]
        memory.crashes_due = await self._context.crashes.tell(place.link, namespace, name, pods)
        await self._freshness.tell(pool, place.link, place.link.blind(self._context.now()))
        sized = await self._scaler.size(pool, spec, place.link, live, living(pods, self._context.node), memory)
        live = self._context.world.get(DEPLOYMENT.kind, namespace, name) or live
        busy = sized.view.busy if sized.view else None
        metrics.tell_pool(namespace, name, sized.decision, int(live["spec"].get("replicas") or 0), busy)
        return sized

    def _unable(self, namespace: str, spec: WorkerPoolSpec, place: Place) -> Sequence[str]:
        """The types of tasks in its queues that nobody can run."""
        if place.link is None:
            return ()
        found = [unable(self._context, place.link, namespace, queue.name) for queue in spec.queues]
        return sorted({each.type for kinds in found for each in kinds})

    def _allowed(self, pods: Sequence[PodSeen]) -> Allowance | None:
        """The least grace that the nodes of these pods are known to allow."""
        nodes = [self._context.node(name) for name in {pod.node for pod in pods if pod.node}]
        labels = [node["metadata"].get("labels") or {} for node in nodes if node is not None]
        return tightest(labels, self._context.node_graces)

    def _left(self, pod: Mapping[str, Any]) -> float | None:
        """The seconds that a pod has on a node that shuts down, if anything is known of such nodes."""
        node = self._context.node((pod.get("spec") or {}).get("nodeName") or "")
        if node is None or SHUTTING_DOWN not in node["spec"]:
            return None
        allowed = tightest([node["metadata"].get("labels") or {}], self._context.node_graces)
        return None if allowed is None else allowed.most.total_seconds()

    def _allotment(self, pool: Mapping[str, Any], spec: WorkerPoolSpec) -> Any:
        if not spec.providers:
            return None
        return self._shares.allotments.get(f"{pool['metadata']['namespace']}/{pool['metadata']['name']}")

    def _reach(self, namespace: str, spec: WorkerPoolSpec, place: Place) -> networkpolicy.Reach:
        """What its pods may reach: whatever of it is not there, or cannot be read, is not known."""
        peers: dict[str, Any] = {}
        for use in spec.uses(namespace):
            peers[use.quota] = ()
            manifest = self._context.world.get(QUOTA.kind, *use.quota.split("/"))
            if manifest is not None:
                with contextlib.suppress(ResourceError):
                    peers[use.quota] = self._context.spec(ProviderQuotaSpec, manifest).network_peers
        return networkpolicy.reach(spec, (place.name, place.spec.network_peers), peers)

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

    async def _denied(self, pool: Mapping[str, Any], what: str, error: KubeError) -> None:
        """Say in the status what waiting will not mend."""
        if error.status in DENIED:
            await self._refuse(pool, "Refused", _sentence(what, error))

    def _template(self, pool: Mapping[str, Any]) -> str:
        """What the platform's policy refuses of its template, in words; "" if nothing."""
        namespace = pool["metadata"]["namespace"]

        def private() -> set[str]:
            all_of_them = self._context.world.all(DATABASE.kind)
            mine = (each["spec"] for each in all_of_them if each["metadata"]["namespace"] == namespace)
            return {ref["name"] for each in mine for key in _private(each) if (ref := each.get(key))}

        return "; ".join(self._context.templates.refusals(pool, private))

    async def _refuse(self, pool: Mapping[str, Any], reason: str, message: str, *more: Condition) -> float | None:
        """Say what is wrong; what runs is left as it is."""
        status = poolstatus.refused(pool, Condition("Ready", "False", reason, message), self._context.now(), *more)
        meta = pool["metadata"]
        metrics.tell_pool_conditions(meta["namespace"], meta["name"], status["conditions"])
        again = await self._context.write_status(POOL, pool, status)
        return AGAIN if again is None else again


def _private(database: Mapping[str, Any]) -> tuple[str, ...]:
    """The references of a Database to Secrets of which no pod knows: that of the owner, and its own where each pool has a login."""
    own = ("dsnSecretRef", "directSecretRef") if database.get("roles") == Roles.PER_POOL else ()
    return ("adminSecretRef", *own)


def _seconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _sentence(what: str, error: KubeError) -> str:
    if isinstance(error, Taken):
        return error.message
    remedy = "; add the right to the operator's role" if error.forbidden else ""
    return f"the API server refuses {what}: {error.message}{remedy}"
