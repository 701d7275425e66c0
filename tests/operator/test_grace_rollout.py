"""The one rollout that the operator causes: where drains are cut by the grace that the pool has (O21, C28)."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from fixtures.stage import until
from poolkeeper.store import calls

SIZE = 3


def deployment(stage):
    return stage.get("deployment", "mail")


def present(stage):
    return deployment(stage)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def report(stage, pod, *, promised, seconds, truncated):
    """A drain as a worker reports it at its end."""
    told = {"duration_seconds": seconds, "started": 1, "finished": 0, "handed_back": 1, "abandoned": 0}
    session = stage.session(pod, "mail", "mail")
    stage.run(calls.report_drain(session, {**told, "truncated": truncated, "grace_seconds": promised}))
    stage.run(calls.end_session(session))


def samples(stage):
    return stage.status("workerpool", "mail").get("grace", {}).get("samples", 0)


def of_template(stage, *, new):
    """The pods of the newest template, or of those before."""
    revision = deployment(stage)["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
    sets = {
        owned["metadata"]["labels"]["pod-template-hash"]
        for owned in stage.kubectl.get("replicasets")
        if owned["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == revision
    }
    return [pod for pod in stage.pods("mail") if (pod["metadata"]["labels"]["pod-template-hash"] in sets) is new]


def become_ready(stage, pod, *, ago):
    """No node runs here: the test says what a kubelet would, as if it had been so for a while."""
    since = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    told = json.dumps({"status": {"phase": "Running", "conditions": [ready]}})
    stage.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p", told)


def fewer_than(stage, count):
    return len(of_template(stage, new=False)) < count


def is_ready(pod):
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


@pytest.fixture
def mail(stage, operator):
    """A pool of three ready pods; the user lets a rollout surge by three."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"min": SIZE}, rollout={"maxSurge": SIZE}))
    for pod in until(lambda: len(found := stage.pods("mail")) == SIZE and found):
        become_ready(stage, pod, ago=600)
    until(lambda: deployment(stage)["status"].get("availableReplicas") == SIZE)
    return stage


@pytest.mark.wide
def test_cut_drains_cause_one_rollout_a_pod_at_a_time(mail, audit):
    """Only after several cuts; one pod, and the next when its drain must be over; then the user's pace is back, and no more rollouts."""
    before, mark = present(mail), audit.mark()
    pod = mail.pods("mail")[0]
    for _ in range(2):
        report(mail, pod, promised=before, seconds=before - 4, truncated=True)
    until(lambda: samples(mail) == 2, timeout=60, what="both were seen")
    assert present(mail) == before, "two may be an accident"
    report(mail, pod, promised=before, seconds=before - 4, truncated=True)
    until(lambda: present(mail) > before, timeout=60, what="a longer grace")
    longer = present(mail)
    spec = deployment(mail)["spec"]
    env = {v["name"]: v.get("value") for v in spec["template"]["spec"]["containers"][0]["env"]}
    assert env["POOLKEEPER_GRACE_PERIOD"] == str(longer)
    assert spec["minReadySeconds"] == before
    (event,) = until(lambda: mail.events("GraceRollout"))
    assert "3 drains were cut by the present grace" in event["message"]

    for step in range(1, SIZE + 1):
        (fresh,) = until(lambda: [pod for pod in of_template(mail, new=True) if not is_ready(pod)])
        assert len(of_template(mail, new=False)) == SIZE - step + 1, "the old one stays until the new one is there"
        become_ready(mail, fresh, ago=1)
        until(lambda: deployment(mail)["status"].get("readyReplicas") == SIZE + 1, what="it counts as ready")
        assert len(of_template(mail, new=False)) == SIZE - step + 1, "ready is not enough: the last drain may still run"
        report(mail, pod, promised=before, seconds=before - 4, truncated=True)
        become_ready(mail, fresh, ago=before + 5)
        until(partial(fewer_than, mail, SIZE - step + 1), what="the next may go")
    until(lambda: not deployment(mail)["spec"].get("minReadySeconds"), what="the user's pace is back")
    assert deployment(mail)["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == SIZE

    until(lambda: samples(mail) >= 3 + SIZE, timeout=60)
    mail.quiet(audit, 3.0)
    assert present(mail) == longer, "drains of the old grace are no reason for another"
    assert templates(audit, mark, mail.namespace) == {longer}


def templates(audit, mark, namespace):
    """The graces that the operator wrote."""
    return {
        write.body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for write in audit.since(mark, namespace=namespace)
        if write.resource == "deployments" and "template" in (write.body.get("spec") or {})
    }


@pytest.mark.wide
def test_a_restarted_operator_goes_on_with_it(mail, start_operator, operator):
    """What is under way stands in the Deployment, not in the operator's memory."""
    before, pod = present(mail), mail.pods("mail")[0]
    for _ in range(3):
        report(mail, pod, promised=before, seconds=before - 4, truncated=True)
    until(lambda: present(mail) > before, timeout=60)
    operator.stop()
    generation = deployment(mail)["metadata"]["generation"]
    start_operator().wait_ready()
    mail.wait_condition("workerpool", "mail", "SignalFresh", "True")
    until(lambda: len(of_template(mail, new=True)) == 1)
    assert deployment(mail)["metadata"]["generation"] == generation
    assert deployment(mail)["spec"]["minReadySeconds"] == before
