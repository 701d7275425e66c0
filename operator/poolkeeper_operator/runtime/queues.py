"""Reconciling a TaskQueue: its policy goes to the store, what its tasks do comes back as status, dead letters are told.

Guarantees (O1, O2, O24): the policy is one versioned row of this namespace in this cluster; a queue of another owner is
never touched; a batch of dead letters is announced by an Event whose name is the batch's, so that a repeated one is
refused. Without a reading the last figures stand and SignalFresh says since when and why.
"""

from collections.abc import Mapping
from typing import Any

from poolkeeper.codes import Code
from poolkeeper.store import calls
from poolkeeper.store.rows import Applied, DeadBatch, QueueStats
from poolkeeper_operator.act import verdicts
from poolkeeper_operator.act.compare import digest
from poolkeeper_operator.decide.conditions import Condition, coarse, merge
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.resources import ResourceError, TaskQueueSpec, TaskQueueStatus
from poolkeeper_operator.resources.taskqueue import DeadLetters, Depth, HeldBack
from poolkeeper_operator.runtime import metrics
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.freshness import Freshness
from poolkeeper_operator.runtime.kinds import DATABASE, GROUP, MANAGER, QUEUE

ADOPT = f"{GROUP}/adopt"
CONNECTING = 2.0  # seconds until a database that was never tried is asked about again
BATCHES = 10  # announced in one pass
SHOWN = 5  # kinds of tasks or reasons named in an Event
Name = tuple[str, str]


class Queues:
    """Reconciles TaskQueues."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._applied: dict[Name, tuple[str, int]] = {}  # digest of what was applied, and the version that it became
        self._dead: dict[Name, tuple[int, int]] = {}  # dead letters when batches were last asked for
        self._freshness = Freshness(context)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; the seconds until the next."""
        manifest = self._context.world.get(QUEUE.kind, namespace, name)
        if manifest is None:
            self._applied.pop((namespace, name), None)
            self._dead.pop((namespace, name), None)
            metrics.forget(metrics.QUEUE_GAUGES, namespace, name)
            return None
        try:
            spec = self._context.spec(TaskQueueSpec, manifest)
        except ResourceError as error:
            return await self._write(manifest, verdicts.stalled("InvalidSpec", str(error)), None, None)
        if self._context.undecided(namespace, spec.database_ref.name) and self._known_database(namespace, spec):
            return CONNECTING
        link, lack = self._link(namespace, name, spec)
        if link is None:
            return await self._write(manifest, lack, None, None)
        return await self._keep(manifest, spec, link)

    async def _keep(self, manifest: Mapping[str, Any], spec: TaskQueueSpec, link: Link) -> float | None:
        """A queue whose database was tried: apply its policy, tell its dead letters, write its figures."""
        key = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        blind = link.blind(self._context.now())
        await self._freshness.tell(manifest, link, blind)
        if blind is not None or link.failures:
            return await self._write(manifest, self._kept(manifest, spec, link), link, None)
        applied = await self._apply(manifest, spec, link)
        if applied.code is not None:
            return await self._write(manifest, _orphaned(manifest), link, None)
        stats = link.reading.queues.get(key) if link.reading else None
        if stats is None:  # it was made just now: the reading that has it comes at once, and with it one whole status
            link.wake()
            return CONNECTING
        metrics.tell_queue(stats)
        await self._announce(manifest, spec, stats, link)
        return await self._write(
            manifest, _judge(manifest, spec, applied.policy_version), link, stats, applied.policy_version
        )

    def _known_database(self, namespace: str, spec: TaskQueueSpec) -> bool:
        return self._context.world.get(DATABASE.kind, namespace, spec.database_ref.name) is not None

    def _link(self, namespace: str, name: str, spec: TaskQueueSpec) -> tuple[Link | None, list[Condition]]:
        ref = spec.database_ref.name
        link = self._context.links.get((namespace, ref))
        if link is not None:
            return link, []
        if self._context.world.get(DATABASE.kind, namespace, ref) is None:
            text = f'queue "{name}" in namespace "{namespace}": there is no database "{ref}"; apply it, or correct spec.databaseRef'
            return None, verdicts.stalled("DatabaseMissing", text)
        text = f'queue "{name}" in namespace "{namespace}": database "{ref}" is not ready; its condition Ready says why'
        return None, verdicts.waiting("DatabaseNotReady", text)

    def _kept(self, manifest: Mapping[str, Any], spec: TaskQueueSpec, link: Link) -> list[Condition]:
        """Blind: what was in force still is (the store has it), unless it never was."""
        version = (manifest.get("status") or {}).get("policyVersion")
        same = (manifest.get("status") or {}).get("observedGeneration") == manifest["metadata"]["generation"]
        if version is not None and same:
            return _judge(manifest, spec, version)
        return verdicts.waiting("DatabaseNotReady", f"{link.name}: {link.problem or 'not read yet'}")

    async def _apply(self, manifest: Mapping[str, Any], spec: TaskQueueSpec, link: Link) -> Applied:
        meta = manifest["metadata"]
        key = (meta["namespace"], meta["name"])
        space = await self._context.namespace(meta["namespace"])
        uid = (space or {}).get("metadata", {}).get("uid", "")
        adopt = (meta.get("annotations") or {}).get(ADOPT) == "true"
        instance = link.reading.stats.instance_id if link.reading else None
        mark = digest([spec.to_store(), uid, adopt, str(instance)])
        stats = link.reading.queues.get(key) if link.reading else None
        known = self._applied.get(key)
        if known and known[0] == mark and (stats is None or stats.policy_version == known[1]):
            return Applied(None, stats.queue_id if stats else 0, known[1], changed=False)
        call = calls.apply_policy(
            self._context.cluster,
            uid,
            *key,
            spec.to_store(),
            who=f"{MANAGER} generation {meta['generation']}",
            adopt=adopt,
        )
        applied = await link.call(call)
        if applied.code is None:
            self._applied[key] = (mark, applied.policy_version)
            if applied.changed:
                link.wake()
        elif applied.code != Code.QUEUE_OWNED:
            raise RuntimeError(f"queue {key[0]}/{key[1]}: the store refused its policy: {applied.code}")
        return applied

    async def _announce(self, manifest: Mapping[str, Any], spec: TaskQueueSpec, stats: QueueStats, link: Link) -> None:
        """One Event per numbered batch, then the mark in the store: a crash between both repeats the same Event name."""
        key = (stats.namespace, stats.name)
        if self._dead.get(key, (0, 0)) == (stats.dead, 0) and not stats.dead_recent:
            return
        for _ in range(BATCHES):
            batch = await link.call(calls.dead_batch(stats.queue_id))
            if batch is None:
                self._dead[key] = (stats.dead, stats.dead_recent)
                return
            instance = str(link.reading.stats.instance_id)[-8:] if link.reading else ""
            suffix = f"dead-{instance}-{batch.number}"
            await self._context.tell(manifest, "Warning", "DeadLetters", announcement(batch, spec), suffix=suffix)
            await link.call(calls.dead_batch_announced(stats.queue_id, batch.number))

    async def _write(
        self,
        manifest: Mapping[str, Any],
        verdict: list[Condition],
        link: Link | None,
        stats: QueueStats | None,
        version: int | None = None,
    ) -> float | None:
        present = manifest.get("status") or {}
        now = self._context.now()
        generation = manifest["metadata"]["generation"]
        conditions = [*verdict]
        if link is not None:
            conditions.append(self._freshness.condition(link, now))
        if stats is not None:
            conditions.append(_dead_letters(stats))
        figures = _figures(stats) if stats is not None else _last_figures(present)
        if version is not None:
            figures["policyVersion"] = version
        status = {
            **figures,
            "observedGeneration": generation,
            "conditions": merge(present.get("conditions") or [], conditions, generation=generation, now=now),
        }
        again = await self._context.write_status(QUEUE, manifest, status)
        return again if again is not None else (60.0 if link is None else None)


def _judge(manifest: Mapping[str, Any], spec: TaskQueueSpec, version: int) -> list[Condition]:
    lacks = [
        field
        for field, value in (("owner", spec.dead_letter.owner), ("runbookURL", spec.dead_letter.runbook_url))
        if value is None
    ]
    if lacks:
        name = manifest["metadata"]["name"]
        wanted = " and ".join(f"spec.deadLetter.{field}" for field in lacks)
        return verdicts.stalled("NoOwner", f'queue "{name}": nobody would hear of its dead letters; set {wanted}')
    paused = ", paused: nothing is claimed" if spec.paused else ""
    return verdicts.ready("PolicyApplied", f"policy version {version}{paused}")


def _orphaned(manifest: Mapping[str, Any]) -> list[Condition]:
    meta = manifest["metadata"]
    text = (
        f'queue "{meta["name"]}": its tasks belong to another cluster or to an earlier namespace "{meta["namespace"]}"; '
        f"to take them over, annotate this TaskQueue with {ADOPT}=true"
    )
    return verdicts.stalled("Orphaned", text)


def _dead_letters(stats: QueueStats) -> Condition:
    if not stats.dead:
        return Condition("DeadLetters", "False", "None", "no dead letters")
    text = f"{stats.dead} dead letters wait for a person; `poolkeeper dlq list --queue {stats.namespace}/{stats.name}`"
    return Condition("DeadLetters", "True", "WaitingForAPerson", text)


def _figures(stats: QueueStats) -> dict[str, Any]:
    return TaskQueueStatus(
        policy_version=stats.policy_version,
        depth=Depth(
            ready=stats.ready,
            scheduled=stats.scheduled,
            leased=stats.leased,
            running=stats.running,
            waiting=stats.waiting,
            held_back=HeldBack(isolation=stats.suspects) if stats.suspects else None,
        ),
        oldest_runnable_age=coarse(stats.oldest_runnable),
        dead_letters=DeadLetters(total=stats.dead, growth_per_minute=stats.dead_recent),
        lease_expiries=stats.lease_expiries,
    ).as_status()


def _last_figures(present: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in present.items() if key not in {"conditions", "observedGeneration"}}


def announcement(batch: DeadBatch, spec: TaskQueueSpec) -> str:
    """One readable sentence about a batch, with its owner and runbook."""
    what = f"{batch.count} dead letter{'' if batch.count == 1 else 's'}"
    error = f", first error: {batch.first_error}" if batch.first_error else ""
    owner = f"; owner {spec.dead_letter.owner}" if spec.dead_letter.owner else ""
    runbook = f", runbook {spec.dead_letter.runbook_url}" if spec.dead_letter.runbook_url else ""
    return (
        f"{what}: {_top(batch.types)} ({_top(batch.reasons)}), first task {batch.first_task}{error}{owner}{runbook}; "
        f"`poolkeeper task timeline {batch.first_task}` tells what happened"
    )


def _top(counts: Mapping[str, int]) -> str:
    """The most frequent ones with their counts, and how many others there are."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    said = ", ".join(f"{name} {count}" for name, count in ranked[:SHOWN])
    rest = sum(count for _, count in ranked[SHOWN:])
    return f"{said}, others {rest}" if rest else said
