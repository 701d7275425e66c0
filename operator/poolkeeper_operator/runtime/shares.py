"""Dividing provider quotas among pools and telling the store each pool's exact cap (O15).

Guarantees: the caps in the store never add up to more than the quota at any instant, pods that start, surge or drain
included; a pool whose quota is missing, suspended or forbidden is closed; a pool that cannot be read is taken to use
all that it was given. Of two operators the store obeys the one whose term it is (O29).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from poolkeeper.store import calls
from poolkeeper.store.rows import PoolStats
from poolkeeper_operator.decide.quota import Allotment, PoolUse, Quota, Share, allot
from poolkeeper_operator.decide.reasons import LimitedBy, QuotaReason
from poolkeeper_operator.decide.signals import Cap
from poolkeeper_operator.decide.windows import Window
from poolkeeper_operator.observe.link import Link, Reading
from poolkeeper_operator.resources import ProviderQuotaSpec, ResourceError, WorkerPoolSpec
from poolkeeper_operator.resources.providerquota import Adaptive, From
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import DATABASE, POOL, QUOTA
from poolkeeper_operator.runtime.providers import Providers


@dataclass(frozen=True)
class Told:
    """A pool's cap as last written, or as about to be; it counts until a later reading shows what the store has."""

    cap: int | None
    at: datetime
    sure: bool  # False: being written; the store has this one or a smaller one


@dataclass
class Shares:
    """Keeps the last division; see the module."""

    context: Context
    allotments: Mapping[str, Allotment] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)  # calls declared by running tasks, by quota
    providers: Providers = field(init=False)
    _adaptive: dict[str, Adaptive] = field(default_factory=dict)
    _windows: dict[str, Mapping[str, Window]] = field(default_factory=dict)  # of quotas that can be read
    _told: dict[str, Told] = field(default_factory=dict)
    _uses: dict[str, PoolUse] = field(default_factory=dict)
    _gone: dict[str, Link] = field(default_factory=dict)  # pools without a WorkerPool whose pods may still claim

    def __post_init__(self) -> None:
        self.providers = Providers(self.context)

    async def divide(
        self, ticked: Link, pools: Mapping[str, tuple[WorkerPoolSpec, Link | None]], demand: Mapping[str, int]
    ) -> None:
        """Divide anew among all pools and write the caps that changed of those on the link just read.

        The others are told after their own next reading, so that a database in trouble holds up nobody else; until
        then their old caps count. `demand`: runnable tasks of each pool.
        """
        quotas = await self._quotas({pool.partition("/")[0] for pool, (spec, _) in pools.items() if spec.providers})
        # From here to the first write nothing is awaited: two links never divide the same calls.
        uses = {
            pool: self._use(pool, spec, link, demand.get(pool, 0))
            for pool, (spec, link) in pools.items()
            if spec.providers
        }
        uses |= self._leaving(uses, pools)
        self._uses = dict(uses)
        before, self.allotments = self.allotments, allot(quotas, list(uses.values()))
        if before != self.allotments:
            for key in quotas:
                self.context.enqueue(QUOTA, *key.split("/"))
        self.used = _used(uses.values())
        self.providers.learn()
        changes = self._changes(ticked, pools)
        await self.providers.tell(ticked, pools, self._adaptive, self._windows)  # before a pool may run more
        for pool, cap in changes:
            await ticked.call(calls.set_pool(pool, max_running=cap, term=ticked.term))
            self._told[pool] = Told(cap, self.context.now(), sure=True)

    def cap(self, pool: str, spec: WorkerPoolSpec, service_time: timedelta | None = None) -> tuple[Cap, ...]:
        """The bounds that a pool's quotas put on its slots, for the scaling decision; `service_time` of its tasks, if it was measured."""
        if not spec.providers:
            return ()
        allotment = self.allotments.get(pool)
        if allotment is None or not self.in_force(pool):
            return (
                Cap(reason=LimitedBy.PROVIDER_QUOTA, slots=0, sentence="its share of the quota is not in force yet"),
            )
        slots, sentence, found = allotment.slots, allotment.share.sentence, self.providers.of(pool, spec)
        if found is not None and slots:
            slots, sentence = found[1].share(slots), found[1].sentence(found[0])
        first = Cap(reason=LimitedBy.PROVIDER_QUOTA, slots=slots, sentence=sentence)
        return (first, *(self._paced(pool, spec, service_time) if slots else ()))

    def _paced(self, pool: str, spec: WorkerPoolSpec, service_time: timedelta | None) -> Iterator[Cap]:
        """Not more slots than what the windows grant keeps busy."""
        uses = spec.uses(pool.partition("/")[0])
        for quota in dict.fromkeys(use.quota for use in uses):
            lowered = self.providers.throttles.get(quota)
            for measure, window in self._windows.get(quota, {}).items():
                need = sum(use.needs.get(measure, 0) for use in uses if use.quota == quota)
                if need:
                    slots = window.slots(need, service_time, lowered.percent if lowered else 100)
                    text = f"quota {quota} grants {window.words(measure)}, one task needs {need}: enough for {slots} busy slots"
                    yield Cap(reason=LimitedBy.PROVIDER_QUOTA, slots=slots, sentence=text)

    def in_force(self, pool: str) -> bool:
        """Whether the store has a cap of this pool's."""
        told = self._told.get(pool)
        return told is not None and told.sure and pool in self.allotments

    def of_quota(self, quota: str) -> list[tuple[str, Share]]:
        """The pools that use a quota, with their shares."""
        return sorted(
            (pool, share)
            for pool, allotment in self.allotments.items()
            for share in allotment.shares
            if share.quota == quota
        )

    def _use(self, pool: str, spec: WorkerPoolSpec, link: Link | None, runnable: int) -> PoolUse:
        ceiling = spec.scaling.max * spec.concurrency
        if (bound := spec.bound_on_running()) is not None:
            ceiling = min(ceiling, bound)
        namespace = pool.partition("/")[0]
        common: dict[str, Any] = {
            "pool": pool,
            "namespace": namespace,
            "uses": spec.uses(namespace),
            "ceiling": ceiling,
            "instance": str(link.reading.stats.instance_id) if link and link.reading else None,
        }
        reading = link.reading if link else None
        if link is None or reading is None:
            return PoolUse(**common, demand=0, running=0, cap=ceiling)  # unseen: it may hold all that it could have
        stats, told = reading.pools.get(pool), self._told.get(pool)
        if stats is None:
            return PoolUse(**common, demand=min(ceiling, runnable), running=0, cap=told.cap if told else None)
        now = self._as_read(pool, reading, stats)
        return PoolUse(**common, **now, demand=min(ceiling, now["running"] + runnable))

    def _as_read(self, pool: str, reading: Reading, stats: PoolStats) -> dict[str, Any]:
        """What a pool holds and may still claim, as of a reading; a cap that was written since may be in force, or not yet."""
        cap, told = stats.max_running, self._told.get(pool)
        if cap is not None and told is not None and told.cap is not None and told.at > reading.at:
            cap = max(cap, told.cap)
        return {
            "running": max(stats.running, sum(session.busy for session in stats.sessions)),
            "cap": cap,
            "live_slots": sum(session.concurrency for session in stats.sessions),
        }

    def _leaving(self, uses: Mapping[str, PoolUse], pools: Mapping[str, object]) -> dict[str, PoolUse]:
        """Pools that are gone, or whose spec cannot be read any more: what they hold counts until their last lease ends.

        The pods of a pool that is gone claim until they are told to stop, and for ever where they were orphaned: it is
        closed in the store first (`_gone`), and only what a later reading shows released is given to others.
        """
        found: dict[str, PoolUse] = {}
        self._gone = {}
        for pool, use in self._uses.items():
            if pool in uses or pool in pools:
                continue
            namespace, _, name = pool.partition("/")
            there = self.context.world.get(POOL.kind, namespace, name) is not None
            link = next((link for link in self._links(namespace) if pool in link.reading.pools), None)
            if link is None:  # its database is gone too: its pods tell
                if there or self.context.world.pods(namespace, name):
                    found[pool] = replace(use, demand=0, ceiling=use.held if there else 0)
                    continue
            else:
                left = replace(use, demand=0, **self._as_read(pool, link.reading, link.reading.pools[pool]))
                if there or left.held:
                    found[pool] = replace(left, ceiling=left.held if there else 0)
                    if not there:
                        self._gone[pool] = link
                    continue
            self._told.pop(pool, None)
        return found

    def _links(self, namespace: str) -> list[Any]:
        return [link for key, link in self.context.links.items() if key[0] == namespace and link.reading is not None]

    def _changes(
        self, ticked: Link, pools: Mapping[str, tuple[WorkerPoolSpec, Link | None]]
    ) -> list[tuple[str, int | None]]:
        """The caps to write on this link, lower ones first; each counts as given from now on."""
        found: list[tuple[str, int | None]] = []
        now = self.context.now()
        wishes = {pool: self._wanted(pool, spec) for pool, (spec, link) in pools.items() if link is ticked}
        wishes |= {pool: 0 for pool, link in self._gone.items() if link is ticked}
        for pool, wanted in wishes.items() if ticked.reading else ():
            known = self._known(pool, ticked)
            if known is not None and known.cap == wanted:
                self._told[pool] = Told(wanted, known.at, sure=True)
                continue
            if known is None and wanted is None:
                continue
            larger = wanted if known is None or known.cap is None or wanted is None else max(wanted, known.cap)
            self._told[pool] = Told(larger, now, sure=False)
            found.append((pool, wanted))
        return sorted(found, key=lambda change: -1 if change[1] is None else change[1])

    def _wanted(self, pool: str, spec: WorkerPoolSpec) -> int | None:
        """The exact cap of a pool; None for no bound."""
        bound = spec.bound_on_running()
        if not spec.providers:
            return bound
        allotment = self.allotments.get(pool)
        slots = allotment.slots if allotment else 0
        return slots if bound is None else min(bound, slots)

    def _known(self, pool: str, link: Link) -> Told | None:
        """What the store has; None if it does not know the pool."""
        assert link.reading is not None  # noqa: S101 - by the caller
        told, stats = self._told.get(pool), link.reading.pools.get(pool)
        if told is not None and told.sure and told.at > link.reading.at:
            return told
        return None if stats is None else Told(stats.max_running, link.reading.at, sure=True)

    async def _quotas(self, users: set[str]) -> dict[str, Quota]:
        found = {}
        windows: dict[str, Mapping[str, Window]] = {}
        for manifest in self.context.world.all(QUOTA.kind):
            meta = manifest["metadata"]
            key = f"{meta['namespace']}/{meta['name']}"
            try:
                spec = self.context.spec(ProviderQuotaSpec, manifest)
            except ResourceError:
                found[key] = Quota(key=key, concurrent_calls=None)
                continue
            self._adaptive[key] = spec.adaptive
            windows[key] = spec.windows()
            found[key] = Quota(
                key=key,
                concurrent_calls=spec.to_divide(),
                suspended=spec.suspended,
                namespaces=await self._allowed(meta["namespace"], spec, users),
                weights={f"{share.namespace}/{share.name}": share.weight for share in spec.shares.pools},
                windows=windows[key],
                instance=self._instance(meta["namespace"], spec),
            )
        self._windows = windows
        return found

    def _instance(self, namespace: str, spec: ProviderQuotaSpec) -> str | None:
        """The installation that grants a quota's windows, as the status of its Database has it: also while that cannot be reached."""
        if spec.database_ref is None:
            return None
        database = self.context.world.get(DATABASE.kind, namespace, spec.database_ref.name) or {}
        return (database.get("status") or {}).get("instanceID")

    async def _allowed(self, own: str, spec: ProviderQuotaSpec, users: set[str]) -> frozenset[str] | None:
        """The namespaces that may use a quota; None for all. One that cannot be read may not."""
        allowed = spec.allowed_namespaces
        if allowed.from_ is From.ALL:
            return None
        names = {own}
        if allowed.from_ is From.SELECTOR and allowed.selector is not None:
            wanted = allowed.selector.match_labels
            for name in users:
                if await self._matches(name, wanted):
                    names.add(name)
        return frozenset(names)

    async def _matches(self, name: str, wanted: Mapping[str, str]) -> bool:
        try:
            namespace = await self.context.namespace(name)
        except KubeError:
            return False
        labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
        return all(labels.get(key) == value for key, value in wanted.items())


def _used(uses: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for pool in uses:
        for use in pool.uses:
            found[use.quota] = found.get(use.quota, 0) + pool.running * use.calls_per_task
    return found


CLOSED = (
    QuotaReason.MISSING,
    QuotaReason.MALFORMED,
    QuotaReason.FORBIDDEN,
    QuotaReason.TOO_SMALL,
    QuotaReason.UNDECLARED,
    QuotaReason.ELSEWHERE,
)
"""Reasons that do not go away without a hand."""
