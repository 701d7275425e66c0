"""People, charts and webhooks write beside us, to the pool and to its Deployment (C36, O5, O19, O28)."""

import json
from functools import partial

import pytest
import yaml

from fixtures.stage import until
from lab.kubectl import Helm

SIZE = 8
CHART = {"apiVersion": "v2", "name": "team", "version": "0.1.0"}
FOREIGN = {"metadata": {"annotations": {"example.com/injected": "yes"}, "labels": {"example.com/mesh": "on"}}}


@pytest.fixture
def chart(tmp_path, stage, kubeconfig):
    """A team's own chart with its pool in it; called with values, it is installed or upgraded."""
    pool = stage.pool("mail", scaling={"max": SIZE, "toZeroAfter": "10m"})
    pool["metadata"]["annotations"] = {"example.com/release": "VALUE"}
    text = (
        yaml.safe_dump(pool).replace("VALUE", "{{ .Values.note }}").replace("localhost/demo:1", "{{ .Values.image }}")
    )
    (tmp_path / "team" / "templates").mkdir(parents=True)
    (tmp_path / "team" / "Chart.yaml").write_text(yaml.safe_dump(CHART))
    (tmp_path / "team" / "templates" / "pool.yaml").write_text(text)
    helm = Helm(kubeconfig, stage.namespace)

    def upgrade(note, image="localhost/demo:1"):
        values = ("--set", f"note={note}", "--set", f"image={image}")
        helm("upgrade", "--install", "team", tmp_path / "team", *values)

    return upgrade


def deployment(stage):
    return stage.get("deployment", "mail")


def revision(stage):
    return int(deployment(stage)["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def template(stage):
    return deployment(stage)["spec"]["template"]


def still_foreign(stage):
    meta = template(stage)["metadata"]
    return (meta["annotations"].get("example.com/injected"), meta["labels"].get("example.com/mesh")) == ("yes", "on")


def sizes(audit, mark, namespace):
    """Every size that the Deployment was given by anybody."""
    return {
        write.body["spec"]["replicas"]
        for write in audit.since(mark, namespace=namespace)
        if write.resource == "deployments" and "replicas" in (write.body.get("spec") or {})
    }


@pytest.mark.wide
def test_eight_stay_eight_and_everybody_keeps_what_is_theirs(stage, start_operator, chart, audit):
    """Helm upgrade, restarted operator, changed image, kubectl rollout restart; then idle means no writes at all."""
    first = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail"))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail", SIZE)
    chart("one")
    until(lambda: stage.replicas("mail") == SIZE)
    mark = audit.mark()
    stage.kubectl("patch", "deployment", "mail", "--type=merge", "-p", json.dumps({"spec": {"template": FOREIGN}}))
    until(lambda: revision(stage) == 2, what="what others add to the template is rolled out, by them")

    chart("two")  # a value that no pod sees
    first.stop()
    start_operator().wait_ready()
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    assert (stage.get("workerpool", "mail")["metadata"]["annotations"]["example.com/release"], revision(stage)) == (
        "two",
        2,
    )
    chart("two", image="localhost/demo:2")
    until(lambda: revision(stage) == 3)
    assert still_foreign(stage)

    stage.kubectl("rollout", "restart", "deployment/mail")
    until(lambda: revision(stage) == 4)
    until(lambda: not stage.quiet(audit, 3.0), timeout=90, what="converged")
    before = deployment(stage)["metadata"]
    status = stage.get("workerpool", "mail")["metadata"]
    stage.quiet(audit, 5.0)
    after = deployment(stage)["metadata"]
    assert (after["generation"], after["resourceVersion"]) == (before["generation"], before["resourceVersion"])
    assert stage.get("workerpool", "mail")["metadata"]["resourceVersion"] == status["resourceVersion"]
    assert revision(stage) == 4, "a restart rolls once"
    assert still_foreign(stage)
    assert "kubectl.kubernetes.io/restartedAt" in template(stage)["metadata"]["annotations"]
    assert sizes(audit, mark, stage.namespace) <= {SIZE}


def test_a_manual_scale_is_reverted_with_an_event_that_says_so_and_obeyed_in_hold(stage, operator):
    """O19: nothing is undone silently; the switch that lets people do it is named."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"min": SIZE, "max": SIZE}))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail", SIZE)
    until(lambda: stage.replicas("mail") == SIZE)
    for replicas, who in ((0, "somebody"), (3, "kubectl")):  # a 0 leaves no name behind
        for pod in until(lambda: len(found := stage.pods("mail")) == SIZE and found):
            stage.session(pod, "mail", "mail")  # they work: pods that cannot start would stop growth
        stage.kubectl("scale", "deployment/mail", f"--replicas={replicas}")
        event = until(partial(told_of, stage, replicas))
        assert event["type"] == "Warning"
        assert event["message"].startswith(f"{who} set replicas to {replicas}, which is not obeyed: {SIZE} now.")
        assert "mode: Hold" in event["message"]
        assert stage.replicas("mail") == SIZE
    stage.apply(stage.pool("mail", scaling={"max": SIZE, "mode": "Hold"}))
    stage.wait_condition("workerpool", "mail", "ScalingActive", "True", timeout=60)
    until(lambda: observed(stage))
    stage.kubectl("scale", "deployment/mail", "--replicas=5")
    until(lambda: stage.get("deployment", "mail")["status"].get("replicas") == 5)
    stage.kubectl("annotate", "workerpool", "mail", "example.com/look=again")
    until(lambda: operator.metric("poolkeeper_pool_replicas", pool="mail") == 5)
    assert stage.replicas("mail") == 5
    assert len(stage.events("ForeignScale")) == 2


def told_of(stage, replicas):
    return next((e for e in stage.events("ForeignScale") if f" to {replicas}," in e["message"]), None)


def observed(stage):
    pool = stage.get("workerpool", "mail")
    return pool["status"]["observedGeneration"] == pool["metadata"]["generation"]


@pytest.mark.wide
@pytest.mark.parametrize("size", [0, 1, 2])
def test_no_size_blocks_the_drain_of_a_node(stage, operator, size):
    """C32: pods that are ready may go one at a time, those that are not at any time; nothing is held at 0 and 1."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"min": size}))
    until(lambda: stage.replicas("mail") == size and len(stage.pods("mail")) == size)
    for pod in stage.pods("mail"):
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        name = pod["metadata"]["name"]
        stage.kubectl("patch", "pod", name, "--subresource=status", "--type=strategic", "-p", json.dumps(ready))
    budget = until(
        lambda: (
            (stage.get("pdb", "mail") or {}).get("status", {}).get("observedGeneration") and stage.get("pdb", "mail")
        )
    )
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    if size:
        until(lambda: stage.get("pdb", "mail")["status"]["disruptionsAllowed"] == 1)
