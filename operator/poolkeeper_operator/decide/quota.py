"""How a provider's quota is divided among the pools that use it.

Guarantees: the sum of what pools may have in flight never passes the quota at any instant, whatever the order in which the new caps are
written: what a pool holds now, or may still claim under its old cap, counts until a later reading shows it released. Weighted max-min
fair, no preemption. Missing, suspended, malformed or forbidden quotas give nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poolkeeper_operator.decide.reasons import QuotaReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One ProviderQuota."""

    key: str  # "namespace/name"
    concurrent_calls: int | None  # spec.limits.concurrentCalls; None or < 1: malformed, closed
    suspended: bool = False
    namespaces: frozenset[str] | None = frozenset()  # namespaces that may use it, already resolved; None: all
    weights: Mapping[str, int] | None = None  # pool "namespace/name" -> weight; others 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One entry of a pool's `spec.providers`."""

    provider: str  # the name in the pool
    quota: str  # key of the quota, "namespace/name"
    calls_per_task: int  # perTask.concurrentCalls, >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """One pool that uses quotas, as of one reading. All numbers are slots (running tasks)."""

    pool: str  # "namespace/name"
    namespace: str
    uses: tuple[Use, ...]
    demand: int  # busy slots + runnable tasks, at most `ceiling`
    ceiling: int  # slots that it could ever have: max * concurrency, at most maxRunning
    running: int  # leases now
    cap: int | None  # max_running in force in the store at that reading; None: none yet
    live_slots: int = 0  # slots of its live sessions: what it could claim while it has no cap


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pool gets from one quota."""

    quota: str
    provider: str
    slots: int  # running tasks
    calls: int  # slots * calls_per_task
    reason: QuotaReason
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """What a pool may run: the smallest of its shares."""

    pool: str
    slots: int  # for calls.set_pool(max_running=min(spec.maxRunning, slots)) and for Cap.slots
    share: Share  # the binding one
    shares: tuple[Share, ...]


def allot(quotas: Mapping[str, Quota], pools: Sequence[PoolUse]) -> dict[str, Allotment]:
    """Divide all quotas among the pools that have providers (`uses` not empty); the key is the pool."""
    raise NotImplementedError
