"""Reconciling a ProviderQuota: who has which share of it, as status.

The division itself happens at every reading (shares.py) and is enforced by the store; this only tells of it.
"""

from collections.abc import Mapping
from typing import Any

from poolkeeper_operator.act import verdicts
from poolkeeper_operator.decide.conditions import Condition, merge
from poolkeeper_operator.decide.windows import told
from poolkeeper_operator.resources import ProviderQuotaSpec, ProviderQuotaStatus, ResourceError
from poolkeeper_operator.resources.providerquota import Calls, EffectiveCalls, GrantedPool
from poolkeeper_operator.runtime import metrics
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.kinds import POOL, QUOTA
from poolkeeper_operator.runtime.shares import Shares

AGAIN = 30.0
MOST = 1000  # pools in status


class Quotas:
    """Reconciles ProviderQuotas."""

    def __init__(self, context: Context, shares: Shares) -> None:
        self._context = context
        self._shares = shares

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One pass; the seconds until the next."""
        manifest = self._context.world.get(QUOTA.kind, namespace, name)
        if any(link.kept_elsewhere for (space, _), link in self._context.links.items() if space == namespace):
            return AGAIN
        self._wake_users(f"{namespace}/{name}")
        if manifest is None:
            metrics.forget(metrics.QUOTA_GAUGES, namespace, name)
            return None
        try:
            spec = self._context.spec(ProviderQuotaSpec, manifest)
        except ResourceError as error:
            text = f"{error}; until then no pool may use it"
            return await self._write(manifest, verdicts.stalled("InvalidSpec", text), {})
        calls, why, windows = spec.to_divide(), None, {m: one.limit for m, one in spec.windows().items()}
        granted = self._shares.of_quota(f"{namespace}/{name}")[:MOST]
        lowered = self._shares.providers.throttles.get(f"{namespace}/{name}")
        if lowered is not None:
            calls, why = lowered.share(calls), lowered.sentence(f"{namespace}/{name}")
            windows = {measure: lowered.share(limit) for measure, limit in windows.items()}
        throttled = _throttled(why)
        if spec.suspended:
            calls, why, windows = 0, "suspended", dict.fromkeys(windows, 0)
        status = ProviderQuotaStatus(
            effective=EffectiveCalls(concurrent_calls=calls, reason=why, **windows),
            used=Calls(concurrent_calls=self._shares.used.get(f"{namespace}/{name}", 0)),
            pools=tuple(
                GrantedPool(
                    namespace=pool.partition("/")[0],
                    name=pool.partition("/")[2],
                    share=Calls(concurrent_calls=share.calls),
                )
                for pool, share in granted
            ),
        ).as_status()
        if spec.suspended:
            text = "suspended: no pool starts a task that uses it; set spec.suspended to false to go on"
            return await self._write(manifest, [*verdicts.ready("Suspended", text), throttled], status)
        text = f"{spec.to_divide()} concurrent calls{told(spec.windows())}, shared by {len(granted)} pools"
        return await self._write(manifest, [*verdicts.ready("Dividing", text), throttled], status)

    def _wake_users(self, quota: str) -> None:
        """A changed quota is divided anew at once: whoever waits for the next tick waits for the databases of its pools."""
        changed = self._context.world.get(QUOTA.kind, *quota.split("/"))
        generation = (changed or {}).get("metadata", {}).get("generation")
        seen = ((changed or {}).get("status") or {}).get("observedGeneration")
        if generation is not None and generation == seen:
            return
        namespaces = {
            manifest["metadata"]["namespace"]
            for manifest in self._context.world.all(POOL.kind)
            if (manifest.get("spec") or {}).get("providers")
        }
        for (namespace, _), link in self._context.links.items():
            if namespace in namespaces:
                link.wake()

    async def _write(
        self, manifest: Mapping[str, Any], verdict: list[Condition], figures: Mapping[str, Any]
    ) -> float | None:
        generation = manifest["metadata"]["generation"]
        present = (manifest.get("status") or {}).get("conditions") or []
        conditions = merge(present, verdict, generation=generation, now=self._context.now())
        status = {**figures, "observedGeneration": generation, "conditions": conditions}
        again = await self._context.write_status(QUOTA, manifest, status)
        return AGAIN if again is None else again


def _throttled(why: str | None) -> Condition:
    if why is None:
        return Condition(
            "Throttled", "False", "NotThrottled", "the provider refuses nothing, as far as workers report it"
        )
    return Condition("Throttled", "True", "TooManyRequests", f"{why}; what pools may run is lowered meanwhile")
