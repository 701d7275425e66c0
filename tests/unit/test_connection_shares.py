"""How the connections of a database are divided among pools, in pods (O15)."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from poolkeeper_operator.decide.connections import Holding, divide, pods_of, room
from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.reasons import LimitedBy
from poolkeeper_operator.decide.scaling import decide, writable
from poolkeeper_operator.decide.signals import Cap, ScalingPolicy, Signals

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def pool(name, wanted, *, ceiling=100, replicas=0, living=None, leaving=0):
    living = replicas if living is None else living
    return Holding(pool=name, wanted=wanted, ceiling=ceiling, replicas=replicas, living=living, leaving=leaving)


def test_what_nobody_wants_is_handed_out_in_advance():
    """O13: from zero in one tick; with room for all nobody waits for a division."""
    assert divide(41, [pool("a", 0, ceiling=8), pool("b", 0, ceiling=9)]) == {"a": 8, "b": 9}


def test_nobody_is_preempted_and_nothing_is_given_twice():
    """Who has more than its share keeps it until its pods go; the other one grows into what is free."""
    assert divide(12, [pool("a", 9, replicas=6), pool("b", 9)]) == {"a": 3, "b": 0}
    assert divide(12, [pool("a", 9, replicas=4, leaving=1), pool("b", 9)]) == {"a": 3, "b": 1}


def test_surge_and_draining_pods_count():
    assert room(20, [pool("a", 0, replicas=4, living=6, leaving=3)]) == 1


HOLDINGS = st.lists(st.tuples(*[st.integers(0, 30)] * 5), max_size=8)


@given(st.integers(2, 200), HOLDINGS)
def test_sizes_that_follow_the_shares_never_pass_the_bound(connections, drawn):
    pools = [
        Holding(pool=f"p{i}", wanted=min(w, c), ceiling=c, replicas=r, living=alive, leaving=t)
        for i, (w, c, r, alive, t) in enumerate(drawn)
    ]
    shares = divide(connections, pools)
    after = sum(max(p.replicas, shares[p.pool], p.living) + p.leaving for p in pools)
    assert after <= max(pods_of(connections), sum(p.held for p in pools))


def test_not_even_the_minimum_stands_above_it_and_the_reason_is_named():
    cap = Cap(reason=LimitedBy.CONNECTIONS, slots=12, sentence="few")
    policy = ScalingPolicy(minimum=8, maximum=20, concurrency=4)
    decision = decide(policy, Signals(read_at=NOW, runnable=0, replicas=2, caps=(cap,)), History(), NOW)
    assert (decision.applied, decision.limited_by) == (3, LimitedBy.CONNECTIONS)
    assert writable(decision, missing=0, may_go=0, room=0) == 2
