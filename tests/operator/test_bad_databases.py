"""C58, contract 2: a Database that leads nowhere: which condition says what, that nothing is lost, and the password nowhere."""

import json
import socket
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fixtures import guarded
from fixtures.badinput import AWKWARD, UNREADABLE_DSNS
from fixtures.guarded import LOGIN, silent, tell
from fixtures.stage import until


@pytest.fixture(scope="module")
def server():
    with guarded.guarded_server() as made:
        yield made


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def told(stage):
    """Everything that a person can read of this namespace, Secrets aside."""
    kinds = ("database", "taskqueue", "workerpool", "deployment", "event")
    return json.dumps([stage.all(kind) for kind in kinds], ensure_ascii=False)


def test_each_way_to_be_wrong_has_a_reason_of_its_own(stage, operator, server):
    """Not set, cannot be read, cannot be reached, refused, wrong database, wrong schema, no connection left, no right."""
    good = guarded.dsn(server)
    tell(server.dsn(), "CREATE DATABASE bare", "CREATE ROLE full LOGIN CONNECTION LIMIT 0 PASSWORD 'x'")
    tell(server.dsn(), "CREATE ROLE nobody LOGIN PASSWORD 'x'")
    wanted = {
        "empty": (" \n", "SecretEmpty", "is empty; write postgresql://"),
        "unreadable": (UNREADABLE_DSNS["password as it is"], "DsnInvalid", "are written as %XX"),
        "single-slash": (UNREADABLE_DSNS["single slash"], "DsnInvalid", "write postgresql://"),
        "elsewhere": (make_conninfo(good, dbname="no_such"), "DsnInvalid", "there is no such database"),
        "tls": (make_conninfo(good, sslmode="verify-full"), "DsnInvalid", "mend sslmode"),
        "away": (make_conninfo(good, port=free_port()), "Unreachable", "check host and port"),
        "unknown-host": (make_conninfo(good, host="no-such.invalid"), "Unreachable", "check host and port"),
        "refused": (make_conninfo(good, password=f"not {AWKWARD}"), "LoginRefused", "check user and password"),
        "full": (make_conninfo(good, user="full", password="x"), "ConnectionsExhausted", "raise its limit"),
        "bare": (make_conninfo(good, dbname="bare"), "SchemaTooOld", "poolkeeper migrate --apply"),
        "nobody": (make_conninfo(good, user="nobody", password="x"), "RoleNotAllowed", "poolkeeper_* role"),
    }
    for name, (dsn, _, _) in wanted.items():
        stage.apply(stage.secret(f"pk-{name}", dsn=dsn), stage.db(name, dsnSecretRef={"name": f"pk-{name}"}))
    for name, (_, reason, remedy) in wanted.items():
        condition = stage.wait_condition("database", name, "Ready", "False", reason, timeout=60)
        assert remedy in condition["message"], name
        assert f'database "{name}"' in condition["message"]
    silent(told(stage), *(line.get("message", "") for line in operator.lines()))


def test_a_good_one_in_whatever_form_it_is_written(stage, operator, server):
    """C58: percent-encoded with a new line at its end, pairs in quotes, two hosts of which one is away."""
    url = f"postgresql://{LOGIN}:{quote(AWKWARD, safe='')}@127.0.0.1:{server.port}/app\n"
    pairs = guarded.dsn(server)
    two = make_conninfo(pairs, host="127.0.0.1,127.0.0.1", port=f"{free_port()},{server.port}")
    for name, dsn in (("url", url), ("pairs", pairs), ("two", two)):
        stage.apply(stage.secret(f"pk-{name}", dsn=dsn), stage.db(name, dsnSecretRef={"name": f"pk-{name}"}))
    for name in ("url", "pairs", "two"):
        stage.wait_condition("database", name, "Ready", "True", "Reachable", timeout=60)
    silent(told(stage), *(line.get("message", "") for line in operator.lines()))


def test_a_database_that_takes_no_writes_is_named_and_used_once_it_does(stage, operator, server):
    """Contract 2: database_read_only, as a standby says it; pool and queue come right without a hand, the size is held."""
    tell(server.dsn(), f"ALTER ROLE {LOGIN} SET default_transaction_read_only = on")
    try:
        stage.apply(stage.secret(dsn=guarded.dsn(server)), stage.db(), stage.queue("mail"), stage.pool("mail"))
        condition = stage.wait_condition("database", "main", "Ready", "False", "ReadOnly", timeout=60)
        assert "point the DSN at the primary" in condition["message"]
        stage.wait_condition("taskqueue", "mail", "Ready", "False")
    finally:
        tell(server.dsn(), f"ALTER ROLE {LOGIN} SET default_transaction_read_only = off")
    with psycopg.connect(server.dsn(), autocommit=True) as owner:
        owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [LOGIN])
    stage.wait_condition("database", "main", "Ready", "True", "Reachable", timeout=60)
    stage.wait_condition("taskqueue", "mail", "Ready", "True", timeout=60)
    stage.wait_condition("workerpool", "mail", "Ready", "True", timeout=60)


def test_a_schema_of_a_later_version_is_named_and_left_alone(stage, operator, database):
    """Contract 18: SchemaTooNew, also with migrations: Auto; nothing of it is changed."""
    tell(database.dsn, "INSERT INTO poolkeeper.migration (version, name, checksum) VALUES (999, '0999_x.sql', 'x')")
    admin = {"adminSecretRef": {"name": "pk-main"}, "migrations": "Auto"}
    stage.apply(stage.db(), stage.db("auto", **admin))
    condition = stage.wait_condition("database", "main", "Ready", "False", "SchemaTooNew", timeout=60)
    assert "upgrade poolkeeper" in condition["message"]
    condition = stage.wait_condition("database", "auto", "Ready", "False", "MigrationFailed", timeout=60)
    assert "upgrade poolkeeper" in condition["message"]


def test_an_installation_that_is_held_is_named_with_the_command(stage, operator, database):
    """Q24: Stalled, reason Held, until somebody accepts it."""
    stage.apply(stage.db())
    stage.wait_condition("database", "main", "Ready", "True", "Reachable", timeout=60)
    tell(database.dsn, "SELECT poolkeeper.hold('another_system', now())")
    condition = stage.wait_condition("database", "main", "Stalled", "True", "Held", timeout=90)
    assert "poolkeeper db accept" in condition["message"]
    tell(database.dsn, "SELECT poolkeeper.accept_installation('ann', 'the old one is gone')")
    stage.wait_condition("database", "main", "Ready", "True", "Reachable", timeout=90)


@pytest.mark.wide
def test_a_secret_that_is_deleted_or_renamed_later_is_named_and_what_runs_goes_on(stage, operator):
    """C58: the size is held; the Secret back again, everything is."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", scaling={"min": 2}))
    until(lambda: stage.replicas("mail") == 2, what="two pods")
    stage.kubectl("delete", "secret", "pk-main")
    stage.apply(stage.db(tickInterval="2s"))
    stage.wait_condition("database", "main", "Ready", "False", "SecretMissing", timeout=60)
    stage.apply(stage.secret(key="other"))
    stage.apply(stage.db(tickInterval="3s"))
    stage.wait_condition("database", "main", "Ready", "False", "SecretKeyMissing", timeout=60)
    assert stage.replicas("mail") == 2
    stage.apply(stage.secret())
    stage.wait_condition("database", "main", "Ready", "True", timeout=60)
    assert stage.replicas("mail") == 2
