"""Each field of `spec.scaling`, written as a user writes it, changes the size that is decided; the same reading under two values."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.scaling import decide
from poolkeeper_operator.decide.signals import Signals
from poolkeeper_operator.resources import WorkerPoolSpec

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def size(scaling: dict[str, Any], *, replicas: int, idle: bool, **pool: Any) -> int:
    """The size after an hour of the same: 200 tasks that wait since 20 s, or nothing to do since three minutes."""
    spec = {
        "queues": [{"name": "q"}],
        "app": "m:app",
        "template": {"image": "i"},
        "concurrency": 4,
        "scaling": scaling,
        **pool,
    }
    policy = WorkerPoolSpec.model_validate(spec).scaling_policy(timedelta(seconds=5))
    busy_until = NOW - timedelta(minutes=3)
    past = History().extended(
        now=NOW - HOUR, recommended=replicas, applied=replicas, was=replicas, idle=False, keep=HOUR
    )
    past = past.extended(now=busy_until, recommended=replicas, applied=replicas, was=replicas, idle=False, keep=HOUR)
    if idle:
        for at in (busy_until + timedelta(seconds=5), NOW - timedelta(seconds=5)):
            past = past.extended(now=at, recommended=0, applied=replicas, was=replicas, idle=True, keep=HOUR)
    reading = Signals(
        read_at=NOW,
        runnable=0 if idle else 200,
        oldest_runnable=None if idle else timedelta(seconds=20),
        replicas=replicas,
        ready_pods=replicas,
    )
    return decide(policy, reading, past, NOW).goal


@pytest.mark.parametrize(
    ("one", "other", "sizes", "replicas", "idle"),
    [
        ({"max": 100, "mode": "Auto"}, {"max": 100, "mode": "Hold"}, (50, 2), 2, False),
        ({"min": 0}, {"min": 3}, (1, 3), 8, True),
        ({"max": 7}, {"max": 9}, (7, 9), 2, False),
        ({"max": 100, "targetAge": "30s"}, {"max": 100, "targetAge": "10m"}, (50, 28), 2, False),
        ({"max": 100, "up": {"window": "0s"}}, {"max": 100, "up": {"window": "5m"}}, (50, 2), 2, False),
        ({"max": 100}, {"max": 100, "up": {"maxStepPercent": 200}}, (50, 12), 4, False),
        ({"max": 100}, {"max": 100, "up": {"maxStepPods": 3}}, (50, 7), 4, False),
        ({"down": {"window": "1m"}}, {"down": {"window": "10m"}}, (1, 8), 8, True),
        ({"max": 40, "down": {"maxStepPercent": 25}}, {"max": 40, "down": {"maxStepPercent": 50}}, (30, 20), 40, True),
        ({"down": {"maxStepPods": 1}}, {"down": {"maxStepPods": 3}}, (7, 5), 8, True),
        ({"toZeroAfter": "10m"}, {"toZeroAfter": "1m"}, (1, 0), 8, True),
    ],
)
def test_a_field_of_scaling_changes_the_size(one, other, sizes, replicas, idle):
    assert (size(one, replicas=replicas, idle=idle), size(other, replicas=replicas, idle=idle)) == sizes


@pytest.mark.parametrize(
    ("one", "other", "sizes"), [({"concurrency": 4}, {"concurrency": 20}, (50, 10)), ({}, {"maxRunning": 12}, (50, 3))]
)
def test_slots_change_the_number_of_pods(one, other, sizes):
    found = tuple(size({"max": 100}, replicas=2, idle=False, **pool) for pool in (one, other))
    assert found == sizes
