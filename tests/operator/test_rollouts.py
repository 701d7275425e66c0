"""What restarts workers: only what the user changes (O21, O28); and what deleting leaves behind: nothing (O9)."""

import json
from functools import partial

from fixtures.stage import until
from poolkeeper.store import calls


def template(stage):
    return stage.get("deployment", "mail")["spec"]["template"]


def test_a_new_grace_rides_on_the_next_rollout_of_the_user(stage, operator):
    """Measured drains change what the next template carries, and never cause a rollout themselves (O20, O21)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"min": 1}))
    pod = until(lambda: stage.pods("mail"))[0]
    session = stage.session(pod, "mail", "mail")
    before = template(stage)
    assert before["spec"]["terminationGracePeriodSeconds"] >= 30
    for _ in range(25):
        session = stage.session(pod, "mail", "mail")
        report = {"duration_seconds": 400, "started": 1, "finished": 1, "handed_back": 0, "abandoned": 0}
        stage.run(calls.report_drain(session, {**report, "truncated": False, "grace_seconds": 65}))
    until(lambda: stage.status("workerpool", "mail")["grace"]["samples"] >= 25, timeout=60)
    assert template(stage) == before
    stage.apply(stage.pool("mail", scaling={"min": 1}, template={"image": "localhost/demo:2"}))
    until(lambda: template(stage)["spec"]["containers"][0]["image"] == "localhost/demo:2")
    after = template(stage)["spec"]
    assert after["terminationGracePeriodSeconds"] >= 600
    env = {v["name"]: v.get("value") for v in after["containers"][0]["env"]}
    assert env["POOLKEEPER_GRACE_PERIOD"] == str(after["terminationGracePeriodSeconds"])


def test_scaling_limits_and_drain_bounds_are_no_new_build(stage, operator):
    """Settings that a running pod does not see are applied without touching the template (O21)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    before = until(lambda: stage.get("deployment", "mail"))
    changed = stage.pool(
        "mail", scaling={"max": 3}, drain={"minGrace": "10m"}, maxRunning=5, disruption={"maxUnavailable": 2}
    )
    stage.apply(changed)
    until(lambda: stage.get("pdb", "mail")["spec"]["maxUnavailable"] == 2)
    after = stage.get("deployment", "mail")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_a_hand_on_the_deployment_is_undone_and_foreign_marks_survive(stage, operator):
    """Our fields are brought back; labels and annotations of others stay (O5)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    until(lambda: stage.get("deployment", "mail"))
    stage.kubectl("annotate", "deployment", "mail", "example.com/note=kept")
    stage.kubectl("set", "image", "deployment/mail", "worker=localhost/other:9")
    until(lambda: template(stage)["spec"]["containers"][0]["image"] == "localhost/demo:1")
    assert stage.get("deployment", "mail")["metadata"]["annotations"]["example.com/note"] == "kept"


def test_a_template_of_an_older_operator_is_kept(stage, start_operator):
    """An operator that would render the template otherwise leaves a running pool alone until its user changes it (O28)."""
    first = start_operator().wait_ready()
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    live = until(lambda: stage.get("deployment", "mail"))
    first.stop()
    older = json.loads(live["metadata"]["annotations"]["poolkeeper.dev/template"])
    older["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] = 17
    kept = {key: live["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")}
    note = {"poolkeeper.dev/template": json.dumps(older, sort_keys=True, separators=(",", ":"))}
    spec = {key: live["spec"][key] for key in ("selector", "strategy", "revisionHistoryLimit", "replicas")}
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**kept, "annotations": note},
        "spec": {**spec, "template": older},
    }
    how = ("--server-side", "--force-conflicts", "--field-manager=poolkeeper-operator", "-f", "-")
    stage.kubectl("apply", *how, stdin=json.dumps(manifest))
    generation = stage.get("deployment", "mail")["metadata"]["generation"]
    start_operator().wait_ready()
    stage.wait_condition("workerpool", "mail", "Ready", "True")
    assert stage.get("deployment", "mail")["metadata"]["generation"] == generation
    assert template(stage)["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] == 17
    stage.apply(stage.pool("mail", template={"image": "localhost/demo:2"}))
    until(lambda: template(stage)["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] != 17)


def gone(stage, kind, name):
    return stage.get(kind, name) is None


def test_a_deleted_pool_takes_its_children_along(stage, operator):
    """Owner references and the cluster's garbage collector do it; no finalizer is in the way (O9)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    until(lambda: stage.get("pdb", "mail") and stage.get("deployment", "mail"))
    assert not stage.get("workerpool", "mail")["metadata"].get("finalizers")
    stage.kubectl("delete", "workerpool", "mail", "--timeout=10s")
    for kind in ("deployment", "serviceaccount", "pdb"):
        until(partial(gone, stage, kind, "mail"), what=f"{kind} gone")
