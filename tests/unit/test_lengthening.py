"""When the operator itself rolls a pool out for a longer grace, and how that is written (O21, C28)."""

import copy
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolkeeper_operator.act import children, pacing
from poolkeeper_operator.decide.grace import Drain, GracePolicy, grace
from poolkeeper_operator.decide.lengthening import CUTS, INTERVAL, lengthen
from poolkeeper_operator.decide.reasons import LengthenReason
from poolkeeper_operator.resources import DatabaseSpec, WorkerPoolSpec

NOW = datetime(2026, 11, 29, 20, 0, tzinfo=UTC)
PRESENT = timedelta(seconds=90)
DATABASE = DatabaseSpec.model_validate({"dsnSecretRef": {"name": "pk-main"}})


def cut(count, *, promised=90.0, after=86.0):
    return [Drain(after, truncated=True, promised=promised)] * count


def answer(drains, *, present=PRESENT, rolling=False, last=None, policy=None):
    return lengthen(
        grace(policy or GracePolicy(), drains, present), drains, present, rolling=rolling, last=last, now=NOW
    )


def test_several_drains_cut_by_the_present_grace_make_a_rollout_due():
    found = answer(cut(CUTS))
    assert (found.due, found.reason, found.grace) == (True, LengthenReason.DRAINS_CUT, timedelta(seconds=180))
    assert found.pause == PRESENT
    assert (
        found.sentence
        == "grace 90 s to 180 s: 3 drains were cut by the present grace of 90 s: rolled out, a pod every 90 s"
    )


@pytest.mark.parametrize(
    ("reason", "drains", "more"),
    [
        (LengthenReason.FEW_CUTS, cut(CUTS - 1), {}),
        (LengthenReason.FEW_CUTS, cut(CUTS - 1) + [Drain(500, truncated=False, promised=90.0)] * 9, {}),
        (LengthenReason.FEW_CUTS, cut(9, promised=60.0), {}),  # by an older template, or by a node that gave less
        (LengthenReason.FEW_CUTS, [Drain(86, truncated=True)] * 9, {}),  # nobody knows what those had
        (LengthenReason.LONG_ENOUGH, [Drain(20, truncated=False, promised=90.0)] * 50, {}),
        (LengthenReason.LONG_ENOUGH, cut(9), {"policy": GracePolicy(maximum=PRESENT)}),
        (LengthenReason.LONG_ENOUGH, cut(9), {"policy": GracePolicy(maximum=timedelta(seconds=60))}),
        (LengthenReason.ROLLING, cut(9), {"rolling": True}),
        (LengthenReason.TOO_SOON, cut(9), {"last": NOW - INTERVAL + timedelta(seconds=1)}),
        (LengthenReason.DRAINS_CUT, cut(9), {"last": NOW - INTERVAL}),
        (LengthenReason.DRAINS_CUT, cut(9, promised=120.0), {}),
    ],
)
def test_otherwise_the_longer_grace_waits_for_the_user(reason, drains, more):
    found = answer(drains, **more)
    assert (found.reason, found.due) == (reason, reason is LengthenReason.DRAINS_CUT)


@given(
    st.lists(st.builds(Drain, st.floats(0, 4000), st.booleans(), st.none() | st.floats(1, 4000)), max_size=40),
    st.integers(1, 4000).map(lambda n: timedelta(seconds=n)),
)
def test_it_is_never_due_for_a_shorter_grace_nor_without_cuts_of_this_one(drains, present):
    found = answer(drains, present=present)
    mine = [d for d in drains if d.truncated and d.promised is not None and d.promised >= present.total_seconds()]
    assert not found.due or (found.grace > present and len(mine) >= CUTS)


def test_its_own_rollout_never_causes_the_next():
    """C28: what a rollout drains are pods of the shorter grace, and they are cut like the others."""
    drains, present, rollouts = cut(CUTS), PRESENT, 0
    for _ in range(20):
        found = answer(drains, present=present)
        if found.due:
            rollouts += 1
            drains = [*drains, *cut(10, promised=present.total_seconds(), after=present.total_seconds() - 4)]
            present = found.grace
    assert rollouts == 1


def live(**changes):
    """A Deployment in force with a grace of 90 s."""
    spec = WorkerPoolSpec.model_validate(SPEC)
    made = children.build_deployment(POOL, spec, DATABASE, live=None, grace_seconds=90)
    made["metadata"] |= {"generation": 4, "resourceVersion": "7", "managedFields": []}
    made["spec"] |= {"progressDeadlineSeconds": 600, "replicas": 3}
    made["status"] = {"observedGeneration": 4, "replicas": 3, "updatedReplicas": 3}
    return made | changes


SPEC = {
    "queues": [{"name": "agents"}],
    "app": "my_agent:app",
    "template": {"image": "localhost/my-agent:1"},
    "rollout": {"maxSurge": 5, "maxUnavailable": 2},
}
POOL = {
    "apiVersion": "poolkeeper.dev/v1alpha1",
    "kind": "WorkerPool",
    "metadata": {"namespace": "team-a", "name": "agents", "uid": "u-1", "generation": 1},
}


def build(seen, *, begin=False, grace_seconds=180, **changes):
    spec = WorkerPoolSpec.model_validate({**copy.deepcopy(SPEC), **changes})
    how = (answer(cut(9)), NOW) if begin else None
    return children.build_deployment(POOL, spec, DATABASE, live=seen, grace_seconds=grace_seconds, lengthen=how)


def rolled(wanted, **status):
    """As the API server has it afterwards."""
    seen = copy.deepcopy(wanted)
    seen["metadata"] |= {"generation": 5, "resourceVersion": "8", "managedFields": []}
    seen["spec"]["replicas"] = 3
    return seen | {"status": {"observedGeneration": 5, "replicas": 4, "updatedReplicas": 1, **status}}


def test_only_the_grace_of_the_template_moves_and_a_pod_at_a_time():
    before = live()
    wanted = build(before, begin=True)
    expected = copy.deepcopy(before["spec"]["template"])
    expected["spec"]["terminationGracePeriodSeconds"] = 180
    for variable in expected["spec"]["containers"][0]["env"]:
        if variable["name"] == "POOLKEEPER_GRACE_PERIOD":
            variable["value"] = "180"
    assert wanted["spec"]["template"] == expected
    assert wanted["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert (wanted["spec"]["minReadySeconds"], wanted["spec"]["progressDeadlineSeconds"]) == (90, 690)


def test_it_goes_on_until_the_last_pod_and_then_everything_is_as_the_user_says():
    wanted = build(live(), begin=True)
    for status in ({"observedGeneration": 4, "replicas": 3, "updatedReplicas": 3}, {}, {"updatedReplicas": 3}):
        assert children.changed(rolled(wanted, **status), build(rolled(wanted, **status))) is None
    done = rolled(wanted, replicas=3, updatedReplicas=3)
    after = build(done)
    assert after["spec"]["template"] == wanted["spec"]["template"]
    assert after["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 5, "maxUnavailable": 2}
    assert (after["spec"]["minReadySeconds"], after["spec"]["progressDeadlineSeconds"]) == (0, 600)
    settled = rolled(after, replicas=3, updatedReplicas=3)
    del settled["spec"]["minReadySeconds"]  # as the API server shows a 0
    assert children.changed(settled, build(settled)) is None
    ended = pacing.last(settled)
    assert ended is not None
    assert ended.at == NOW


def test_a_change_of_the_user_takes_over_at_the_users_pace():
    wanted = build(live(), begin=True)
    theirs = build(rolled(wanted), app="my_agent:new", grace_seconds=300)
    assert theirs["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 300
    assert theirs["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 5, "maxUnavailable": 2}
    assert theirs["spec"]["minReadySeconds"] == 0
    both = build(live(), begin=True, app="my_agent:new", grace_seconds=300)
    assert pacing.NOTE not in both["metadata"]["annotations"]


@pytest.mark.parametrize("told", ["", "{}", "[]", '{"at": "never", "template": "x", "pause": 1}', '{"at": 5}'])
def test_a_note_that_makes_no_sense_is_none(told):
    seen = live()
    seen["metadata"]["annotations"][pacing.NOTE] = told
    assert pacing.last(seen) is None
    assert "minReadySeconds" not in build(seen)["spec"]
