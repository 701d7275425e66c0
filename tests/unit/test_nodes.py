"""Which pods are on nodes that are about to go, and how large a pool is beside them (O23)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.reasons import LimitedBy, Want
from poolkeeper_operator.decide.scaling import decide, recompute
from poolkeeper_operator.decide.signals import ScalingPolicy, Signals
from poolkeeper_operator.decide.victims import PodState, plan
from poolkeeper_operator.observe.nodes import leaving, trimmed

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
DEFAULTS = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for what in ("not-ready", "unreachable")
]


def node(*taints: tuple[str, str], **spec: Any) -> dict[str, Any]:
    return {"spec": {"taints": [{"key": key, "effect": effect} for key, effect in taints], **spec}}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (node(unschedulable=True), "cordoned"),
        (node(("ToBeDeletedByClusterAutoscaler", "NoSchedule")), "taint ToBeDeletedByClusterAutoscaler"),
        (node(("karpenter.sh/disrupted", "NoSchedule")), "taint karpenter.sh/disrupted"),
        (node(("aws-node-termination-handler/spot-itn", "NoExecute")), "taint aws-node-termination-handler/spot-itn"),
        (node(("node.kubernetes.io/out-of-service", "NoExecute")), "taint node.kubernetes.io/out-of-service"),
        (node(("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule")), ""),
        (node(("node.kubernetes.io/unreachable", "NoExecute")), ""),
        (node(("node.kubernetes.io/not-ready", "NoSchedule")), ""),
        (node(("node.kubernetes.io/memory-pressure", "NoSchedule")), ""),
        (node(), ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_what_makes_a_node_go(given: dict[str, Any] | None, why: str) -> None:
    """Cordons and taints of scalers, clouds and people; not what a node says of its health."""
    assert leaving(given, DEFAULTS) == why


@pytest.mark.parametrize(
    ("toleration", "goes"),
    [
        ({"key": "dedicated", "operator": "Equal", "value": "batch", "effect": "NoSchedule"}, False),
        ({"key": "dedicated", "value": "batch"}, False),
        ({"key": "dedicated", "operator": "Exists"}, False),
        ({"operator": "Exists"}, False),
        ({"key": "dedicated", "operator": "Equal", "value": "other"}, True),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "dedicated", "operator": "Exists", "tolerationSeconds": 60}, True),
        ({"key": "other", "operator": "Exists"}, True),
    ],
)
def test_a_taint_that_the_pod_tolerates_for_good_is_none(toleration: dict[str, Any], goes: bool) -> None:
    """A pool that is meant for tainted nodes works there."""
    tainted = {"spec": {"taints": [{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}]}}
    assert bool(leaving(tainted, [toleration])) is goes


def test_what_the_autoscaler_is_to_delete_goes_whatever_is_tolerated() -> None:
    assert leaving(node(("ToBeDeletedByClusterAutoscaler", "NoSchedule")), [{"operator": "Exists"}])


def test_of_a_node_only_that_is_kept() -> None:
    assert trimmed({"spec": {"podCIDR": "10.0.0.0/24", "unschedulable": True}, "status": {"images": [1]}}) == {
        "unschedulable": True
    }


@pytest.mark.parametrize(
    ("status", "message", "goes"),
    [
        ("False", "node is shutting down", True),
        ("False", "[container runtime is down, node is shutting down]", True),
        ("False", "container runtime is down", False),
        ("True", "node is shutting down", False),
        ("Unknown", "Kubelet stopped posting node status.", False),
    ],
)
def test_a_kubelet_that_shuts_down_says_so(status: str, message: str, goes: bool) -> None:
    """O20: in its condition Ready."""
    said = {"status": {"conditions": [{"type": "Ready", "status": status, "message": message}]}}
    assert leaving({"spec": trimmed(said)}, DEFAULTS) == ("shutting down" if goes else "")


def pod(name: str, **more: Any) -> PodState:
    idle = None if more.get("busy") else timedelta(seconds=60)
    return PodState(**{"name": name, "created_at": NOW, "idle_for": idle, **more})


def test_those_on_such_nodes_are_marked_and_stay_so_though_nobody_has_to_go() -> None:
    pods = [pod("a", leaving=True), pod("b", leaving=True, marked=True, busy=1), pod("c", marked=True), pod("d")]
    answer = plan(pods, goal=4, replicas=4)
    assert (answer.mark, answer.unmark, answer.costs) == (("a",), ("c",), ())


def test_a_pod_without_a_session_is_marked_when_it_has_one() -> None:
    assert plan([pod("a", leaving=True, has_session=False)], goal=1, replicas=1).mark == ()


def test_of_idle_pods_those_go_first_and_a_busy_one_does_not_because_of_its_mark() -> None:
    """Idle first stands above that."""
    pods = [pod("old"), pod("on it", leaving=True, marked=True), pod("busy", leaving=True, marked=True, busy=1)]
    assert plan(pods, goal=2, replicas=3).costs == ("on it",)
    assert plan([pods[0], pods[2]], goal=1, replicas=2).costs == ("old",)


POLICY = ScalingPolicy(maximum=4, concurrency=2)


def reading(**more: Any) -> Signals:
    return Signals(
        **{
            "read_at": NOW,
            "runnable": 0,
            "running": 4,
            "busy": 4,
            "busy_pods": 2,
            "replicas": 2,
            "ready_pods": 2,
            **more,
        }
    )


def sized(policy: ScalingPolicy = POLICY, **more: Any) -> Any:
    decision = decide(policy, reading(**more), History(), NOW)
    assert recompute(decision.as_record()["inputs"]) == decision
    return decision


def test_others_take_the_place_of_those_that_claim_nothing_more() -> None:
    """Two of three pods' worth of work waits; an idle pod on such a node is none of them."""
    asked = sized(runnable=20, oldest_runnable=timedelta(seconds=40)).wanted
    beside = sized(runnable=20, oldest_runnable=timedelta(seconds=40), leaving_pods=1, ready_pods=1, replicas=3)
    assert asked < beside.wanted
    assert (beside.reason, beside.wanted) == (
        Want.NODES_LEAVING,
        sized(runnable=20, oldest_runnable=timedelta(seconds=40), ready_pods=1, replicas=3).wanted + 1,
    )
    assert "1 pod on nodes that are about to go" in beside.sentence


def test_what_runs_there_ends_there() -> None:
    """A full pod on such a node is not replaced while nothing waits for its slots."""
    assert sized(leaving_pods=1, leaving_busy_pods=1, leaving_busy=2, ready_pods=1).wanted == 2


def test_once_others_are_there_the_idle_ones_go() -> None:
    """So that a node that stays cordoned keeps nobody."""
    assert sized(leaving_pods=1, ready_pods=2, replicas=3).wanted == 2


def test_the_minimum_stands_on_nodes_that_stay() -> None:
    least = replace(POLICY, minimum=2)
    assert sized(least, running=0, busy=0, busy_pods=0, leaving_pods=2, ready_pods=0).wanted == 4


def test_they_do_not_count_for_the_maximum() -> None:
    """They start nothing: as those that a rollout drains."""
    decision = sized(runnable=500, oldest_runnable=timedelta(seconds=40), leaving_pods=2, ready_pods=0)
    assert (decision.limited, decision.limited_by) == (6, LimitedBy.MAXIMUM)


def test_at_the_maximum_the_idle_ones_go_once_others_are_there_though_more_waits() -> None:
    """A node that stays cordoned keeps nobody, and the maximum holds again."""
    decision = sized(runnable=500, oldest_runnable=timedelta(seconds=40), leaving_pods=1, ready_pods=4, replicas=5)
    assert (decision.limited, decision.limited_by) == (4, LimitedBy.MAXIMUM)


def test_an_empty_pool_goes_to_zero_beside_them() -> None:
    idle = History(idle_since=NOW - timedelta(hours=1))
    decision = decide(POLICY, reading(running=0, busy=0, busy_pods=0, leaving_pods=2, ready_pods=0), idle, NOW)
    assert decision.wanted == 0
