"""The grace period from measured drains (O20, O21)."""

import random
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolkeeper_operator.decide.grace import STEPS, Drain, GracePolicy, grace, quantile
from poolkeeper_operator.decide.reasons import GraceReason

POLICY = GracePolicy()


def seconds(count):
    return timedelta(seconds=count)


def drains(*values, cut=()):
    return [*(Drain(v, truncated=False) for v in values), *(Drain(v, truncated=True) for v in cut)]


def test_without_a_sample_there_is_a_safe_default():
    answer = grace(POLICY, [], None)
    assert (answer.applied, answer.reason) == (seconds(90), GraceReason.NO_SAMPLES)


def test_few_short_drains_do_not_lower_it():
    answer = grace(POLICY, drains(1, 2, 1), None)
    assert (answer.applied, answer.reason) == (seconds(90), GraceReason.FEW_SAMPLES)


@pytest.mark.parametrize(
    ("count", "applied", "reason"), [(19, 90, GraceReason.FEW_SAMPLES), (20, 30, GraceReason.MINIMUM)]
)
def test_twenty_drains_are_enough(count, applied, reason):
    answer = grace(POLICY, drains(*[1] * count), None)
    assert (answer.applied, answer.reason) == (seconds(applied), reason)


def test_a_need_that_is_a_step_exactly_fits():
    answer = grace(GracePolicy(hand_back_margin=seconds(15)), drains(*[50] * 50), None)
    assert (answer.applied, answer.needed, answer.reason, answer.fits) == (
        seconds(90), seconds(90), GraceReason.MEASURED, True,
    )  # fmt: skip


def test_few_long_drains_raise_it_at_once():
    answer = grace(POLICY, drains(100, 2, 1), seconds(90))
    assert (answer.applied, answer.reason) == (seconds(180), GraceReason.MEASURED)


def test_enough_drains_give_p99_with_headroom_margin_and_prestop():
    policy = GracePolicy(headroom_percent=150, hand_back_margin=seconds(5), pre_stop=seconds(3))
    answer = grace(policy, drains(*[10] * 197, 40, 40, 400), None)
    assert answer.needed == seconds(40 * 1.5 + 8)
    assert (answer.applied, answer.samples, answer.reason) == (seconds(90), 200, GraceReason.MEASURED)


def test_each_part_of_the_policy_has_its_effect():
    measured = drains(*[40] * 50)
    assert grace(POLICY, measured, None).needed == seconds(65)
    assert grace(GracePolicy(headroom_percent=300), measured, None).needed == seconds(125)
    assert grace(GracePolicy(hand_back_margin=seconds(20)), measured, None).needed == seconds(80)
    assert grace(GracePolicy(pre_stop=seconds(10)), measured, None).needed == seconds(75)
    assert grace(GracePolicy(minimum=seconds(200)), measured, None).applied == seconds(200)
    assert grace(GracePolicy(maximum=seconds(60)), measured, None).applied == seconds(60)


def test_cut_drains_count_as_longer_than_what_was_measured():
    """O20: a censored sample is no measurement of 30 s, it says 'more than 30 s'."""
    answer = grace(POLICY, drains(*[5] * 30, cut=[30] * 10), seconds(30))
    assert answer.reason is GraceReason.CUT_SHORT
    assert answer.needed >= seconds(60)
    assert answer.applied > seconds(30)


def test_a_cut_is_never_answered_with_less_than_the_present_grace():
    """A drain that was killed after 30 s by something else says nothing against the 600 s that it was promised."""
    assert grace(POLICY, drains(cut=[30] * 5), seconds(600)).applied >= seconds(600)


def test_cuts_by_an_earlier_shorter_grace_do_not_raise_it_again_and_again():
    """O21, C28: the rollout that brings the longer grace ends pods that still have the shorter one, and those are cut too."""
    current = seconds(90)
    seen = {current}
    for _ in range(10):
        current = grace(POLICY, drains(cut=[86] * 5), current).applied
        seen.add(current)
    assert seen == {seconds(90), seconds(180)}


def test_one_outlier_among_usual_drains_does_not_triple_the_grace_and_a_second_one_counts_in_full():
    """C28: drains of 20 to 40 s, and one of 400 s; with few samples it would be the p99 all alone."""
    usual = [20 + 20 * (n % 7) / 6 for n in range(30)]
    before = grace(POLICY, drains(*usual), None).applied
    assert before <= grace(POLICY, drains(*usual, 400), before).applied < 3 * before
    assert grace(POLICY, drains(*usual, 400, 390), before).applied >= seconds(600)
    assert grace(POLICY, drains(*usual[:4], 400), before).applied < 3 * before
    assert grace(POLICY, drains(*usual[:3], 400), before).applied >= seconds(600), (
        "too few to tell an outlier from the rest"
    )


def test_a_cut_drain_is_never_taken_for_an_outlier():
    """O20: nobody knows how long it would have taken."""
    assert grace(POLICY, drains(*[5] * 30, cut=[200]), seconds(90)).applied >= seconds(400)


def in_use(schedule, current, *, window=200):
    """The graces that a pool has while drains come in; each new value is taken over at once, as if users rolled out all the time."""
    seen: list[timedelta] = []
    had: list[Drain] = []
    for length in schedule:
        promised = current.total_seconds()
        cut = length > promised - 5
        had = [*had, Drain(min(length, promised - 5), truncated=cut, promised=promised)][-window:]
        now = grace(POLICY, had, current).applied
        if now != current:
            seen.append(now)
        current = now
    return seen


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_an_hour_of_jitter_gives_few_changes(seed):
    """C28: ten pods, a drain of 20 to 40 s each minute, and a look after each."""
    chance = random.Random(seed)
    assert len(in_use([chance.uniform(20, 40) for _ in range(600)], seconds(90))) <= 2


@given(st.integers(0, 2**32))
@settings(max_examples=10)
def test_up_fast_and_down_slowly(seed):
    """O21, C28: long work raises it within a few drains; a day of short work (one rollout of ten pods an hour) lowers it by steps."""
    chance = random.Random(seed)
    up = in_use([chance.uniform(150, 200) for _ in range(10)], seconds(90))
    assert up[-1] >= seconds(300)
    had: list[Drain] = [Drain(chance.uniform(160, 190), truncated=False) for _ in range(200)]  # all within one step
    first = current = grace(POLICY, had, None).applied
    changes = []
    for hour in range(24):
        had = [*had, *(Drain(chance.uniform(1, 3), truncated=False) for _ in range(10))][-200:]
        lower = grace(POLICY, had, current).applied
        assert lower >= max([seconds(step) for step in STEPS if seconds(step) < current])
        if lower != current:
            changes.append(hour)
        current = lower
    assert changes, "a day is long enough to begin"
    assert changes[0] >= 12, "not before the long drains have become the exception among the last 200"
    assert POLICY.minimum <= current < first


def test_a_rare_cut_among_many_long_finished_drains_changes_nothing():
    assert grace(POLICY, drains(*[50] * 500, cut=[2]), None).reason is GraceReason.MEASURED


def test_what_is_cut_again_and_again_ends_at_the_maximum_and_says_that_it_does_not_fit():
    current = None
    for _ in range(12):
        answer = grace(POLICY, drains(cut=[(current or seconds(30)).total_seconds()] * 5), current)
        current = answer.applied
    assert (answer.applied, answer.reason, answer.fits) == (POLICY.maximum, GraceReason.MAXIMUM, False)
    assert "drain.maxGrace is 1800 s" in answer.sentence


def test_it_is_lowered_one_step_at_a_time_and_only_on_enough_samples():
    """O21: up quickly, down slowly."""
    assert grace(POLICY, drains(*[1] * 5), seconds(300)).applied == seconds(300)
    answer = grace(POLICY, drains(*[1] * 50), seconds(300))
    assert (answer.applied, answer.reason) == (seconds(180), GraceReason.LOWERING)
    assert grace(POLICY, drains(*[1] * 20), seconds(300)).applied == seconds(180)
    assert grace(GracePolicy(maximum=timedelta(hours=9)), drains(*[1] * 50), seconds(3 * 3600)).applied == seconds(
        2 * 3600
    )


def test_the_quantile_is_that_of_kaplan_and_meier():
    # Hand-calculated: at 3 (5 at risk) 4/5; the cut at 4; at 5 (3 at risk) 8/15; at 7 (1 at risk, one cut at 6) 0.
    samples = drains(3, 5, 7, cut=[4, 6])
    assert quantile(samples, 0.2) == (3, False)
    assert quantile(samples, 0.4) == (5, False)
    assert quantile(samples, 0.5) == (7, False)
    assert quantile(drains(3, cut=[4])) == (4, True)


samples = st.lists(st.builds(Drain, st.floats(0, 5000), st.booleans()), max_size=60)
policies = st.builds(
    lambda low, extra, percent, margin, stop: GracePolicy(
        minimum=seconds(low),
        maximum=seconds(low + extra),
        headroom_percent=percent,
        hand_back_margin=seconds(margin),
        pre_stop=seconds(stop),
    ),
    st.integers(1, 600),
    st.integers(0, 7200),
    st.integers(100, 1000),
    st.integers(1, 60),
    st.integers(0, 60),
)


@given(policies, samples, st.none() | st.integers(1, 20_000).map(seconds))
def test_it_is_never_zero_and_always_within_the_bounds(policy, measured, current):
    answer = grace(policy, measured, current)
    assert policy.minimum <= answer.applied <= policy.maximum
    assert answer.applied >= seconds(1)
    assert answer.fits == (answer.applied >= answer.needed)
    assert answer.applied.microseconds == 0


@given(policies, samples, st.none() | st.integers(1, 20_000).map(seconds))
def test_it_moves_in_coarse_steps(policy, measured, current):
    answer = grace(policy, measured, current)
    coarse = answer.applied.total_seconds() in STEPS or answer.applied % timedelta(hours=1) == timedelta(0)
    assert (
        coarse or answer.applied in {policy.minimum, policy.maximum, current} or answer.reason is GraceReason.LOWERING
    )


@given(samples.filter(bool), st.floats(0, 5000))
def test_a_drain_that_was_cut_never_counts_for_less_than_one_that_ended(measured, at):
    ended, cut = [*measured, Drain(at, truncated=False)], [*measured, Drain(at, truncated=True)]
    assert quantile(cut)[0] >= quantile(ended)[0] or quantile(cut)[1]


@pytest.mark.parametrize("count", [1, 19, 20, 200])
def test_equal_drains_have_their_own_length_as_quantile(count):
    assert quantile(drains(*[7.5] * count)) == (7.5, False)


@given(
    st.lists(st.builds(Drain, st.floats(allow_nan=False), st.booleans()), max_size=40),
    st.none() | st.integers(1, 7200).map(seconds),
)
def test_no_figure_of_a_worker_keeps_a_pool_from_a_grace(told, current):
    """P6: what a process tells of its drains may be senseless; the bounds hold."""
    answer = grace(POLICY, told, current)
    assert POLICY.minimum <= answer.applied <= POLICY.maximum
