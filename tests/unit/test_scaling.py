"""The size of a pool, example by example: each row is a situation and the answer that a person would give (O10 to O19)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.reasons import LimitedBy, RateLimitedBy, Want
from poolkeeper_operator.decide.scaling import decide
from poolkeeper_operator.decide.signals import Blind, Cap, Mode, ScalingPolicy, Signals, StepPolicy

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
POLICY = ScalingPolicy(maximum=20, concurrency=4)
AT_ONCE = StepPolicy(window=timedelta(0))


def seconds(count):
    return timedelta(seconds=count)


def reading(at=NOW, **what):
    return Signals(**{"read_at": at, "runnable": 0} | what)


def watched(*, replicas, since=timedelta(hours=1), recommended=None):
    """A history of an hour in which the pool stood at this size."""
    wanted = replicas if recommended is None else recommended
    begun = History().extended(
        now=NOW - since, recommended=wanted, applied=replicas, was=replicas, idle=False, keep=since
    )
    return begun.extended(
        now=NOW - seconds(5), recommended=wanted, applied=replicas, was=replicas, idle=False, keep=since
    )


def calm(*, replicas):
    """An hour in which nothing was wanted, and the size stood."""
    return watched(replicas=replicas, recommended=0)


class TestFromZero:
    def test_a_burst_into_an_empty_pool_is_answered_in_one_tick(self):
        """O13: 0 to n in one decision, not in steps."""
        decision = decide(POLICY, reading(runnable=80, oldest_runnable=seconds(0.1)), History(), NOW)
        assert decision.applied == decision.wanted
        assert decision.applied >= 10
        assert decision.reason is Want.BACKLOG

    def test_one_task_starts_one_pod(self):
        """O13: integer exact, no dead band at small sizes."""
        assert decide(POLICY, reading(runnable=1, oldest_runnable=seconds(0)), History(), NOW).applied == 1

    def test_the_41st_task_counts(self):
        """O13: ten pods of four hold 40 tasks; one more that must start now asks for one more pod."""
        full = reading(running=40, busy=40, busy_pods=10, ready_pods=10, replicas=10, service_time=timedelta(hours=1))
        assert decide(POLICY, full, watched(replicas=10), NOW).applied == 10
        more = replace(full, runnable=1, oldest_runnable=seconds(29))
        assert decide(POLICY, more, watched(replicas=10), NOW).applied == 11

    def test_an_explicit_step_binds_from_zero_too(self):
        policy = replace(POLICY, up=StepPolicy(window=timedelta(0), max_step_pods=3))
        decision = decide(policy, reading(runnable=80, oldest_runnable=seconds(1)), History(), NOW)
        assert (decision.applied, decision.rate_limited_by) == (3, RateLimitedBy.UP_STEP)

    def test_a_step_up_is_per_period_and_not_per_tick(self):
        policy = replace(POLICY, up=StepPolicy(window=timedelta(0), max_step_pods=3))
        sizes, history, replicas = [], History(), 0
        for tick in range(7):
            at = NOW + seconds(5 * tick)
            decision = decide(
                policy,
                reading(at, runnable=80, oldest_runnable=seconds(29), replicas=replicas, ready_pods=replicas),
                history,
                at,
            )
            history, replicas = decision.history, decision.applied
            sizes.append(replicas)
        assert sizes == [3, 3, 3, 3, 6, 6, 6]

    def test_a_suspect_alone_pulls_one_pod(self):
        """O12, Q27: a task that waits for its isolated run is held back, yet it pulls."""
        decision = decide(POLICY, reading(suspects=1), History(), NOW)
        assert (decision.applied, decision.reason) == (1, Want.SUSPECTS)


class TestAge:
    def test_equal_depth_and_different_age_get_different_sizes(self):
        """The older backlog has less time left until targetAge, so it needs more slots."""
        young = decide(POLICY, reading(runnable=40, oldest_runnable=seconds(1)), History(), NOW)
        old = decide(POLICY, reading(runnable=40, oldest_runnable=seconds(25)), History(), NOW)
        assert young.applied < old.applied == 10

    def test_short_tasks_need_few_slots(self):
        """Feed-forward on service time: 400 tasks of 50 ms are 20 slot-seconds of work."""
        decision = decide(
            POLICY, reading(runnable=400, oldest_runnable=seconds(1), service_time=seconds(0.05)), History(), NOW
        )
        assert decision.applied == 1

    def test_busy_slots_count_as_capacity_as_they_become_free(self):
        working = reading(
            runnable=40,
            oldest_runnable=seconds(1),
            running=8,
            busy=8,
            busy_pods=2,
            ready_pods=2,
            replicas=2,
            service_time=seconds(1),
        )
        assert decide(POLICY, working, watched(replicas=2), NOW).applied == 2

    def test_late_with_all_pods_up_grows_even_if_the_estimate_says_enough(self):
        """Correction by age: the service time was underestimated, the clock knows better."""
        late = reading(
            runnable=30,
            oldest_runnable=seconds(45),
            running=8,
            busy=8,
            busy_pods=2,
            ready_pods=2,
            replicas=2,
            service_time=seconds(0.01),
        )
        decision = decide(POLICY, late, watched(replicas=2), NOW)
        assert (decision.applied, decision.reason) == (3, Want.AGE)

    def test_age_that_rises_while_pods_start_asks_for_nothing_more(self):
        """Anti-windup: the pods asked for ten seconds ago are capacity to come."""
        first = decide(POLICY, reading(runnable=40, oldest_runnable=seconds(1)), History(), NOW)
        later = NOW + seconds(10)
        waiting = reading(
            later, runnable=40, oldest_runnable=seconds(11), replicas=first.applied, starting_pods=first.applied
        )
        again = decide(POLICY, waiting, first.history, later)
        assert again.applied == first.applied

    @pytest.mark.parametrize(("since", "starting"), [(10, 0), (61, 3)])
    def test_once_pods_are_up_or_take_too_long_the_whole_age_counts(self, since, starting):
        """Pods that have been starting for over a minute count as none."""
        raised = replace(watched(replicas=5), raised_at=NOW - seconds(since))
        still = reading(
            runnable=40, oldest_runnable=seconds(25), replicas=5, ready_pods=5 - starting, starting_pods=starting
        )
        assert decide(POLICY, still, raised, NOW).applied == 10

    def test_pods_that_have_yet_to_start_get_less_time(self):
        """Eight busy slots, 40 tasks of 20 s (46 to be safe) and 25 s left: 24 slots would do if they were there; new ones begin 10 s later."""
        there = reading(
            runnable=40, oldest_runnable=seconds(5), running=8, busy=8, busy_pods=2, ready_pods=6, replicas=6,
            service_time=seconds(20),
        )  # fmt: skip
        missing = replace(there, ready_pods=2, replicas=2)
        assert decide(POLICY, there, calm(replicas=6), NOW).wanted == 6
        assert decide(POLICY, missing, calm(replicas=2), NOW).wanted == 8

    def test_late_grows_by_the_overshoot_at_most_twofold_and_by_a_pod_at_least(self):
        """Sizes for ages of targetAge times 1.01, 1.5 and 10, with a service time that says that one slot is enough."""
        sizes = [
            decide(
                replace(POLICY, maximum=100),
                reading(
                    runnable=5000,
                    oldest_runnable=seconds(30 * factor),
                    replicas=10,
                    ready_pods=10,
                    service_time=seconds(0.0001),
                ),
                watched(replicas=10),
                NOW,
            ).applied
            for factor in (1.01, 1.5, 10)
        ]
        assert sizes == [11, 15, 20]

    def test_exactly_at_the_target_is_not_late(self):
        at = reading(runnable=40, oldest_runnable=seconds(30), replicas=1, ready_pods=1, service_time=seconds(0.0001))
        assert decide(POLICY, at, watched(replicas=1), NOW).reason is Want.BACKLOG

    def test_a_capped_count_that_is_late_doubles(self):
        """The true backlog is unknown beyond the cap; the age says that it is too much."""
        policy = replace(POLICY, maximum=1000)
        huge = reading(
            runnable=10_000,
            runnable_capped=True,
            oldest_runnable=seconds(300),
            running=40,
            busy=40,
            busy_pods=10,
            ready_pods=10,
            replicas=10,
            service_time=seconds(0.001),
        )
        assert decide(policy, huge, watched(replicas=10), NOW).applied == 20


class TestLimits:
    def test_the_maximum_limits_and_says_so(self):
        decision = decide(POLICY, reading(runnable=500, oldest_runnable=seconds(40)), History(), NOW)
        assert (decision.applied, decision.limited_by) == (20, LimitedBy.MAXIMUM)
        assert "scaling.max is 20" in decision.sentence

    @pytest.mark.parametrize(("slots", "pods"), [(0, 0), (1, 1), (4, 1), (5, 2), (12, 3)])
    def test_a_quota_caps_the_pods_at_those_that_can_use_it(self, slots, pods):
        """O15: the store enforces the slots, the pods follow."""
        cap = Cap(reason=LimitedBy.PROVIDER_QUOTA, slots=slots, sentence=f"{slots} of 40 calls")
        decision = decide(POLICY, reading(runnable=500, oldest_runnable=seconds(40), caps=(cap,)), History(), NOW)
        assert (decision.applied, decision.limited_by) == (pods, LimitedBy.PROVIDER_QUOTA)
        assert f"{slots} of 40 calls" in decision.sentence

    def test_max_running_caps_the_pods(self):
        policy = replace(POLICY, max_running=6)
        decision = decide(policy, reading(runnable=500, oldest_runnable=seconds(40)), History(), NOW)
        assert (decision.applied, decision.limited_by) == (2, LimitedBy.MAX_RUNNING)

    def test_pods_that_cannot_start_stop_growth_with_their_cause(self):
        """O16: more of what does not start would not start either; the cause is quoted."""
        broken = reading(
            runnable=100,
            oldest_runnable=seconds(20),
            replicas=2,
            stuck_pods=1,
            stuck_cause="ImagePullBackOff: no such image",
        )
        decision = decide(POLICY, broken, History(), NOW)
        assert (decision.applied, decision.limited_by) == (2, LimitedBy.PODS_CANNOT_START)
        assert "ImagePullBackOff: no such image" in decision.sentence

    def test_growth_goes_on_by_itself_once_pods_start(self):
        healed = reading(runnable=100, oldest_runnable=seconds(20), replicas=2, ready_pods=2)
        assert decide(POLICY, healed, History(), NOW).applied > 2

    def test_the_minimum_stands_with_nothing_to_do(self):
        policy = replace(POLICY, minimum=3)
        decision = decide(policy, reading(), History(), NOW)
        assert (decision.applied, decision.reason) == (3, Want.MINIMUM)
        kept = decide(replace(POLICY, minimum=1), reading(replicas=1, ready_pods=1), calm(replicas=1), NOW)
        assert (kept.applied, kept.reason) == (1, Want.MINIMUM), "it does not wait for zero"


class TestDown:
    def test_a_pool_just_met_does_not_shrink(self):
        """O18: the operator has just started and has not watched for a window."""
        decision = decide(POLICY, reading(replicas=10, ready_pods=10), History(), NOW)
        assert (decision.applied, decision.rate_limited_by) == (10, RateLimitedBy.DOWN_WINDOW)

    def test_a_pool_watched_for_less_than_the_window_does_not_shrink(self):
        short = watched(replicas=10, since=seconds(60), recommended=1)
        assert decide(POLICY, reading(replicas=10, ready_pods=10), short, NOW).goal == 10

    def test_without_a_window_a_pool_just_met_may_shrink(self):
        policy = replace(POLICY, down=AT_ONCE)
        assert decide(policy, reading(replicas=10, ready_pods=10), History(), NOW).goal == 1

    def test_a_lowered_maximum_counts_for_a_pool_just_met_too(self):
        busy = reading(runnable=500, oldest_runnable=seconds(40), replicas=20, ready_pods=20)
        assert decide(replace(POLICY, maximum=12), busy, History(), NOW).goal == 12

    def test_the_most_that_was_wanted_within_the_window_stands(self):
        decision = decide(POLICY, reading(replicas=10, ready_pods=10), watched(replicas=10, recommended=7), NOW)
        assert (decision.goal, decision.rate_limited_by) == (7, RateLimitedBy.DOWN_WINDOW)

    def test_steps_bound_the_shrinking(self):
        policy = replace(POLICY, maximum=100, down=StepPolicy(window=timedelta(0), max_step_percent=25))
        decision = decide(policy, reading(replicas=80, ready_pods=80), calm(replicas=80), NOW)
        assert (decision.goal, decision.rate_limited_by) == (60, RateLimitedBy.DOWN_STEP)
        soon = NOW + seconds(5)
        again = decide(policy, reading(soon, replicas=60, ready_pods=60), decision.history, soon)
        assert again.goal == 60, "the step is per period, not per tick"

    def test_running_work_keeps_its_pods(self):
        """O14: eight busy slots need two pods."""
        busy = reading(running=8, busy=8, busy_pods=2, replicas=5, ready_pods=5)
        assert decide(POLICY, busy, calm(replicas=5), NOW).applied == 2

    def test_busy_pods_in_excess_are_steered_to_but_not_killed(self):
        """O17: four slots spread over four pods would fit into one; the others go when idle."""
        spread = reading(running=4, busy=4, busy_pods=4, replicas=6, ready_pods=6)
        decision = decide(POLICY, spread, calm(replicas=6), NOW)
        assert (decision.goal, decision.applied, decision.rate_limited_by) == (1, 4, RateLimitedBy.BUSY_PODS)

    def test_nothing_shrinks_while_a_rollout_runs(self):
        decision = decide(POLICY, reading(replicas=10, ready_pods=10, rolling=True), calm(replicas=10), NOW)
        assert (decision.applied, decision.rate_limited_by) == (10, RateLimitedBy.ROLLOUT)

    def test_a_lowered_maximum_needs_no_window(self):
        busy = reading(runnable=500, oldest_runnable=seconds(40), replicas=20, ready_pods=20)
        decision = decide(replace(POLICY, maximum=12), busy, watched(replicas=20), NOW)
        assert decision.goal == 12

    def test_a_closed_provider_needs_no_window(self):
        cap = Cap(reason=LimitedBy.PROVIDER_QUOTA, slots=0, sentence="suspended")
        waiting = reading(runnable=50, oldest_runnable=seconds(40), replicas=8, ready_pods=8, caps=(cap,))
        assert decide(POLICY, waiting, watched(replicas=8), NOW).goal == 0


class TestToZero:
    def steps(self, policy, replicas, until, **more):
        """Decide every five seconds on readings of zero, and follow what was decided."""
        history, at, sizes = watched(replicas=replicas), NOW, []
        while at <= NOW + until:
            decision = decide(policy, reading(at, replicas=replicas, ready_pods=replicas, **more), history, at)
            history, replicas = decision.history, decision.applied
            sizes.append(((at - NOW).total_seconds(), replicas, decision.reason))
            at += seconds(5)
        return sizes

    def test_the_last_pod_stays_for_the_window_and_then_goes(self):
        """O14: to zero only after a whole window of successful readings of zero."""
        sizes = self.steps(replace(POLICY, to_zero_after=timedelta(minutes=3)), 1, timedelta(minutes=4))
        assert all(size == 1 for at, size, _ in sizes if at < 180)
        assert all(size == 0 for at, size, _ in sizes if at >= 180)

    def test_a_large_pool_shrinks_to_one_first(self):
        sizes = self.steps(POLICY, 8, timedelta(minutes=6))
        assert sizes[-1][1] == 0
        assert {size for _, size, _ in sizes} == {8, 1, 0}
        assert any(reason is Want.WAITING_FOR_ZERO for _, _, reason in sizes)

    def test_a_failed_reading_starts_the_wait_anew(self):
        """P9: unknown is not zero; an unread moment may have had work."""
        idle = History(idle_since=NOW - timedelta(minutes=10), stretches=calm(replicas=1).stretches)
        assert decide(POLICY, reading(replicas=1, ready_pods=1), idle, NOW).applied == 0
        blind = decide(POLICY, Blind(cause="refused", replicas=1), idle, NOW)
        after = decide(POLICY, reading(replicas=1, ready_pods=1), blind.history, NOW)
        assert (blind.applied, after.applied) == (1, 1)

    def test_an_empty_pool_stays_empty(self):
        decision = decide(POLICY, reading(), History(), NOW)
        assert (decision.applied, decision.reason) == (0, Want.NOTHING_TO_DO)


class TestHolding:
    @pytest.mark.parametrize(
        "signals", [Blind(cause="connection refused", replicas=7), reading(NOW - seconds(31), replicas=7)]
    )
    def test_without_a_fresh_reading_the_size_stays(self, signals):
        """O18, P9: blind, or stale, holds; neither zero nor the maximum."""
        decision = decide(POLICY, signals, watched(replicas=7), NOW)
        assert (decision.applied, decision.reason, decision.blind) == (7, Want.SIGNAL_LOST, True)

    def test_the_sentence_says_since_when_and_why(self):
        first = decide(POLICY, Blind(cause="database main: connection refused", replicas=7), History(), NOW)
        later = decide(
            POLICY, Blind(cause="database main: connection refused", replicas=7), first.history, NOW + seconds(40)
        )
        assert "database main: connection refused (for 40 s)" in later.sentence

    def test_the_users_own_minimum_is_kept_even_when_blind(self):
        assert decide(replace(POLICY, minimum=2), Blind(), History(), NOW).applied == 2

    def test_mode_hold_holds(self):
        decision = decide(
            replace(POLICY, mode=Mode.HOLD),
            reading(runnable=500, oldest_runnable=seconds(99), replicas=2),
            History(),
            NOW,
        )
        assert (decision.applied, decision.reason) == (2, Want.HOLD)

    def test_an_up_window_waits_until_more_was_wanted_throughout(self):
        policy = replace(POLICY, up=StepPolicy(window=seconds(30)))
        more = reading(runnable=40, oldest_runnable=seconds(29), replicas=1, ready_pods=1)
        decision = decide(policy, more, watched(replicas=1), NOW)
        assert (decision.applied, decision.rate_limited_by) == (1, RateLimitedBy.UP_WINDOW)
        steady = watched(replicas=1, recommended=9)
        assert decide(policy, more, steady, NOW).applied == 9
        short = watched(replicas=1, since=seconds(10), recommended=9)
        assert decide(policy, more, short, NOW).applied == 1, "not watched for the whole window yet"
        larger = replace(more, replicas=5, ready_pods=5)
        assert decide(policy, larger, watched(replicas=5, recommended=2), NOW).applied == 5, "waiting is not shrinking"


def test_the_chain_of_reasons_is_told_in_one_sentence():
    """P8: a size that nobody can explain is a wrong size."""
    cap = Cap(reason=LimitedBy.PROVIDER_QUOTA, slots=8, sentence="8 of 40 concurrent calls of quota platform/model-api")
    decision = decide(POLICY, reading(runnable=60, oldest_runnable=seconds(12), caps=(cap,)), History(), NOW)
    assert decision.sentence == (
        "from 0 to 2 pods: 60 tasks can run, the oldest for 12 s (in the 18 s left of targetAge 30 s), an assumed 30 s each, "
        "beside 0 busy slots: 53 slots; 8 of 40 concurrent calls of quota platform/model-api"
    )
    assert [(s.reason, s.before, s.after) for s in decision.steps] == [("Backlog", 0, 14), ("ProviderQuota", 14, 2)]
