"""Reconciling a TaskQueue: its policy goes to the store, what its tasks do comes back as status, dead letters are told.

Guarantees (O1, O2, O24): the policy is one versioned row of this namespace in this cluster; a queue of another owner is
never touched; a batch of dead letters is announced by an Event whose name is the batch's, so that a repeated one is
refused. Without a reading the last figures stand and SignalFresh says since when and why.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from poolkeeper.codes import Code
from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import calls
from poolkeeper.store.rows import Applied, QueueStats, TypeStats
from poolkeeper_operator.act import verdicts
from poolkeeper_operator.act.compare import digest
from poolkeeper_operator.act.trouble import in_words, trouble
from poolkeeper_operator.decide.conditions import Condition, coarse, merge
from poolkeeper_operator.observe.capability import tasks
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.resources import ResourceError, TaskQueueSpec, TaskQueueStatus
from poolkeeper_operator.resources.taskqueue import DeadLetters, Depth, HeldBack
from poolkeeper_operator.runtime import metrics
from poolkeeper_operator.runtime.announcer import Announcer
from poolkeeper_operator.runtime.capability import unable
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.freshness import Freshness
from poolkeeper_operator.runtime.kinds import DATABASE, GROUP, MANAGER, QUEUE
from poolkeeper_operator.runtime.letters import Letters
from poolkeeper_operator.runtime.removal import REFUSAL_KEPT, Removals, database_name
from poolkeeper_operator.runtime.webhooks import Webhooks

log = logging.getLogger(__name__)
ADOPT = f"{GROUP}/adopt"
AGAIN = 60.0
CONNECTING = 2.0  # seconds until a database that was never tried is asked about again
REFUSED = 5.0  # seconds until a policy that the store could not take is sent again: no reading tells that it would now
Name = tuple[str, str]


@dataclass(frozen=True)
class InForce:
    """What was applied, in short; when; and what the store answered."""

    mark: str
    at: datetime
    answer: Applied

    def still(self, link: Link, stats: QueueStats | None) -> bool:
        """Whether nobody changed it since: a reading that is younger has this very queue, with this version."""
        if link.reading is None or link.reading.at <= self.at:
            return True
        return stats is not None and (stats.queue_id, stats.policy_version) == (
            self.answer.queue_id,
            self.answer.policy_version,
        )


class Queues:
    """Reconciles TaskQueues."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._applied: dict[Name, InForce] = {}
        self._freshness = Freshness(context)
        self._announcer = Announcer(context)
        self._removals = Removals(context)
        self._letters = Letters()
        self.webhooks = Webhooks(context)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; the seconds until the next."""
        manifest = self._context.world.get(QUEUE.kind, namespace, name)
        if manifest is None:
            self._applied.pop((namespace, name), None)
            self._announcer.forget((namespace, name))
            self._letters.forget((namespace, name))
            self.webhooks.forget((namespace, name))
            metrics.forget_queue(namespace, name)
            return None
        if "deletionTimestamp" in manifest["metadata"]:
            return await self._remove(manifest)
        try:
            spec = self._context.spec(TaskQueueSpec, manifest)
        except ResourceError as error:
            return await self._write(manifest, verdicts.stalled("InvalidSpec", str(error)), None, None)
        return await self._reach(manifest, spec)

    async def _reach(self, manifest: Mapping[str, Any], spec: TaskQueueSpec) -> float | None:
        """A queue that can be read: find its database."""
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        if self._context.undecided(namespace, spec.database_ref.name) and self._known_database(namespace, spec):
            return CONNECTING
        link, lack = self._link(namespace, name, spec)
        if link is None:
            return await self._write(manifest, lack, None, None)
        if link.kept_elsewhere:
            return AGAIN
        return await self._keep(manifest, spec, link)

    async def _keep(self, manifest: Mapping[str, Any], spec: TaskQueueSpec, link: Link) -> float | None:
        """A queue whose database was tried: apply its policy, tell its dead letters, write its figures."""
        key = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        blind = link.blind(self._context.now())
        await self._freshness.tell(manifest, link, blind)
        if blind is not None or link.failures:
            return sooner(REFUSED, await self._write(manifest, self._kept(manifest, spec, link), link, None))
        manifest = await self._removals.keep_finalizer(manifest)
        try:
            applied = await self._apply(manifest, spec, link)
        except PoolkeeperError as error:
            log.warning("policy.not_applied: queue %s/%s: %s", *key, error)
            reason = "DatabaseReadOnly" if error.code == Code.DATABASE_READ_ONLY else "NotApplied"
            verdict = verdicts.waiting(reason, f"{link.name}: {error}")
            return sooner(REFUSED, await self._write(manifest, verdict, link, None))
        if applied.code is not None:
            return await self._write(manifest, _orphaned(manifest, applied), link, None)
        stats = link.reading.queues.get(key) if link.reading else None
        if (
            stats is None or stats.queue_id != applied.queue_id
        ):  # it was made just now: the reading that has it comes at once, and with it one whole status
            link.wake()
            return CONNECTING
        nobody = unable(self._context, link, *key)
        metrics.tell_queue(stats, tasks(nobody))
        verdict = _judge(manifest, spec, applied.policy_version, stats)
        if not (applied.changed and applied.policy_version == 1):
            await self._tell_inherited(manifest, stats)
        again = await self._write(manifest, verdict, link, stats, applied.policy_version, nobody, spec)
        again = sooner(again, _too_old_in(stats, spec), self.webhooks.post(manifest, spec, stats, link))
        return sooner(again, await self._announcer.announce(manifest, spec, stats, link))

    async def _remove(self, manifest: Mapping[str, Any]) -> float | None:
        """A queue that is being deleted: nothing is applied any more, and it goes when its policy is fulfilled."""
        key = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        self._applied.pop(key, None)
        database = (key[0], database_name(manifest))
        if self._context.undecided(*database) and self._context.world.get(DATABASE.kind, *database) is not None:
            return CONNECTING
        link = self._context.links.get(database)
        if link is not None and link.kept_elsewhere:
            return AGAIN
        said = await self._removals.remove(manifest, link)
        if said is None:
            return None
        conditions, again = said
        return sooner(await self._write(manifest, conditions, None, None), again)

    async def _tell_inherited(self, manifest: Mapping[str, Any], stats: QueueStats) -> None:
        """A new TaskQueue that finds the tasks of an earlier one says so, once (C50)."""
        found = {"ready": stats.ready, "scheduled": stats.scheduled, "waiting": stats.waiting, "dead": stats.dead}
        found["running"] = stats.running + stats.leased
        if (manifest.get("status") or {}).get("policyVersion") is not None or not any(found.values()):
            return
        text = "found the tasks of this name that were there before: " + ", ".join(
            f"{k} {n}" for k, n in found.items() if n
        )
        suffix = f"inherited-{manifest['metadata']['uid'][:8]}"
        await self._context.tell(manifest, "Normal", "Inherited", text, suffix=suffix)

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
        space = await self._context.namespace(meta["namespace"], fresh=key not in self._applied)
        uid = (space or {}).get("metadata", {}).get("uid", "")
        adopt = (meta.get("annotations") or {}).get(ADOPT)
        instance = link.reading.stats.instance_id if link.reading else None
        mark = digest([spec.to_store(), uid, adopt, str(instance)])
        stats = link.reading.queues.get(key) if link.reading else None
        known = self._applied.get(key)
        if known and known.mark == mark and known.still(link, stats):
            return known.answer
        call = calls.apply_policy(
            self._context.cluster,
            uid,
            *key,
            spec.to_store(),
            who=f"{MANAGER} generation {meta['generation']}",
            adopt=adopt,
            term=link.term,
        )
        applied = await link.call(call)
        if applied.code is None:
            self._applied[key] = InForce(mark, self._context.now(), applied)
            if applied.changed:
                link.wake()
            return applied
        self._applied.pop(key, None)
        if applied.code != Code.QUEUE_OWNED:
            raise RuntimeError(f"queue {key[0]}/{key[1]}: the store refused its policy: {applied.code}")
        return applied

    async def _write(
        self,
        manifest: Mapping[str, Any],
        verdict: list[Condition],
        link: Link | None,
        stats: QueueStats | None,
        version: int | None = None,
        nobody: Sequence[TypeStats] = (),
        spec: TaskQueueSpec | None = None,
    ) -> float | None:
        """Write the status; with a reading (`stats`, `nobody`, `spec`) also its figures and what is wrong."""
        present = manifest.get("status") or {}
        now = self._context.now()
        generation = manifest["metadata"]["generation"]
        conditions, hook = [*verdict], None
        if link is not None:
            conditions.append(self._freshness.condition(link, now))
        figures = _last_figures(present)
        if stats is not None and spec is not None:
            key = (stats.namespace, stats.name)
            hook = None if spec.dead_letter.webhook is None else self.webhooks.hook(key, stats)
            found = trouble(
                stats, spec, present, nobody=nobody, fell=self._letters.fell(key, stats.dead, now), hook=hook
            )
            conditions += found.conditions
            metrics.tell_trouble(*key, found.kinds)
            figures = {**_figures(stats, nobody), "trouble": in_words(found.kinds)}
        refusal = await self._removals.refusal(manifest)
        gone = [*([] if refusal else ["NotEnforced"]), *(["WebhookFailing"] if spec and hook is None else [])]
        if refusal is not None:
            conditions.append(refusal)
        if version is not None:
            figures["policyVersion"] = version
        status = {
            **figures,
            "observedGeneration": generation,
            "conditions": merge(
                verdicts.without(present.get("conditions") or [], *gone),
                conditions,
                generation=generation,
                now=now,
            ),
        }
        again = await self._context.write_status(QUEUE, manifest, status)
        return sooner(again, AGAIN if link is None else None, REFUSAL_KEPT if refusal else None)


def sooner(*moments: float | None) -> float | None:
    """The earliest of some moments; None is never."""
    return min((moment for moment in moments if moment is not None), default=None)


def _judge(
    manifest: Mapping[str, Any], spec: TaskQueueSpec, version: int, stats: QueueStats | None = None
) -> list[Condition]:
    lacks = [
        field
        for field, value in (("owner", spec.dead_letter.owner), ("runbookURL", spec.dead_letter.runbook_url))
        if value is None
    ]
    if lacks:
        name = manifest["metadata"]["name"]
        wanted = " and ".join(f"spec.deadLetter.{field}" for field in lacks)
        return verdicts.stalled("NoOwner", f'queue "{name}": nobody would hear of its dead letters; set {wanted}')
    most = spec.concurrency.max
    held = ""
    if spec.paused:
        held = ", paused: nothing is claimed"
    elif stats is not None and most is not None and stats.ready and stats.running + stats.leased >= most:
        held = f", concurrency.max of {most} is reached: the rest waits"
    return verdicts.ready("PolicyApplied", f"policy version {version}{held}")


def _orphaned(manifest: Mapping[str, Any], applied: Applied) -> list[Condition]:
    meta = manifest["metadata"]
    text = (
        f'queue "{meta["name"]}": its tasks belong to another cluster or to an earlier namespace "{meta["namespace"]}"; '
        f"to take them over from there, annotate this TaskQueue with {ADOPT}={applied.owner}"
    )
    return verdicts.stalled("Orphaned", text)


def _figures(stats: QueueStats, nobody: Sequence[TypeStats]) -> dict[str, Any]:
    held_back = HeldBack(
        isolation=stats.suspects or None,
        ordering=stats.ordering or None,
        no_capable_worker=tasks(nobody) or None,
        tenant_limit=stats.held_back.tenant_limit or None,
        tenant_suspended=stats.held_back.tenant_suspended or None,
        type_paused=stats.held_back.type_paused or None,
        retry_share=stats.held_back.retry_share or None,
    )
    # what only a pool that has never had a session can run: the store does not know of it, and of no age
    ages = [each.oldest for each in stats.types if not each.known and each not in nobody]
    oldest = max((age for age in (stats.oldest_runnable, *ages) if age is not None), default=None)
    return TaskQueueStatus(
        policy_version=stats.policy_version,
        depth=Depth(
            ready=stats.ready,
            scheduled=stats.scheduled,
            leased=stats.leased,
            running=stats.running,
            waiting=stats.waiting,
            held_back=held_back if held_back.as_status() else None,
        ),
        oldest_runnable_age=coarse(oldest),
        dead_letters=DeadLetters(total=stats.dead, growth_per_minute=stats.dead_recent),
        lease_expiries=stats.lease_expiries,
    ).as_status()


def _too_old_in(stats: QueueStats, spec: TaskQueueSpec) -> float | None:
    """Seconds until the oldest dead letter is too old: no reading changes then, so it must be looked at by itself."""
    most = spec.dead_letter.alert.age
    if most is None or stats.dead_oldest is None or stats.dead_oldest >= most:
        return None
    return (most - stats.dead_oldest).total_seconds()


def _last_figures(present: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in present.items() if key not in {"conditions", "observedGeneration"}}
