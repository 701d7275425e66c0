"""Who goes when a pool shrinks (O17)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from poolkeeper_operator.decide.victims import PodState, plan

BORN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def pod(name, **more):
    """A pod; one that is marked carries its cost unless that is said."""
    return PodState(
        **{"name": name, "created_at": BORN, "costed": more.get("marked", False) and not more.get("busy")} | more
    )


def idle(name, seconds=60, **more):
    return pod(name, idle_for=timedelta(seconds=seconds), **more)


def test_idle_pods_go_before_busy_ones_though_the_busy_are_newest():
    pods = [pod("busy", busy=1, created_at=BORN + timedelta(hours=1)), idle("idle")]
    assert plan(pods, goal=1, replicas=2).mark == ("idle",)


def test_the_longest_idle_goes_first():
    pods = [idle("short", 5), idle("long", 500), idle("middle", 50)]
    assert plan(pods, goal=1, replicas=3).mark == ("long", "middle")


def test_the_count_is_lowered_only_after_the_victim_was_seen_marked_idle_and_with_its_cost():
    """O17: between the marking and the lowering nothing can have been claimed."""
    first = plan([idle("a", costed=False), idle("b", 5, costed=False)], goal=1, replicas=2)
    assert (first.mark, first.costs, first.replicas) == (("a",), ("a",), 2)
    unread = plan([idle("a", marked=True, costed=False), idle("b", 5, costed=False)], goal=1, replicas=2)
    assert unread.replicas == 2
    second = plan([idle("a", marked=True), idle("b", 5, costed=False)], goal=1, replicas=2)
    assert (second.mark, second.costs, second.replicas) == ((), ("a",), 1)


def test_an_idle_pod_that_may_still_claim_is_not_counted_out():
    """It carries its cost, but the mark was not seen yet: it may claim in the next moment."""
    assert plan([idle("a"), idle("b", 5)], goal=1, replicas=2).replicas == 2


def test_a_victim_that_claimed_in_the_last_moment_keeps_its_pod():
    assert plan([pod("a", busy=1, marked=True), pod("b", busy=1)], goal=1, replicas=2).replicas == 2


def test_a_busy_pod_in_excess_is_marked_carries_no_cost_and_goes_when_idle():
    pods = [pod("light", busy=1), pod("heavy", busy=4)]
    first = plan(pods, goal=1, replicas=2)
    assert (first.mark, first.costs, first.replicas) == (("light",), (), 2)
    done = plan([idle("light", 1, marked=True), pods[1]], goal=1, replicas=2)
    assert done.replicas == 1


def test_one_that_cannot_start_goes_before_all_others():
    late = {"has_session": False, "phase": "Pending", "ready": False}
    pods = [idle("idle", 500), pod("stuck", stuck=True, costed=True, **late), pod("starting", **late)]
    answer = plan(pods, goal=2, replicas=3)
    assert (answer.mark, answer.costs, answer.replicas) == ((), ("stuck",), 2), "nobody to tell: it has no session"


def test_a_busy_pod_that_is_not_ready_keeps_the_size_up_for_the_controller_would_take_it_first():
    """O17: readiness stands above the deletion cost; a handler that blocks its event loop makes such a pod."""
    pods = [idle("a", marked=True), pod("b", busy=1, ready=False), pod("c", busy=1)]
    assert plan(pods, goal=2, replicas=3).may_go == 0
    assert plan([pods[0], replace(pods[1], ready=True), pods[2]], goal=2, replicas=3).may_go == 1


def test_an_idle_pod_that_is_not_ready_goes_before_one_that_is():
    """The controller would take it first whatever it costs."""
    pods = [idle("ready", 500), idle("unready", 5, ready=False)]
    assert plan(pods, goal=1, replicas=2).mark == ("unready",)


def test_one_that_carries_a_cost_and_works_keeps_the_size_up():
    """It claimed in the last moment: among those with a cost the controller takes the newest."""
    pods = [idle("a", marked=True), pod("b", busy=1, marked=True, costed=True)]
    assert plan(pods, goal=0, replicas=2).may_go == 0


def test_one_that_is_wanted_again_and_still_carries_its_cost_keeps_the_size_up():
    """It claims from this moment on."""
    pods = [idle("a", 500, marked=True), idle("b", 5, marked=True), pod("c", busy=1)]
    answer = plan(pods, goal=2, replicas=3)
    assert (answer.unmark, answer.may_go) == (("b",), 0)


def test_marks_are_taken_back_when_the_pool_is_to_stay_or_grow():
    pods = [idle("a", marked=True), idle("b")]
    assert plan(pods, goal=2, replicas=2).unmark == ("a",)
    grown = plan(pods, goal=5, replicas=2)
    assert (grown.unmark, grown.replicas, grown.costs) == (("a",), 5, ())


def test_a_victim_once_chosen_stays_one():
    pods = [idle("a", 10, marked=True), idle("b", 500)]
    answer = plan(pods, goal=1, replicas=2)
    assert (answer.mark, answer.unmark) == ((), ())


def test_replicas_that_have_no_pod_yet_go_without_marking_anybody():
    answer = plan([pod("a", busy=1)], goal=1, replicas=4)
    assert (answer.mark, answer.replicas) == ((), 1)


states = st.builds(
    lambda name, age, busy, marked, session, costed, ready, phase: PodState(
        name=f"p{name}",
        created_at=BORN + timedelta(seconds=age),
        busy=busy if session else 0,
        marked=marked and session,
        has_session=session,
        costed=costed,
        ready=ready,
        phase=phase,
        idle_for=timedelta(seconds=age) if session and not busy else None,
    ),
    st.integers(0, 10_000),
    st.integers(0, 1000),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["Pending", "Running"]),
)
crowds = st.lists(states, max_size=12, unique_by=lambda p: p.name)


@given(crowds, st.integers(0, 15), st.integers(0, 15))
def test_the_count_is_never_lowered_below_the_goal_or_by_more_than_those_who_may_go(pods, goal, replicas):
    answer = plan(pods, goal=goal, replicas=replicas)
    assert min(goal, replicas) <= answer.replicas <= max(goal, replicas)
    gone = replicas - answer.replicas
    free = sum(p.may_go for p in pods) + max(0, replicas - len(pods))
    assert gone <= free


@given(crowds, st.integers(0, 12))
def test_no_busy_pod_is_marked_while_an_idle_one_is_spared(pods, goal):
    pods = [replace(p, marked=False) for p in pods]
    answer = plan(pods, goal=goal, replicas=len(pods))
    by_name = {p.name: p for p in pods}
    chosen = {*answer.mark, *answer.costs}
    if any(by_name[name].busy for name in answer.mark):
        assert all(p.busy for p in pods if p.has_session and p.name not in chosen)


@given(crowds, st.integers(0, 12))
def test_nobody_gets_a_cost_in_the_pass_that_lowers(pods, goal):
    """Who gets one now may have claimed since the reading, and would be taken with the others."""
    answer = plan(pods, goal=goal, replicas=len(pods))
    if answer.going:
        assert set(answer.costs) <= {p.name for p in pods if p.costed}


@given(crowds, st.integers(0, 12))
def test_no_pod_that_could_meet_work_carries_a_cost(pods, goal):
    by_name = {p.name: p for p in pods}
    assert all(by_name[name].busy == 0 for name in plan(pods, goal=goal, replicas=len(pods)).costs)
