"""From a reading to a pool's size: decide, choose victims, write one field.

Guarantees: the Deployment's replicas are written only here, under a field manager of their own; a pod that leaves was
marked in the store, seen idle, and carried its deletion cost when the number was lowered (O17); one that the controller took in its
place is counted; without a reading nothing shrinks (O18); each change of size is told once as Event, status line and record in the store.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import calls
from poolkeeper_operator.act import owners, scaletarget
from poolkeeper_operator.act.children import build_replicas
from poolkeeper_operator.decide.conditions import cut, stamp
from poolkeeper_operator.decide.decision import Decision
from poolkeeper_operator.decide.hints import asks, spell
from poolkeeper_operator.decide.reasons import Want
from poolkeeper_operator.decide.scaling import decide, writable
from poolkeeper_operator.decide.signals import Blind
from poolkeeper_operator.decide.victims import Lowering, VictimPlan, plan
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.observe.pods import ASKING, BUSY, COST, PodSeen
from poolkeeper_operator.observe.signals import PoolView, backlog, costed, pod_states, signals, view
from poolkeeper_operator.resources import WorkerPoolSpec
from poolkeeper_operator.runtime import metrics
from poolkeeper_operator.runtime.capability import can_run
from poolkeeper_operator.runtime.connections import Connections
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import DEPLOYMENT, POD, SCALER
from poolkeeper_operator.runtime.memory import Memory
from poolkeeper_operator.runtime.shares import Shares

log = logging.getLogger(__name__)
LINES = 10
LINE_BYTES = 400  # ten of them leave the status well below 8 KiB (O2)
FOREIGN_TOLD = timedelta(minutes=10)
VICTIM = "-1"
NEUTRAL = "0"
NOBODY = {"missing": 0, "may_go": 0}
INSTEAD = (
    "Only spec.scaling counts: set min and max there, or mode: Hold, which leaves the size to you, "
    "or mode: External, and scale the WorkerPool"
)


@dataclass(frozen=True)
class Sized:
    """What one pass found and did."""

    decision: Decision
    view: PoolView | None  # None: blind
    blind: str | None


class Scaler:
    """Sizes pools; see the module."""

    def __init__(self, context: Context, shares: Shares, connections: Connections) -> None:
        self._context = context
        self._shares = shares
        self._connections = connections

    async def size(
        self,
        pool: Mapping[str, Any],
        spec: WorkerPoolSpec,
        link: Link,
        deployment: Mapping[str, Any],
        pods: Sequence[PodSeen],
        memory: Memory,
    ) -> Sized:
        """One pass over a pool whose Deployment exists."""
        now = self._context.now()
        key = f"{pool['metadata']['namespace']}/{pool['metadata']['name']}"
        replicas = int(deployment["spec"].get("replicas") or 0)
        self._notice_foreign(deployment, memory)
        blind, seen = link.blind(now), None
        if blind is None and link.reading is not None:
            seen = self._view(pool, spec, link, deployment, pods)
            memory.learn(seen)
        observed = (
            Blind(cause=blind or "", replicas=replicas)
            if seen is None
            else signals(
                seen,
                service_time=memory.meter.service_time,
                start_up=memory.start_up,
                caps=(*self._shares.cap(key, spec, memory.meter.service_time), *self._connections.cap(link.key, key)),
            )
        )
        if not replicas and not link.attentive:  # a pool that is new: work may have come since the reading, unheard
            link.attentive = True
            link.wake()
        asked = scaletarget.asked(pool) if memory.external else None
        decision = decide(spec.scaling_policy(link.interval, asked), observed, memory.history, now)
        memory.history, memory.decision = decision.history, decision
        if seen is not None:
            self._connections.note(key, min(decision.wanted, spec.scaling.max))
        target, victims = decision.applied, NOBODY
        if seen is not None:
            self._judge(key, seen, memory)
            victims = await self._victims(key, link, seen, decision, memory)
            target = writable(decision, **victims)
            self._come_back(link, spec, seen)
        if spec.providers and target > replicas and not self._shares.in_force(key):
            target = replicas  # a pod that starts before its cap stands could pass the quota
        with self._connections.admitted(link.key, key, replicas, target) as admitted:
            if admitted != target:
                victims = {**victims, "room": admitted - replicas}
            if admitted != replicas:
                await self._write(pool, deployment, link, decision, admitted, victims, memory)
                if who := ", ".join(owners.who_scaled(deployment)):
                    text = f"{who} set replicas to {replicas}, which is not obeyed: {admitted} now. {INSTEAD}"
                    await self._context.tell(pool, "Warning", "ForeignScale", text)
        return Sized(decision, seen, blind)

    def _view(
        self,
        pool: Mapping[str, Any],
        spec: WorkerPoolSpec,
        link: Link,
        deployment: Mapping[str, Any],
        pods: Sequence[PodSeen],
    ) -> PoolView:
        assert link.reading is not None  # noqa: S101 - by the caller
        namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
        types = can_run(self._context, pool, spec, link)
        waiting = backlog(link.reading, namespace, [queue.name for queue in spec.queues], types, spec.takes())
        return view(link.reading, f"{namespace}/{name}", waiting, pods, deployment)

    async def _victims(
        self, pool: str, link: Link, seen: PoolView, decision: Decision, memory: Memory
    ) -> dict[str, int]:
        """Mark and price the pods that shall go; how many may go now."""
        ending = decision.reason is Want.HOLD_AND_DRAIN
        chosen = plan(pod_states(seen), goal=decision.goal, replicas=seen.replicas, ending=ending)
        if chosen.mark:
            await link.call(calls.mark_sessions(pool, chosen.mark, draining=True, term=link.term))
        if chosen.unmark:
            await link.call(calls.mark_sessions(pool, chosen.unmark, draining=False, term=link.term))
        asking = self._asking(seen, memory)
        for pod in seen.pods:
            wanted = VICTIM if pod.name in chosen.costs else None
            if wanted is None and decision.goal < seen.replicas and pod.cost != VICTIM and costed(pod):
                wanted = NEUTRAL  # somebody else would have it taken before the victims
            priced = pod.cost != wanted and (wanted or pod.cost == VICTIM)
            if priced or (pod.uid in asking) != bool(pod.asking):
                await self._annotate(pool.partition("/")[0], pod, wanted, asks=pod.uid in asking)
        if chosen.mark or chosen.unmark:
            link.wake()  # the next reading shows the marks
        if decision.goal < seen.replicas and not await self._still_idle(pool, link, chosen):
            return {"missing": chosen.missing, "may_go": 0}
        if chosen.replicas < seen.replicas:
            uids = {pod.name: pod.uid for pod in seen.pods}
            going = frozenset(uids[name] for name in chosen.going)
            memory.lowering = Lowering(going=going, staying=frozenset(uids.values()) - going)
        return {"missing": chosen.missing, "may_go": chosen.may_go}

    @staticmethod
    async def _still_idle(pool: str, link: Link, chosen: VictimPlan) -> bool:
        """The last look: a turn that began before the mark may have claimed, and so may one that was starting; none can from here on."""
        if not chosen.going:
            return True
        busy = await link.call(calls.mark_sessions(pool, chosen.going, draining=True, term=link.term))
        if any(busy.values()):
            link.wake()
        return not any(busy.values())

    @staticmethod
    def _judge(pool: str, seen: PoolView, memory: Memory) -> None:
        """Count those that went in place of the ones that were to go: somebody else sets costs, or it was not ready in time."""
        if memory.lowering is None:
            return
        if seen.replicas > len(seen.pods) + len(
            memory.lowering.going
        ):  # it grows again: who came and went is not told apart
            memory.lowering = None
            return
        wrong = memory.lowering.wrong([pod.uid for pod in seen.pods])
        if wrong is None:
            return
        memory.lowering = None
        if wrong:
            metrics.WRONG_VICTIMS.labels(*pool.split("/")).inc(wrong)
            log.warning("pool.wrong_victims: %s: %d pods went in place of idle ones", pool, wrong, extra={"pool": pool})

    def _asking(self, seen: PoolView, memory: Memory) -> set[str]:
        """The pods, by uid, that are to ask node scalers to be left alone: what they do was noted until now."""
        now, before = self._context.now(), memory.spells
        memory.spells = {}
        for pod in seen.pods:
            session = seen.sessions.get(pod.name)
            busy, idle_for = bool(session and session.busy), session.idle_for if session else None
            memory.spells[pod.uid] = spell(before.get(pod.uid), busy=busy, now=now, idle_for=idle_for)
        known = [pod for pod in seen.pods if pod.asking is not None]
        return {pod.uid for pod in known if asks(memory.spells[pod.uid], now, asking=bool(pod.asking))}

    async def _annotate(self, namespace: str, pod: PodSeen, cost: str | None, *, asks: bool) -> None:
        """Set or take back a pod's deletion cost and hints; with its uid, so that a namesake is never made by it."""
        metadata: dict[str, Any] = {"namespace": namespace, "name": pod.name, "uid": pod.uid}
        annotations = {**({} if cost is None else {COST: cost}), **({BUSY: "true", **ASKING} if asks else {})}
        if annotations:
            metadata["annotations"] = annotations
        manifest = {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": metadata}
        try:
            answer = await self._context.kube.apply(POD, manifest, manager=SCALER)
        except KubeError as error:
            if not (error.not_found or error.conflict):  # gone meanwhile
                raise
            return
        self._context.world.put(POD.kind, answer)

    def _come_back(self, link: Link, spec: WorkerPoolSpec, seen: PoolView) -> None:
        """Have the database read at the moment when the oldest task will have waited for targetAge."""
        oldest = seen.backlog.oldest
        if seen.backlog.runnable and oldest is not None and oldest < spec.scaling.target_age:
            since = self._context.now() - seen.read_at
            link.wake_in((spec.scaling.target_age - oldest - since).total_seconds() + 0.05)

    def _notice_foreign(self, deployment: Mapping[str, Any], memory: Memory) -> None:
        names = tuple(owners.who_scaled(deployment))
        now = self._context.now()
        if names:
            memory.foreign, memory.foreign_until = names, now + FOREIGN_TOLD
        elif memory.foreign_until is not None and now > memory.foreign_until:
            memory.foreign, memory.foreign_until = (), None

    async def _write(
        self,
        pool: Mapping[str, Any],
        deployment: Mapping[str, Any],
        link: Link,
        decision: Decision,
        replicas: int,
        victims: Mapping[str, int],
        memory: Memory,
    ) -> None:
        answer = await self._context.kube.apply(DEPLOYMENT, build_replicas(deployment, replicas), manager=SCALER)
        self._context.world.put(DEPLOYMENT.kind, answer)
        meta = pool["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        direction = "up" if replicas > decision.replicas else "down"
        metrics.SCALED.labels(meta["namespace"], meta["name"], direction).inc()
        log.info("pool.scaled: %s", decision.sentence, extra={"pool": key, "count": replicas})
        line = {
            "time": stamp(self._context.now()),
            "wanted": decision.wanted,
            "limited": decision.limited,
            "goal": decision.goal,
            "applied": replicas,
            "reason": str(decision.reason),
            "sentence": cut(decision.sentence, LINE_BYTES),
        }
        memory.lines = [line, *memory.lines][:LINES]
        await self._context.tell(pool, "Normal", "Scaled", decision.sentence)
        try:
            record = {**decision.as_record(), "victims": dict(victims), "written": replicas}
            await link.call(calls.record_decision(key, record, term=link.term))
        except (PoolkeeperError, OSError) as error:  # the size is written; its record must not undo that
            log.warning("decision.unrecorded: %s: %s", key, error)
