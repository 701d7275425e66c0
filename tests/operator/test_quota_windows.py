"""Requests and tokens per window: what the resources say reaches the store, and what they leave open closes a pool (O4, O15, Q40)."""

import pytest

from fixtures.stage import until
from poolkeeper.store import calls


def pool_with(stage, name="mail", **per_task):
    one = {"concurrentCalls": 1, **per_task}
    return stage.pool(name, providers=[{"name": "api", "quotaRef": {"name": "api"}, "perTask": one}])


def quota(stage, **spec):
    limits = {"concurrentCalls": 40, "requests": {"limit": 200, "window": "10s"}}
    return stage.ours("ProviderQuota", "api", {"limits": limits, "databaseRef": {"name": "main"}, **spec})


def granted(stage):
    """What the store grants of the quota, and what it knows that a task needs."""
    reading = stage.run(calls.stats(cluster=None))
    windows = [
        (one.measure, one.limit, one.window)
        for quota in reading.providers
        if quota.quota == f"{stage.namespace}/api"
        for one in quota.windows
    ]
    needs = next((p.needs for p in reading.pools if p.pool == f"{stage.namespace}/mail"), None)
    return windows, needs


def cap(stage):
    return next((p.max_running for p in stage.run(calls.stats(cluster=None)).pools if "mail" in p.pool), None)


def effective(stage):
    return stage.status("providerquota", "api").get("effective") or {}


def test_what_a_task_needs_is_granted_in_the_store_and_the_pool_grows_no_further(stage, operator):
    """O15: windows less the reserve and perTask reach the store, also when they change; ten pods are not started where two tasks are granted."""
    stage.apply(stage.db(), stage.queue("mail"), quota(stage), pool_with(stage, requests=95))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    want = ([("requests", 190, 10.0)], {"api": {"requests": 95}})
    until(lambda: granted(stage) == want, timeout=60, what="the store knows")
    stage.submit("mail", 20)
    until(lambda: stage.replicas("mail") == 2, timeout=60, what="as many pods as tasks are granted at once")

    def why():
        made = stage.status("workerpool", "mail").get("decisions") or []
        return [one["sentence"] for one in made if one["applied"] == 2]

    (sentence, *_) = until(why, timeout=60, what="the decision")
    assert "grants 190 requests in any 10 s, one task needs 95: enough for 2 busy slots" in sentence
    assert effective(stage) == {"concurrentCalls": 38, "requests": 190}
    limits = {
        "concurrentCalls": 40,
        "requests": {"limit": 200, "window": "10s"},
        "tokens": {"limit": 9, "window": "1m"},
    }
    stage.apply(quota(stage, limits=limits), pool_with(stage, requests=50, tokens=3))
    want = ([("requests", 190, 10.0), ("tokens", 9, 60.0)], {"api": {"requests": 50, "tokens": 3}})
    until(lambda: granted(stage) == want, timeout=60, what="and what has changed")
    stage.apply(stage.ours("ProviderQuota", "api", {"limits": {"concurrentCalls": 40}}))
    until(lambda: granted(stage)[0] == [], timeout=60, what="windows that are gone")


@pytest.mark.wide
def test_what_is_not_said_or_not_granted_here_closes_the_pool(stage, operator):
    """O4: perTask without requests, a databaseRef that names nothing; each with a condition, and open again without a hand."""
    stage.apply(stage.db(), stage.queue("mail"), quota(stage), pool_with(stage))
    stage.wait_condition("workerpool", "mail", "Ready", "False", "UseNotDeclared")
    until(lambda: cap(stage) == 0, what="closed in the store")
    stage.apply(pool_with(stage, requests=5))
    until(lambda: cap(stage) == 10, timeout=60)
    stage.apply(quota(stage, databaseRef={"name": "nowhere"}))
    stage.wait_condition("workerpool", "mail", "Ready", "False", "QuotaMalformed")
    until(lambda: cap(stage) == 0)
    stage.apply(quota(stage))
    until(lambda: cap(stage) == 10, timeout=60)
    assert "200 requests" not in stage.condition("providerquota", "api", "Ready")["message"]
    assert "190 requests in any 10 s" in stage.condition("providerquota", "api", "Ready")["message"]
