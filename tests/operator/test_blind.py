"""What cannot be read is not zero (P9, O18), and what is wrong with a Database is named with its remedy (quality 2)."""

import pytest

from fixtures.stage import until
from poolkeeper.store import calls


def test_a_database_that_goes_away_holds_the_size(stage, operator):
    """Blind: the size stays, Ready stays, SignalFresh says since when and why, one Event tells of it; it heals (O3, O18)."""
    stage.apply(stage.db(tickInterval="1s"), stage.queue("mail"), stage.pool("mail", scaling={"min": 0}))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    stage.submit("mail", 3)
    until(lambda: stage.replicas("mail") == 3)
    stage.apply(stage.secret(dsn="postgresql://nobody@127.0.0.1:1/nowhere"))
    stage.apply(stage.db(tickInterval="2s"))  # the secret is read anew with the changed Database
    condition = stage.wait_condition("workerpool", "mail", "SignalFresh", "False", "NoReading", timeout=60)
    assert "cannot be reached" in condition["message"]
    stage.wait_condition("database", "main", "Ready", "False", "Unreachable")
    assert stage.replicas("mail") == 3
    assert stage.condition("workerpool", "mail", "ScalingActive")["reason"] == "SignalLost"
    about = [event for event in stage.events("SignalLost") if event["involvedObject"]["kind"] == "WorkerPool"]
    assert len(about) == 1
    stage.apply(stage.secret())
    stage.apply(stage.db(tickInterval="1s"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True", timeout=60)
    until(lambda: stage.events("SignalBack"))


@pytest.mark.parametrize(
    ("spec", "reason", "remedy"),
    [
        ({"dsnSecretRef": {"name": "absent"}}, "SecretMissing", 'there is no secret "absent"; create it'),
        ({"dsnSecretRef": {"name": "pk-main", "key": "url"}}, "SecretKeyMissing", 'has no key "url"; add it or set'),
    ],
)
def test_a_wrong_reference_is_named_with_its_remedy(stage, operator, spec, reason, remedy):
    """A missing Secret or key stalls the Database, and the message says what to do (quality 2.5)."""
    stage.apply(stage.db(**spec), stage.queue("mail"), stage.pool("mail"))
    condition = stage.wait_condition("database", "main", "Ready", "False", reason)
    assert remedy in condition["message"]
    assert stage.condition("database", "main", "Stalled")["status"] == "True"
    stage.wait_condition("taskqueue", "mail", "Ready", "False", "DatabaseNotReady")
    stage.wait_condition("workerpool", "mail", "Ready", "False", "DatabaseNotReady")


def test_a_secret_that_comes_later_is_found(stage, operator):
    """Whatever order things are applied in, it comes right without a hand (O9)."""
    stage.apply(stage.pool("mail"), stage.queue("mail"), stage.db(dsnSecretRef={"name": "later"}))
    stage.wait_condition("database", "main", "Ready", "False", "SecretMissing")
    stage.apply(stage.secret("later"))
    stage.wait_condition("database", "main", "Ready", "True", timeout=40)
    stage.wait_condition("workerpool", "mail", "Ready", "True")


def test_the_schema_is_migrated_where_the_database_says_so(stage, operator, empty_database):
    """migrations: Auto brings an empty database up to date as its owner; without it the condition names the command (18)."""
    stage.apply(stage.secret("empty", dsn=empty_database.dsn), stage.db(dsnSecretRef={"name": "empty"}))
    condition = stage.wait_condition("database", "main", "Ready", "False", "SchemaTooOld")
    assert "poolkeeper migrate --apply" in condition["message"]
    stage.apply(stage.db(dsnSecretRef={"name": "empty"}, adminSecretRef={"name": "empty"}, migrations="Auto"))
    stage.wait_condition("database", "main", "Ready", "True", "Reachable", timeout=40)
    assert stage.status("database", "main")["schemaVersion"] >= 1


def test_mixed_databases_and_missing_queues_are_refused_with_what_to_do(stage, operator):
    """A pool's queues are on one Database, and exist (contract 17)."""
    stage.apply(stage.db(), stage.db("other"), stage.queue("a"), stage.queue("b", databaseRef={"name": "other"}))
    stage.apply(stage.pool("mixed", "a", "b"), stage.pool("lost", "nothing"))
    condition = stage.wait_condition("workerpool", "mixed", "Ready", "False", "MixedDatabases")
    assert "make one pool for each database" in condition["message"]
    condition = stage.wait_condition("workerpool", "lost", "Ready", "False", "QueueMissing")
    assert 'there is no queue "nothing"; apply the TaskQueue' in condition["message"]
    stage.apply(stage.queue("nothing"))
    stage.wait_condition("workerpool", "lost", "Ready", "True")


def test_a_queue_of_another_namespace_is_not_taken_over(stage, operator):
    """A namespace made again does not inherit the old one's tasks until it is annotated to adopt them (contract 11)."""
    cluster = stage.kubectl.get("namespace", "kube-system")["metadata"]["uid"]
    applied = stage.run(
        calls.apply_policy(cluster, "an-earlier-uid", stage.namespace, "mail", _policy(), who="the past")
    )
    assert applied.code is None
    stage.apply(stage.db(), stage.queue("mail"))
    condition = stage.wait_condition("taskqueue", "mail", "Ready", "False", "Orphaned")
    wish = f"poolkeeper.dev/adopt={cluster}/an-earlier-uid"
    assert wish in condition["message"]
    stage.kubectl("annotate", "taskqueue", "mail", wish)
    stage.wait_condition("taskqueue", "mail", "Ready", "True", "PolicyApplied")


def _policy():
    from poolkeeper.policy import QueuePolicy

    return QueuePolicy().to_store()
