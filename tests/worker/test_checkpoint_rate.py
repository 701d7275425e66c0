"""Q30: how often a checkpoint is written is the queue's policy, not the worker's."""

import pytest

from fixtures.workers import Stage


@pytest.mark.parametrize("per_second", [1, 1000])
def test_the_policys_rate_bounds_the_checkpoints(stage: Stage, per_second: int) -> None:
    """30 in one breath: with one a second the newest is kept, with a thousand all are durable at once."""
    stage.apply(checkpoint={"max_per_second": per_second})
    stage.worker().ready()
    view = stage.ends(stage.submit("t.saves", list(range(30))))
    assert view.result[0] == 29
    durable = view.result[1:].count(True)
    assert durable == 30 if per_second == 1000 else durable < 10
