"""What tests of windows share: a quota with windows, and the judge of a provider's own log (Q40)."""

from collections.abc import Iterable
from typing import Any

from poolkeeper.provider import reported
from poolkeeper.store import Claimed, calls
from poolkeeper.store.signs import ProviderStats, ReportVerdict
from store.scene import Scene

QUOTA = "platform/api"
Use = tuple[float, int]
"""When, and how much."""


def entry(requests: int | None = None, tokens: int | None = None, **how: Any) -> dict[str, Any]:
    """A pool's provider as an operator tells it; `requests` and `tokens` are what one task needs, `windows` what the quota grants."""
    needs = {name: n for name, n in (("requests", requests), ("tokens", tokens)) if n is not None}
    return {"name": "api", "quota": QUOTA, "cut": 50, "floor": 10, "recover": 5, **needs, **how}


def window(limit: int, seconds: float = 60) -> dict[str, Any]:
    """So many in any so many seconds."""
    return {"limit": limit, "window": seconds}


def use(scene: Scene, *entries: dict[str, Any], pool: str = "local/p", most: int = 1000) -> None:
    """What the operator tells of a pool."""
    scene.ask("operator", calls.set_pool(pool, max_running=most))
    scene.ask("operator", calls.set_providers(pool, list(entries)))


def tell(scene: Scene, of: Claimed, status: Any = 200, name: str = "api", **how: Any) -> ReportVerdict:
    """A report of a delivery that must be taken."""
    verdict = scene.ask("worker", calls.report_provider(of.task_id, of.token, reported(name, status, **how)))
    assert verdict.code is None, verdict
    return verdict


def known(scene: Scene, quota: str = QUOTA) -> ProviderStats:
    """What the operator reads of a quota."""
    (found,) = [each for each in scene.ask("operator", calls.stats(cluster=None)).providers if each.quota == quota]
    return found


def taken(scene: Scene, quota: str = QUOTA) -> dict[str, int]:
    """What of its windows is held, or was spent in the last one."""
    return {one.measure: one.taken for one in known(scene, quota).windows}


def most_in_a_window(log: Iterable[Use], width: float) -> int:
    """The most that any interval of this length holds, both ends included: one that begins with a use is the worst there is."""
    uses = sorted(log)
    most = end = total = 0
    for begin, (at, _) in enumerate(uses):
        while end < len(uses) and uses[end][0] <= at + width:
            total += uses[end][1]
            end += 1
        most = max(most, total)
        total -= uses[begin][1]
    return most
