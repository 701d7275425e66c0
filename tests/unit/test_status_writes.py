"""Which changes of a status are written at once, which wait, and which are none (O2, O33)."""

from typing import Any

import pytest

from poolkeeper_operator.act.status import EVERY, StatusWriter, same, urgent
from poolkeeper_operator.runtime.kinds import QUEUE


def status(ready=1, reason="PolicyApplied", **more):
    condition = {"type": "Ready", "status": "True", "reason": reason, "message": f"{ready} ready"}
    return {"observedGeneration": 1, "depth": {"ready": ready}, "conditions": [condition], **more}


class Api:
    """Notes what is written; no server is needed to see whether a write happens."""

    def __init__(self):
        self.written = []

    async def apply_status(self, _resource, _namespace, _name, status):
        self.written.append(status)
        return {"metadata": {"namespace": "ns", "name": "q", "uid": "u"}, "status": status}


def writing(api: Any, clock: Any) -> StatusWriter:
    return StatusWriter(api, clock)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def manifest(present):
    return {"metadata": {"namespace": "ns", "name": "q", "uid": "u", "generation": 1}, "status": present}


async def test_figures_that_move_are_written_at_most_every_half_minute():
    """Under traffic one write per object and 30 s, and the caller is told when to come again."""
    api, clock = Api(), Clock()
    writer = writing(api, clock)
    _, wait = await writer.write(QUEUE, manifest(status(1)), status(2))
    assert wait is None
    _, wait = await writer.write(QUEUE, manifest(status(2)), status(3))
    assert wait == EVERY
    clock.now += EVERY
    _, wait = await writer.write(QUEUE, manifest(status(2)), status(3))
    assert wait is None
    assert len(api.written) == 2


async def test_an_unchanged_status_is_never_written():
    """Neither if only empty parts differ."""
    api = Api()
    writer = writing(api, Clock())
    assert await writer.write(QUEUE, manifest(status(1)), {**status(1), "decisions": [], "grace": None}) == (None, None)
    assert api.written == []


async def test_a_transition_does_not_wait():
    """A changed condition is written although the last write was just now."""
    api, clock = Api(), Clock()
    writer = writing(api, clock)
    await writer.write(QUEUE, manifest(status(1)), status(2))
    await writer.write(QUEUE, manifest(status(2)), status(2, reason="NoOwner"))
    assert len(api.written) == 2


async def test_all_objects_together_write_a_few_times_a_second():
    """A thousand queues in traffic do not flood the API server (O33)."""
    api, clock = Api(), Clock()
    writer = writing(api, clock)
    for number in range(100):
        each = manifest(status(1))
        each["metadata"]["uid"] = str(number)
        await writer.write(QUEUE, each, status(2))
    assert len(api.written) == 5


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (status(1), status(9), False),
        (status(1), {**status(1), "observedGeneration": 2}, True),
        (status(1), {**status(1), "deadLetters": {"total": 1}}, True),
        ({**status(1), "deadLetters": {"total": 1}}, {**status(1), "deadLetters": {"total": 2}}, False),
        (status(1), status(1, depth={"ready": 1, "heldBack": {"noCapableWorker": 1}}), True),
        (
            status(1, depth={"ready": 2, "heldBack": {"noCapableWorker": 1, "isolation": 1}}),
            status(1, depth={"ready": 2, "heldBack": {"noCapableWorker": 2}}),
            False,
        ),
        (status(1), {**status(1), "decisions": [{"time": "now"}]}, True),
        ({"replicas": 1, "wanted": {"applied": 3}}, {"replicas": 2, "wanted": {"applied": 3}}, False),
        ({"replicas": 2, "wanted": {"applied": 3}}, {"replicas": 3, "wanted": {"applied": 3}}, True),
    ],
)
def test_transitions_are_urgent_and_figures_are_not(before, after, expected):
    """Conditions, generations, first dead letters, changed and reached sizes."""
    assert urgent(before, after) is expected


def test_empty_and_absent_are_the_same():
    """The API server may drop either."""
    assert same({"a": 1}, {"a": 1, "b": None, "c": {}, "d": []})
    assert not same({"a": 1}, {"a": 2})
