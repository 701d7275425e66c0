"""The operator behind a real pgbouncer in transaction mode, and what it tells of one (field case C20)."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures.poolers import pooled
from fixtures.stage import until
from poolkeeper.store import calls, migrate

pytestmark = pytest.mark.wide


@pytest.fixture
def behind(stage):
    """The Secret's DSN of the stage leads through the pooler; `direct` of the Secret `pk-direct` past it."""
    with pooled(stage.database.dsn) as (dsn, pooler):
        stage.apply(stage.secret(dsn=dsn), stage.secret("pk-direct", dsn=stage.database.dsn))
        yield pooler


def listening(stage):
    """How many connections of the database listen for tasks."""
    with psycopg.connect(make_conninfo(stage.database.dsn, application_name="observer")) as conn:
        query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'listen%'"
        return len(conn.execute(query).fetchall())


def variables(stage, pool):
    """The environment of a pool's pods."""
    deployment = stage.get("deployment", pool)
    return {v["name"]: v.get("value") for v in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}


def complaints(operator, pooler):
    """What the operator and the pooler found wrong."""
    lines = [line for line in operator.lines() if line.get("level") in {"warning", "error"}]
    return lines + [line for line in pooler.log.splitlines() if " WARNING " in line or " ERROR " in line]


def test_pools_are_sized_through_the_pooler(stage, behind, operator):
    """C20: migrated, registered, policies applied, read, scaled up and back, without a direct way; nobody complains."""
    admin = {"adminSecretRef": {"name": "pk-main"}, "pooler": "Transaction"}
    stage.apply(stage.db(**admin), stage.queue("mail"), stage.pool("mail"))
    assert (
        stage.wait_condition("database", "main", "Ready", "True", "Reachable", timeout=60)["message"]
        == "schema " + version()
    )
    stage.wait_condition("workerpool", "mail", "Ready", "True", timeout=60)
    tasks = [{"type": "demo.echo", "payload": n} for n in range(3)]
    verdicts = stage.run(calls.submit_many(f"{stage.namespace}/mail", tasks))
    until(lambda: stage.replicas("mail") == 3, timeout=60)
    for verdict in verdicts:
        stage.run(calls.cancel(verdict.task_id, who="test", why="done"))
    until(lambda: stage.replicas("mail") == 0, timeout=60)
    assert variables(stage, "mail")["POOLKEEPER_POOLER"] == "transaction"
    assert listening(stage) == 0
    assert complaints(operator, behind) == []


def test_with_a_direct_way_it_listens_there(stage, behind, operator):
    """C20: a task for an empty pool is heard of, and not found at the next reading a minute later."""
    stage.apply(stage.db(pooler="Transaction", directSecretRef={"name": "pk-direct"}, tickInterval="5m"))
    stage.apply(stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "Ready", "True", timeout=60)
    until(lambda: listening(stage) == 1, timeout=60)
    stage.submit("mail")
    until(lambda: stage.replicas("mail") == 1, timeout=60)
    assert {"POOLKEEPER_POOLER", "POOLKEEPER_DIRECT_DSN_FILE"} <= variables(stage, "mail").keys()
    assert complaints(operator, behind) == []


def test_a_pooler_that_nobody_told_of_is_named_with_the_field_to_set(stage, behind, operator):
    """C20: else its pods would not get in, and their logs alone would say why. Told of, nothing is left to say."""
    stage.apply(stage.db())
    until(
        lambda: "spec.pooler: Transaction" in stage.wait_condition("database", "main", "Ready", "True")["message"],
        timeout=60,
    )
    stage.apply(stage.queue("mail"), stage.pool("mail"))
    stage.submit("mail")
    until(lambda: stage.replicas("mail") == 1, timeout=60)
    assert listening(stage) == 0, "it would stay with some backend of the pooler's"
    assert [line for line in behind.log.splitlines() if " WARNING " in line or " ERROR " in line] == []
    stage.apply(stage.db(pooler="Transaction"))
    until(lambda: "pooler" not in stage.condition("database", "main", "Ready")["message"], timeout=60)


def version():
    return str(migrate.SUPPORTED[-1])
