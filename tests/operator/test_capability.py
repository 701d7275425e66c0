"""Tasks of a type that no build has: no pod is started for them, and everybody says so (C06, Q11, O12)."""

import os
import subprocess
import sys

import pytest

from fixtures.stage import until
from poolkeeper.store import Settle, calls


def held_back(stage):
    return (stage.status("taskqueue", "mail").get("depth", {}).get("heldBack") or {}).get("noCapableWorker", 0)


def works(stage, session, turn=1):
    """One turn of a worker that does whatever it is given; the deliveries."""
    claimed = stage.run(calls.turn(session, turn, turn - 1, [], 100)).claimed
    done = [Settle(task_id=each.task_id, token=each.token, outcome="succeeded") for each in claimed]
    stage.run(calls.turn(session, turn + 1, turn, done, 0))
    return [(each.type, each.delivery) for each in claimed]


def explained(stage):
    kubeconfig = str(stage.kubectl.kubeconfig)
    command = [sys.executable, "-m", "poolkeeper", "pool", "explain", "mail", "-n", stage.namespace]
    return subprocess.run(
        [*command, "--kubeconfig", kubeconfig], capture_output=True, check=True, env=os.environ, text=True
    ).stdout


@pytest.mark.wide
def test_a_pool_does_not_grow_for_what_its_build_cannot_run_and_a_new_build_does_it(stage, start_operator):
    """C06: v1 leaves ten of an unknown type alone, also at zero and under a new operator; v2 does each in its first delivery."""
    operator = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    stage.submit("mail", 10, type="demo.new")
    until(lambda: stage.pods("mail"), what="a build that was never seen counts as able: its first pod starts")
    assert held_back(stage) == 0
    old = stage.session(stage.pods("mail")[0], "mail", "mail", concurrency=10)
    stage.submit("mail", 10)
    assert works(stage, old) == [("demo.echo", 1)] * 10
    until(lambda: held_back(stage) == 10, what="the queue says that nobody can run them")
    until(lambda: stage.replicas("mail") == 0, timeout=60, what="they ask for no pod")
    stage.run(calls.end_session(old))
    assert operator.metric("poolkeeper_queue_no_capable_worker_tasks", queue="mail") == 10
    condition = stage.wait_condition("workerpool", "mail", "ScalingActive", "True", "NoCapableWorker")
    assert "demo.new" in condition["message"]
    assert "demo.new wait in its queues, and no worker of any pool can run them" in explained(stage)

    operator.stop()
    operator = start_operator().wait_ready()
    until(lambda: operator.metric("poolkeeper_queue_no_capable_worker_tasks", queue="mail") == 10)
    assert stage.replicas("mail") == 0, "what the build can run is remembered in the store"

    stage.apply(stage.pool("mail", template={"image": "localhost/demo:2"}))
    until(lambda: stage.pods("mail"), what="a pod of the new build, which was never seen")
    until(lambda: held_back(stage) == 0)
    new = stage.session(stage.pods("mail")[0], "mail", "mail", concurrency=10, types=["demo.echo", "demo.new"])
    assert works(stage, new) == [("demo.new", 1)] * 10
    until(lambda: stage.condition("workerpool", "mail", "ScalingActive")["reason"] == "Sized")


@pytest.mark.wide
def test_a_pool_that_is_gone_counts_for_nobody_and_one_for_other_types_takes_none(stage, operator):
    """Q11: a deleted pool could run them, and no pod of it will come; a second pool for the type ends that, and it alone grows."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", taskTypes=["demo.echo"]))
    stage.apply(stage.pool("late", "mail", taskTypes=["demo.new"]))
    stage.wait_condition("workerpool", "late", "SignalFresh", "True")
    stage.submit("mail", 3, type="demo.new")
    stage.run(
        calls.end_session(stage.session(until(lambda: stage.pods("late"))[0], "late", "mail", types=["demo.new"]))
    )
    assert held_back(stage) == 0
    assert stage.replicas("mail") == 0
    stage.kubectl("delete", "workerpool", "late", "--wait=false")
    until(lambda: held_back(stage) == 3, what="nobody is left for them")
    stage.apply(stage.pool("again", "mail"))
    until(lambda: stage.replicas("again"), what="a pool that was never seen counts as able")
    until(lambda: held_back(stage) == 0)
    assert stage.replicas("mail") == 0
    reason = stage.condition("workerpool", "mail", "ScalingActive")["reason"]
    until(lambda: stage.condition("workerpool", "mail", "ScalingActive")["reason"] == "Sized", what=reason)


@pytest.mark.wide
def test_what_a_build_cannot_run_takes_no_share_of_a_quota(stage, operator):
    """O15, C06: a pool that waits for nothing of its own leaves all calls to one that does."""
    provider = [{"name": "model", "quotaRef": {"name": "model"}, "perTask": {"concurrentCalls": 1}}]
    stage.apply(stage.db(), stage.queue("mail"), stage.queue("busy"), stage.quota("model", 8))
    stage.apply(stage.pool("mail", providers=provider), stage.pool("busy", providers=provider))
    deployment = until(lambda: stage.get("deployment", "mail"))
    build = deployment["metadata"]["labels"]["poolkeeper.dev/build"]
    gone = {"name": "gone", "namespace": stage.namespace, "uid": "gone", "labels": {"poolkeeper.dev/build": build}}
    stage.run(calls.end_session(stage.session({"metadata": gone}, "mail", "mail")))

    def told(pool):
        return (stage.condition("workerpool", pool, "QuotaLimited") or {}).get("message", "")

    stage.submit("mail", 20, type="demo.new")
    stage.submit("busy", 20)
    until(lambda: "8 of 8 concurrent calls" in told("busy"), what="all of the quota is the busy pool's")
    assert held_back(stage) == 20
    assert stage.replicas("mail") == 0
