"""scaling.mode: External: another scaler says how many through the scale subresource, the operator stays the one that writes (O3, O19)."""

import json
import time
from functools import partial

import pytest

from fixtures.stage import until
from fixtures.watching import watched_sizes
from poolkeeper.store import calls

MANY = 40
SLOW = {"down": {"window": "1s", "maxStepPods": 1000}, "max": 60, "targetAge": "1s", "toZeroAfter": "10m"}


def external(stage, **scaling):
    """One pool in External, in force."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"mode": "External", **scaling}))
    until(partial(in_force, stage, "External"), what="External is in force")
    return stage


def in_force(stage, mode):
    pool = stage.get("workerpool", "mail")
    status = pool["status"]
    return status.get("mode") == mode and status["observedGeneration"] == pool["metadata"]["generation"]


def scale(stage, replicas):
    stage.kubectl("scale", "workerpool/mail", f"--replicas={replicas}")


def says(stage, reason, text):
    """Wait until the condition ScalingActive has this reason and these words."""

    def said():
        found = stage.condition("workerpool", "mail", "ScalingActive") or {}
        return found.get("reason") == reason and text in found["message"]

    until(said, what=f"ScalingActive says {reason}: {text}")


def working(stage, count):
    """Sessions for all pods, once there are so many: pods that cannot start would stop growth."""
    pods = until(lambda: len(found := stage.pods("mail")) == count and found, what=f"{count} pods")
    return [stage.session(pod, "mail", "mail") for pod in pods]


def test_kubectl_scale_is_obeyed_within_the_bounds_and_said_where_it_is_not(stage, operator):
    """O3, O19: up, down and to zero; more than max and less than min are bounded, and the condition says by what."""
    external(stage, min=0, max=10)
    assert stage.get("workerpool", "mail")["spec"]["replicas"] == 0
    stage.wait_condition("workerpool", "mail", "ScalingActive", "True", "ExternalAwaited")
    stage.kubectl("scale", "workerpool/mail", "--replicas=4")
    until(lambda: stage.replicas("mail") == 4)
    says(stage, "External", "spec.replicas asks for 4")
    working(stage, 4)
    scale(stage, 25)
    until(lambda: stage.replicas("mail") == 10)
    says(stage, "ExternalBounded", "scaling.max is 10")
    assert stage.get("workerpool", "mail")["spec"]["replicas"] == 25, "what was asked for stays what was asked for"
    wanted = {"replicas": 25, "limited": 10, "limitedBy": "Maximum", "applied": 10, "rateLimitedBy": "None"}
    until(lambda: stage.status("workerpool", "mail")["wanted"] == wanted)
    working(stage, 10)
    scale(stage, 0)
    until(lambda: stage.replicas("mail") == 0, what="to zero, as asked")
    stage.apply(stage.pool("mail", scaling={"mode": "External", "min": 2}))
    until(lambda: stage.replicas("mail") == 2)
    says(stage, "ExternalBounded", "scaling.min is 2")


def test_elsewhere_a_value_in_spec_replicas_is_named_and_not_obeyed(stage, operator):
    """O3: in Auto and Hold it is reported; the way to have it obeyed is named."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    until(lambda: stage.get("workerpool", "mail")["spec"].get("replicas") is not None)
    scale(stage, 5)
    says(stage, "ReplicasNotObeyed", "set by kubectl")
    says(stage, "ReplicasNotObeyed", "scaling.mode: External")
    assert stage.replicas("mail") == 0
    stage.apply(stage.pool("mail", scaling={"mode": "Hold"}))
    until(partial(in_force, stage, "Hold"))
    assert stage.condition("workerpool", "mail", "ScalingActive")["reason"] == "ReplicasNotObeyed"
    assert stage.replicas("mail") == 0


@pytest.mark.wide
def test_a_value_that_was_written_before_external_is_not_obeyed_afterwards(stage, operator):
    """O19: the present size stands until the other scaler writes anew, and spec.replicas says that size meanwhile."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"min": 6}))
    until(lambda: stage.replicas("mail") == 6)
    scale(stage, 1)
    stage.wait_condition("workerpool", "mail", "ScalingActive", "True", "ReplicasNotObeyed")
    written = time.time()
    until(lambda: time.time() > written + 1.1, what="times of writes are whole seconds")
    with watched_sizes(stage, "mail") as watch:
        stage.apply(stage.pool("mail", scaling={"mode": "External"}))
        until(partial(in_force, stage, "External"))
        assert stage.get("workerpool", "mail")["spec"]["replicas"] == 6
        stage.wait_condition("workerpool", "mail", "ScalingActive", "True", "ExternalAwaited")
    assert set(watch.sizes) == {6}


@pytest.mark.wide
def test_forty_pods_are_handed_over_and_back_without_a_dip(stage, operator):
    """O19: from Auto to External and back, by the Deployment's own history; what another asks for in between is taken."""
    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="10m"), stage.pool("mail", scaling=SLOW))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail", MANY)
    until(lambda: stage.replicas("mail") == MANY)
    for session in working(stage, MANY):
        assert len(stage.run(calls.turn(session, 1, 0, [], 1)).claimed) == 1
    until(lambda: stage.status("workerpool", "mail").get("busySlots") == MANY, timeout=90)
    with watched_sizes(stage, "mail") as watch:
        stage.apply(stage.pool("mail", scaling={**SLOW, "mode": "External"}))
        until(partial(in_force, stage, "External"))
        assert json.loads(stage.kubectl("get", "--raw", raw(stage)))["spec"]["replicas"] == MANY
        scale(stage, MANY + 2)
        until(lambda: stage.replicas("mail") == MANY + 2)
        stage.apply(stage.pool("mail", scaling=SLOW))
        until(partial(in_force, stage, "Auto"))
        until(lambda: stage.replicas("mail") == MANY, what="the work still asks for forty")
    assert min(watch.sizes) == MANY, watch.sizes
    assert set(watch.sizes) == {MANY, MANY + 2}


def raw(stage):
    return f"/apis/poolkeeper.dev/v1alpha1/namespaces/{stage.namespace}/workerpools/mail/scale"


@pytest.mark.wide
def test_the_quota_holds_in_external(stage, operator):
    """O15, O19: no more pods than the share of the quota can use, and the store grants no more tasks."""
    providers = [{"name": "api", "quotaRef": {"name": "api"}, "perTask": {"concurrentCalls": 1}}]
    pool = stage.pool("mail", scaling={"mode": "External"}, providers=providers)
    stage.apply(stage.db(), stage.queue("mail"), stage.quota("api", 3), pool)
    until(partial(in_force, stage, "External"))
    scale(stage, 8)
    until(lambda: stage.replicas("mail") == 3)
    says(stage, "ExternalBounded", "3 of 3 concurrent calls of quota")
    pools = {p.pool: p.max_running for p in stage.run(calls.stats(cluster=None)).pools}
    assert pools[f"{stage.namespace}/mail"] == 3


@pytest.mark.wide
def test_a_restarted_operator_obeys_what_it_obeyed_before(stage, start_operator):
    """O19, O28: External is remembered in the status, so that a restart is no hand-over."""
    first = start_operator().wait_ready()
    external(stage)
    scale(stage, 3)
    until(lambda: stage.replicas("mail") == 3)
    until(lambda: in_force(stage, "External"))
    first.stop()
    with watched_sizes(stage, "mail") as watch:
        scale(stage, 5)
        start_operator().wait_ready()
        working(stage, 3)
        until(lambda: stage.replicas("mail") == 5)
    assert min(watch.sizes) == 3


@pytest.mark.wide
def test_a_real_horizontal_pod_autoscaler_sizes_the_pool(stage, operator):
    """O19: scaleTargetRef names the WorkerPool; its bounds need no metrics, and its writes come through /scale."""
    external(stage, min=1, max=20)
    until(lambda: stage.replicas("mail") == 1)
    until(lambda: stage.get("workerpool", "mail")["spec"]["replicas"] == 1, what="an HPA does nothing at zero")
    working(stage, 1)
    stage.apply(autoscaler(7, 9))
    until(lambda: stage.replicas("mail") == 7, timeout=120, what="the autoscaler's minimum")
    stage.wait_condition("workerpool", "mail", "ScalingActive", "True", "External")
    assert operator.metric("poolkeeper_pool_needed_pods", pool="mail") == 1, "its own opinion is a metric"
    working(stage, 7)
    stage.apply(autoscaler(2, 4))
    until(lambda: stage.replicas("mail") == 4, timeout=120, what="the autoscaler's maximum")


def autoscaler(least, most):
    target = {"apiVersion": "poolkeeper.dev/v1alpha1", "kind": "WorkerPool", "name": "mail"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "mail"},
        "spec": {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most},
    }
