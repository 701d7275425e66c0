"""The four kinds come into force (O1, O5), and once they have, nothing is written any more (O5)."""

from fixtures.stage import until


def test_the_four_kinds_come_into_force(stage, operator):
    """Applied together, in one go: the database is read, the queue is in the store, the pool has its children (O1, O5)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("database", "main", "Ready", "True", "Reachable")
    stage.wait_condition("taskqueue", "mail", "Ready", "True", "PolicyApplied")
    stage.wait_condition("workerpool", "mail", "Ready", "True")
    deployment = stage.get("deployment", "mail")
    assert deployment["spec"]["replicas"] == 0
    assert deployment["metadata"]["ownerReferences"][0]["kind"] == "WorkerPool"
    assert stage.get("serviceaccount", "mail")["automountServiceAccountToken"] is False
    assert stage.get("pdb", "mail")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    status = stage.status("database", "main")
    assert status["schemaVersion"] >= 1
    assert status["instanceID"]


def test_a_converged_namespace_is_left_alone(stage, operator, audit):
    """Ticks go by and nothing is written, by the API server's own audit log (O5, O33)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    until(lambda: not stage.quiet(audit, 2.0), timeout=20)
    assert stage.quiet(audit, 6.0) == []
