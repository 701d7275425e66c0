"""What workers report of a provider is seen in the quota's status and in sizes; the store lowers by itself (Q40, O15)."""

import pytest

from fixtures.stage import until
from poolkeeper.provider import reported
from poolkeeper.store import calls


def pool_with(stage, name, **spec):
    providers = [{"name": "api", "quotaRef": {"name": "api"}, "perTask": {"concurrentCalls": 1}}]
    return stage.pool(name, providers=providers, **spec)


def running_task(stage, pool):
    """A worker in the pool's first pod holds one task; what it says of providers is taken."""
    (pod, *_) = until(lambda: stage.pods(pool), timeout=60, what="a pod")
    session = stage.session(pod, pool, pool)
    turns = iter(range(1, 1000))

    def claimed():
        turn = next(turns)
        return stage.run(calls.turn(session, turn, turn - 1, [], 1)).claimed

    (held,) = until(claimed, timeout=60, what="a task is claimed")
    return session, held


def tell(stage, held, status=429, **how):
    verdict = stage.run(calls.report_provider(held.task_id, held.token, reported("api", status, **how)))
    assert verdict.code is None, verdict
    return verdict


def known(stage):
    found = {one.quota: one for one in stage.run(calls.stats(cluster=None)).providers}
    return found.get(f"{stage.namespace}/api")


def names(stage, pool):
    found = {p.pool: p for p in stage.run(calls.stats(cluster=None)).pools}
    mine = found.get(f"{stage.namespace}/{pool}")
    return mine.providers if mine else None


@pytest.mark.wide
def test_a_refusal_is_in_the_status_and_the_pool_does_not_grow_into_it(stage, operator):
    """O15: halved, with the reason and the condition; of ten pods that the work asks for there are five; it comes back without a hand."""

    def quota(recover):
        return stage.quota("api", 10, adaptive={"recoverPercentPerMinute": recover})

    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="5m"), quota(1), pool_with(stage, "mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.wait_condition("providerquota", "api", "Throttled", "False", "NotThrottled")
    until(
        lambda: names(stage, "mail") == {"api": f"{stage.namespace}/api"}, what="the store knows whose provider it is"
    )
    stage.submit("mail", 1)
    until(lambda: stage.replicas("mail") == 1, timeout=60)
    session, held = running_task(stage, "mail")
    assert tell(stage, held).percent == 50
    stage.wait_condition("providerquota", "api", "Throttled", "True", "TooManyRequests")

    def effective():
        found = stage.status("providerquota", "api").get("effective") or {}
        return found if found.get("concurrentCalls") == 5 else None

    assert until(effective, timeout=60)["reason"].startswith("429 from api, cut to 50 % at ")
    stage.submit("mail", 40)

    def grown(to):
        stage.run(calls.renew(session, 1000, [held.task_id]))
        return stage.replicas("mail") == to

    until(lambda: grown(5), timeout=60, what="as many as the provider leaves")
    stage.wait_condition("workerpool", "mail", "QuotaLimited", "True", "Throttled")

    def why():
        made = stage.status("workerpool", "mail").get("decisions") or []
        return [one["sentence"] for one in made if (one["wanted"] >= 10, one["applied"]) == (True, 5)]

    (sentence,) = until(why, timeout=60, what="the decision")
    assert "429 from api, cut to 50 %" in sentence
    assert grown(5), "it does not grow into what the provider refuses"
    stage.apply(quota(100))
    stage.wait_condition("providerquota", "api", "Throttled", "False", "NotThrottled", timeout=120)
    until(lambda: (stage.status("providerquota", "api").get("effective") or {}) == {"concurrentCalls": 10}, timeout=60)
    stage.wait_condition(
        "workerpool", "mail", "QuotaLimited", "False", "Shared", timeout=60
    )  # no node: pods that cannot start limit it


@pytest.mark.wide
def test_the_store_keeps_to_what_the_quota_says_of_cuts(stage, operator):
    """O15: cutPercent, floorPercent and recoverPercentPerMinute reach the store, also when they change; a provider that a pool no longer has goes."""
    policy = {"cutPercent": 30, "floorPercent": 60, "recoverPercentPerMinute": 1}
    stage.apply(stage.db(), stage.queue("mail"), stage.quota("api", 10, adaptive=policy), pool_with(stage, "mail"))
    until(lambda: (one := known(stage)) and (one.cut, one.floor, one.recover) == (30, 60, 1), timeout=60)
    until(lambda: names(stage, "mail") == {"api": f"{stage.namespace}/api"})
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail", 1)
    _, held = running_task(stage, "mail")
    assert tell(stage, held).percent == 70
    stage.apply(stage.quota("api", 10, adaptive=policy | {"floorPercent": 90}))
    until(lambda: known(stage).floor == 90)
    assert known(stage).percent == pytest.approx(90, abs=2)
    stage.apply(stage.pool("mail", providers=[]))
    until(lambda: names(stage, "mail") == {}, what="it uses no provider any more")


def test_what_is_kept_back_is_never_given(stage, operator):
    """O15: reservePercent of the limit, rounded down; five where nothing is said."""
    stage.apply(stage.db(), stage.queue("mail"), stage.quota("api", 40), pool_with(stage, "mail", scaling={"max": 60}))

    def cap():
        found = {p.pool: p for p in stage.run(calls.stats(cluster=None)).pools}
        mine = found.get(f"{stage.namespace}/mail")
        return mine and mine.max_running

    until(lambda: cap() == 38, timeout=60)
    stage.apply(stage.quota("api", 40, reservePercent=25))
    until(lambda: cap() == 30)
    until(
        lambda: (stage.status("providerquota", "api").get("effective") or {}).get("concurrentCalls") == 30, timeout=60
    )
