"""What goes wrong with one object stays with it: others are sized on, and nothing is asked in a busy loop (O30, O33).

The operator is a real process; a proxy between it and the real API server does the harm, to objects named "bad*" only.
"""

from itertools import pairwise

import pytest

from fixtures import apifaults as af
from fixtures.faulty import grows, strikes
from fixtures.stage import until

pytestmark = pytest.mark.wide

BUSY = 5.0  # seconds in which requests are counted
FEW = 15  # writes of one object in that time, with ticks and work each second
STICKY = [
    pytest.param({"conflict": af.Answer(409), "forbidden": af.Answer(403), "gone": af.Answer(404)}, id="usual"),
    pytest.param(
        {"internal": af.Answer(500), "refused": af.Answer(422), "reset": af.Reset()},
        id="others",
        marks=pytest.mark.deep,
    ),
]


def made(stage, name):
    """A pool with nothing to do."""
    stage.apply(stage.queue(name), stage.pool(name))
    stage.wait_condition("workerpool", name, "SignalFresh", "True", timeout=60)
    return name


@pytest.fixture
def bad(stage, faulty):
    """A pool "bad" beside the others."""
    return made(stage, "bad")


@pytest.mark.parametrize("faults", STICKY)
@pytest.mark.parametrize("resource", ["deployments", "workerpools/status", "poddisruptionbudgets,serviceaccounts"])
def test_one_object_that_is_refused_holds_up_no_other(stage, faulty, proxy, resource, faults):
    """Whatever one pool's writes are answered with, another pool grows, and the refused one is asked about ever more rarely."""
    for name, does in faults.items():
        pool = made(stage, f"bad-{name}")
        with proxy.fault(does, verb="patch", resource=resource, name=pool) as fault:
            stage.kubectl("delete", "pdb", pool)
            stage.submit(pool, 2)
            stage.apply(stage.pool(pool, pool, rollout={"maxSurge": 3}))
            strikes(lambda: fault.hits, f"{name} {resource}")
            asked = faulty.asks(BUSY, verb="patch", name=pool)
            assert asked < FEW, f"{name} {resource}: {asked} writes in {BUSY} s"
            faulty.another_grows(stage)
        until(lambda: stage.replicas(pool) == 2, timeout=90, what=f"{pool} is sized")
        until(lambda: stage.get("pdb", pool), timeout=90, what=f"{pool} has its budget")
        until(lambda: surge(stage, pool) == 3, timeout=90, what=f"{pool} is changed")
        stage.wait_condition("workerpool", pool, "Ready", "False", "PodsCannotStart", timeout=90)  # there is no node


def surge(stage, pool):
    return stage.get("deployment", pool)["spec"]["strategy"]["rollingUpdate"]["maxSurge"]


@pytest.mark.parametrize(
    "does", [af.Silent(), pytest.param(af.Slow(10), marks=pytest.mark.deep)], ids=["silent", "slow"]
)
def test_many_objects_that_hang_hold_up_no_other(stage, faulty, proxy, does):
    """More pools hang in their requests than the operator serves at once: the one that does not hang is sized (O33)."""
    names = [f"bad{n}" for n in range(12)]
    with proxy.fault(does, verb="patch", resource="deployments,serviceaccounts", name="bad*") as fault:
        stage.apply(*(stage.queue(name) for name in names), *(stage.pool(name) for name in names))
        strikes(lambda: fault.hits > 8, "the silence")
        faulty.another_grows(stage)
        faulty.another_grows(stage)
    until(lambda: all(stage.get("deployment", name) for name in names), timeout=90)


def test_the_api_server_is_left_alone_for_as_long_as_it_asks(stage, faulty, proxy, bad):
    """429 with Retry-After: the object waits that long, with work, ticks and changes meanwhile; others do not."""
    with proxy.fault(af.Answer(429, retry_after=6), verb="patch", resource="deployments", name="bad") as fault:
        stage.submit("bad", 5)
        for most in (2, 3, 4):
            stage.apply(stage.pool("bad", rollout={"maxSurge": most}))
        strikes(lambda: fault.hits >= 3, "overload")
        faulty.another_grows(stage)
    asked = [seen.at for seen in proxy.asked(verb="patch", resource="deployments", name="bad") if seen.status == 429]
    assert all(later - earlier > 5.9 for earlier, later in pairwise(asked)), asked
    until(lambda: stage.replicas("bad") == 5, timeout=60)


@pytest.mark.parametrize(
    ("verb", "resource", "seen"),
    [("patch", "deployments", "patch deployments"), ("patch", "poddisruptionbudgets", "patch poddisruptionbudgets")],
)
def test_a_right_that_is_taken_away_is_named_in_the_condition(stage, faulty, proxy, bad, verb, resource, seen):
    """At the first refusal, with the remedy; the size is kept up as far as the rights go, and it heals by itself (O31)."""
    refusal = af.Answer(403, f'User "operator" cannot {seen} in the namespace')
    with proxy.fault(refusal, verb=verb, resource=resource, name="bad"):
        stage.kubectl("delete", "pdb", "bad")
        if resource == "deployments":
            stage.submit("bad", 1)
        condition = stage.wait_condition("workerpool", "bad", "Ready", "False", "Refused", timeout=60)
        assert f"cannot {seen}" in condition["message"]
        assert "add the right to the operator's role" in condition["message"]
        if resource != "deployments":
            grows(stage, "bad")
    stage.wait_condition("workerpool", "bad", "Ready", "False", "PodsCannotStart", timeout=90)


def test_a_secret_that_may_not_be_read_for_a_while_blinds_nobody(stage, faulty, proxy, bad):
    """The Database says so; what was read before is still true, and pools are sized by it."""
    with proxy.fault(af.Answer(403), verb="get", resource="secrets") as fault:
        stage.apply(stage.db(tickInterval="2s"))
        strikes(lambda: fault.hits, "the refusal")
        stage.wait_condition("database", "main", "Ready", "False", "SecretForbidden", timeout=60)
        grows(stage, "bad")
    stage.wait_condition("database", "main", "Ready", "True", timeout=90)
