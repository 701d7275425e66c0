"""What `down.window` keeps: peaks that were short are forgotten where pods come in time, and few pods are not worth a change (O17, ADR 0037)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.scaling import decide
from poolkeeper_operator.decide.signals import ScalingPolicy, Signals, StepPolicy

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
POLICY = ScalingPolicy(maximum=20, concurrency=4, down=StepPolicy(window=timedelta(seconds=120)))


def seconds(count):
    return timedelta(seconds=count)


def watched(*wanted):
    """Of a pool of 20 that has been watched for an hour: what was wanted since, as (seconds ago, pods)."""
    history = History()
    for ago, pods in ((3600, wanted[0][1]), *wanted):
        history = history.extended(
            now=NOW - seconds(ago), recommended=pods, applied=20, was=20, idle=False, keep=timedelta(hours=1)
        )
    return history


def goal(history, *, start_up=10, up=0):
    still = Signals(read_at=NOW, runnable=0, replicas=20, ready_pods=20, start_up=seconds(start_up))
    return decide(replace(POLICY, up=StepPolicy(window=seconds(up))), still, history, NOW).goal


@pytest.mark.parametrize(
    ("peak", "start_up", "up", "pods"),
    [
        (35, 10, 0, 7),  # forgotten: for three fifths of two minutes 7 pods were enough
        (55, 10, 0, 20),  # it lasted for over two fifths
        (35, 25, 0, 7),  # a pod takes 25 s and could be asked for after 5: just in time
        (35, 26, 0, 20),  # too late, so nothing is forgotten
        (35, 15, 10, 7),  # nor where growing waits for a window of its own
        (35, 15, 11, 20),
    ],
)
def test_a_short_peak_keeps_nothing_where_pods_come_in_time(peak, start_up, up, pods):
    """Up to half a minute ago 20 pods were wanted for a moment, before and after it 7."""
    history = watched((125, 7), (30 + peak, 20), (30, 7), (5, 7))
    assert goal(history, start_up=start_up, up=up) == pods


@pytest.mark.parametrize(("usual", "pods"), [(17, 20), (16, 16)])
def test_less_than_a_sixth_waits_for_the_whole_window(usual, pods):
    """No flapping: sizes follow chance by a few."""
    assert goal(watched((120, 20), (115, usual), (5, usual))) == pods
