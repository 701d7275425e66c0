"""Several operators, one of them acting: take-over after a kill, a freeze, a cut and an orderly end, by the audit log (O29, F24)."""

import json
import signal
import time
from contextlib import nullcontext

import pytest

from fixtures.identities import chart_rights
from fixtures.stage import until
from poolkeeper_operator.decide.leadership import HOLD
from poolkeeper_operator.runtime import login
from poolkeeper_operator.runtime.failures import NotLeading
from poolkeeper_operator.runtime.kinds import SERVICE_ACCOUNT
from poolkeeper_operator.runtime.kube import Kube

pytestmark = pytest.mark.timeout(300)
PATIENCE = 60.0


class Operators:
    """Operators of one installation, each known to the API server by a name of its own."""

    def __init__(self, stage, start_operator, make_identity, audit) -> None:
        self._stage, self._start, self._make_identity = stage, start_operator, make_identity
        self.audit = audit
        self.mark = audit.mark()
        self.users: dict[str, str] = {}

    def start(self, name, *argv, through=None):
        """Start one; `through`: a proxy for it, made from its kubeconfig."""
        identity = self._make_identity(name)
        kubeconfig = through(identity.kubeconfig).kubeconfig if through else identity.kubeconfig
        operator = self._start("--namespace", self._stage.namespace, *argv, kubeconfig=kubeconfig)
        self.users[name] = identity.user
        return operator

    def leader(self, name, *argv, **options):
        return self.start(name, *argv, **options).wait_ready()

    def standby(self, name, *argv, **options):
        operator = self.start(name, *argv, **options)
        until(lambda: said(operator, "operator.standby"), what="a first list")
        until(lambda: said(operator, "leadership.standby"), what="a look at the Lease")
        return operator

    def writes(self, name, *, leases=True):
        """What the API server did for it, in order."""
        found = self.audit.since(self.mark, user=self.users[name])
        kept = [w for w in found if not w.resource.startswith("selfsubject")]
        return kept if leases else [w for w in kept if w.resource != "leases"]

    def none_of_the_old_after_the_new(self, old, new):
        """By the API server's own record; requests that it refused are none."""
        first = self.writes(new)[0].at
        late = [w for w in self.writes(old) if w.at >= first]
        assert late == []


@pytest.fixture
def operators(stage, start_operator, make_identity, audit):
    return Operators(stage, start_operator, make_identity, audit)


def said(operator, what):
    return [line for line in operator.lines() if what in line.get("message", "")]


def lease(stage, name="poolkeeper-operator"):
    return stage.kubectl.get("lease", name)["spec"]


def furnish(stage, pools=("mail",)):
    """A database, a queue and pools that are converged."""
    stage.apply(stage.db(), *(stage.queue(name) for name in pools), *(stage.pool(name) for name in pools))
    for name in pools:
        stage.wait_condition("workerpool", name, "SignalFresh", "True", timeout=PATIENCE)


def test_a_standby_is_ready_and_does_nothing(stage, operators):
    """O29: /readyz 200 with "standby", /livez 200, leader 0 or 1; it sees everything and writes nothing."""
    first, second = operators.leader("a"), operators.standby("b")
    furnish(stage)
    for operator, role in ((first, "leader"), (second, "standby")):
        status, body = operator.fetch("/readyz")
        assert (status, json.loads(body)["role"]) == (200, role)
        assert operator.fetch("/livez")[0] == 200
        assert operator.metric("poolkeeper_operator_leader") == (role == "leader")
    stage.submit("mail", 3)
    until(lambda: stage.replicas("mail") == 3)
    assert operators.writes("b") == []
    assert lease(stage)["holderIdentity"] == said(second, "leadership.standby")[-1]["message"].rpartition(" ")[2]


def test_an_orderly_end_hands_over_at_once(stage, operators):
    """O29, O28: the Lease is given up when the writers have stopped; the next one takes it without waiting, and changes nothing."""
    first = operators.leader("a")
    furnish(stage)
    second = operators.standby("b")
    before = stage.get("deployment", "mail")["metadata"]
    told = time.time()
    assert first.stop() == 0
    until(lambda: said(second, "operator.ready"), timeout=PATIENCE)
    *_, given_up = operators.writes("a")
    assert (given_up.resource, given_up.body["spec"]["holderIdentity"]) == ("leases", "")
    taken = operators.writes("b")[0]
    assert (taken.resource, taken.body["spec"]["leaseTransitions"]) == ("leases", 2)
    assert (taken.at - given_up.at).total_seconds() < HOLD / 2, "it did not wait for the hold"
    print(f"{taken.at.timestamp() - told:.1f} s from the signal to the next leader")  # noqa: T201 - a figure, not a bound
    stage.submit("mail", 2)
    until(lambda: stage.replicas("mail") == 2, timeout=PATIENCE)
    operators.none_of_the_old_after_the_new("a", "b")
    after = stage.get("deployment", "mail")["metadata"]
    assert after["uid"] == before["uid"]
    assert [w.resource for w in operators.writes("b") if w.resource == "deployments"] == ["deployments"], (
        "its size alone"
    )


def test_a_killed_leader_is_replaced(stage, operators):
    """O29, F24: what the old one did not do any more, the new one does."""
    first = operators.leader("a")
    furnish(stage)
    second = operators.standby("b")
    first.stop(signal.SIGKILL)
    killed = time.monotonic()
    stage.submit("mail", 4)
    until(lambda: stage.replicas("mail") == 4, timeout=PATIENCE)
    print(f"{time.monotonic() - killed:.1f} s from the kill to the new size")  # noqa: T201 - the figure of F24
    assert said(second, "leadership.taken")
    operators.none_of_the_old_after_the_new("a", "b")


@pytest.mark.wide
@pytest.mark.parametrize(
    "seed", [pytest.param(0.0, marks=pytest.mark.deep), 0.35, pytest.param(0.9, marks=pytest.mark.deep)]
)
def test_a_frozen_leader_that_comes_back_writes_nothing(stage, operators, seed):
    """O29: stopped in the middle of much to write, continued after 30 s: not one write any more, to API server or store; it ends."""
    first = operators.leader("a")
    furnish(stage)
    operators.standby("b")
    stage.apply(*(stage.pool(f"mail-{n}", "mail") for n in range(12)))
    time.sleep(seed)  # a moment, not a wait: it is frozen wherever it is
    first.process.send_signal(signal.SIGSTOP)
    frozen = time.monotonic()
    try:
        stage.submit("mail", 5)
        until(lambda: stage.replicas("mail") == 5, timeout=PATIENCE)
        time.sleep(max(0.0, 30 - (time.monotonic() - frozen)))
        term = leader_row(stage)
    finally:
        first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(PATIENCE) == 0
    assert said(first, "leadership.lost")
    operators.none_of_the_old_after_the_new("a", "b")
    assert leader_row(stage) == term


@pytest.mark.parametrize(("permits", "leaves"), [(0, False), (1, False), (2, False), (3, True)])
async def test_a_write_whose_permit_ends_on_its_way_does_not_leave(stage, kubeconfig, audit, permits, leaves):
    """O29: frozen anywhere between the decision and the bytes: also in the task that writes them, where a request waits last."""
    kube, left = Kube(await login.load(str(kubeconfig))), iter(range(permits))

    def permit():
        if next(left, None) is None:
            raise NotLeading("it was frozen here")
        return 5.0

    kube.permit, mark = permit, audit.mark()
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mail", "namespace": stage.namespace}}
    with nullcontext() if leaves else pytest.raises(NotLeading):
        await kube.apply(SERVICE_ACCOUNT, account)
    await kube.close()
    assert [w.name for w in audit.since(mark, namespace=stage.namespace) if w.name == "mail"] == ["mail"] * leaves


def leader_row(stage):
    with stage.database.connect() as conn:
        return conn.execute("SELECT namespace, lease, epoch, holder, term FROM poolkeeper.leader").fetchall()


@pytest.mark.wide
@pytest.mark.parametrize("how", [pytest.param("refused", marks=pytest.mark.deep), "silent"])
def test_a_leader_that_is_cut_off_ends(stage, operators, make_proxy, how):
    """O29: without the API server it stops before another may begin, and exits well; mended later, it writes nothing."""
    proxies = []

    def through(kubeconfig):
        proxies.append(make_proxy(kubeconfig))
        return proxies[-1]

    first = operators.leader("a", through=through)
    furnish(stage)
    operators.standby("b")
    proxies[0].cut(how)
    stage.submit("mail", 3)
    assert first.process.wait(PATIENCE) == 0
    assert "could not be renewed in time" in said(first, "leadership.lost")[0]["message"]
    proxies[0].mend()
    until(lambda: stage.replicas("mail") == 3, timeout=PATIENCE)
    operators.none_of_the_old_after_the_new("a", "b")


def test_the_rights_of_the_chart_are_enough_to_lead(stage, start_operator, make_identity, helm):
    """O29, O31: a Role for one Lease by its name in the release's namespace, and the roles of the namespaces kept."""
    identity = make_identity("poolkeeper-operator", rights=chart_rights(stage, helm))
    operator = start_operator(
        "--namespace", stage.namespace, "--lease", "poolkeeper-operator", kubeconfig=identity.kubeconfig
    ).wait_ready()
    furnish(stage)
    renewed = lease(stage)["renewTime"]
    until(lambda: lease(stage)["renewTime"] != renewed, timeout=PATIENCE, what="a renewal")
    assert said(operator, "right_missing") == []
    assert said(operator, "forbidden") == []


@pytest.mark.wide
def test_a_lease_that_somebody_deletes_is_made_again(stage, operators):
    """O29: by its holder, which goes on; a standby that sees the gap does not jump into it."""
    first, second = operators.leader("a"), operators.standby("b")
    held = lease(stage)["holderIdentity"]
    stage.kubectl("delete", "lease", "poolkeeper-operator")
    until(lambda: stage.kubectl("get", "lease", "poolkeeper-operator", "--ignore-not-found").strip(), timeout=PATIENCE)
    assert lease(stage)["holderIdentity"] == held
    furnish(stage)
    assert operators.writes("b") == []
    assert (first.process.poll(), second.process.poll()) == (None, None)


@pytest.mark.wide
def test_a_lease_that_somebody_takes_away_ends_its_holder(stage, operators):
    """O29: it is the Lease that says who leads, whoever wrote it; and what was lost is not given up."""
    first = operators.leader("a")
    stage.kubectl(
        "patch", "lease", "poolkeeper-operator", "--type=merge", "-p", '{"spec":{"holderIdentity":"somebody"}}'
    )
    assert first.process.wait(PATIENCE) == 0
    assert 'held by "somebody"' in said(first, "leadership.lost")[0]["message"]
    assert lease(stage)["holderIdentity"] == "somebody"
