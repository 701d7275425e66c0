"""Nodes that are about to go: their workers claim nothing more, and others take their place (O23). The nodes are objects only."""

from functools import partial

import pytest

from fixtures.identities import chart_rights
from fixtures.stage import until
from poolkeeper.store import Settle, calls


@pytest.fixture
def mail(stage, operator, nodes):
    """A pool of two, each on a node of its own, and work without end; the sessions by the nodes' names."""
    return furnish(stage, nodes)


def furnish(stage, nodes):
    nodes.make("a", "b")
    stage.apply(
        stage.db(), stage.queue("mail", visibilityTimeout="10m"), stage.pool("mail", scaling={"min": 2, "max": 2})
    )
    pods = nodes.bind_each("mail", "a", "b")
    return {short: Worker(stage, pod) for short, pod in zip("ab", pods, strict=True)}


class Worker:
    """A session that claims when the test says so."""

    def __init__(self, stage, pod):
        self.stage, self.name, self.turns = stage, pod["metadata"]["name"], 0
        self.session = stage.session(pod, "mail", "mail")

    def turn(self, want=1, settles=()):
        self.turns += 1
        return self.stage.run(
            calls.turn(self.session, self.turns, self.turns - 1, list(settles), want, idle=not settles)
        )

    def claim(self):
        return self.turn().claimed

    def finish(self, claimed):
        self.turn(0, [Settle(claimed.task_id, claimed.token, "succeeded")])

    @property
    def marked(self):
        pools = self.stage.run(calls.stats(cluster=None)).pools
        return {s.pod_name: s.draining for pool in pools for s in pool.sessions}[self.name]


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (lambda nodes: nodes.cordon("a"), lambda nodes: nodes.uncordon("a")),
        (
            lambda nodes: nodes.taint("a", "ToBeDeletedByClusterAutoscaler=1764500000:NoSchedule"),
            lambda nodes: nodes.taint("a", "ToBeDeletedByClusterAutoscaler-"),
        ),
        pytest.param(
            lambda nodes: nodes.taint("a", "karpenter.sh/disrupted:NoSchedule"),
            lambda nodes: nodes.taint("a", "karpenter.sh/disrupted-"),
            marks=pytest.mark.wide,
        ),
    ],
    ids=["cordon", "cluster-autoscaler", "karpenter"],
)
def test_it_stops_claiming_and_claims_again_when_the_node_is_usable(mail, stage, nodes, begin, end):
    """O23: before anything is evicted, and whatever happened to the node: those beside it are not touched."""
    stage.submit("mail", 6)
    (held,) = mail["a"].claim()
    begin(nodes)
    until(lambda: mail["a"].marked, what="its worker is marked")
    mail["a"].finish(held)
    assert mail["a"].claim() == [], "the store gives it nothing"
    assert len(mail["b"].claim()) == 1
    until(lambda: stage.replicas("mail") == 3, what="one more, on another node, though max is 2")
    said = stage.condition("workerpool", "mail", "ScalingActive")["message"]
    assert "scaling.max is 2, beside 1 pod on nodes that are about to go" in said
    end(nodes)
    until(lambda: not mail["a"].marked, what="the mark is taken back")
    assert len(mail["a"].claim()) == 1
    assert not mail["b"].marked


@pytest.mark.wide
def test_a_node_that_stays_cordoned_keeps_no_idle_pod(mail, stage, nodes, audit):
    """O23, O17: once another one is there the idle one goes; the busy one works on, and goes when it is idle."""
    stage.submit("mail", 2)
    assert mail["a"].claim()
    assert mail["b"].claim()
    mark = audit.mark()
    nodes.cordon("a")
    until(lambda: mail["a"].marked, what="it is marked")
    stage.submit("mail", 2)
    new = until(lambda: next((p for p in stage.pods("mail") if p["metadata"]["name"] not in names(mail)), None))
    nodes.bind(new, "b")
    Worker(stage, new)
    stage.quiet(audit, 4.0)
    assert names(mail) <= {pod["metadata"]["name"] for pod in stage.pods("mail")}, "a busy one is left alone"
    held = stage.run(calls.renew(mail["a"].session, 1, [], stats={}))
    assert held.draining
    release(stage, mail["a"])
    until(lambda: mail["a"].name not in {p["metadata"]["name"] for p in stage.pods("mail")}, what="it goes when idle")
    deleted = [
        w.name for w in audit.since(mark, namespace=stage.namespace) if (w.verb, w.resource) == ("delete", "pods")
    ]
    assert deleted == [mail["a"].name]


def names(workers):
    return {worker.name for worker in workers.values()}


def release(stage, worker):
    """Its task ends: the session says that it holds nothing any more."""
    stage.run(calls.renew(worker.session, worker.turns, [], complete=True, stats={}))


@pytest.mark.wide
def test_what_a_node_says_of_its_health_stops_nobody(mail, stage, nodes, audit):
    """O23: a kubelet that is silent says nothing of the worker, whose leases are renewed by itself."""
    nodes.taint("a", "node.kubernetes.io/unreachable:NoSchedule")
    nodes.taint("a", "node.kubernetes.io/memory-pressure:NoSchedule")
    stage.quiet(audit, 4.0)
    assert not mail["a"].marked
    nodes.taint("a", "maintenance=tonight:NoSchedule")
    until(lambda: mail["a"].marked, what="a person's taint does")


@pytest.mark.wide
def test_drains_that_need_more_than_a_node_allows_are_told(stage, start_operator, nodes):
    """O22: by the label of a spot node, and by what whoever runs the nodes says; only once drains were measured."""
    start_operator("--namespace", stage.namespace, "--node-grace", "example.com/class=batch:45s").wait_ready()
    nodes.make("spot", labels={"eks.amazonaws.com/capacityType": "SPOT"})
    nodes.make("batch", labels={"example.com/class": "batch"})
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"min": 1, "max": 1}))
    (pod,) = nodes.bind_each("mail", "spot")
    budget = stage.wait_condition("workerpool", "mail", "DrainBudgetOK", "True")
    assert budget["reason"] == "NoSamples"
    for _ in range(20):
        report(stage, pod, seconds=40)
    until(lambda: stage.status("workerpool", "mail")["grace"]["samples"] == 20, what="the drains are seen")
    assert stage.condition("workerpool", "mail", "DrainBudgetOK")["status"] == "True", "65 s are within two minutes"
    stage.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
    other = until(lambda: next((p for p in stage.pods("mail") if p["metadata"]["uid"] != pod["metadata"]["uid"]), None))
    nodes.bind(other, "batch")
    told = stage.wait_condition("workerpool", "mail", "DrainBudgetOK", "False", "NodesAllowLess")
    assert "drains need 65 s, and nodes with example.com/class=batch allow 45 s" in told["message"]


def report(stage, pod, *, seconds):
    session = stage.session(pod, "mail", "mail")
    told = {"duration_seconds": seconds, "started": 1, "finished": 1, "handed_back": 0, "abandoned": 0}
    stage.run(calls.report_drain(session, {**told, "truncated": False, "grace_seconds": 120}))
    stage.run(calls.end_session(session))


def test_without_the_right_to_nodes_it_works_on_and_says_so(stage, start_operator, make_identity, nodes, helm, audit):
    """O31: the right is named at start and in a condition of the pool; everything else goes its way."""
    identity = make_identity("poolkeeper-operator", rights=chart_rights(stage, helm, without="nodes"))
    operator = start_operator(
        "--namespace", stage.namespace, "--lease", "poolkeeper-operator", kubeconfig=identity.kubeconfig
    ).wait_ready()
    mail = furnish(stage, nodes)
    condition = stage.wait_condition("workerpool", "mail", "NodesIgnored", "True", "RightMissing")
    assert "right_missing: list nodes in the cluster" in condition["message"]
    assert any("right_missing: watch nodes in the cluster" in line.get("message", "") for line in operator.lines())
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    nodes.cordon("a")
    stage.quiet(audit, 3.0)
    assert not mail["a"].marked
    operator.stop()
    granted = start_operator().wait_ready()
    until(lambda: mail["a"].marked, what="with the right it is seen")
    until(partial(_gone, stage), what="the condition goes")
    assert granted.process.poll() is None


def _gone(stage):
    return stage.condition("workerpool", "mail", "NodesIgnored") is None
