"""Deleting TaskQueues: `deletionPolicy` Retain, Purge and Refuse (O9, contract 11).

Guarantees: no finalizer but where Purge asks for one; what is removed is this namespace's and this cluster's queue, page
by page, at most `PAGES` in one pass; a finalizer is given back at once when the policy is no longer Purge, when the queue
is another's, or when the namespace ends and has taken the way to the database along. Refuse is the API server's: here
it is only told whether the admission policy is there.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from poolkeeper.codes import Code
from poolkeeper.store import calls
from poolkeeper_operator.act import verdicts
from poolkeeper_operator.decide.conditions import Condition
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.resources.taskqueue import DeletionPolicy
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import (
    ADMISSION_BINDING,
    ADMISSION_POLICY,
    DATABASE,
    DELETION_POLICY,
    GROUP,
    MANAGER,
    NAMESPACE,
    QUEUE,
)

log = logging.getLogger(__name__)
FINALIZER = f"{GROUP}/purge"
PAGES = 5  # pages of the store's size in one pass
NEXT = 0.5  # seconds between passes
BLOCKED = 10.0
REFUSAL_KEPT = 20.0  # seconds that a look at the admission policy is remembered
Name = tuple[str, str]
Manifest = dict[str, Any]


def policy_of(manifest: Mapping[str, Any]) -> str:
    """The deletion policy as it stands in the object, also where the rest of its spec cannot be read."""
    return str((manifest.get("spec") or {}).get("deletionPolicy") or DeletionPolicy.RETAIN)


def is_purging(manifest: Mapping[str, Any]) -> bool:
    """Whether this queue will need its database once more before it goes."""
    return FINALIZER in (manifest["metadata"].get("finalizers") or []) and policy_of(manifest) == DeletionPolicy.PURGE


class Removals:
    """Keeps the finalizer, and does what it stands for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cursors: dict[str, dict[str, Any]] = {}  # by uid: where the next page begins
        self._removed: dict[str, int] = {}
        self._refusal: tuple[float, Condition] | None = None

    async def keep_finalizer(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The object with our finalizer exactly if its policy is Purge."""
        present = list(manifest["metadata"].get("finalizers") or [])
        wanted = policy_of(manifest) == DeletionPolicy.PURGE
        if wanted == (FINALIZER in present):
            return manifest
        finalizers = [*present, FINALIZER] if wanted else [each for each in present if each != FINALIZER]
        answer = await self._context.kube.set_finalizers(QUEUE, manifest, finalizers)
        self._context.world.put(QUEUE.kind, answer)
        return answer

    async def remove(
        self, manifest: Mapping[str, Any], link: Link | None
    ) -> tuple[list[Condition], float | None] | None:
        """One pass over a queue that is being deleted: what to say, and when to come again; None: it needs us no more."""
        if FINALIZER not in (manifest["metadata"].get("finalizers") or []):
            return None
        end = await self._why_not(manifest, link)
        if end is None:
            if link is None or link.reading is None or link.failures:
                return _blocked(manifest, link), BLOCKED
            end = await self._purge(manifest, link)
        if end is None:
            removed = self._removed.get(manifest["metadata"]["uid"], 0)
            return verdicts.waiting("Purging", f"{_name(manifest)}: {removed} tasks removed so far"), NEXT
        await self._release(manifest, f"{_name(manifest)}: {end}")
        return None

    async def _why_not(self, manifest: Mapping[str, Any], link: Link | None) -> str | None:
        """Why nothing is to be removed, although the finalizer is there."""
        if policy_of(manifest) != DeletionPolicy.PURGE:
            return "its tasks stay, deletionPolicy is no longer Purge"
        meta = manifest["metadata"]
        if link is None and self._context.world.get(DATABASE.kind, meta["namespace"], database_name(manifest)) is None:
            space = await self._context.kube.get(NAMESPACE, None, meta["namespace"])
            if space is None or "deletionTimestamp" in space["metadata"]:  # nobody can bring the Database back
                return "its tasks stay, the way to them went with the namespace"
        return None

    async def _purge(self, manifest: Mapping[str, Any], link: Link) -> str | None:
        """Remove some pages; how it ended, None while there is more."""
        meta = manifest["metadata"]
        space = await self._context.namespace(meta["namespace"], fresh=True)
        owner = (self._context.cluster, (space or {}).get("metadata", {}).get("uid", ""))
        for _ in range(PAGES):
            cursor = self._cursors.get(meta["uid"])
            where = (*owner, meta["namespace"], meta["name"])
            answer = await link.call(calls.purge(*where, who=f"{MANAGER} purge", cursor=cursor, term=link.term))
            if answer.code == Code.QUEUE_OWNED:
                return "its tasks stay, they belong to another owner"
            removed = self._removed[meta["uid"]] = self._removed.get(meta["uid"], 0) + answer.removed
            if answer.cursor is None:
                return f"{removed} tasks removed from {link.name}"
            self._cursors[meta["uid"]] = answer.cursor
        return None

    async def refusal(self, manifest: Mapping[str, Any]) -> Condition | None:
        """NotEnforced, for a queue with policy Refuse."""
        if policy_of(manifest) != DeletionPolicy.REFUSE:
            return None
        now = time.monotonic()
        if self._refusal is None or now - self._refusal[0] > REFUSAL_KEPT:
            self._refusal = (now, await self._look())
        return self._refusal[1]

    async def _look(self) -> Condition:
        try:
            policy = await self._context.kube.get(ADMISSION_POLICY, None, DELETION_POLICY)
            binding = await self._context.kube.get(ADMISSION_BINDING, None, DELETION_POLICY)
        except KubeError as error:
            return Condition("NotEnforced", "Unknown", "CannotLook", f"deletionPolicy Refuse: {error}")
        denies = (binding or {}).get("spec", {})
        if (
            policy is None
            or denies.get("policyName") != DELETION_POLICY
            or "Deny" not in denies.get("validationActions", [])
        ):
            text = (
                f"deletionPolicy Refuse: the ValidatingAdmissionPolicy {DELETION_POLICY} with its binding is not installed, "
                "so nothing refuses a deletion; install the chart with policies.install=true"
            )
            return Condition("NotEnforced", "True", "PolicyMissing", text)
        return Condition("NotEnforced", "False", "Enforced", "")

    async def _release(self, manifest: Mapping[str, Any], text: str) -> None:
        meta = manifest["metadata"]
        log.info("queue.removed: %s", text, extra={"namespace": meta["namespace"], "queue": meta["name"]})
        await self._context.tell(manifest, "Normal", "Deleted", text, suffix=f"deleted-{meta['uid'][:8]}")
        left = [each for each in meta["finalizers"] if each != FINALIZER]
        try:
            await self._context.kube.set_finalizers(QUEUE, manifest, left)
        except KubeError as error:
            if not error.not_found:
                raise
        self._cursors.pop(meta["uid"], None)
        self._removed.pop(meta["uid"], None)


def database_name(manifest: Mapping[str, Any]) -> str:
    """The name of a TaskQueue's Database."""
    return str(((manifest.get("spec") or {}).get("databaseRef") or {}).get("name", ""))


def _name(manifest: Mapping[str, Any]) -> str:
    return f'queue "{manifest["metadata"]["name"]}" in namespace "{manifest["metadata"]["namespace"]}"'


def _blocked(manifest: Mapping[str, Any], link: Link | None) -> list[Condition]:
    meta = manifest["metadata"]
    problem = link.problem if link is not None else "its Database or Secret is not there"
    text = (
        f"{_name(manifest)}: its tasks cannot be removed: {problem}; make the database reachable, or let them stay: "
        f"kubectl -n {meta['namespace']} patch taskqueue {meta['name']} --type merge "
        '-p \'{"spec":{"deletionPolicy":"Retain"}}\''
    )
    return verdicts.stalled("PurgeBlocked", text)
