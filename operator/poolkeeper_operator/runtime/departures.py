"""Telling workers how much grace their pods really have, where somebody gave less than the template says.

Guarantees (O20): a pod that is ended with a shorter grace (by a person, an eviction, a node that shuts down) has it told through
the store, each once; its worker then hands back in time instead of being killed. Does not make it safe: where the news comes too late,
leases and tokens are what keeps the tasks.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import Fault, calls
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.runtime.memory import Memory

log = logging.getLogger(__name__)


Left = Callable[[Mapping[str, Any]], float | None]
"""The seconds that a pod has because its node shuts down; None: it does not, or that is not known."""


def shorter(pods: Iterable[Mapping[str, Any]], promised: int, left: Left = lambda _: None) -> dict[str, float]:
    """The pods, by uid, that are being ended with fewer seconds than the template promises."""
    found = {}
    for pod in pods:
        meta = pod["metadata"]
        given = meta.get("deletionGracePeriodSeconds")
        if (seconds := left(pod)) is not None and seconds < promised:  # a kubelet that shuts down deletes no pod
            found[meta["uid"]] = seconds
        # 0 is what a kubelet writes when the containers have ended, and `--force`: nobody is there to be told.
        if "deletionTimestamp" in meta and given is not None and 0 < given < found.get(meta["uid"], promised):
            found[meta["uid"]] = float(given)
    return found


async def tell(
    link: Link, pool: str, pods: Iterable[Mapping[str, Any]], promised: int, memory: Memory, left: Left
) -> None:
    """Tell what was not told yet, or has become shorter since; that it cannot be told now never stops a reconcile."""
    graces = shorter(pods, promised, left)
    fresh = {uid: seconds for uid, seconds in graces.items() if seconds < memory.graces.get(uid, float("inf"))}
    memory.graces = {uid: seconds for uid, seconds in memory.graces.items() if uid in graces}
    if not fresh:
        return
    try:
        told = await link.call(calls.tell_grace(pool, fresh, term=link.term))
    except (PoolkeeperError, OSError, Fault) as error:
        log.warning("grace.untold: %s: %s", pool, error)
        return
    memory.graces |= fresh
    log.info("grace.told: %s: %d pods have less than %d s", pool, told, promised, extra={"pool": pool})
