"""kubectl and helm as callables, with the kubeconfig given and nothing of the user's own.

Guarantees that a failure carries the program's own words. Keeps kubectl's discovery cache out of the home folder.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from lab import build
from lab.errors import LabError


class Program:
    """A client program bound to a cluster and, where given, a namespace."""

    def __init__(self, path: Path, kubeconfig: Path, namespace: str | None = None) -> None:
        self.path, self.kubeconfig, self.namespace = path, kubeconfig, namespace

    def __call__(self, *argv: str | Path, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Run it and return what it printed; with check=False also what it complained about."""
        done = subprocess.run(
            self.argv(*argv), input=stdin, capture_output=True, text=True, check=False, timeout=timeout, env=self.env()
        )
        if check and done.returncode:
            raise LabError(f"{self.path.name} {' '.join(map(str, argv))}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def argv(self, *argv: str | Path) -> list[str]:
        """The whole command line, for a `Popen` of one's own."""
        namespace = ["--namespace", self.namespace] if self.namespace else []
        return [str(self.path), *namespace, *map(str, argv)]

    def env(self) -> dict[str, str]:
        """The environment that it runs in."""
        scratch = Path(tempfile.gettempdir()) / f"poolkeeper-kubectl-{os.getuid()}"
        mine = {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(scratch),
            "HELM_CACHE_HOME": str(scratch / "helm"),
        }
        mine |= {"HELM_CONFIG_HOME": str(scratch / "helm"), "HELM_DATA_HOME": str(scratch / "helm")}
        return {**os.environ, **mine}


class Kubectl(Program):
    """kubectl; `kubectl("get", "pods")` or `kubectl.get("pods")` for objects."""

    def __init__(self, kubeconfig: Path, namespace: str | None = None) -> None:
        super().__init__(_find("kubectl", build.KUBERNETES), kubeconfig, namespace)

    def within(self, namespace: str) -> "Kubectl":
        """The same for another namespace."""
        return Kubectl(self.kubeconfig, namespace)

    def get(self, *argv: str) -> Any:
        """The object, or the list's items, that `kubectl get ... -o json` answers."""
        found = json.loads(self("get", *argv, "-o", "json"))
        return found["items"] if found.get("kind", "").endswith("List") and "items" in found else found

    def apply(self, *objects: dict[str, Any]) -> str:
        """Apply objects."""
        wrapped = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self("apply", "-f", "-", stdin=json.dumps(wrapped))


class Helm(Program):
    """helm."""

    def __init__(self, kubeconfig: Path, namespace: str | None = None) -> None:
        super().__init__(_find("helm", build.HELM), kubeconfig, namespace)


def _find(name: str, module: build.Module) -> Path:
    """The one we build (pinned), else the user's: an existing cluster needs no build."""
    built = module.built() / name
    on_path = shutil.which(name)
    if built.exists() or on_path is None:
        return build.ensure([module])[0] / name
    return Path(on_path)
