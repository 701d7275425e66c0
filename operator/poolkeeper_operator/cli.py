"""The verbs of `poolkeeper` that need Kubernetes: `operator` runs it, `pool` explains a pool, `crds` prints the schemas."""

import asyncio
import os

import click

from poolkeeper.errors import PoolkeeperError
from poolkeeper_operator.poolcli import pool
from poolkeeper_operator.resources.cli import crds

__all__ = ["crds", "operator", "pool"]


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
def operator(namespaces: tuple[str, ...], *, all_namespaces: bool, kubeconfig: str | None, http_addr: str) -> None:
    """Run the operator: keep the pools, queues, quotas and databases of a cluster or of some namespaces."""
    if namespaces and all_namespaces:
        raise click.UsageError("give --namespace or --all-namespaces, not both")
    from poolkeeper_operator.runtime import logs
    from poolkeeper_operator.runtime.engine import Engine, Options

    form = os.environ.get("POOLKEEPER_LOG_FORMAT") or ("text" if os.isatty(2) else "json")
    logs.configure(form, os.environ.get("POOLKEEPER_LOG_LEVEL") or "info")
    try:
        asyncio.run(Engine(Options(kubeconfig, namespaces, http_addr)).run())
    except PoolkeeperError as error:
        click.echo(f"poolkeeper operator: {error}", err=True)
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
