"""A provider's quota bounds what its pools may run, in the store and in pods; without one nothing runs (O4, O15)."""

import pytest

from fixtures.stage import until
from poolkeeper.store import calls


def pool_with(stage, name, *, quota="api", per_task=1, **spec):
    providers = [{"name": "api", "quotaRef": {"name": quota}, "perTask": {"concurrentCalls": per_task}}]
    return stage.pool(name, providers=providers, **spec)


def cap(stage, pool):
    found = {p.pool: p for p in stage.run(calls.stats(cluster=None)).pools}
    mine = found.get(f"{stage.namespace}/{pool}")
    return None if mine is None else mine.max_running


def test_a_missing_quota_closes_the_pool_and_says_so(stage, operator):
    """Absence is never "unlimited": nothing may run, no pod starts, and the condition names what is missing (O4)."""
    stage.apply(stage.db(), stage.queue("mail"), pool_with(stage, "mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail", 5)
    stage.wait_condition("workerpool", "mail", "Ready", "False", "QuotaMissing")
    until(lambda: cap(stage, "mail") == 0, what="closed in the store")
    assert stage.replicas("mail") == 0
    stage.apply(stage.quota("api", 4))
    until(lambda: stage.replicas("mail") == 4, what="open as soon as the quota is there")
    assert cap(stage, "mail") == 4
    stage.wait_condition("workerpool", "mail", "QuotaLimited", "True", "Shared")


def test_a_suspended_quota_stops_new_tasks_and_a_raised_one_lets_more(stage, operator):
    """A change of the quota reaches the store at once, without a restart of anything (O4)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.quota("api", 3), pool_with(stage, "mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail", 20)
    until(lambda: cap(stage, "mail") == 3)
    stage.apply(stage.quota("api", 3, suspended=True))
    until(lambda: cap(stage, "mail") == 0)
    stage.wait_condition("workerpool", "mail", "QuotaLimited", "True", "QuotaSuspended")
    stage.wait_condition("providerquota", "api", "Ready", "True", "Suspended")
    stage.apply(stage.quota("api", 8))
    until(lambda: cap(stage, "mail") == 8)


@pytest.mark.wide
def test_a_pool_that_a_quota_keeps_at_zero_does_not_say_that_there_is_nothing_to_do(stage, operator):
    """O11: `kubectl get` alone says that work waits, and for what."""
    stage.apply(stage.db(), stage.queue("mail"), stage.quota("api", 3, suspended=True), pool_with(stage, "mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail", 2)

    def why():
        conditions = (stage.get("workerpool", "mail").get("status") or {}).get("conditions") or []
        return next((condition["message"] for condition in conditions if condition["type"] == "Ready"), "")

    until(lambda: why() == "no pods: ProviderQuota leaves none to the work that waits", what="the reason in Why")


def test_two_pools_share_by_weight_and_never_pass_the_quota(stage, operator):
    """Shares by weight, in tasks that cost several calls each; their sum never passes the quota (O15)."""
    weights = {"pools": [{"namespace": stage.namespace, "name": "big", "weight": 3}]}
    stage.apply(stage.db(), stage.queue("big"), stage.queue("small"), stage.quota("api", 16, shares=weights))
    for name in ("big", "small"):
        stage.wait_condition("taskqueue", name, "Ready", "True")
        stage.submit(name, 50)
    stage.apply(pool_with(stage, "big", per_task=2), pool_with(stage, "small", per_task=2))
    seen = []

    def settled():
        caps = [cap(stage, name) for name in ("big", "small")]
        if None not in caps:
            seen.append(sum(caps) * 2)
        return caps == [6, 2]

    until(settled, timeout=40, what="6 and 2 of 8 tasks")
    assert max(seen) <= 16
    shares = until(lambda: stage.status("providerquota", "api").get("pools"), timeout=40)
    assert {share["name"] for share in shares} == {"big", "small"}


def test_max_running_is_enforced_by_the_store(stage, operator):
    """spec.maxRunning is counted at the claim, whatever the number of pods (contract 3)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", maxRunning=7))
    until(lambda: cap(stage, "mail") == 7)
    stage.apply(stage.pool("mail", maxRunning=9))
    until(lambda: cap(stage, "mail") == 9)
