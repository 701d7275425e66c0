"""Which task types the builds of a pool can run, and which nobody can (Q11). Pure.

Guarantees: what a build can run is what its sessions told, remembered in the store; a build that was never seen counts as able to
run all that `taskTypes` permits, so that its first pod starts.
"""

from collections.abc import Iterable, Sequence

from poolkeeper.store.rows import PoolStats, QueueStats, TypeStats
from poolkeeper_operator.decide.tenants import Tenants

Types = Sequence[str] | None  # None: unknown, so all


def can_run(permitted: Sequence[str], build: str | None, stats: PoolStats | None) -> Types:
    """The types that the present build of a pool can run."""
    if permitted:
        return list(permitted)
    told = [each.types for each in stats.builds if each.build == build] if stats is not None and build else []
    return sorted({kind for types in told for kind in types}) if told else None


def unable(stats: QueueStats, pools: Iterable[tuple[Types, Tenants]]) -> list[TypeStats]:
    """The types with ready tasks that no session can run now, nor a pod that one of these pools of the queue may start."""
    waiting = [each for each in stats.types if not each.live]
    for types, tenants in pools if waiting else ():
        waiting = [
            each
            for each in waiting
            if not ((types is None or each.type in types) and tenants.takes(each.tenant, stats.named))
        ]
    return waiting


def tasks(kinds: Iterable[TypeStats]) -> int:
    """How many ready tasks they have, suspects included."""
    return sum(each.ready + each.suspects for each in kinds)
