"""maxWorkerConnections of a Database: a bound on the pods of its pools together (O15).

Guarantees: no size is raised beyond what the bound leaves at the moment of the write, with everything counted that is connected or may
be: pods that start, surge or end, those of pools that are gone, and sizes that are being written. Shares are divided anew after each
reading. A rollout's own surge and its draining pods are counted, not prevented.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from poolkeeper_operator.decide.connections import Holding, divide, room, sentence
from poolkeeper_operator.decide.reasons import LimitedBy
from poolkeeper_operator.decide.signals import Cap
from poolkeeper_operator.observe.pods import living, present_pods
from poolkeeper_operator.resources import DatabaseSpec, ResourceError, WorkerPoolSpec
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.kinds import DATABASE, DEPLOYMENT, POOL, QUEUE

Key = tuple[str, str]  # namespace and name of a Database


class Connections:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._wanted: dict[str, int] = {}  # by pool "namespace/name": what it would have without this bound
        self._caps: dict[Key, dict[str, Cap]] = {}
        self._writing: dict[str, int] = {}  # sizes on their way to the API server

    def divide(self, key: Key, specs: Mapping[str, WorkerPoolSpec]) -> None:
        """Divide anew among the pools of a Database."""
        bound = self._bound(key)
        if bound is None:
            self._caps.pop(key, None)
            return
        pools = self._holdings(key, specs)
        shares = divide(bound, pools)
        held = {pool.pool: pool.held for pool in pools if pool.held or pool.wanted}
        self._caps[key] = {
            pool: Cap(
                reason=LimitedBy.CONNECTIONS,
                slots=pods * specs[pool].concurrency,
                sentence=sentence(key[1], bound, pods, {pool: 0, **held}),
            )
            for pool, pods in shares.items()
            if pool in specs
        }

    def cap(self, key: Key, pool: str) -> tuple[Cap, ...]:
        """The bound on a pool, for the scaling decision."""
        found = self._caps.get(key, {}).get(pool)
        return () if found is None else (found,)

    def note(self, pool: str, wanted: int) -> None:
        """What a pool would have without this bound."""
        self._wanted[pool] = wanted

    def forget(self, pool: str) -> None:
        """It is gone; its pods count until they are."""
        self._wanted.pop(pool, None)

    @contextmanager
    def admitted(self, key: Key, pool: str, replicas: int, target: int) -> Iterator[int]:
        """The size that may be written instead of `replicas`; it counts as held while it is being written."""
        bound = self._bound(key)
        if bound is not None and target > replicas:
            target = min(target, replicas + room(bound, self._holdings(key)))
        self._writing[pool] = target
        try:
            yield target
        finally:
            self._writing.pop(pool, None)

    def _bound(self, key: Key) -> int | None:
        manifest = self._context.world.get(DATABASE.kind, *key)
        if manifest is None:
            return None
        try:
            return self._context.spec(DatabaseSpec, manifest).max_worker_connections
        except ResourceError:
            return None

    def _holdings(self, key: Key, specs: Mapping[str, WorkerPoolSpec] | None = None) -> list[Holding]:
        """Of all pools of the Database, and of those in its namespace of which nobody knows where they belong."""
        namespace, world = key[0], self._context.world
        names = {name for of, name in world.pools_with_pods() if of == namespace}
        names |= {m["metadata"]["name"] for m in world.all(POOL.kind) if m["metadata"]["namespace"] == namespace}
        found = []
        for name in sorted(names):
            if self._database(namespace, name) not in {None, key[1]}:
                continue
            pool, pods = f"{namespace}/{name}", world.pods(namespace, name)
            deployment: Mapping[str, Any] = world.get(DEPLOYMENT.kind, namespace, name) or {}
            replicas = int((deployment.get("spec") or {}).get("replicas") or 0)
            alive, spec = len(living(pods)), (specs or {}).get(pool)
            found.append(
                Holding(
                    pool=pool,
                    wanted=replicas if spec is None else self._wanted.get(pool, replicas),
                    ceiling=0 if spec is None else spec.scaling.max,
                    replicas=max(replicas, self._writing.get(pool, 0)),
                    living=alive,
                    leaving=present_pods(pods) - alive,
                )
            )
        return found

    def _database(self, namespace: str, pool: str) -> str | None:
        manifest = self._context.world.get(POOL.kind, namespace, pool)
        for ref in ((manifest or {}).get("spec") or {}).get("queues") or []:
            queue = self._context.world.get(QUEUE.kind, namespace, ref["name"])
            if queue is not None:
                return str(queue["spec"]["databaseRef"]["name"])
        return None
