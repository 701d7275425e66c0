"""Which providers a pool's tasks use, told to the store; what workers reported of them, read from it (Q40, O15).

Guarantees: the store lowers by itself; here it is only known, for sizes and statuses. What is told is written where it changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from poolkeeper.store import calls
from poolkeeper.store.signs import ProviderStats
from poolkeeper_operator.decide.quota import Use
from poolkeeper_operator.decide.throttle import Throttle, least, throttle
from poolkeeper_operator.decide.windows import Window
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.resources import WorkerPoolSpec
from poolkeeper_operator.resources.providerquota import Adaptive
from poolkeeper_operator.runtime import metrics
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.kinds import QUOTA

Entry = dict[str, Any]


@dataclass
class Providers:
    """See the module."""

    context: Context
    throttles: Mapping[str, Throttle] = field(default_factory=dict)  # quotas that are lowered now, by "namespace/name"
    _told: dict[str, tuple[list[Entry], datetime]] = field(default_factory=dict)

    def learn(self) -> None:
        """Look at what all databases know; a quota of which there is news is reconciled."""
        seen: dict[str, list[ProviderStats]] = {}
        lowered: dict[str, list[Throttle]] = {}
        for reading in [link.reading for link in self.context.links.values() if link.reading is not None]:
            for one in reading.stats.providers:
                seen.setdefault(one.quota, []).append(one)
                found = throttle(
                    percent=one.percent,
                    cut_to=one.cut_to,
                    cut_at=one.cut_at,
                    retry_at=one.retry_at,
                    recover=one.recover,
                    now=reading.stats.now,
                )
                if found is not None:
                    lowered.setdefault(one.quota, []).append(found)
        before, now = self.throttles, {quota: least(found) for quota, found in lowered.items()}
        self.throttles = {quota: found for quota, found in now.items() if found is not None}
        for quota in before.keys() | self.throttles.keys():
            was, found = before.get(quota), self.throttles.get(quota)
            if (was and was.state) != (found and found.state):
                self.context.enqueue(QUOTA, *quota.split("/"))
        for quota, stats in seen.items():
            namespace, _, name = quota.partition("/")
            if self.context.world.get(QUOTA.kind, namespace, name) is not None:
                left = self.throttles.get(quota)
                metrics.tell_quota(namespace, name, left.percent if left else 100.0, stats)

    def of(self, pool: str, spec: WorkerPoolSpec) -> tuple[str, Throttle] | None:
        """The quota of a pool that is lowered most, and how."""
        keys = [use.quota for use in spec.uses(pool.partition("/")[0]) if use.quota in self.throttles]
        found = least(self.throttles[key] for key in keys)
        return next(((key, found) for key in keys if self.throttles[key] is found), None) if found else None

    async def tell(
        self,
        link: Link,
        pools: Mapping[str, tuple[WorkerPoolSpec, Link | None]],
        adaptive: Mapping[str, Adaptive],
        windows: Mapping[str, Mapping[str, Window]],
    ) -> None:
        """Write the providers of the pools on this link that the store knows otherwise; of a quota that cannot be read, the windows stand."""
        assert link.reading is not None  # noqa: S101 - a reading that succeeded
        known = {one.quota: one for one in link.reading.stats.providers}
        for pool, (spec, place) in pools.items():
            if place is not link:
                continue
            wanted = [
                _entry(use, adaptive, _granted(windows.get(use.quota), known.get(use.quota)))
                for use in spec.uses(pool.partition("/")[0])
            ]
            stats = link.reading.pools.get(pool)
            there = [
                _known(name, known[quota], (stats.needs or {}).get(name, {}) if stats else {})
                for name, quota in ((stats.providers if stats else None) or {}).items()
                if quota in known
            ]
            told = self._told.get(pool)
            if told is not None and told[1] > link.reading.at:
                there = told[0]
            if _by_name(wanted) != _by_name(there):
                await link.call(calls.set_providers(pool, wanted, term=link.term))
                self._told[pool] = wanted, self.context.now()
        for pool in self._told.keys() - pools.keys():
            del self._told[pool]


def _entry(use: Use, adaptive: Mapping[str, Adaptive], windows: Entry) -> Entry:
    policy = adaptive.get(use.quota, Adaptive())
    return {
        "name": use.provider,
        "quota": use.quota,
        "cut": policy.cut_percent,
        "floor": policy.floor_percent,
        "recover": policy.recover_percent_per_minute,
        "windows": windows,
        **use.needs,
    }


def _granted(windows: Mapping[str, Window] | None, known: ProviderStats | None) -> Entry:
    if windows is None:
        return {one.measure: {"limit": one.limit, "window": one.window} for one in known.windows} if known else {}
    return {measure: {"limit": one.limit, "window": one.seconds} for measure, one in windows.items()}


def _known(name: str, one: ProviderStats, needs: Mapping[str, int]) -> Entry:
    return {
        "name": name,
        "quota": one.quota,
        "cut": one.cut,
        "floor": one.floor,
        "recover": one.recover,
        "windows": _granted(None, one),
        **needs,
    }


def _by_name(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: str(entry["name"]))
