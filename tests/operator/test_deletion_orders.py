"""Everything can be deleted in every order, with and without the operator; namespaces end (O9)."""

import itertools
import random
import time

import pytest

from fixtures.remains import finalizers, remains
from fixtures.stage import until
from poolkeeper.store import calls

pytestmark = pytest.mark.wide

KINDS = {"taskqueue": "mail", "workerpool": "mail", "providerquota": "api", "database": "main", "secret": "pk-main"}
LACKS = {
    "taskqueue": ("workerpool", "Ready", "QueueMissing"),
    "providerquota": ("workerpool", "QuotaLimited", "QuotaMissing"),
    "database": ("taskqueue", "Ready", "DatabaseMissing"),
    "secret": ("database", "Ready", "SecretMissing"),
}


def everything(stage, **queue):
    use = [{"name": "api", "quotaRef": {"name": "api"}, "perTask": {"concurrentCalls": 1}}]
    return [
        stage.secret(),
        stage.db(),
        stage.queue("mail", **queue),
        stage.pool("mail", scaling={"min": 2, "max": 2}, providers=use),
        stage.quota("api", 10),
    ]


def in_force(stage, **queue):
    """All of it applied, and at work."""
    stage.apply(*everything(stage, **queue))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True", timeout=60)
    until(lambda: stage.replicas("mail") == 2, timeout=60)
    stage.submit("mail", 3)


def delete(stage, *kinds):
    for kind in kinds:
        stage.kubectl("delete", kind, KINDS[kind], "--wait=false")


def nothing_left(stage):
    """Of what users applied and of what was made of it."""
    kinds = ",".join((*KINDS, "deployment", "serviceaccount", "poddisruptionbudget", "pod"))
    found = stage.kubectl("get", kinds, "-o", "name", "--ignore-not-found").split()
    return set(found) <= {"serviceaccount/default"}


@pytest.mark.parametrize("first", KINDS)
def test_whatever_goes_first_the_rest_says_what_it_lacks_and_it_all_goes(stage, operator, first):
    """The Deployment stays as it is while its pool is there; applied again, all of it is as before."""
    in_force(stage)
    rows = remains(stage, "mail")
    delete(stage, first)
    if first == "workerpool":
        until(lambda: stage.get("deployment", "mail") is None, timeout=60)
        until(lambda: operator.metric("poolkeeper_pool_replicas", pool="mail") == 0)
    else:
        kind, condition, reason = LACKS[first]
        if first == "secret":  # it is read anew with the changed Database, and every minute
            stage.apply(stage.db(tickInterval="2s"))
        until(lambda: (stage.condition(kind, KINDS[kind], condition) or {}).get("reason") == reason, timeout=90)
        assert stage.replicas("mail") == 2
    stage.apply(*everything(stage))
    for kind in ("database", "taskqueue"):
        stage.wait_condition(kind, KINDS[kind], "Ready", "True", timeout=90)
    stage.wait_condition("workerpool", "mail", "ScalingActive", "True", timeout=90)
    until(lambda: stage.replicas("mail") == 2, timeout=60)
    assert remains(stage, "mail") == rows
    rest = [first, *random.Random(first).sample([kind for kind in KINDS if kind != first], 4)]
    delete(stage, *rest)
    until(lambda: nothing_left(stage), timeout=90, what=f"{rest} are gone with their children")
    assert remains(stage, "mail") == rows
    assert not [line for line in operator.lines() if "Traceback" in str(line)]


def test_everything_goes_without_the_operator_and_nothing_comes_back(stage, start_operator, audit):
    """Owner references suffice; an operator that comes later makes nothing anew."""
    operator = start_operator().wait_ready()
    in_force(stage)
    operator.stop()
    delete(stage, *KINDS)
    until(lambda: nothing_left(stage), timeout=90)
    mark = audit.mark()
    start_operator().wait_ready()
    until(lambda: nothing_left(stage))
    ours = [w for w in audit.since(mark, namespace=stage.namespace) if w.resource in {"deployments", "serviceaccounts"}]
    assert [w for w in ours if "kube-controller-manager" not in w.user] == []
    assert remains(stage, "mail")["ready"] == 3


def test_every_order_with_a_purge(stage, operator):
    """Database, Secret and queue go in one go, in each order: the queue still finds its way to the tasks."""
    for order in itertools.permutations(("taskqueue", "database", "secret")):
        in_force(stage, deletionPolicy="Purge")
        assert finalizers(stage.get("taskqueue", "mail")) == ["poolkeeper.dev/purge"]
        delete(stage, *order)
        until(lambda: stage.get("taskqueue", "mail") is None, timeout=90, what=" then ".join(order))
        assert remains(stage, "mail") == {}
        delete(stage, "workerpool", "providerquota")
        until(lambda: nothing_left(stage), timeout=90)


def test_a_secret_that_was_missed_before_its_queue_went_still_leads_to_the_tasks(stage, operator):
    """Between the deletions of one go the operator may look: what goes together need not go in the same moment."""
    in_force(stage, deletionPolicy="Purge")
    delete(stage, "secret")
    stage.apply(stage.db(tickInterval="2s"))
    stage.wait_condition("database", "main", "Ready", "False", "SecretMissing")
    delete(stage, "taskqueue", "database")
    until(lambda: stage.get("taskqueue", "mail") is None, timeout=90)
    assert remains(stage, "mail") == {}


def test_a_secret_that_stays_away_is_not_asked_for_all_the_time(stage, start_operator, proxy):
    """O9: for half a minute its queue may be about to go with it; after that, as for any other Secret, every ten seconds."""
    start_operator(kubeconfig=proxy.kubeconfig).wait_ready()
    in_force(stage, deletionPolicy="Purge")
    delete(stage, "secret")
    stage.apply(stage.db(tickInterval="2s"))
    until(lambda: (stage.condition("taskqueue", "mail", "Ready") or {}).get("status") == "False", timeout=120)
    before = proxy.count(verb="get", resource="secrets")
    time.sleep(30)
    assert proxy.count(verb="get", resource="secrets") - before <= 5


def test_a_pool_that_waits_for_its_pods_gets_no_children_anew(stage, operator):
    """`kubectl delete --cascade=foreground`: the pool is there, and going."""
    in_force(stage)
    stage.kubectl(
        "patch", "workerpool", "mail", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/wait"]}}'
    )
    stage.kubectl("delete", "workerpool", "mail", "--cascade=foreground", "--wait=false")
    until(lambda: stage.get("deployment", "mail") is None, timeout=60)
    stage.submit("mail", 5)
    stage.kubectl("annotate", "workerpool", "mail", "example.com/poke=1")
    stage.apply(stage.pool("other", "mail"))
    until(lambda: stage.replicas("other"), timeout=60, what="the operator has seen what waits")
    assert stage.get("deployment", "mail") is None
    stage.kubectl("patch", "workerpool", "mail", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    until(lambda: stage.get("workerpool", "mail") is None)


def end(stage):
    stage.kubectl("delete", "namespace", stage.namespace, "--wait=false")


def ended(stage):
    return not stage.kubectl("get", "namespace", stage.namespace, "--ignore-not-found").strip()


@pytest.mark.parametrize("policy", ["Retain", "Purge"])
def test_a_namespace_ends_with_all_that_is_in_it(stage, operator, policy):
    """And the operator goes on: another namespace's objects are not affected by the one that ends."""
    in_force(stage, deletionPolicy=policy)
    rows = remains(stage, "mail")
    end(stage)
    until(lambda: ended(stage), timeout=120, what="the namespace is gone")
    assert remains(stage, "mail") == ({} if policy == "Purge" else rows)
    assert operator.fetch("/livez")[0] == 200


def test_a_namespace_that_ends_without_the_operator_does_not_hang_afterwards(stage, start_operator):
    """Purge, but the way to the database went with the namespace: nobody can bring it back, so the tasks stay."""
    elsewhere = ("--namespace", stage.namespace, "--lease-namespace", "default", "--lease", f"of-{stage.namespace}")
    operator = start_operator(*elsewhere).wait_ready()  # a namespace that ends takes no new Lease
    in_force(stage, deletionPolicy="Purge")
    rows = remains(stage, "mail")
    operator.stop()
    end(stage)
    until(lambda: stage.get("database", "main") is None and stage.get("secret", "pk-main") is None, timeout=60)
    assert not ended(stage)
    start_operator(*elsewhere).wait_ready()
    until(lambda: ended(stage), timeout=120, what="the namespace is gone")
    assert remains(stage, "mail") == rows


@pytest.mark.parametrize("cached", [True, False], ids=["the same operator", "a new operator"])
def test_a_namespace_made_again_does_not_inherit(stage, start_operator, kubectl, cached):
    """Contract 11, also within the minute in which the operator remembers namespaces."""
    operator = start_operator().wait_ready()
    in_force(stage)
    rows = remains(stage, "mail")
    end(stage)
    until(lambda: ended(stage), timeout=120)
    if not cached:
        operator.stop()
    kubectl("create", "namespace", stage.namespace)
    if not cached:
        operator = start_operator().wait_ready()
    stage.apply(stage.secret(), stage.db(), stage.queue("mail", deletionPolicy="Purge"))
    stage.wait_condition("taskqueue", "mail", "Stalled", "True", "Orphaned", timeout=60)
    assert operator.process.poll() is None
    stage.kubectl("delete", "taskqueue", "mail", "--wait=false")
    until(lambda: stage.get("taskqueue", "mail") is None, timeout=60)
    assert remains(stage, "mail") == rows
    assert stage.run(calls.submit(f"{stage.namespace}/mail", "demo.echo", 1)).code is None
