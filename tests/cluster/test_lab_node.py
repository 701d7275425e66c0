"""What the tests of this folder stand on: pods run, reach this machine and nothing beyond it."""

import json

import psycopg
import pytest

from lab.audit import AuditLog
from lab.handle import Cluster
from lab.kubectl import Kubectl
from lab.node_settings import PAUSE
from lab.postgres import Server


@pytest.fixture
def pods(node_cluster: Cluster, kubectl: Kubectl, namespace: str) -> Kubectl:
    return kubectl.within(namespace)


def test_a_pod_of_a_deployment_becomes_ready_and_goes_within_its_grace(pods: Kubectl) -> None:
    pods("create", "deployment", "p", f"--image={PAUSE}", "--replicas=2")
    pods("rollout", "status", "deployment/p", "--timeout=60s")
    assert {pod["status"]["phase"] for pod in pods.get("pods")} == {"Running"}
    pods("scale", "deployment/p", "--replicas=0")
    pods("wait", "--for=delete", "pod", "-l", "app=p", "--timeout=60s")
    assert pods.get("pods") == []


def test_the_audit_log_has_a_write_once_it_is_answered_and_no_read(
    pods: Kubectl, audit: AuditLog, namespace: str
) -> None:
    mark = audit.mark()
    pods("create", "configmap", "c", "--from-literal=a=b")
    pods("get", "configmap", "c")
    mine = [write for write in audit.since(mark, namespace=namespace) if write.name == "c"]
    assert [(write.verb, write.resource, write.code) for write in mine] == [("create", "configmaps", 201)]
    assert mine[0].body["data"] == {"a": "b"}
    before = audit.mark()
    pods("get", "configmaps")
    assert audit.since(before, namespace=namespace) == []


def test_postgres_answers_on_the_address_that_pods_use(pg_server_for_pods: Server, node_cluster: Cluster) -> None:
    host = node_cluster.host_address
    assert host is not None
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(pg_server_for_pods.dsn(host=host))
    with psycopg.connect(pg_server_for_pods.dsn()) as conn:
        shown = conn.execute("SHOW listen_addresses").fetchone()
    assert shown == (f"127.0.0.1,{host}",)


def test_nothing_of_the_cluster_listens_beyond_loopback_and_its_bridge(node_cluster: Cluster, kubectl: Kubectl) -> None:
    server = json.loads(node_cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    assert server.startswith(f"https://{node_cluster.host_address}:")
    assert kubectl("get", "--raw", "/readyz") == "ok"
