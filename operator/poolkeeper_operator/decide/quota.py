"""How a provider's quota is divided among the pools that use it.

Guarantees (O4, O15): the sum of what pools may have in flight never passes the quota at any instant, whatever the order in which the new
caps are written: what a pool holds now, or may still claim under its old cap, counts until a later reading shows it released. Weighted
max-min fair, no preemption. Missing, suspended, malformed or forbidden quotas give nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from poolkeeper_operator.decide.fairness import Ask, fair
from poolkeeper_operator.decide.reasons import QuotaReason
from poolkeeper_operator.decide.windows import MEASURES, Window, told

MAX_PASSES = 8  # pools with several providers give back in rounds what another provider keeps them from using


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One ProviderQuota."""

    key: str  # "namespace/name"
    concurrent_calls: int | None  # spec.limits.concurrentCalls; None or < 1: malformed, closed
    suspended: bool = False
    namespaces: frozenset[str] | None = frozenset()  # namespaces that may use it, already resolved; None: all
    weights: Mapping[str, int] | None = None  # pool "namespace/name" -> weight; others 1
    windows: Mapping[str, Window] = field(default_factory=dict)  # by measure; granted by the store
    instance: str | None = None  # the installation that grants its windows; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One entry of a pool's `spec.providers`."""

    provider: str  # the name in the pool
    quota: str  # key of the quota, "namespace/name"
    calls_per_task: int  # perTask.concurrentCalls, >= 1
    needs: Mapping[str, int] = field(default_factory=dict)  # perTask.requests and perTask.tokens, those that are said


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """One pool that uses quotas, as of one reading. All numbers are slots (running tasks)."""

    pool: str  # "namespace/name"
    namespace: str
    uses: tuple[Use, ...]
    demand: int  # busy slots + runnable tasks
    ceiling: int  # slots that it could ever have: max * concurrency, at most maxRunning
    running: int  # leases now
    cap: int | None  # max_running in force in the store at that reading; None: none yet
    live_slots: int = 0  # slots of its live sessions: what it could claim while it has no cap
    instance: str | None = None  # the installation that its database is; None: not read yet

    @property
    def held(self) -> int:
        """Tasks that it runs, or could start before it hears of a new cap."""
        return max(self.running, self.live_slots if self.cap is None else self.cap)

    def units(self) -> dict[str, int]:
        """Calls that one task uses, by quota."""
        units: dict[str, int] = {}
        for use in self.uses:
            units[use.quota] = units.get(use.quota, 0) + use.calls_per_task
        return units

    def need(self, quota: str, measure: str) -> int | None:
        """What one task needs of a measure by all its names of a quota; None where one of them does not say."""
        said = [use.needs.get(measure) for use in self.uses if use.quota == quota]
        return None if None in said else sum(n for n in said if n is not None)


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
    users = sorted((pool for pool in pools if pool.uses), key=lambda pool: pool.pool)
    division = _Division(quotas, users)
    slots = {u.pool: u.cap or 0 for u in users} if division.settled() else division.caps()
    return {user.pool: _allotment(user, slots[user.pool], division) for user in users}


class _Division:
    """The quotas as capacities, and how they are divided; lives for one call of `allot`."""

    def __init__(self, quotas: Mapping[str, Quota], users: Sequence[PoolUse]) -> None:
        self.quotas, self.users = quotas, users
        self.closed = {
            (u.pool, key): _closed(quotas.get(key), u, unit) for u in users for key, unit in u.units().items()
        }
        self.capacity = {key: _capacity(quotas.get(key)) for u in users for key in u.units()}
        self.binding: dict[str, str] = {}  # pool -> the quota that gives it the least
        self.target: dict[str, int] = {}

    def settled(self) -> bool:
        """Whether the caps in force are as good as new ones: nobody wants more, nothing is left over, nothing is too much."""
        if any(user.cap is None or self._closed_for(user) for user in self.users):
            return False
        left = self._left({user.pool: user.held for user in self.users})
        return min(left.values(), default=0) >= 0 and all(
            user.demand <= (user.cap or 0) <= user.ceiling
            and ((user.cap or 0) == user.ceiling or any(unit > left[key] for key, unit in user.units().items()))
            for user in self.users
        )

    def caps(self) -> dict[str, int]:
        """The new caps: lowered at once to the fair share, raised only into what nobody holds any more."""
        demand = {u.pool: min(u.demand, u.ceiling) for u in self.users}
        served = self._shared(self.capacity, demand, note=True)
        spare = self._shared(self._left(served), {u.pool: u.ceiling - served[u.pool] for u in self.users})
        self.target = {pool: served[pool] + spare[pool] for pool in served}
        held = {u.pool: u.held for u in self.users}
        # Work first, then what is handed out in advance.
        urgent = self._shared(self._left(held), {p: max(0, served[p] - held[p]) for p in served})
        later = {p: max(0, self.target[p] - held[p] - urgent[p]) for p in served}
        early = self._shared(self._left({p: held[p] + urgent[p] for p in held}), later)
        return {p: min(self.target[p], held[p] + urgent[p] + early[p]) for p in served}

    def _shared(self, capacity: Mapping[str, int], wishes: Mapping[str, int], *, note: bool = False) -> dict[str, int]:
        """Fair slots for every pool, the least of its quotas; what one quota denies, the others get back in the next pass."""
        shares = {(u.pool, key): wishes[u.pool] for u in self.users for key in u.units()}
        for _ in range(MAX_PASSES):
            asked = {
                (u.pool, key): min([wishes[u.pool], *(shares[u.pool, other] for other in u.units() if other != key)])
                for u in self.users
                for key in u.units()
            }
            new = {at: got for key in capacity for at, got in self._of_one(key, capacity[key], asked).items()}
            if note and not self.binding:  # before what one quota denies is passed on to the others
                self.binding = {u.pool: min(u.units(), key=lambda key: (new[u.pool, key], key)) for u in self.users}
            if new == shares:
                break
            shares = new
        return {u.pool: min(shares[u.pool, key] for key in u.units()) for u in self.users}

    def _of_one(self, key: str, capacity: int, asked: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        quota, asks, out = self.quotas.get(key), [], {}
        for user in self.users:
            if (user.pool, key) not in asked:
                continue
            out[user.pool, key] = 0
            if self.closed[user.pool, key] is None:
                weight = max(1, ((quota.weights if quota else None) or {}).get(user.pool, 1))
                asks.append(Ask(user.pool, asked[user.pool, key], user.units()[key], weight))
        return out | {(pool, key): slots for pool, slots in fair(capacity, asks).items()}

    def _left(self, slots: Mapping[str, int]) -> dict[str, int]:
        used = dict.fromkeys(self.capacity, 0)
        for user in self.users:
            for key, unit in user.units().items():
                used[key] += slots[user.pool] * unit
        return {key: capacity - used[key] for key, capacity in self.capacity.items()}

    def _closed_for(self, user: PoolUse) -> bool:
        return any(self.closed[user.pool, key] is not None for key in user.units())


def _capacity(quota: Quota | None) -> int:
    """Calls to divide; whatever is not a usable limit is none."""
    return 0 if quota is None or quota.suspended else max(0, quota.concurrent_calls or 0)


def _closed(quota: Quota | None, user: PoolUse, unit: int) -> tuple[QuotaReason, str] | None:
    """Why a pool gets nothing of a quota at all; None if it may have a share."""
    if quota is None:
        return QuotaReason.MISSING, "does not exist: no task starts until it is applied, or spec.providers is changed"
    if quota.namespaces is not None and user.namespace not in quota.namespaces:
        return QuotaReason.FORBIDDEN, f'does not allow namespace "{user.namespace}"; its spec.allowedNamespaces decides'
    if quota.suspended:
        return QuotaReason.SUSPENDED, "is suspended: no task starts until spec.suspended is false"
    if quota.concurrent_calls is None or quota.concurrent_calls < 1:
        return QuotaReason.MALFORMED, "has no usable limit; set spec.limits.concurrentCalls to at least 1"
    if unit > quota.concurrent_calls:
        text = f"allows {quota.concurrent_calls} concurrent calls, one task needs {unit}; raise it or lower perTask"
        return QuotaReason.TOO_SMALL, text
    return _no_window(quota, user)


def _no_window(quota: Quota, user: PoolUse) -> tuple[QuotaReason, str] | None:
    """Why none of a pool's tasks could ever be granted what its windows bound."""
    for measure in MEASURES:
        if (window := quota.windows.get(measure)) is None:
            continue
        if quota.instance is None:
            text = "has windows, and spec.databaseRef names no Database of its namespace that was ever reached: it grants them"
            return QuotaReason.MALFORMED, text
        if user.instance is not None and user.instance != quota.instance:
            text = "grants its windows in another database than the pool's; use a quota whose spec.databaseRef is the pool's"
            return QuotaReason.ELSEWHERE, text
        need = user.need(quota.key, measure)
        if need is None:
            text = (
                f"bounds {measure}, and spec.providers[].perTask.{measure} of the pool does not say what one task needs"
            )
            return QuotaReason.UNDECLARED, text
        if need > window.limit:
            text = f"grants {window.words(measure)}, one task needs {need}; raise it or lower perTask"
            return QuotaReason.TOO_SMALL, text
    return None


def _allotment(user: PoolUse, slots: int, division: _Division) -> Allotment:
    shares = tuple(_share(user, use, slots, division) for use in user.uses)
    closed = [share for share in shares if division.closed[user.pool, share.quota] is not None]
    bound = [share for share in shares if share.quota == division.binding.get(user.pool)]
    return Allotment(pool=user.pool, slots=slots, share=(*closed, *bound, *shares)[0], shares=shares)


def _share(user: PoolUse, use: Use, slots: int, division: _Division) -> Share:
    calls = slots * use.calls_per_task
    if closed := division.closed[user.pool, use.quota]:
        reason, sentence = closed[0], f"quota {use.quota} {closed[1]}"
    else:
        whole = division.capacity[use.quota]
        windows = told(division.quotas[use.quota].windows)
        reason, sentence = QuotaReason.SHARED, f"{calls} of {whole} concurrent calls{windows} of quota {use.quota}"
        if slots < min(user.demand, division.target.get(user.pool, slots)):
            reason, sentence = QuotaReason.WAITING, f"{sentence}, more when other pools' tasks end"
    return Share(quota=use.quota, provider=use.provider, slots=slots, calls=calls, reason=reason, sentence=sentence)
