"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes of this machine.

Guarantees that they listen on 127.0.0.1 only, the API server on the bridge's address where there is a node. etcd does
not sync to disk: the cluster lives as long as its processes. The audit log records every write, before it is carried out and before it is answered.
"""

import http.client
import ipaddress
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lab.errors import LabError
from lab.network import free_ports
from lab.pki import Authority
from lab.state import State

_SERVICES = "10.255.0.0/16"  # without a node nobody routes them
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {"level": "Request", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True)
class Ports:
    """Ports of one cluster, chosen together because they are not held."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controllers: int
    scheduler: int
    proxy_health: int
    proxy_metrics: int
    kubelet: int
    kubelet_health: int

    @classmethod
    def choose(cls, host: str) -> "Ports":
        """Free on loopback and on the host's address alike."""
        return cls(*free_ports(9, sorted({"127.0.0.1", host})))


class ControlPlane:
    """The processes around one API server.

    Parameters
    ----------
    host: the address of the API server: loopback, or the bridge's where pods must reach it.
    """

    def __init__(self, state: State, programs: Path, host: str, ports: Ports) -> None:
        self._state, self._programs, self._host, self._ports = state, programs, host, ports
        network = state.facts.network
        self._services = network.services if network else _SERVICES
        self.server = f"https://{host}:{ports.apiserver}"

    def make_keys(self) -> None:
        """Certificates and kubeconfigs."""
        first = str(ipaddress.ip_network(self._services)[1])  # the service `kubernetes`
        authority = Authority(self._state.pki)
        authority.make(sorted({"127.0.0.1", self._host, first}))
        authority.kubeconfigs(self.server, self._state.root)

    def start_etcd(self) -> None:
        """Start etcd; `await_apiserver` waits for both."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._ports.etcd, self._ports.etcd_peer))
        self._start(
            "etcd",
            "--name=lab", f"--data-dir={self._state.root}/etcd", "--unsafe-no-fsync",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=lab={peer}",
            "--logger=zap", "--log-outputs=stderr", "--log-level=warn",
        )  # fmt: skip

    def start_apiserver(self) -> None:
        """Start the API server once etcd answers."""
        etcd = f"http://127.0.0.1:{self._ports.etcd}"
        self._state.wait("etcd", lambda: "true" in _get(f"{etcd}/health"), needs=["etcd"])
        pki = self._state.pki
        loopback = ipaddress.ip_address(self._host).is_loopback  # which an endpoint of a service may not be
        self._start(
            "kube-apiserver",
            f"--etcd-servers={etcd}", f"--bind-address={self._host}", f"--secure-port={self._ports.apiserver}",
            f"--advertise-address={self._host}", *(["--endpoint-reconciler-type=none"] if loopback else []),
            f"--service-cluster-ip-range={self._services}", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true", "--profiling=false",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt", "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-signing-key-file={pki}/sa.key", f"--service-account-key-file={pki}/sa.pub",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet.key", f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki}/front-ca.crt", "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki}/front.crt", f"--proxy-client-key-file={pki}/front.key",
            *self._audit(),
        )  # fmt: skip

    def await_apiserver(self) -> None:
        """Wait until the API server is ready for everything."""
        self._state.wait("kube-apiserver", self.ready, needs=["etcd", "kube-apiserver"])

    def start_controllers(self) -> None:
        """Start the controller manager and the scheduler."""
        pki, folder = self._state.pki, self._state.root
        config = folder / "controller-manager.kubeconfig"
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1", f"--secure-port={self._ports.controllers}", "--leader-elect=false",
            "--use-service-account-credentials=true", f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt", f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key", "--allocate-node-cidrs=false",
            "--kube-api-qps=200", "--kube-api-burst=400", "--profiling=false",
            "--controllers=*,-cloud-node-lifecycle-controller,-node-route-controller,-service-lb-controller",
        )  # fmt: skip
        config = folder / "scheduler.kubeconfig"
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(config), "qps": 200, "burst": 400},
        }
        (folder / "scheduler.yaml").write_text(json.dumps(settings))
        self._start(
            "kube-scheduler",
            f"--config={folder}/scheduler.yaml", f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}", "--bind-address=127.0.0.1",
            f"--secure-port={self._ports.scheduler}",
        )  # fmt: skip

    def await_controllers(self) -> None:
        """Wait until both are healthy and the controllers have made what pods need."""
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._state.wait("the default service account", lambda: self.get(account), needs=["kube-controller-manager"])
        for name, port in (
            ("kube-controller-manager", self._ports.controllers),
            ("kube-scheduler", self._ports.scheduler),
        ):
            self._state.wait(name, partial(_healthy, port), needs=[name])

    def node_ready(self, name: str) -> bool:
        """Whether the kubelet has reported the node Ready."""
        conditions = json.loads(self.get(f"/api/v1/nodes/{name}"))["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def services_reachable(self) -> bool:
        """Whether kube-proxy has written the services' rules once."""
        return "lastUpdated" in _get(f"http://127.0.0.1:{self._ports.proxy_health}/healthz")

    def ready(self) -> bool:
        """What the API server says of itself."""
        return self.get("/readyz") == "ok"

    def get(self, path: str) -> str:
        """Read from the API server as its administrator."""
        return api_get(self.server, self._state.pki, path)

    def _audit(self) -> list[str]:
        if not self._state.facts.audit:
            return []
        policy = self._state.root / "audit-policy.yaml"
        policy.write_text(json.dumps(_POLICY))
        return [
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._state.root}/audit.log",
            "--audit-log-mode=blocking",  # written before it is carried out, and before the answer
            "--audit-log-maxsize=4096",
        ]

    def _start(self, name: str, *arguments: str) -> None:
        self._state.start(name, [self._programs / name, *arguments])


def api_get(server: str, pki: Path, path: str) -> str:
    """GET from an API server of ours with its administrator's certificate."""
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    return _get(server + path, urllib.request.HTTPSHandler(context=context))


def _get(url: str, *handlers: urllib.request.BaseHandler) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)  # never through a proxy
    try:
        with opener.open(url, timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            raise LabError(f"{url}: {refused.code} {refused.reason}") from None


def _healthy(port: int) -> bool:
    """A component's own word; its certificate is self-made, the address loopback."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    finally:
        connection.close()
