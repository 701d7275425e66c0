"""What nodes allow, compared with what drains need (O22)."""

from datetime import timedelta

import pytest
from click.testing import CliRunner

from poolkeeper_operator.cli import operator
from poolkeeper_operator.decide.allowance import Allowance, exceeded, tightest
from poolkeeper_operator.decide.grace import Drain, GracePolicy, grace
from poolkeeper_operator.nodegrace import NodeGrace

GKE = {"cloud.google.com/gke-spot": "true"}
EKS = {"eks.amazonaws.com/capacityType": "SPOT"}
TEN_MINUTES = Allowance(timedelta(minutes=10))


def seconds(nodes, *said):
    found = tightest(nodes, said)
    return None if found is None else found.most.total_seconds()


def test_nothing_is_known_of_ordinary_nodes():
    assert seconds([{}, {"eks.amazonaws.com/capacityType": "ON_DEMAND"}]) is None


def test_the_tightest_of_the_nodes_that_the_pool_is_on_counts():
    assert seconds([EKS]) == 120
    assert seconds([EKS, {}, GKE]) == 15


def test_what_is_said_of_all_nodes_holds_beside_what_is_documented_of_some():
    assert seconds([], TEN_MINUTES) == 600
    assert seconds([{}], TEN_MINUTES) == 600
    assert seconds([{}, EKS], TEN_MINUTES) == 120


def test_what_is_said_of_a_label_wins_over_what_is_documented_of_it():
    """A node pool of GKE may be given two minutes."""
    said = Allowance(timedelta(minutes=2), "cloud.google.com/gke-spot", "true")
    assert seconds([GKE], said) == 120
    assert seconds([EKS], Allowance(timedelta(minutes=5), "karpenter.sh/nodepool", "batch")) == 120


def drains(count, taken):
    return grace(GracePolicy(), [Drain(taken, False)] * count, None)


def test_only_measured_drains_exceed_it():
    """A safe default says nothing about the work."""
    least = Allowance(timedelta(seconds=30))
    assert not exceeded(drains(0, 0), least)
    assert not exceeded(drains(3, 1), least)
    assert exceeded(drains(30, 60), least)
    assert not exceeded(drains(30, 60), Allowance(timedelta(seconds=95)))
    assert not exceeded(drains(30, 60), None)


@pytest.mark.parametrize(
    ("text", "label", "value", "most"),
    [
        ("10m", "", "", 600),
        ("karpenter.sh/nodepool=batch:5m", "karpenter.sh/nodepool", "batch", 300),
        ("a=b:1m30s", "a", "b", 90),
    ],
)
def test_how_it_is_said(text, label, value, most):
    assert NodeGrace().convert(text, None, None) == Allowance(timedelta(seconds=most), label, value)


@pytest.mark.parametrize(
    "text", ["", "10", "0s", "a=b", "a=b:", "=b:5m", "a:5m", "a b=c:5m", "a=b:5m:6m", "10m,5m", "\x00"]
)
def test_what_it_cannot_be_is_named_with_the_form(text):
    answer = CliRunner().invoke(operator, ["--node-grace", text])
    assert answer.exit_code == 2
    assert "karpenter.sh/nodepool=batch:5m" in answer.output
