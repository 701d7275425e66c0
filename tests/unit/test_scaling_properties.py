"""What holds for the size of a pool whatever the reading (O11 to O18, P7, P9), over random policies, readings and histories."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from poolkeeper_operator.decide.history import MAX_STRETCHES, History
from poolkeeper_operator.decide.pace import pods_for
from poolkeeper_operator.decide.reasons import LimitedBy, RateLimitedBy, Want
from poolkeeper_operator.decide.scaling import decide, recompute
from poolkeeper_operator.decide.signals import Blind, Cap, ScalingPolicy, Signals, StepPolicy

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
TICK = timedelta(seconds=5)
seconds = st.floats(0, 7200, allow_nan=False).map(lambda s: timedelta(seconds=s))


@st.composite
def steps(draw):
    return StepPolicy(
        window=timedelta(seconds=draw(st.sampled_from([0, 15, 120, 600]))),
        max_step_percent=draw(st.none() | st.integers(1, 400)),
        max_step_pods=draw(st.none() | st.integers(1, 50)),
    )


@st.composite
def policies(draw):
    maximum = draw(st.integers(1, 200))
    return ScalingPolicy(
        minimum=draw(st.integers(0, maximum)),
        maximum=maximum,
        concurrency=draw(st.integers(1, 50)),
        max_running=draw(st.none() | st.integers(1, 2000)),
        target_age=timedelta(seconds=draw(st.integers(1, 3600))),
        up=draw(steps()),
        down=draw(steps()),
        to_zero_after=timedelta(seconds=draw(st.sampled_from([0, 30, 300]))),
    )


@st.composite
def readings(draw, at=NOW):
    runnable = draw(st.integers(0, 10_000))
    replicas = draw(st.integers(0, 250))
    leaving = draw(st.just(0) | st.integers(0, replicas))
    return Signals(
        read_at=at,
        runnable=runnable,
        runnable_capped=runnable == 10_000,
        oldest_runnable=draw(seconds) if runnable else None,
        suspects=draw(st.integers(0, 3)),
        running=draw(st.integers(0, 500)),
        busy=draw(st.integers(0, 500)),
        busy_pods=draw(st.integers(0, replicas)),
        replicas=replicas,
        ready_pods=draw(st.integers(0, replicas)),
        leaving_pods=leaving,
        leaving_busy_pods=draw(st.integers(0, leaving)),
        leaving_busy=draw(st.integers(0, 100)) if leaving else 0,
        starting_pods=draw(st.integers(0, 40)),
        start_up=timedelta(seconds=draw(st.floats(0, 120))),
        stuck_pods=draw(st.integers(0, 2)),
        rolling=draw(st.booleans()),
        service_time=draw(st.none() | seconds),
        caps=tuple(
            Cap(reason=LimitedBy.PROVIDER_QUOTA, slots=s, sentence="quota")
            for s in draw(st.lists(st.integers(0, 3000), max_size=2))
        ),
    )


@st.composite
def histories(draw):
    history, at = History(), NOW - timedelta(seconds=draw(st.integers(5, 3600)))
    for _ in range(draw(st.integers(0, 6))):
        history = history.extended(
            now=at,
            recommended=draw(st.integers(0, 250)),
            applied=draw(st.integers(0, 250)),
            was=draw(st.integers(0, 250)),
            idle=draw(st.booleans()),
            keep=timedelta(hours=1),
            waiting=draw(st.integers(0, 2000)),
            recall=timedelta(hours=1),
        )
        at = min(NOW, at + timedelta(seconds=draw(st.integers(1, 600))))
    return history


@given(policies(), readings(), histories())
def test_no_size_is_raised_above_the_maximum_or_a_cap(policy, signals, history):
    decision = decide(policy, signals, history, NOW)
    caps = [pods_for(cap.slots, policy) for cap in signals.caps]
    if policy.max_running is not None:
        caps.append(pods_for(policy.max_running, policy))
    bound = max(policy.minimum, min([policy.maximum, *caps])) + signals.leaving_pods  # those claim nothing any more
    assert decision.limited <= bound
    assert decision.applied <= max(bound, signals.replicas)


@given(policies(), readings(), histories())
def test_what_limits_a_size_is_always_named(policy, signals, history):
    decision = decide(policy, signals, history, NOW)
    assert (decision.limited < decision.wanted) == (decision.limited_by is not LimitedBy.NONE)
    assert (decision.applied != decision.limited) == (decision.rate_limited_by is not RateLimitedBy.NONE)
    assert decision.steps[0].before == signals.replicas
    assert decision.steps[-1].after == decision.applied
    assert all(a.after == b.before for a, b in pairwise(decision.steps))


@given(policies(), readings(), histories(), seconds)
def test_older_work_never_asks_for_less(policy, signals, history, more):
    older = replace(signals, oldest_runnable=(signals.oldest_runnable or timedelta(0)) + more)
    assert decide(policy, older, history, NOW).wanted >= decide(policy, signals, history, NOW).wanted


@given(policies(), readings(), histories(), st.integers(1, 1000))
def test_more_work_never_asks_for_less(policy, signals, history, more):
    fuller = replace(signals, runnable=signals.runnable + more, oldest_runnable=signals.oldest_runnable or timedelta(0))
    assert decide(policy, fuller, history, NOW).wanted >= decide(policy, signals, history, NOW).wanted


@given(policies(), readings(), histories(), st.booleans())
def test_unknown_is_not_zero_nor_the_maximum(policy, signals, history, stale):
    blind = replace(signals, read_at=NOW - policy.stale_after - TICK) if stale else Blind(replicas=signals.replicas)
    decision = decide(policy, blind, history, NOW)
    assert decision.applied == max(signals.replicas, policy.minimum)
    assert decision.blind
    assert decision.reason is Want.SIGNAL_LOST
    assert decision.history.watched_since is None


@given(policies(), readings(), histories())
def test_only_a_reading_of_zero_empties_a_pool(policy, signals, history):
    decision = decide(policy, signals, history, NOW)
    closed = any(cap.slots == 0 for cap in signals.caps)
    if decision.goal == 0 and signals.replicas > 0 and not closed:
        assert signals.runnable == signals.suspects == signals.running == signals.busy == 0
        assert policy.minimum == 0
        assert policy.to_zero_after == timedelta(0) or history.idle_since is not None


@given(policies(), readings(), histories())
def test_no_busy_pod_is_drained_by_the_size_that_is_applied(policy, signals, history):
    decision = decide(policy, signals, history, NOW)
    assert decision.applied >= min(signals.busy_pods, signals.replicas)


@given(policies(), readings(), histories())
def test_a_rollout_is_never_made_to_shrink(policy, signals, history):
    assert decide(policy, replace(signals, rolling=True), history, NOW).applied >= signals.replicas


@given(policies(), readings() | st.builds(Blind, cause=st.text(), replicas=st.integers(0, 9)), histories())
def test_a_decision_can_be_made_again_from_what_was_recorded(policy, signals, history):
    """O11: the record holds all that it depended on, through JSON and back."""
    first = decide(policy, signals, history, NOW)
    record = json.loads(json.dumps(first.as_record()))
    assert recompute(record["inputs"]) == first
    assert recompute(record["inputs"]).sentence == record["sentence"]


@settings(max_examples=30)
@given(policies(), st.data())
def test_steady_readings_lead_to_a_size_that_stands(policy, data):
    """No flapping: with readings that do not change, the size comes to rest."""
    signals = replace(data.draw(readings()), stuck_pods=0, starting_pods=0, rolling=False, busy_pods=0)
    policy = replace(policy, minimum=min(policy.minimum, 40), maximum=min(policy.maximum, 40))
    history, at, replicas, sizes = History(), NOW, min(signals.replicas, 40), []
    for _ in range(300):
        now_read = replace(signals, read_at=at, replicas=replicas, ready_pods=replicas)
        decision = decide(policy, now_read, history, at)
        history, replicas, at = decision.history, decision.applied, at + TICK
        sizes.append(replicas)
        assert len(history.stretches) <= MAX_STRETCHES
    changes = [b - a for a, b in pairwise(sizes) if a != b]
    turns = sum((a > 0) != (b > 0) for a, b in pairwise(changes))
    assert turns <= 1, "at most once back, when pods that had to start first are there"
    assert len(set(sizes[-50:])) == 1
