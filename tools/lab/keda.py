"""KEDA's operator and metrics adapter as processes beside a control plane of ours, for what is measured side by side.

Guarantees that they are the ones of the pinned module and end with the thread that started them. They have the administrator's identity, no limits
of memory or processor, and no admission webhook; their other settings are those of KEDA's own manifests. The API server finds the adapter
on loopback, by a Service of type ExternalName. The adapter's page of metrics listens on every address: network.go_apart first.
"""

import base64
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from lab import build, cache
from lab.errors import LabError
from lab.kubectl import Kubectl
from lab.network import free_ports
from lab.pki import Authority
from lab.process import die_with_parent

NAMESPACE = "keda"
SERVICE = "keda-metrics-apiserver"
API = "v1beta1.external.metrics.k8s.io"
Manifest = dict[str, Any]


class Keda:
    """KEDA on a cluster that is up.

    Parameters
    ----------
    folder: an empty folder for certificates and logs.
    """

    def __init__(self, kubeconfig: Path, folder: Path, say: cache.Say = build.tell) -> None:
        self._kubeconfig, self._folder, self._say = kubeconfig, folder, say
        self._kubectl = Kubectl(kubeconfig)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Return once the API server answers for the external metrics; builds KEDA when it is missing."""
        (programs,) = build.ensure([build.KEDA], self._say)
        self._kubectl("create", "--filename", programs / "config/crd/bases")
        path = "jsonpath={.status.acceptedNames.kind}=ScaledObject"  # a condition is an error while there is no list of them
        self._kubectl("wait", f"--for={path}", "crd/scaledobjects.keda.sh", "--timeout=60s")
        certificates = self._folder / "certificates"
        Authority(certificates).make_pair(["localhost", f"{SERVICE}.{NAMESPACE}.svc"])
        secure, pages, grpc, metrics, probe = free_ports(5)
        ours = {"POD_NAMESPACE": NAMESPACE, "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE, "WATCH_NAMESPACE": ""}
        self._kubectl.apply(*objects(secure, (certificates / "ca.crt").read_bytes()))
        self._run(
            ours, programs / "keda-operator", "--leader-elect", "--zap-log-level=info", "--zap-encoder=console",
            "--enable-cert-rotation=false", f"--cert-dir={certificates}", f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{probe}", f"--metrics-service-bind-address=127.0.0.1:{grpc}",
        )  # fmt: skip
        self._run(
            ours, programs / "keda-adapter", f"--secure-port={secure}", "--bind-address=127.0.0.1", f"--port={pages}",
            "--zap-log-level=error", f"--client-ca-file={certificates}/ca.crt", f"--cert-dir={certificates}",
            f"--tls-cert-file={certificates}/tls.crt", f"--tls-private-key-file={certificates}/tls.key",
            f"--metrics-service-address=127.0.0.1:{grpc}", f"--lister-kubeconfig={self._kubeconfig}",
            f"--authentication-kubeconfig={self._kubeconfig}", f"--authorization-kubeconfig={self._kubeconfig}",
        )  # fmt: skip
        try:
            self._kubectl("wait", "--for=condition=Available", f"apiservice/{API}", "--timeout=90s")
        except LabError as error:
            raise LabError(f"KEDA's metrics are not served: {error}\n{self.tail()}") from None
        return self

    def pids(self) -> list[int]:
        """Of operator and adapter; an error with their last words when one has ended."""
        if ended := [name for name, each in self.processes.items() if each.poll() is not None]:
            raise LabError(f"{' and '.join(ended)} ended\n{self.tail()}")
        return [each.pid for each in self.processes.values()]

    def tail(self, size: int = 3000) -> str:
        """The end of what each wrote."""
        written = {name: (self._folder / f"{name}.log").read_text(errors="replace") for name in self.processes}
        return "\n".join(f"{name}:\n{text[-size:]}" for name, text in written.items())

    def close(self) -> None:
        """End both."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()

    def _run(self, ours: Mapping[str, str], program: Path, *arguments: str) -> None:
        log = (self._folder / f"{program.name}.log").open("wb")
        self._logs.append(log)
        self.processes[program.name] = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509  # prctl only: no lock, no allocation
            env={**os.environ, **ours, "KUBECONFIG": str(self._kubeconfig)},
        )


def objects(port: int, authority: bytes) -> list[Manifest]:
    """What KEDA's manifests say of the metrics API, with the adapter at a port of this machine: namespace, Service, rights of the HPA, APIService."""
    reader = "keda-external-metrics-reader"
    group, version = API.partition(".")[2], API.partition(".")[0]
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": SERVICE, "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": reader},
            "rules": [{"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "keda-hpa-controller-external-metrics"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": reader},
            "subjects": [{"kind": "ServiceAccount", "name": "horizontal-pod-autoscaler", "namespace": "kube-system"}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API},
            "spec": {
                "service": {"name": SERVICE, "namespace": NAMESPACE, "port": port},
                "caBundle": base64.b64encode(authority).decode(),
                "group": group,
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]
