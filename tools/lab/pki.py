"""Keys, certificates and kubeconfigs of a cluster, made by openssl; valid for 30 days.

Guarantees private keys in a folder that only its owner can enter. These are keys of a test cluster on this machine.
"""

import base64
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.errors import LabError
from lab.packages import require

NODE = "node0"
_USERS = {  # name -> subject
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    NODE: f"/O=system:nodes/CN=system:node:{NODE}",
}
_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


class Authority:
    """A folder of keys and certificates with its own authorities."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._openssl = require("openssl")

    def make(self, addresses: Sequence[str]) -> None:
        """Everything that a control plane and one node need; `addresses` are the API server's."""
        self._folder.mkdir(mode=0o700)
        self._authority("ca", "cluster-ca")
        self._authority("front-ca", "front-proxy-ca")
        self._key("sa")
        self._run("ec", "-in", self._path("sa.key"), "-pubout", "-out", self._path("sa.pub"))
        names = [f"DNS:{name}" for name in _SERVER_NAMES] + [f"IP:{address}" for address in addresses]
        self._certificate("apiserver", "/CN=kube-apiserver", names=names)
        self._certificate("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        self._certificate("front", "/CN=front-proxy-client", signer="front-ca")
        for user, subject in _USERS.items():
            self._certificate(user, subject)
        names = [f"DNS:{NODE}", *(f"IP:{address}" for address in addresses)]
        self._certificate(f"{NODE}-serving", _USERS[NODE], names=names)

    def make_pair(self, names: Sequence[str]) -> None:
        """An authority of its own and one certificate by it, for programs that are servers and clients of each other: ca.crt, tls.crt, tls.key."""
        self._folder.mkdir(mode=0o700)
        self._authority("ca", "pair-ca")
        self._certificate(
            "tls", f"/CN={names[0]}", names=[*(f"DNS:{name}" for name in names), "IP:127.0.0.1"], both=True
        )

    def kubeconfigs(self, server: str, folder: Path) -> None:
        """Write `<user>.kubeconfig` for every user into `folder`."""
        for user in _USERS:
            content = {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "lab",
                "clusters": [
                    {"name": "lab", "cluster": {"server": server, "certificate-authority-data": self._base64("ca.crt")}}
                ],
                "users": [
                    {
                        "name": user,
                        "user": {
                            "client-certificate-data": self._base64(f"{user}.crt"),
                            "client-key-data": self._base64(f"{user}.key"),
                        },
                    }
                ],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            }
            path = folder / f"{user}.kubeconfig"
            path.touch(mode=0o600)
            path.write_text(json.dumps(content, indent=1))  # JSON is YAML

    def _authority(self, name: str, common_name: str) -> None:
        self._key(name)
        self._run(
            "req", "-x509", "-new", "-key", self._path(f"{name}.key"), "-days", "30", "-subj", f"/CN={common_name}",
            "-addext", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign", "-out", self._path(f"{name}.crt"),
        )  # fmt: skip

    def _certificate(
        self, name: str, subject: str, *, signer: str = "ca", names: Sequence[str] = (), both: bool = False
    ) -> None:
        """For a server when it has names, else for a client, or for both."""
        usage = "serverAuth,clientAuth" if both else "serverAuth" if names else "clientAuth"
        self._key(name)
        request = self._run("req", "-new", "-key", self._path(f"{name}.key"), "-subj", subject)
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature,keyEncipherment",
            f"extendedKeyUsage={usage}",
            *([f"subjectAltName={','.join(names)}"] if names else []),
        ]
        described = self._path(f"{name}.ext")
        described.write_text("\n".join(extensions) + "\n")
        serial = int.from_bytes(os.urandom(8), "big") >> 1
        self._run(
            "x509", "-req", "-days", "30", "-CA", self._path(f"{signer}.crt"), "-CAkey", self._path(f"{signer}.key"),
            "-set_serial", str(serial), "-extfile", described, "-out", self._path(f"{name}.crt"), stdin=request,
        )  # fmt: skip

    def _key(self, name: str) -> None:
        self._run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self._path(f"{name}.key"))

    def _path(self, name: str) -> Path:
        return self._folder / name

    def _base64(self, name: str) -> str:
        return base64.b64encode(self._path(name).read_bytes()).decode()

    def _run(self, *argv: str | Path, stdin: str = "") -> str:
        done = subprocess.run([self._openssl, *argv], input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"openssl {argv[0]} failed:\n{done.stderr}")
        return done.stdout
