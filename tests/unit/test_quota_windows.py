"""Limits per window: what closes a pool, how many slots they keep busy, and how they are written (O4, O15, Q40)."""

from dataclasses import replace
from datetime import timedelta

import pytest

from poolkeeper_operator.decide.quota import PoolUse, Quota, Use, allot
from poolkeeper_operator.decide.reasons import QuotaReason
from poolkeeper_operator.decide.windows import Window
from poolkeeper_operator.resources import ProviderQuotaSpec, ResourceError, WorkerPoolSpec, read_spec

KEY = "platform/model-api"
MINUTE = timedelta(minutes=1)
BOTH = {"requests": Window(limit=600, width=MINUTE), "tokens": Window(limit=400_000, width=MINUTE)}


def quota(**more):
    return {KEY: replace(Quota(key=KEY, concurrent_calls=40, namespaces=None, windows=BOTH, instance="here"), **more)}


def pool(*needs, **more):
    uses = tuple(
        Use(provider=f"n{n}", quota=KEY, calls_per_task=1, needs=each)
        for n, each in enumerate(needs or ({"requests": 12, "tokens": 20_000},))
    )
    made = PoolUse(
        pool="team/a", namespace="team", uses=uses, demand=10, ceiling=100, running=0, cap=0, instance="here"
    )
    return replace(made, **more)


def test_a_pool_that_says_what_it_needs_has_its_share_of_calls():
    """O15: calls in flight are divided as without windows; these are told beside them."""
    share = allot(quota(), [pool()])["team/a"]
    assert share.slots == 40
    assert (
        share.share.sentence
        == "40 of 40 concurrent calls, 600 requests in any 60 s, 400000 tokens in any 60 s of quota platform/model-api"
    )


@pytest.mark.parametrize(
    ("quotas", "user", "reason", "words"),
    [
        (quota(), pool({"requests": 12}), QuotaReason.UNDECLARED, "perTask.tokens"),
        (quota(), pool({"tokens": 12}), QuotaReason.UNDECLARED, "perTask.requests"),
        (quota(), pool({"requests": 1, "tokens": 1}, {"requests": 1}), QuotaReason.UNDECLARED, "perTask.tokens"),
        (quota(), pool({"requests": 601, "tokens": 1}), QuotaReason.TOO_SMALL, "600 requests in any 60 s, one task needs 601"),
        (quota(), pool({"requests": 1, "tokens": 200_001}, {"requests": 1, "tokens": 200_000}), QuotaReason.TOO_SMALL, "one task needs 400001"),
        (quota(instance=None), pool(), QuotaReason.MALFORMED, "spec.databaseRef"),
        (quota(instance="there"), pool(), QuotaReason.ELSEWHERE, "another database"),
        (quota(windows={"requests": Window(limit=0, width=MINUTE)}), pool(), QuotaReason.TOO_SMALL, "0 requests"),
    ],
)  # fmt: skip
def test_what_could_never_be_granted_is_closed_and_says_why(quotas, user, reason, words):
    """O4: a bound that a pool says nothing about is not "unlimited", and no other database grants it once more."""
    found = allot(quotas, [user])["team/a"]
    assert (found.slots, found.share.reason) == (0, reason)
    assert words in found.share.sentence


def test_a_pool_that_was_not_read_yet_is_not_closed():
    """O18: its database away tells nothing of where it is."""
    assert allot(quota(), [pool(instance=None)])["team/a"].slots == 40


@pytest.mark.parametrize(
    ("limit", "need", "service", "percent", "slots"),
    [
        (600, 12, None, 100, 50),
        (600, 12, timedelta(seconds=6), 100, 5),
        (600, 12, timedelta(seconds=6.1), 100, 6),
        (600, 12, timedelta(minutes=10), 100, 500),
        (600, 12, timedelta(seconds=6), 50, 3),
        (600, 12, timedelta(milliseconds=1), 100, 1),
        (600, 12, timedelta(0), 100, 50),
        (5, 12, None, 100, 1),
        (600, 12, None, 10, 5),
    ],
)
def test_slots_are_what_is_granted_over_what_a_busy_slot_uses(limit, need, service, percent, slots):
    """O15: the limit divided by the measured rate of a busy slot; what could hold its need at once while nothing is measured."""
    assert Window(limit=limit, width=MINUTE).slots(need, service, percent) == slots


def spec(**limits):
    given = {"limits": {"concurrentCalls": 40, **limits}, "databaseRef": {"name": "main"}, "reservePercent": 5}
    return read_spec(ProviderQuotaSpec, {"kind": "ProviderQuota", "metadata": {"name": "q"}, "spec": given})


def test_the_reserve_is_taken_off_each_window():
    """O15: rounded down, as of calls."""
    found = spec(requests={"limit": 610, "window": "90s"}, tokens={"limit": 19, "window": "24h"}).windows()
    assert found == {
        "requests": Window(limit=580, width=timedelta(seconds=90)),
        "tokens": Window(limit=19, width=timedelta(days=1)),
    }
    assert spec().windows() == {}


@pytest.mark.parametrize(
    "window",
    [
        {"limit": 0, "window": "1m"},
        {"limit": -1, "window": "1m"},
        {"limit": 10},
        {"window": "1m"},
        {"limit": 10, "window": "0s"},
        {"limit": 10, "window": "999ms"},
        {"limit": 10, "window": "25h"},
        {"limit": 10, "window": "soon"},
        {"limit": "many", "window": "1m"},
        {},
        7,
    ],
)
def test_windows_that_cannot_be_are_refused(window):
    """O4: the resource is Stalled, and a quota that cannot be read gives nothing."""
    for measure in ("requests", "tokens"):
        with pytest.raises(ResourceError, match=measure):
            spec(**{measure: window})


def test_windows_need_a_database():
    """O4: who grants them is said."""
    given = {"limits": {"concurrentCalls": 4, "tokens": {"limit": 5, "window": "1m"}}}
    with pytest.raises(ResourceError, match="name it in databaseRef"):
        read_spec(ProviderQuotaSpec, {"kind": "ProviderQuota", "metadata": {"name": "q"}, "spec": given})


def test_a_pool_hands_on_what_its_tasks_need():
    """Q40: what is not said is not there."""
    per_task = {"concurrentCalls": 1, "requests": 12}
    given = {
        "queues": [{"name": "a"}],
        "app": "a:app",
        "template": {"image": "i"},
        "providers": [{"name": "api", "quotaRef": {"name": "q"}, "perTask": per_task}],
    }
    made = read_spec(WorkerPoolSpec, {"kind": "WorkerPool", "metadata": {"name": "a"}, "spec": given})
    (use,) = made.uses("team")
    assert use == Use(provider="api", quota="team/q", calls_per_task=1, needs={"requests": 12})
    assert replace(use, needs={}).needs == {}
