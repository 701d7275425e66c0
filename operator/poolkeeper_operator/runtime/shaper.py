"""The children of a pool take their shape: ServiceAccount, PodDisruptionBudget, Deployment; and spec.replicas gets a value (O3).

Guarantees: what is as wanted is not written; a child that vanished is made again only after the pool itself was read again, so
that a pool whose end went unnoticed does not fight the garbage collector; what the API server refuses is left alone for a
while, ever longer, and does not keep an existing Deployment from being sized; what is not of the pool is never taken.
"""

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from poolkeeper_operator.act import children, pacing, scaletarget
from poolkeeper_operator.act.compare import digest
from poolkeeper_operator.act.networkpolicy import Reach, build_network_policy
from poolkeeper_operator.decide.grace import Grace
from poolkeeper_operator.decide.lengthening import Lengthening
from poolkeeper_operator.resources import DatabaseSpec, WorkerPoolSpec
from poolkeeper_operator.resources.scaling import ScalingMode
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.failures import KubeError, Taken
from poolkeeper_operator.runtime.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POOL,
    SCALER,
    SERVICE_ACCOUNT,
    Resource,
)
from poolkeeper_operator.runtime.memory import Hold, Memory
from poolkeeper_operator.runtime.workqueue import backoff

log = logging.getLogger(__name__)
Manifest = dict[str, Any]


class Vanished(Exception):
    """The pool is no longer there, or is another one of the same name."""


@dataclass(frozen=True)
class Shape:
    """What the children are made of."""

    pool: Mapping[str, Any]
    spec: WorkerPoolSpec
    database: DatabaseSpec
    database_generation: int
    drains: Grace
    reach: Reach
    longer: Lengthening | None = None  # a rollout for a longer grace that is due

    @property
    def name(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.pool["metadata"]["namespace"], self.pool["metadata"]["name"]


class Shaper:
    """See the module."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def shape(self, wanted: Shape, memory: Memory) -> tuple[Mapping[str, Any], KubeError | None]:
        """Bring the children into shape: the Deployment as it is now, and what the API server refused.

        Raises Vanished, or KubeError where there is no Deployment.
        """
        now = self._context.now()
        generation = wanted.pool["metadata"]["generation"]
        hold = memory.hold
        held = self._child(DEPLOYMENT, wanted)
        if hold is not None and hold.generation == generation and now < hold.until and held is not None:
            return held, hold.error
        try:
            live = await self._bring(wanted, memory)
        except KubeError as error:
            if error.conflict:
                await self.look_again(DEPLOYMENT, *wanted.name)
            present = self._child(DEPLOYMENT, wanted)
            if present is None:
                raise
            failures = hold.failures + 1 if hold is not None and hold.generation == generation else 1
            log.warning("pool.refused: %s/%s: %s", *wanted.name, error, extra={"pool": "/".join(wanted.name)})
            memory.hold = Hold(error, generation, failures, _until(now, error, failures))
            return present, error
        memory.hold = None
        return live, None

    async def look_again(self, resource: Resource, namespace: str, name: str) -> None:
        """A write met something else than what was seen: an event was lost."""
        found = await self._context.kube.get(resource, namespace, name)
        if found is None:
            self._context.world.drop(resource.kind, namespace, name)
        else:
            self._context.world.put(resource.kind, found)

    async def _bring(self, wanted: Shape, memory: Memory) -> Mapping[str, Any]:
        live = self._child(DEPLOYMENT, wanted)
        mark = self._mark(wanted)
        if live is not None and wanted.longer is None and mark is not None and memory.shaped == mark:
            return live
        account = children.build_service_account(wanted.pool, wanted.spec)
        budget = children.build_disruption_budget(wanted.pool, wanted.spec)
        present = self._child(NETWORK_POLICY, wanted)
        policy = build_network_policy(wanted.pool, wanted.spec, wanted.reach, live=present)
        if memory.shaped is not None:
            kinds = [
                DEPLOYMENT,
                DISRUPTION_BUDGET,
                *([SERVICE_ACCOUNT] if account else []),
                *([NETWORK_POLICY] if policy else []),
            ]
            if any(self._child(kind, wanted) is None for kind in kinds):
                await self._still_there(wanted)
        if account is not None:
            await self._small(SERVICE_ACCOUNT, account, wanted)
        await self._small(DISRUPTION_BUDGET, budget, wanted)
        if policy is not None:  # before the first pod
            await self._small(NETWORK_POLICY, policy, wanted, exact=True)
        shaped = await self._deployment(wanted, live, memory)
        await self._answer_scale(wanted, shaped, memory)
        memory.shaped = self._mark(wanted)
        return shaped

    async def _deployment(self, wanted: Shape, live: Mapping[str, Any] | None, memory: Memory) -> Mapping[str, Any]:
        manifest = children.build_deployment(
            wanted.pool,
            wanted.spec,
            wanted.database,
            live=live,
            grace_seconds=int(wanted.drains.applied.total_seconds()),
            lengthen=(wanted.longer, self._context.now()) if wanted.longer else None,
        )
        why = children.changed(live, manifest)
        mark = digest(manifest)
        if live is not None and (why is None or memory.accepted == (mark, live["metadata"]["generation"])):
            return live
        await self._not_taken(DEPLOYMENT, live, wanted)
        answer = await self._context.kube.apply(DEPLOYMENT, children.as_seen(manifest, live))
        log.info("pool.shaped: %s/%s: %s", *wanted.name, why, extra={"pool": "/".join(wanted.name)})
        memory.accepted = (mark, answer["metadata"]["generation"])
        self._context.world.put(DEPLOYMENT.kind, answer)
        if wanted.longer is not None and pacing.last(answer) != pacing.last(live):
            await self._context.tell(wanted.pool, "Normal", "GraceRollout", wanted.longer.sentence)
        return answer

    async def _small(self, resource: Resource, manifest: Manifest, wanted: Shape, *, exact: bool = False) -> None:
        """`exact`: what others add to its spec is a difference; all of it is ours, and the API server adds nothing."""
        live = self._child(resource, wanted)
        if children.changed(live, manifest) is not None or (exact and live and live["spec"] != manifest["spec"]):
            await self._not_taken(resource, live, wanted)
            self._context.world.put(resource.kind, await self._context.kube.apply(resource, manifest))

    async def _not_taken(self, resource: Resource, live: Mapping[str, Any] | None, wanted: Shape) -> None:
        """Raise Taken where the name belongs to what is not ours: applying would make it ours, to be deleted with the pool."""
        found = live or await self._context.kube.get(resource, *wanted.name)  # what lacks our labels is not watched
        if found is None:
            return
        why = children.taken(found, wanted.pool)
        if why is not None:
            raise Taken(resource.kind, wanted.name[1], why)
        if children.owner(found) not in {None, wanted.pool["metadata"]["uid"]}:
            raise KubeError(
                0, f'{resource.kind} "{wanted.name[1]}"', "an earlier pool's, not removed by the cluster yet"
            )

    async def _answer_scale(self, wanted: Shape, live: Mapping[str, Any], memory: Memory) -> None:
        """Have spec.replicas say a size: the scale subresource cannot answer without (O3), and in External it is handed over (O19)."""
        pool, present = wanted.pool, int(live["spec"].get("replicas") or 0)
        external = wanted.spec.scaling.mode is ScalingMode.EXTERNAL
        known = memory.external or (external and scaletarget.handed_over(pool))
        asked = scaletarget.asked(pool) if known or not external else None
        if wanted.spec.replicas is None or (external and asked is None and wanted.spec.replicas != present):
            try:
                answer = await self._context.kube.apply(POOL, scaletarget.build(pool, present), manager=SCALER)
            except KubeError as error:
                if not error.conflict:
                    raise
                await self.look_again(POOL, *wanted.name)  # it was scaled, or changed, meanwhile: looked at anew
                return
            self._context.world.put(POOL.kind, answer)
        memory.external = external

    async def _still_there(self, wanted: Shape) -> None:
        found = await self._context.kube.get(POOL, *wanted.name)
        if found is None or found["metadata"]["uid"] != wanted.pool["metadata"]["uid"]:
            self._context.world.drop(POOL.kind, *wanted.name)
            self._context.forget(wanted.pool)
        if found is not None:
            self._context.world.put(POOL.kind, found)
        known = self._context.world.get(POOL.kind, *wanted.name)
        if known is None or known["metadata"]["uid"] != wanted.pool["metadata"]["uid"]:
            raise Vanished
        if "deletionTimestamp" in known["metadata"]:
            raise Vanished

    def _child(self, resource: Resource, wanted: Shape) -> Manifest | None:
        return self._context.world.get(resource.kind, *wanted.name)

    def _mark(self, wanted: Shape) -> tuple[object, ...] | None:
        """While this stays, so does what would be rendered: a cheap way to see that nothing is to be done."""
        live, budget = self._child(DEPLOYMENT, wanted), self._child(DISRUPTION_BUDGET, wanted)
        if live is None or budget is None or wanted.spec.replicas is None:
            return None
        account, policy = self._child(SERVICE_ACCOUNT, wanted), self._child(NETWORK_POLICY, wanted)
        return (
            wanted.pool["metadata"]["generation"],
            wanted.database_generation,
            live["metadata"]["resourceVersion"],
            (budget["metadata"]["uid"], budget["metadata"].get("generation")),
            account and account["metadata"]["resourceVersion"],
            wanted.reach,
            policy and policy["metadata"]["resourceVersion"],
        )


def _until(now: datetime, error: KubeError, failures: int) -> datetime:
    return now + timedelta(seconds=max(error.not_before, backoff(failures, random.random())))  # noqa: S311 - no secret
