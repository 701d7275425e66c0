"""What the tests of this folder stand on: pods run, reach this machine and nothing beyond it."""

import json

import psycopg
import pytest

from fixtures.images import Images
from fixtures.postgres import Database
from lab.audit import AuditLog
from lab.handle import Cluster
from lab.kubectl import Kubectl
from lab.node_settings import PAUSE
from lab.postgres import Server

FROM_INSIDE = """
import json, os, socket, sys
import psycopg
said = {}
with psycopg.connect(sys.argv[1], connect_timeout=10) as conn:
    said["database"] = conn.execute("SELECT current_user").fetchone()[0]
socket.create_connection((os.environ["KUBERNETES_SERVICE_HOST"], 443), timeout=10).close()
said["api"] = "open"
try:
    socket.create_connection(("192.0.2.1", 443), timeout=10).close()  # an address of documentation's own
except OSError as error:
    said["outside"] = os.strerror(error.errno) if error.errno else str(error)
try:
    socket.getaddrinfo("example.invalid", 443)
except OSError:
    said["name"] = "no answer"
print(json.dumps(said))
"""


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


def test_a_pod_reaches_the_database_and_the_api_service_and_nothing_outside(
    pods: Kubectl, images: Images, database_for_pods: Database
) -> None:
    command = ["python3", "-c", FROM_INSIDE, database_for_pods.dsn_for_pods("reader")]
    container = {"name": "main", "image": images.worker, "command": command}
    spec = {"containers": [container], "restartPolicy": "Never"}
    pods.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    pods("wait", "pod/p", "--for=jsonpath={.status.containerStatuses[0].state.terminated}", "--timeout=90s")
    said = json.loads(pods("logs", "p"))
    assert said["database"] == database_for_pods.login("reader")
    assert said["api"] == "open"
    assert said["outside"] == "No route to host"
    assert said["name"] == "no answer"


def test_nothing_of_the_cluster_listens_beyond_loopback_and_its_bridge(node_cluster: Cluster, kubectl: Kubectl) -> None:
    server = json.loads(node_cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    assert server.startswith(f"https://{node_cluster.host_address}:")
    assert kubectl("get", "--raw", "/readyz") == "ok"
