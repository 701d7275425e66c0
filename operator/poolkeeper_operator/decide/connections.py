"""How the connections of a database are divided among the pools that use it, in pods.

Guarantees (O15): what all pools may have, with what they hold (starting, surging and draining pods too), is never more than the bound
leaves, unless they held more already; max-min fair; nobody is preempted: who has more than its share gives it back as its pods go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poolkeeper_operator.decide.fairness import Ask, fair

PER_POD = 2  # one that claims and settles, one that renews and listens


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a pool has, and what it would have."""

    pool: str
    wanted: int  # pods, before this bound
    ceiling: int  # pods that it could ever want
    replicas: int  # asked of its Deployment, or about to be
    living: int  # pods that exist, those of a rollout's surge too
    leaving: int  # terminating pods: connected until they end

    @property
    def held(self) -> int:
        """Pods that are connected, or may be at any moment."""
        return max(self.replicas, self.living) + self.leaving


def pods_of(connections: int) -> int:
    """The pods that so many connections are enough for."""
    return connections // PER_POD


def divide(connections: int, pools: Sequence[Holding]) -> dict[str, int]:
    """The most pods that each pool may ask for now; what nobody wants is handed out in advance, so that growth need not wait."""
    whole, free = pods_of(connections), room(connections, pools)
    served = fair(whole, [Ask(p.pool, p.wanted, 1, 1) for p in pools])
    spare = fair(whole - sum(served.values()), [Ask(p.pool, max(0, p.ceiling - served[p.pool]), 1, 1) for p in pools])
    urgent = fair(free, [Ask(p.pool, max(0, served[p.pool] - p.replicas), 1, 1) for p in pools])
    most = {p.pool: served[p.pool] + spare[p.pool] for p in pools}
    early = fair(
        free - sum(urgent.values()),
        [Ask(p.pool, max(0, most[p.pool] - p.replicas - urgent[p.pool]), 1, 1) for p in pools],
    )
    return {p.pool: min(most[p.pool], p.replicas + urgent[p.pool] + early[p.pool]) for p in pools}


def room(connections: int, pools: Sequence[Holding]) -> int:
    """The pods for which there are connections that nobody holds."""
    return max(0, pods_of(connections) - sum(pool.held for pool in pools))


def sentence(database: str, connections: int, pods: int, held: Mapping[str, int]) -> str:
    """Why a pool may have so many pods."""
    others = len(held) - 1
    beside = f", beside {others} other pool{'' if others == 1 else 's'}" if others else ""
    return f"maxWorkerConnections of database {database} ({connections}, {PER_POD} a pod) leaves it {pods} pods{beside}"
