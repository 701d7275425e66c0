"""`poolkeeper pool status|explain`: what a pool is, and why it has its size, from what the operator wrote into its status.

Reads one object with the caller's own rights; changes nothing.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from poolkeeper.errors import PoolkeeperError
from poolkeeper_operator.poolview import explanation, overview

UNREACHABLE, MISSING, REFUSED = 5, 3, 4


@click.group()
def pool() -> None:
    """Look at worker pools."""


def _options(command: Any) -> Any:
    for option in (
        click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Kubeconfig to use."),
        click.option("--namespace", "-n", default="default", show_default=True, help="The pool's namespace."),
        click.argument("name"),
    ):
        command = option(command)
    return command


@pool.command()
@_options
def status(name: str, namespace: str, kubeconfig: str | None, output: str) -> None:
    """Show a pool's size, conditions and grace period."""
    found = _read(name, namespace, kubeconfig)
    click.echo(json.dumps(found.get("status") or {}, indent=2) if output == "json" else "\n".join(overview(found)))


@pool.command()
@_options
def explain(name: str, namespace: str, kubeconfig: str | None, output: str) -> None:
    """Tell in sentences why a pool has its size: its last changes, and what keeps it where it is."""
    found = _read(name, namespace, kubeconfig)
    if output == "json":
        told = found.get("status") or {}
        click.echo(json.dumps({key: told.get(key) for key in ("wanted", "decisions", "grace", "conditions")}, indent=2))
    else:
        click.echo("\n".join(explanation(found)))


def _read(name: str, namespace: str, kubeconfig: str | None) -> Mapping[str, Any]:
    from poolkeeper_operator.runtime.failures import KubeError

    try:
        found = asyncio.run(_get(name, namespace, kubeconfig))
    except PoolkeeperError as error:
        _fail(str(error), error.exit_code)
    except KubeError as error:
        _fail(str(error), UNREACHABLE if error.status == 0 else REFUSED)
    if found is None:
        _fail(f'there is no pool "{name}" in namespace "{namespace}"; `kubectl get workerpools -A` lists them', MISSING)
    return found


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"poolkeeper pool: {message}", err=True)
    raise SystemExit(code)


async def _get(name: str, namespace: str, kubeconfig: str | None) -> Mapping[str, Any] | None:
    from poolkeeper_operator.runtime import login
    from poolkeeper_operator.runtime.kinds import POOL
    from poolkeeper_operator.runtime.kube import Kube

    kube = Kube(await login.load(kubeconfig))
    try:
        return await kube.get(POOL, namespace, name)
    finally:
        await kube.close()
