"""When retries are said to storm a queue (Q13)."""

from datetime import timedelta

import pytest

from poolkeeper_operator.decide.storm import LONG, storms

YOUNG, OLD = LONG - timedelta(seconds=1), LONG


@pytest.mark.parametrize("was", [False, True])
@pytest.mark.parametrize(
    ("held", "oldest", "says"),
    [(5, OLD, True), (0, None, False), (0, YOUNG, False), (5, YOUNG, None), (0, OLD, None), (5, None, None)],
)
def test_what_is_said_changes_only_when_both_signs_agree(was: bool, held: int, oldest: timedelta | None, says: bool | None) -> None:  # fmt: skip
    assert storms(was, held, oldest) is (was if says is None else says)
