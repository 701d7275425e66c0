"""Q48: when a drain does what, and what it reports."""

from hypothesis import given
from hypothesis import strategies as st

from poolkeeper.worker.drain import Drain

seconds = st.floats(0.1, 10_000)


@given(began=seconds, grace=seconds, share=st.floats(0, 0.5))
def test_the_moments_of_a_drain_are_in_order_and_within_the_grace(began: float, grace: float, share: float) -> None:
    """Q48: hand back, force, give up, each before the kubelet kills."""
    drain = Drain(began, grace, grace * share, started=1)
    moments = [began, drain.hand_back_at, drain.force_at, drain.give_up_at, began + grace]
    assert moments == sorted(moments)


@given(grace=seconds, real=seconds)
def test_a_shorter_real_grace_is_heeded_a_longer_one_is_not(grace: float, real: float) -> None:
    """Q48: whoever promises more than the pod has loses work."""
    drain = Drain(0.0, grace, grace / 2, started=1)
    drain.shorten(real)
    assert drain.grace == min(grace, real)
    assert drain.hand_back_at >= 0


def test_the_report_counts_what_ended_by_itself() -> None:
    """Q48: started = finished + handed back + abandoned."""
    drain = Drain(100.0, 30.0, 5.0, started=10)
    drain.handed_back = 3
    drain.truncated = True
    report = drain.report(125.5, abandoned=1)
    assert report == {
        "duration_seconds": 25.5,
        "started": 10,
        "finished": 6,
        "handed_back": 3,
        "abandoned": 1,
        "truncated": True,
        "grace_seconds": 30.0,
    }
