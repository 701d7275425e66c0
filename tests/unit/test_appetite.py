"""Q16: claims are sized to free slots; ahead of them at most one turn of work of handlers seen to be short."""

from hypothesis import given
from hypothesis import strategies as st

from poolkeeper.worker.appetite import MOST_AHEAD, SEEN, SHORT, appetite, one_turn_of_work

counts = st.integers(0, 2000)


@given(capacity=st.integers(1, 2000), busy=counts)
def test_without_short_handlers_exactly_the_free_slots_are_asked_for(capacity: int, busy: int) -> None:
    """Q16: nothing is leased ahead."""
    asked = appetite(capacity=capacity, busy=busy, leased=0, one_turn=0)
    assert (asked.starts, asked.slots, asked.want) == (0, max(0, capacity - busy), max(0, capacity - busy))


@given(capacity=st.integers(1, 2000), busy=counts, leased=counts, one_turn=st.integers(0, MOST_AHEAD))
def test_never_more_than_slots_and_two_turns_of_work_are_here(
    capacity: int, busy: int, leased: int, one_turn: int
) -> None:
    """Q16: one turn of it started, one leased; never hoarded."""
    asked = appetite(capacity=capacity, busy=busy, leased=leased, one_turn=one_turn)
    assert 0 <= asked.starts <= leased
    assert 0 <= asked.slots <= asked.want
    assert asked.starts == 0 or busy + asked.starts <= capacity + one_turn
    assert asked.slots == 0 or busy + asked.starts + asked.slots <= capacity
    ahead = leased - asked.starts + asked.want - asked.slots
    assert ahead <= max(one_turn, leased - asked.starts)


@given(capacity=st.integers(1, 2000), finished=counts, typical=st.floats(0, 100), turn=st.floats(0, 0.1))
def test_a_turn_of_work_is_what_the_slots_finish_meanwhile(
    capacity: int, finished: int, typical: float, turn: float
) -> None:
    """Q16: little is known, or long handlers: nothing."""
    work = one_turn_of_work(capacity=capacity, finished=finished, typical=typical, turn=turn)
    assert 0 <= work <= MOST_AHEAD
    if finished < SEEN or typical > SHORT:
        assert work == 0
    elif typical > 0:
        assert work <= capacity * turn / typical + 1
