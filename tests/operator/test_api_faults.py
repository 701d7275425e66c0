"""Whatever the API server answers, a pool that is made, sized, changed and deleted comes right without a hand (O29, O30).

The operator is a real process; a proxy between it and the real API server does the harm. Watches: test_api_faults_watch.py.
"""

import asyncio
import contextlib

import pytest

from fixtures import apifaults as af
from fixtures.faulty import OTHERS, grows, strikes
from fixtures.stage import until
from poolkeeper_operator.runtime import login
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import NAMESPACE, POOL
from poolkeeper_operator.runtime.kube import Kube

pytestmark = pytest.mark.wide

BUSY = "get,list,patch,create"


@contextlib.contextmanager
def away(operator, how):
    """The whole API server is gone for the while."""
    proxy, said = operator.proxy, len(operator.said("no answer"))
    proxy.cut(how)
    try:
        yield lambda: len(operator.said("no answer")) > said
    finally:
        proxy.mend()


def fault(proxy, does):
    @contextlib.contextmanager
    def one():
        with proxy.fault(does, verb=BUSY) as made:
            yield lambda: made.hits

    return one()


def changes(stage, name):
    """Whether the Deployment has what `change` asked for."""
    strategy = stage.get("deployment", name)["spec"]["strategy"]["rollingUpdate"]
    return str(strategy["maxSurge"]) == "3"


def settles(operator, check, what):
    """It comes right without a hand; an operator that ended, as a leader does that was cut off for long, is started anew."""
    until(lambda: operator.revive() or check(), timeout=90, what=what)


def live(stage, operator, name, harm):
    """One pool's life, harmed at each step: `harm()` is in force until it was felt, then gone."""

    def tells(condition, status, reason=None):
        found = stage.condition("workerpool", name, condition)
        return found and found["status"] == status and reason in {None, found["reason"]}

    pool = stage.pool(name, name)
    with harm() as struck:
        stage.apply(stage.queue(name), pool)
        strikes(struck, f"{name}, made")
    settles(operator, lambda: tells("SignalFresh", "True"), f"{name} is made")
    with harm() as struck:
        stage.submit(name, 3)
        strikes(struck, f"{name}, sized")
    settles(operator, lambda: stage.replicas(name) == 3, f"{name} is sized")
    with harm() as struck:
        stage.apply(stage.pool(name, name, rollout={"maxSurge": 3}))
        strikes(struck, f"{name}, changed")
    settles(operator, lambda: changes(stage, name), f"{name} is changed")
    settles(operator, lambda: tells("Ready", "False", "PodsCannotStart"), f"{name} tells that there is no node")
    with harm():
        stage.kubectl("delete", "workerpool", name, "--wait=false")
    settles(operator, lambda: not operator.knows(name), f"{name} is forgotten")
    settles(operator, lambda: stage.get("deployment", name) is None, f"{name}'s Deployment is gone")


REFUSALS = {
    "internal": af.Answer(500),
    "unavailable": af.Answer(503),
    "busy": af.Answer(429, retry_after=1),
    "conflict": af.Answer(409),
    "forbidden": af.Answer(403),
    "unauthorized": af.Answer(401),
}
BREAKS = [
    pytest.param({"reset-after": af.Reset(sent=True), "cut-clean": af.Cut(30, clean=True)}, id="usual"),
    pytest.param({"reset": af.Reset(), "cut": af.Cut(30), "slow": af.Slow(3)}, id="others", marks=pytest.mark.deep),
]


def test_refusals_pass_without_a_trace(stage, faulty, proxy):
    """Internal errors, overload, conflicts, lost rights and identity: gone when they are gone."""
    for name, does in REFUSALS.items():
        live(stage, faulty, name, lambda does=does: fault(proxy, does))


@pytest.mark.parametrize("status", [500, 503, 429, 403])
async def test_a_refused_look_is_an_answer_and_not_repeated_behind_the_back(proxy, namespace, status):
    """O30: whoever asks decides what to do without the answer; a client that repeats it in silence would hold its key for ever."""
    kube = Kube(await login.load(str(proxy.kubeconfig)))
    try:
        with proxy.fault(af.Answer(status), verb="get,list"):
            before = proxy.count(verb="get,list")
            async with asyncio.timeout(60):
                with pytest.raises(KubeError, match=str(status)):
                    await kube.get(NAMESPACE, None, namespace)
                with pytest.raises(KubeError, match=str(status)):
                    await kube.list(POOL, namespace)
            assert proxy.count(verb="get,list") == before + 2
    finally:
        await kube.close()


@pytest.mark.parametrize("faults", BREAKS)
def test_broken_connections_pass_without_a_trace(stage, faulty, proxy, faults):
    """Resets, also after the write was done, bodies cut in the middle, and slowness."""
    for name, does in faults.items():
        live(stage, faulty, name, lambda does=does: fault(proxy, does))


@pytest.mark.parametrize("how", ["refused", pytest.param("silent", marks=pytest.mark.deep)])
def test_an_api_server_that_comes_back_is_found(stage, faulty, proxy, how):
    """Connections refused, or open and dead: what was asked for meanwhile happens afterwards, and sizes stayed."""
    live(stage, faulty, "away", lambda: away(faulty, how))
    assert faulty.fetch("/livez")[0] == 200


ELSE = af.Answer(200, "this is no object of yours")


def test_an_answer_that_is_not_what_was_asked_for_is_no_answer(stage, hasty, proxy):
    """P9: 200 with something else, as a proxy or a login page sends it: no list of nothing, nobody is forgotten, others grow."""
    with proxy.fault(ELSE, verb="list", resource="workerpools,databases,taskqueues,deployments") as fault:
        strikes(lambda: fault.hits > 4, "lists of nothing")
        assert hasty.said("answered with something else")
        assert all(hasty.knows(pool) for pool in OTHERS)
        hasty.another_grows(stage)
    everything = "deployments,workerpools/status,serviceaccounts"
    with proxy.fault(ELSE, verb="get,patch", resource=everything, name="bad") as fault:
        stage.apply(stage.queue("bad"), stage.pool("bad"))
        strikes(lambda: fault.hits > 1, "answers of something else")
        hasty.another_grows(stage)
        hasty.another_grows(stage)
    grows(stage, "bad")
    assert not hasty.said("Traceback")
    assert hasty.process.poll() is None
