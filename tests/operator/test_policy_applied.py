"""O1, O30: a policy that the store could not take is taken when it can, although nothing else happens to the queue."""

import time

import psycopg
from psycopg.conninfo import make_conninfo


def test_a_policy_that_met_a_lock_is_applied_when_the_lock_is_gone(stage, operator):
    """Somebody holds a table for longer than the login may wait: told as such, and tried again without a hand."""
    hasty = make_conninfo(stage.database.dsn, options="-c lock_timeout=200")
    stage.apply(stage.secret("hasty", dsn=hasty), stage.db("hasty", dsnSecretRef={"name": "hasty"}))
    stage.wait_condition("database", "hasty", "Ready", "True", timeout=60)
    with psycopg.connect(stage.database.dsn) as holder:
        holder.execute("LOCK TABLE poolkeeper.policy IN EXCLUSIVE MODE")
        stage.apply(stage.queue("calm", databaseRef={"name": "hasty"}))
        told = stage.wait_condition("taskqueue", "calm", "Ready", "False", "NotApplied")
        assert "lock" in told["message"]
        time.sleep(4)  # some readings go by, none of which differs from the one before
    stage.wait_condition("taskqueue", "calm", "Ready", "True", "PolicyApplied")
