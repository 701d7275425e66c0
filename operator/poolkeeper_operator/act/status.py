"""Statuses: written when they change, soon when it matters, coarse otherwise (O2).

Guarantees: an unchanged status is not written; figures that merely move are written at most once per object and 30 s;
a changed condition, size or generation is written at once. At most `RATE` ordinary writes a second in all. A status that
the API server does not take is tried again, ever more slowly, and stops nothing else.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import Resource
from poolkeeper_operator.runtime.kube import Kube
from poolkeeper_operator.runtime.workqueue import backoff

log = logging.getLogger(__name__)
EVERY = 30.0
RATE = 5.0  # a second, for ordinary writes of all objects together (O33)
_URGENT = ("observedGeneration", "policyVersion", "instanceID", "schemaVersion", "decisions", "mode")


class StatusWriter:
    """Remembers when each object's status was last written."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._written: dict[str, float] = {}
        self._refused: dict[str, tuple[int, float]] = {}  # by uid: how often in a row, and until when it is left alone
        self._tokens = RATE
        self._refilled = clock()

    async def write(
        self, resource: Resource, manifest: Mapping[str, Any], status: Mapping[str, Any]
    ) -> tuple[dict[str, Any] | None, float | None]:
        """Write `status` if due: the object as answered, and the seconds after which to try again if it is not due yet.

        Raises KubeError only if the object is gone.
        """
        present = manifest.get("status") or {}
        if same(present, status):
            return None, None
        uid = manifest["metadata"]["uid"]
        refused, until = self._refused.get(uid, (0, 0.0))
        if refused and self._clock() < until:
            return None, until - self._clock()
        if not urgent(present, status):
            wait = self._wait(uid)
            if wait > 0:
                return None, wait
        meta = manifest["metadata"]
        try:
            answer = await self._kube.apply_status(resource, meta["namespace"], meta["name"], status)
        except KubeError as error:
            if error.not_found and await self._has_gone(resource, manifest):
                raise
            log.warning("status.unwritten: %s %s/%s: %s", resource.kind, meta["namespace"], meta["name"], error)
            wait = max(error.not_before, backoff(refused + 1, random.random()))  # noqa: S311 - no secret
            self._refused[uid] = (refused + 1, self._clock() + wait)
            return None, wait
        self._refused.pop(uid, None)
        self._written[uid] = self._clock()
        return answer, None

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._written.pop(uid, None)
        self._refused.pop(uid, None)

    async def _has_gone(self, resource: Resource, manifest: Mapping[str, Any]) -> bool:
        """Whether the object itself is not there: who believed one answer of a server that restarts would lose it from sight."""
        meta = manifest["metadata"]
        try:
            found = await self._kube.get(resource, meta["namespace"], meta["name"])
        except KubeError:
            return False
        return found is None or found["metadata"]["uid"] != meta["uid"]

    def _wait(self, uid: str) -> float:
        now = self._clock()
        since = now - self._written.get(uid, now - EVERY)
        if since < EVERY:
            return EVERY - since
        self._tokens = min(RATE, self._tokens + (now - self._refilled) * RATE)
        self._refilled = now
        if self._tokens < 1:
            return (1 - self._tokens) / RATE
        self._tokens -= 1
        return 0.0


def same(present: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether both say the same; empty and absent are alike, as the API server may drop either."""
    return bool(_full(present) == _full(status))


def urgent(present: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the change is a transition, not a figure that moved."""
    if any(_full(present.get(field)) != _full(status.get(field)) for field in _URGENT):
        return True
    if bool((present.get("deadLetters") or {}).get("total")) != bool((status.get("deadLetters") or {}).get("total")):
        return True
    if _unable(present) != _unable(status):
        return True
    if _named(present) != _named(status):
        return True
    return _settled(present) != _settled(status) or _verdicts(present) != _verdicts(status)


def _unable(status: Mapping[str, Any]) -> bool:
    """Whether some tasks have no worker that can run them."""
    return bool(((status.get("depth") or {}).get("heldBack") or {}).get("noCapableWorker"))


def _named(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pools that share a quota; how much each has is a figure that moves."""
    return [(pool["namespace"], pool["name"]) for pool in status.get("pools") or []]


def _settled(status: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a pool has the pods that were asked for, and whether all are ready: its arriving there is a transition."""
    pods = status.get("replicas", 0)
    return pods == (status.get("wanted") or {}).get("applied", 0), pods == status.get("readyReplicas", 0)


def _verdicts(status: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    return {(c["type"], c["status"], c["reason"]) for c in status.get("conditions") or []}


def _full(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _full(v) for k, v in value.items() if v is not None and v not in ({}, [])}
    if isinstance(value, list):
        return [_full(v) for v in value]
    return value
