"""Everything that the story needs around it: cluster, images, database, model server, the operator by its chart.

Guarantees that whatever was started is ended when the scene is left, however it is left, by pid. Says nothing itself:
what it does is told by the lab's own progress lines and by the story.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from lab import build, image, kind, packages
from lab import cluster as clusters
from lab.errors import LabError
from lab.handle import Cluster
from lab.kubectl import Helm, Kubectl
from lab.postgres import Server
from lab.process import Process, die_with_parent
from poolkeeper.store import connect, migrate

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AGENT_IMAGE = "localhost/example-agent:dev"
NAMESPACE, OPERATOR_NAMESPACE = "demo", "poolkeeper"
LOGINS = ("platform", "submitter")
Say = Callable[[str], None]


class Scene:
    """Up when entered, gone when left."""

    cluster: Cluster
    kubectl: Kubectl
    database: Server
    model_url: str
    agent_image: Path

    def __init__(self, say: Say) -> None:
        self._say = say
        self._ends = ExitStack()
        self.folder = Path()
        self.passwords = {login: secrets.token_urlsafe(18) for login in LOGINS}
        self._api = ""

    def __enter__(self) -> Self:
        if not _foreign() and (why_not := clusters.why_no_node()):
            raise LabError(
                f"the demo shows real pods, and none can run here: {why_not}. Run it as root on Debian or Ubuntu, with a "
                "Docker engine, or name a cluster: POOLKEEPER_TEST_KUBECONFIG. Everything but pods is shown by `make test`"
            )
        self.folder = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="pk-demo-")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def build(self) -> list[Path]:
        """Tools and images; returns the archives of what pods will run."""
        wanted = packages.CONTROL_PLANE | packages.NODE | packages.IMAGE
        packages.need(wanted, purpose="a node and its images", say=self._say)
        build.ensure(say=self._say)
        operator = image.build_images(self._say)[1]
        self.agent_image = image.build_app_image(ROOT / "examples" / "agent", AGENT_IMAGE, self._say)
        return [operator, self.agent_image]

    def start_cluster(self, archives: list[Path]) -> None:
        """A cluster with a node that has the images; each demo has its own."""
        name = f"demo-{os.getpid()}"
        if _foreign():
            self.cluster = clusters.obtain(name, node=True, say=self._say)
            self._ends.callback(self.cluster.down)
            self.cluster.load(*archives)
        else:
            ours = clusters.LocalCluster(name, say=self._say)
            self._ends.callback(ours.down)
            self.cluster = ours.up(node=True, audit=True, images=archives)
        self.kubectl = Kubectl(self.cluster.kubeconfig, NAMESPACE)

    def start_platform(self) -> None:
        """The operator by its chart, and meanwhile the database and the model server."""
        if _foreign():  # a cluster that stays is left as it was found, but for the definitions
            self._ends.callback(self._uninstall)
        installed = _Later(self._install)
        host = self.cluster.host_address
        if host is None:
            raise LabError(
                "the address of this machine as pods reach it is unknown; set POOLKEEPER_TEST_HOST_ADDRESS to it"
            )
        self.database = self._ends.enter_context(Server(addresses=[host]))
        with connect(self.owner_dsn) as conn:
            migrate.apply(conn, say=lambda _: None)
        self._make_logins()
        self._start_model(host)
        installed.result()
        self._start_proxy()

    @property
    def owner_dsn(self) -> str:
        """The owner's connection."""
        return self.database.dsn()

    def dsn(self, login: str, *, pods: bool = False) -> str:
        """The connection of a login, for this machine or as pods write it."""
        host = self.database.addresses[-1] if pods else "127.0.0.1"
        return make_conninfo(self.database.dsn(host=host), user=f"demo_{login}", password=self.passwords[login])

    @property
    def model_log(self) -> Path:
        """What the model server wrote down."""
        return self.folder / "model.log"

    def api(self, path: str) -> Any:
        """What the API server answers to GET."""
        with urllib.request.urlopen(f"{self._api}{path}", timeout=10) as answer:  # noqa: S310  # loopback
            return json.load(answer)

    def _install(self) -> None:
        helm = Helm(self.cluster.kubeconfig, OPERATOR_NAMESPACE)
        helm("install", "poolkeeper", ROOT / "charts" / "poolkeeper", "--create-namespace", "--set", "image.tag=dev")

    def _uninstall(self) -> None:
        self.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", check=False)
        Helm(self.cluster.kubeconfig, OPERATOR_NAMESPACE)("uninstall", "poolkeeper", "--ignore-not-found", check=False)
        self.kubectl("delete", "namespace", OPERATOR_NAMESPACE, "--ignore-not-found", check=False)

    def _make_logins(self) -> None:
        text = sql.SQL((HERE / "logins.sql").read_text())  # our own file
        passwords = {login: sql.Literal(password) for login, password in self.passwords.items()}
        with psycopg.connect(self.owner_dsn, autocommit=True) as conn:
            conn.execute(text.format(**passwords))

    def _start_model(self, host: str) -> None:
        argv = [sys.executable, "-m", f"{__package__}.model", "--host", host, "--log", str(self.model_log)]
        self.model_log.touch()
        self.model_url = self._start(argv)

    def _start_proxy(self) -> None:
        said = self._start(self.kubectl.argv("proxy", "--port=0"), self.kubectl.env())
        self._api = "http://" + said.rpartition(" ")[2]

    def _start(self, argv: list[str], env: dict[str, str] | None = None) -> str:
        """Start a program that ends with us; returns the first line that it prints."""
        child = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True, preexec_fn=die_with_parent(15)  # noqa: PLW1509  # prctl only
        )  # fmt: skip
        self._ends.callback(Process.of(child.pid).stop)
        self._ends.callback(lambda: setattr(child, "returncode", 0))  # Process waits for it, not Popen
        assert child.stdout is not None  # noqa: S101
        line = child.stdout.readline().strip()
        child.stdout.close()
        if not line:
            raise LabError(f"{' '.join(argv[:3])} ended at once; its last words are above")
        return line


class _Later:
    """Work on a thread whose failure is raised where its result is asked for."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            self._error = error

    def result(self) -> None:
        """Wait for it."""
        self._thread.join()
        if self._error is not None:
            raise self._error


def _foreign() -> bool:
    return bool(os.environ.get("POOLKEEPER_TEST_KUBECONFIG")) or kind.engine_answers()
