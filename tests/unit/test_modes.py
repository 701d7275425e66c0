"""What the modes External and HoldAndDrain decide, and when a pool is drained (O3, O17, O19)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poolkeeper_operator.act import scaletarget
from poolkeeper_operator.decide.drained import Left, drained
from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.reasons import LimitedBy, RateLimitedBy, Want
from poolkeeper_operator.decide.scaling import decide, recompute
from poolkeeper_operator.decide.signals import Blind, Cap, Mode, ScalingPolicy, Signals

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
QUOTA = Cap(reason=LimitedBy.PROVIDER_QUOTA, slots=12, sentence="12 of 40 calls")


def external(asked, *, replicas=40, past=None, **reading):
    policy = ScalingPolicy(mode=Mode.EXTERNAL, asked=asked, minimum=2, maximum=60, concurrency=4)
    base: dict[str, Any] = {"read_at": NOW, "runnable": 0, "replicas": replicas, "ready_pods": replicas}
    seen = Signals(**base | reading)
    decision = decide(policy, seen, past or History(), NOW)
    assert recompute(decision.as_record()["inputs"]).as_record() == decision.as_record()
    return decision


@pytest.mark.parametrize(
    ("asked", "applied", "reason", "limited_by"),
    [
        (None, 40, Want.EXTERNAL, LimitedBy.NONE),
        (7, 7, Want.EXTERNAL, LimitedBy.NONE),
        (50, 50, Want.EXTERNAL, LimitedBy.NONE),
        (0, 2, Want.MINIMUM, LimitedBy.NONE),
        (99, 60, Want.EXTERNAL, LimitedBy.MAXIMUM),
    ],
)
def test_external_takes_what_is_asked_for_at_once_within_its_bounds(asked, applied, reason, limited_by):
    """O19: no window and no step of ours, for the other scaler has its own."""
    decision = external(asked)
    assert (decision.applied, decision.reason, decision.limited_by) == (applied, reason, limited_by)


def test_external_ends_no_busy_pod_and_nothing_during_a_rollout():
    busy = external(5, busy_pods=30, running=120, busy=120)
    assert (busy.goal, busy.applied, busy.rate_limited_by) == (5, 30, RateLimitedBy.BUSY_PODS)
    assert external(5, rolling=True).applied == 40


def test_a_share_of_a_quota_lowers_an_external_size_by_the_window_and_bounds_its_growth_at_once():
    """O15: it moves with the other pools' demand, and pods beyond it start nothing that the store does not grant."""
    assert external(20, replicas=2, caps=(QUOTA,)).applied == 3
    fresh = external(20, caps=(QUOTA,))
    assert fresh.applied == 20, "what is asked for is taken at once, what the share lacks waits for the window"
    past = History()
    for ago in (HOUR, timedelta(minutes=3), timedelta(seconds=5)):
        past = past.extended(now=NOW - ago, recommended=3, applied=20, was=20, idle=False, keep=HOUR)
    assert external(20, replicas=20, past=past, caps=(QUOTA,)).applied == 10, "by the default steps"


def test_external_says_what_the_work_would_ask_for():
    """O19: the figure that is published for the other scaler."""
    decision = external(7, runnable=200, oldest_runnable=timedelta(seconds=29))
    assert (decision.wanted, decision.needed) == (7, 41)


def test_external_holds_when_blind():
    policy = ScalingPolicy(mode=Mode.EXTERNAL, asked=9, maximum=60, concurrency=4)
    assert decide(policy, Blind(cause="away", replicas=4), History(), NOW).applied == 4


def draining(**reading):
    policy = ScalingPolicy(mode=Mode.HOLD_AND_DRAIN, minimum=3, maximum=60, concurrency=4)
    base: dict[str, Any] = {"read_at": NOW, "replicas": 5, "closed": True, "runnable": 100}
    seen = Signals(**base | reading)
    decision = decide(policy, seen, History(), NOW)
    assert recompute(decision.as_record()["inputs"]).as_record() == decision.as_record()
    return decision.goal, decision.applied, decision.rate_limited_by


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ({"closed": False}, (0, 5, RateLimitedBy.CLOSING)),
        ({"busy_pods": 2}, (0, 2, RateLimitedBy.BUSY_PODS)),
        ({"busy_pods": 5}, (0, 0, RateLimitedBy.NONE)),
        ({}, (0, 0, RateLimitedBy.NONE)),
        ({"busy_pods": 2, "rolling": True, "replacing": True, "living": 7}, (0, 0, RateLimitedBy.NONE)),
        ({"busy_pods": 5, "rolling": True}, (0, 5, RateLimitedBy.BUSY_PODS)),
        ({"busy_pods": 5, "living": 6}, (0, 5, RateLimitedBy.BUSY_PODS)),
        ({"replicas": 0, "closed": False}, (0, 0, RateLimitedBy.NONE)),
    ],
)
def test_a_drain_closes_the_store_then_ends_idle_pods_then_busy_ones(reading, expected):
    assert draining(**reading) == expected


def test_a_drain_stands_still_when_blind():
    policy = ScalingPolicy(mode=Mode.HOLD_AND_DRAIN, minimum=9, maximum=60, concurrency=4)
    assert decide(policy, Blind(cause="away", replicas=4), History(), NOW).applied == 4


@pytest.mark.parametrize(
    ("mode", "left", "expected"),
    [
        (Mode.HOLD_AND_DRAIN, {}, ("True", "Drained")),
        (Mode.HOLD_AND_DRAIN, {"closed": False}, ("False", "Draining")),
        (Mode.HOLD_AND_DRAIN, {"tasks": 1}, ("False", "Draining")),
        (Mode.HOLD_AND_DRAIN, {"pods": 1}, ("False", "Draining")),
        (Mode.HOLD_AND_DRAIN, {"pods": 1, "tasks": None}, ("False", "Draining")),
        (Mode.HOLD_AND_DRAIN, {"tasks": None}, None),
        (Mode.HOLD_AND_DRAIN, {"settled": False}, None),
        (Mode.AUTO, {"closed": False}, ("True", "AtZero")),
        (Mode.AUTO, {"closed": False, "pods": 2}, ("False", "Working")),
        (Mode.EXTERNAL, {"tasks": 2}, ("False", "Working")),
    ],
)
def test_drained_is_what_leases_and_pods_say(mode, left, expected):
    base: dict[str, Any] = {"mode": mode, "pods": 0, "tasks": 0, "settled": True, "closed": True}
    found = drained(Left(**base | left))
    assert (found and (found.status, found.reason)) == expected


def pool(*entries, replicas=4):
    managed = [
        {"manager": name, "time": at, "fieldsV1": {"f:spec": fields}} for name, at, fields in entries
    ]  # as World keeps it
    return {"metadata": {"managedFields": managed}, "spec": {"replicas": replicas}}


MODE: dict[str, Any] = {"f:scaling": {"f:mode": {}}}
SIZE: dict[str, Any] = {"f:replicas": {}}
EARLY, LATE = "2026-11-29T12:00:00Z", "2026-11-29T12:00:01Z"


@pytest.mark.parametrize(
    ("found", "asked", "handed_over"),
    [
        (pool(("poolkeeper-scaler", LATE, SIZE), ("kubectl", EARLY, MODE)), None, False),
        (pool(("hpa", EARLY, SIZE), ("kubectl", LATE, MODE)), 4, False),
        (pool(("hpa", LATE, SIZE), ("kubectl", EARLY, MODE)), 4, True),
        (pool(("kubectl", EARLY, SIZE | MODE)), 4, True),
        (pool(("kubectl", EARLY, MODE), replicas=0), 0, False),
        (pool(("kubectl", EARLY, MODE), replicas=None), None, False),
    ],
)
def test_a_size_counts_as_asked_for_where_somebody_else_wrote_it_since_the_mode(found, asked, handed_over):
    """O19; a scale to 0 leaves no name behind (see owners)."""
    assert (scaletarget.asked(found), scaletarget.handed_over(found)) == (asked, handed_over)
