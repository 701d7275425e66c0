"""How quotas are divided: examples, and what holds at every instant (O4, O15, P7)."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolkeeper_operator.decide.fairness import Ask, fair
from poolkeeper_operator.decide.quota import PoolUse, Quota, Use, allot
from poolkeeper_operator.decide.reasons import QuotaReason

KEY = "platform/model-api"
ALL = None


def quota(calls=40, **more):
    return {KEY: Quota(**{"key": KEY, "concurrent_calls": calls, "namespaces": ALL} | more)}


def use(name, demand, *, running=0, cap=0, per_task=1, ceiling=1000, uses=None):
    return PoolUse(
        pool=f"team/{name}",
        namespace="team",
        uses=uses or (Use(provider="model", quota=KEY, calls_per_task=per_task),),
        demand=demand,
        ceiling=ceiling,
        running=running,
        cap=cap,
    )


def slots(allotments):
    return {pool.partition("/")[2]: allotment.slots for pool, allotment in allotments.items()}


class TestFairness:
    def test_small_asks_are_met_and_the_rest_is_shared_by_weight(self):
        asks = [Ask("small", 3, 1, 1), Ask("light", 100, 1, 1), Ask("heavy", 100, 1, 3)]
        assert fair(43, asks) == {"small": 3, "light": 10, "heavy": 30}

    def test_a_slot_of_many_calls_does_not_starve_beside_slots_of_few(self):
        assert fair(8, [Ask("deep", 5, 7, 1), Ask("flat", 50, 1, 1)]) == {"deep": 1, "flat": 1}

    def test_what_rounding_leaves_is_handed_out_too(self):
        assert sum(fair(10, [Ask(n, 9, 1, 1) for n in "abc"]).values()) == 10

    @given(
        st.integers(0, 10_000),
        st.lists(st.tuples(st.integers(0, 500), st.integers(1, 7), st.integers(1, 10)), max_size=12),
    )
    def test_it_is_max_min_fair_in_whole_slots(self, capacity, drawn):
        """Nobody could have one slot more but by taking from one who has no more per weight."""
        asks = [Ask(f"p{i:02}", *each) for i, each in enumerate(drawn)]
        got = fair(capacity, asks)
        used = sum(got[a.name] * a.unit for a in asks)
        assert used <= capacity
        for ask in asks:
            assert 0 <= got[ask.name] <= ask.slots
            if got[ask.name] == ask.slots:
                continue
            assert capacity - used < ask.unit, "capacity is left that an asker could use"
            mine = (got[ask.name] + 1) * ask.unit / ask.weight
            for other in asks:
                more = sum((had - 1) * other.unit / other.weight > mine for had in range(2, got[other.name] + 1))
                # what nobody below could use is handed out as well: less than a slot of theirs
                assert not more or more * other.unit + capacity - used < ask.unit, other
        if sum(ask.unit for ask in asks if ask.slots) <= capacity:
            assert all(got[ask.name] for ask in asks if ask.slots), "somebody starves"


class TestShares:
    def test_pools_with_work_get_it_all_and_idle_ones_leave_it(self):
        assert slots(allot(quota(), [use("busy", 100), use("idle", 0)])) == {"busy": 40, "idle": 0}

    def test_weights_count_when_there_is_not_enough(self):
        shared = allot(quota(weights={"team/a": 3}), [use("a", 100), use("b", 100)])
        assert slots(shared) == {"a": 30, "b": 10}

    def test_declared_use_per_task_divides_the_share(self):
        allotment = allot(quota(), [use("a", 100, per_task=7)])["team/a"]
        assert (allotment.slots, allotment.share.calls) == (5, 35)

    def test_what_is_left_over_is_given_in_advance(self):
        """A burst may then start at once, without waiting for the operator."""
        shared = slots(allot(quota(), [use("a", 2), use("b", 4)]))
        assert sum(shared.values()) == 40
        assert shared["a"] >= 2
        assert shared["b"] >= 4

    def test_no_share_is_larger_than_a_pool_could_ever_use(self):
        assert slots(allot(quota(), [use("a", 2, ceiling=6)])) == {"a": 6}

    def test_a_running_task_is_not_preempted_and_others_wait_for_it(self):
        """O15: b asks while a holds everything: a is lowered, b gets nothing until a's tasks end."""
        first = allot(quota(), [use("a", 100, running=40, cap=40), use("b", 100)])
        assert slots(first) == {"a": 20, "b": 0}
        assert first["team/b"].share.reason is QuotaReason.WAITING
        second = allot(quota(), [use("a", 100, running=31, cap=20), use("b", 100)])
        assert slots(second) == {"a": 20, "b": 9}

    def test_caps_that_serve_everybody_are_left_alone(self):
        """No write for a division that is only different, not better."""
        pools = [use("a", 7, running=7, cap=25), use("b", 3, running=3, cap=15)]
        assert slots(allot(quota(), pools)) == {"a": 25, "b": 15}

    def test_caps_above_a_lowered_quota_are_lowered_though_nobody_wants_more(self):
        pools = [use("a", 7, running=7, cap=25), use("b", 3, running=3, cap=15)]
        lowered = slots(allot(quota(12), pools))
        assert sum(lowered.values()) <= 12
        assert lowered["a"] >= 7 - 2

    def test_what_is_free_beside_a_held_slot_is_given_in_advance_up_to_the_fair_share(self):
        """One pool holds 10 of 40 and wants no more: its cap rises to its share, no further."""
        shared = slots(allot(quota(40), [use("a", 10, running=10, cap=10), use("b", 0)]))
        assert shared == {"a": 25, "b": 15}

    def test_two_providers_bound_a_pool_by_the_smaller_and_return_the_rest(self):
        other = "platform/payments"
        quotas = quota(40) | {other: Quota(key=other, concurrent_calls=5, namespaces=ALL)}
        both = (Use(provider="m", quota=KEY, calls_per_task=1), Use(provider="p", quota=other, calls_per_task=1))
        shared = allot(quotas, [use("both", 100, uses=both), use("one", 100)])
        assert slots(shared) == {"both": 5, "one": 35}
        assert shared["team/both"].share.quota == other

    def test_two_uses_of_one_quota_add_up(self):
        twice = (Use(provider="a", quota=KEY, calls_per_task=1), Use(provider="b", quota=KEY, calls_per_task=3))
        assert slots(allot(quota(40), [use("twice", 100, uses=twice)])) == {"twice": 10}

    def test_a_pool_without_providers_is_not_in_the_answer(self):
        assert allot(quota(), [replace(use("a", 1), uses=())]) == {}


@pytest.mark.parametrize(
    ("quotas", "reason", "words"),
    [
        ({}, QuotaReason.MISSING, "does not exist"),
        (quota(suspended=True), QuotaReason.SUSPENDED, "suspended"),
        (quota(calls=None), QuotaReason.MALFORMED, "set spec.limits.concurrentCalls"),
        (quota(calls=0), QuotaReason.MALFORMED, "at least 1"),
        (quota(calls=-4), QuotaReason.MALFORMED, "at least 1"),
        (quota(namespaces=frozenset({"other"})), QuotaReason.FORBIDDEN, 'does not allow namespace "team"'),
        (quota(calls=2), QuotaReason.TOO_SMALL, "one task needs 3"),
    ],
)
def test_what_is_no_usable_quota_is_closed_and_says_why(quotas, reason, words):
    """O4: absence is never unlimited."""
    allotment = allot(quotas, [use("a", 10, per_task=3, cap=None)])["team/a"]
    assert (allotment.slots, allotment.share.reason) == (0, reason)
    assert words in allotment.share.sentence


def test_a_closed_provider_closes_the_pool_even_if_another_is_open():
    open_key = "platform/open"
    quotas = {open_key: Quota(key=open_key, concurrent_calls=10, namespaces=ALL)}
    both = (Use(provider="o", quota=open_key, calls_per_task=1), Use(provider="m", quota=KEY, calls_per_task=1))
    shared = allot(quotas, [use("both", 5, uses=both), use("one", 20, uses=both[:1])])
    assert slots(shared) == {"both": 0, "one": 10}
    assert shared["team/both"].share.reason is QuotaReason.MISSING


@st.composite
def worlds(draw):
    keys = ["q/one", "q/two", "q/three"]
    quotas = {
        key: Quota(
            key=key,
            concurrent_calls=draw(st.integers(1, 60)),
            namespaces=ALL,
            suspended=draw(st.integers(0, 9)) == 0,
            weights={f"team/p{i}": draw(st.integers(1, 5)) for i in range(5)},
        )
        for key in keys
    }
    uses = [
        tuple(
            Use(provider=key, quota=key, calls_per_task=draw(st.integers(1, 4)))
            for key in draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3, unique=True))
        )
        for _ in range(draw(st.integers(1, 5)))
    ]
    return quotas, uses


@settings(max_examples=150)
@given(worlds(), st.data())
def test_the_quota_holds_at_every_instant_whatever_the_order(world, data):
    """P7: pools claim up to their cap at any moment, caps arrive in any order, tasks end when they like; the sum never passes the quota."""
    quotas, uses = world
    pools = range(len(uses))
    caps, running = [0] * len(uses), [0] * len(uses)

    def check():
        for key, q in quotas.items():
            used = sum(running[i] * u.calls_per_task for i in pools for u in uses[i] if u.quota == key)
            assert used <= q.concurrent_calls

    def claim():
        for i in data.draw(st.permutations(pools)):
            running[i] = max(running[i], data.draw(st.integers(0, caps[i])))
            check()

    for _ in range(6):
        read = [
            PoolUse(
                pool=f"team/p{i}",
                namespace="team",
                uses=uses[i],
                demand=running[i] + data.draw(st.integers(0, 50)),
                ceiling=100,
                running=running[i],
                cap=caps[i],
            )
            for i in pools
        ]
        claim()  # between the reading and the writing
        new = allot(quotas, read)
        for i in data.draw(st.permutations(pools)):
            caps[i] = new[f"team/p{i}"].slots
            claim()
        for i in pools:
            running[i] -= data.draw(st.integers(0, running[i]))


@given(worlds(), st.data())
def test_the_quota_is_used_when_there_is_work(world, data):
    """F27: with everybody hungry and nothing held, no quota has room for a slot of a pool that only it bounds."""
    quotas, uses = world
    read = [
        PoolUse(
            pool=f"team/p{i}",
            namespace="team",
            uses=(use,),
            demand=data.draw(st.integers(50, 200)),
            ceiling=300,
            running=0,
            cap=0,
        )
        for i, (use, *_) in enumerate(uses)
    ]
    new = allot(quotas, read)
    for key, q in quotas.items():
        mine = [r for r in read if r.uses[0].quota == key]
        if not mine or q.suspended:
            continue
        used = sum(new[r.pool].share.calls for r in mine)
        able = [r.uses[0].calls_per_task for r in mine if r.uses[0].calls_per_task <= q.concurrent_calls]
        assert not able or q.concurrent_calls - used < min(able)


@settings(max_examples=60)
@given(st.integers(3, 12), st.lists(st.integers(1, 4), min_size=2, max_size=3), st.data())
def test_noise_in_the_backlogs_moves_no_share(limit, weights, data):
    """C26: hungry pools whose queues are read with noise keep their caps, odd quotas too; no two readings make pods come and go."""
    names = [f"team/p{i}" for i in range(len(weights))]
    quotas = quota(limit, weights=dict(zip(names, weights, strict=True)))
    caps, running, seen = dict.fromkeys(names, 0), dict.fromkeys(names, 0), []
    for _ in range(12):
        noise = data.draw(st.lists(st.integers(70, 130), min_size=len(names), max_size=len(names)))
        pools = [
            use(n.partition("/")[2], running[n] + limit * noise[i] // 50, running=running[n], cap=caps[n])
            for i, n in enumerate(names)
        ]
        caps = {name: allotment.slots for name, allotment in allot(quotas, pools).items()}
        assert sum(caps.values()) <= limit
        running = dict(caps)
        seen.append(caps)
    assert all(each == seen[0] for each in seen[1:])
    assert sum(seen[0].values()) == limit


def test_a_pool_that_is_gone_gets_nothing_more_and_holds_what_it_had():
    """C26: its ceiling is nothing; its cap is lowered at once, and its share is free only when a reading shows so."""
    gone = use("gone", 0, running=4, cap=5, ceiling=0)
    assert slots(allot(quota(10), [gone, use("stays", 100, running=5, cap=5)])) == {"gone": 0, "stays": 5}
    drained = use("gone", 0, running=1, cap=0, ceiling=0)
    assert slots(allot(quota(10), [drained, use("stays", 100, running=5, cap=5)])) == {"gone": 0, "stays": 9}
