"""The verbs of `poolkeeper` that need Kubernetes: `operator` runs it, `pool` explains and tries a pool, `crds` prints the schemas."""

import asyncio
import os
import signal
from types import FrameType
from typing import NoReturn

import click
from pydantic import ValidationError

from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured
from poolkeeper_operator.decide.allowance import Allowance
from poolkeeper_operator.nodegrace import NodeGrace
from poolkeeper_operator.poolcli import LABEL, pool
from poolkeeper_operator.resources.cli import crds
from poolkeeper_operator.simulation.cli import simulate

__all__ = ["crds", "operator", "pool"]

pool.add_command(simulate)


@click.command()
@click.option("--namespace", "namespaces", multiple=True, help="Keep this namespace only; may be repeated.")
@click.option("--all-namespaces", is_flag=True, help="Keep every namespace (the default).")
@click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Kubeconfig; default: the pod's service account.")
@click.option(
    "--http-addr",
    envvar="POOLKEEPER_HTTP_ADDR",
    default="127.0.0.1:8080",
    show_default=True,
    help="Where /livez, /readyz and /metrics are served.",
)
@click.option(
    "--lease",
    envvar="POOLKEEPER_LEASE",
    help="The Lease whose holder acts; one for each installation. Default: poolkeeper-operator, and for single namespaces a name made of theirs.",
)
@click.option(
    "--lease-namespace",
    envvar="POOLKEEPER_LEASE_NAMESPACE",
    help="Where it is. Default: the pod's namespace; outside of a pod the first --namespace, else default.",
)
@click.option(
    "--template-policy",
    envvar="POOLKEEPER_TEMPLATE_POLICY",
    help="What WorkerPools may say in template and isolation, as JSON: the chart's values policies.templates. Default: the chart's.",
)
@click.option(
    "--node-grace",
    "node_graces",
    type=NodeGrace(),
    multiple=True,
    envvar="POOLKEEPER_NODE_GRACE",
    help="How much grace nodes allow a pod that they evict, such as 10m (Cluster Autoscaler's --max-graceful-termination-sec), or for those with a label karpenter.sh/nodepool=batch:5m (that NodePool's terminationGracePeriod); may be repeated. DrainBudgetOK says where drains need more. Default: what clouds document of spot nodes.",
)
def operator(
    namespaces: tuple[str, ...],
    *,
    all_namespaces: bool,
    kubeconfig: str | None,
    http_addr: str,
    lease: str | None,
    lease_namespace: str | None,
    template_policy: str | None,
    node_graces: tuple[Allowance, ...],
) -> None:
    """Run the operator: keep the pools, queues, quotas and databases of a cluster or of some namespaces.

    Several may run: the holder of the Lease acts, the others stand by.
    """
    if namespaces and all_namespaces:
        raise click.UsageError("give --namespace or --all-namespaces, not both")
    for name in namespaces:
        if not LABEL.fullmatch(name):
            raise click.BadParameter(f"{ascii(name)[:100]} is no name of a namespace", param_hint="--namespace")
    from poolkeeper_operator.resources.templatepolicy import TemplatePolicy
    from poolkeeper_operator.runtime import logs
    from poolkeeper_operator.runtime.engine import Engine, Options

    form = os.environ.get("POOLKEEPER_LOG_FORMAT") or ("text" if os.isatty(2) else "json")
    level = (os.environ.get("POOLKEEPER_LOG_LEVEL") or "info").lower()
    if form not in {"text", "json"}:
        raise Misconfigured(Code.SETTING_INVALID, f'POOLKEEPER_LOG_FORMAT is "{form}"; expected text or json')
    if level not in {"debug", "info", "warning", "error"}:
        raise Misconfigured(
            Code.SETTING_INVALID, f'POOLKEEPER_LOG_LEVEL is "{level}"; expected debug, info, warning or error'
        )
    try:
        templates = TemplatePolicy.model_validate_json(template_policy or "{}")
    except ValidationError as error:
        what = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in error.errors())
        raise Misconfigured(Code.SETTING_INVALID, f"POOLKEEPER_TEMPLATE_POLICY: {what}") from None
    logs.configure(form, level)
    signal.signal(
        signal.SIGTERM, _end
    )  # until kopf takes over: as the first process of a container it would be ignored
    asyncio.run(
        Engine(Options(kubeconfig, namespaces, http_addr, lease, lease_namespace, templates, node_graces)).run()
    )


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Told to stop while it waits for rights, schemas or the API server: nothing was begun."""
    del number, frame
    raise SystemExit(0)
