"""The operator as a process: what it checks at start, how it answers probes, how it ends, and the commands beside it."""

import json
import subprocess
import sys
import time

import pytest
import yaml

from fixtures.stage import until
from poolkeeper.store import Settle, calls
from poolkeeper_operator.decide.scaling import recompute, recompute_written


def test_it_is_alive_ready_and_measured(stage, operator):
    """/livez and /readyz answer, /metrics carries the pool's decision (O11, O30)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    assert operator.fetch("/livez")[0] == 200
    assert operator.fetch("/readyz")[0] == 200
    stage.submit("mail", 2)
    until(lambda: operator.metric("poolkeeper_pool_replicas", namespace=stage.namespace, pool="mail") == 2)
    assert operator.metric("poolkeeper_queue_runnable_tasks", queue="mail") == 2


def test_it_ends_at_once_and_well(stage, operator):
    """SIGTERM: connections closed, exit 0, within seconds; nothing is left running in the database."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    begun = time.monotonic()
    assert operator.stop() == 0
    assert time.monotonic() - begun < 10
    with stage.database.connect() as conn:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
        until(lambda: conn.execute(query, ["poolkeeper operator%"]).fetchone() == (0,), timeout=5)


def test_two_connections_for_each_database(stage, operator):
    """One for readings and calls, one that listens (O10, F23)."""
    stage.apply(stage.db(), *(stage.queue(f"q{n}") for n in range(5)), stage.pool("mail", "q0", "q1"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    with stage.database.connect() as conn:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
        until(lambda: conn.execute(query, ["poolkeeper operator%"]).fetchone() == (2,), timeout=10)


@pytest.fixture
def limited_kubeconfig(stage, kubeconfig, tmp_path):
    """A kubeconfig of an account that may only look at our four kinds."""
    kubectl = stage.kubectl
    kubectl("create", "serviceaccount", "limited")
    kubectl("create", "role", "limited", "--verb=get,list,watch", "--resource=workerpools.poolkeeper.dev")
    kubectl("create", "rolebinding", "limited", "--role=limited", f"--serviceaccount={stage.namespace}:limited")
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"] = [{"name": "limited", "user": {"token": kubectl("create", "token", "limited").strip()}}]
    config["contexts"] = [
        {"name": "limited", "context": {"cluster": config["clusters"][0]["name"], "user": "limited"}},
    ]
    config["current-context"] = "limited"
    path = tmp_path / "limited.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_missing_rights_are_named_at_start(stage, start_operator, limited_kubeconfig):
    """Each missing verb is a line of its own with its resource; the operator waits unready until they are granted (O31)."""
    operator = start_operator("--namespace", stage.namespace, kubeconfig=limited_kubeconfig)
    lease = f'update leases.coordination.k8s.io named "poolkeeper-operator" in namespace "{stage.namespace}"'
    until(lambda: any(lease in line for line in _messages(operator)), timeout=60, what="the last one is named")
    said = [line for line in _messages(operator) if "right_missing" in line]
    assert any("patch deployments.apps" in line for line in said)
    assert any("get secrets" in line for line in said)
    assert not any("list workerpools.poolkeeper.dev" in line for line in said)
    assert operator.process.poll() is None
    assert not any("operator.ready" in message for message in _messages(operator))


def _messages(operator):
    return [line.get("message", "") for line in operator.lines()]


def poolkeeper(*argv):
    return subprocess.run([sys.executable, "-m", "poolkeeper", *argv], capture_output=True, text=True, check=False)


@pytest.mark.wide
def test_decisions_are_recomputed_from_what_explain_printed(stage, operator, kubeconfig):
    """O11: up, idle pods down, and to zero; the JSON alone, without cluster and store, gives each of them again, to the bit."""
    stage.apply(stage.db(), stage.queue("mail", visibilityTimeout="10m"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    stage.submit("mail", 3)
    until(lambda: stage.replicas("mail") == 3 and len(stage.pods("mail")) == 3)
    sessions = [stage.session(pod, "mail", "mail") for pod in stage.pods("mail")]
    held = [stage.run(calls.turn(session, 1, 0, [], 1)).claimed[0] for session in sessions]
    for session, task in zip(sessions, held, strict=True):
        done = Settle(task_id=task.task_id, token=task.token, outcome="succeeded")
        stage.run(calls.turn(session, 2, 1, [done], 0))
    until(lambda: stage.replicas("mail") == 0)
    argv = ["pool", "explain", "mail", "-n", stage.namespace, "--kubeconfig", str(kubeconfig), "--recorded", "50"]
    where = ["--dsn", stage.database.dsn]
    until(lambda: "to 0 pods" in poolkeeper(*argv, *where).stdout.splitlines()[-1], what="the last one is recorded")
    printed = json.loads(poolkeeper(*argv, *where, "--output", "json").stdout)
    assert [printed["recorded"][at]["written"] for at in (-1, 0)] == [3, 0]
    for recorded in printed["recorded"]:
        again = recompute(recorded["inputs"])
        assert again.as_record() == {
            key: value for key, value in recorded.items() if key not in {"at", "victims", "written"}
        }
        assert recompute_written(recorded) == recorded["written"]
    assert len(printed["decisions"]) == len(printed["recorded"]), "what the status tells of is recorded"


def test_pool_explain_tells_why(stage, operator, kubeconfig):
    """The recorded reasons in sentences, for people and as JSON; an unknown pool is exit 3 (P8, O11)."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    stage.submit("mail", 4)
    until(lambda: stage.status("workerpool", "mail").get("decisions"))
    where = ("-n", stage.namespace, "--kubeconfig", str(kubeconfig))
    told = poolkeeper("pool", "explain", "mail", *where)
    assert told.returncode == 0, told.stderr
    assert "from 0 to 4 pods: 4 tasks can run" in told.stdout
    found = json.loads(poolkeeper("pool", "explain", "mail", *where, "--output", "json").stdout)
    assert found["decisions"][0]["applied"] == 4
    assert "wanted 4" in poolkeeper("pool", "status", "mail", *where).stdout
    missing = poolkeeper("pool", "status", "nobody", *where)
    assert missing.returncode == 3
    assert 'there is no pool "nobody"' in missing.stderr
