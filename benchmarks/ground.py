"""What figures of the operator are measured on: a control plane, a namespace, a database that is durable, an operator process."""

import itertools
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fixtures.postgres import migrated_template
from fixtures.stage import CRDS, Operator, Stage
from lab import cluster as clusters
from lab.audit import AuditLog
from lab.kubectl import Kubectl
from lab.postgres import Server


@dataclass(frozen=True)
class Ground:
    """The parts that a measurement uses."""

    stage: Stage
    audit: AuditLog
    start: Callable[[], Operator]
    """One more operator for the stage's namespace; it may not be ready yet, and ends with the ground."""


@contextmanager
def ground() -> Iterator[Ground]:
    """All of it but operators, until left; pods stay without a node."""
    with ExitStack() as stack:
        cluster = clusters.obtain("bench", node=False)
        stack.callback(cluster.down)
        assert cluster.audit_log is not None
        kubectl = Kubectl(cluster.kubeconfig)
        kubectl("apply", "--server-side", "-f", CRDS)
        for name in ("databases", "taskqueues", "workerpools", "providerquotas"):
            kubectl("wait", "--for=condition=Established", f"crd/{name}.poolkeeper.dev", "--timeout=60s")
        namespace = f"bench-{secrets.token_hex(3)}"
        kubectl("create", "namespace", namespace)
        server = stack.enter_context(Server(fsync=True))
        database = stack.enter_context(migrated_template(server.dsn(), "127.0.0.1"))()
        stage = Stage(kubectl, namespace, database)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        numbers = itertools.count()

        def start() -> Operator:
            operator = Operator(cluster.kubeconfig, "--namespace", namespace)
            operator.start(folder / f"operator-{next(numbers)}.log")
            stack.callback(operator.stop)
            return operator

        stage.apply(stage.secret())
        yield Ground(stage, AuditLog(cluster.audit_log), start)
