"""`poolkeeper pool status|explain`: what a pool is, and why it has its size, from what the operator wrote into its status.

Reads one object with the caller's own rights; changes nothing.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from poolkeeper.cli.database import ask, dsn
from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured, NotFound, PoolkeeperError, Unavailable
from poolkeeper.store import calls
from poolkeeper_operator.poolview import explanation, overview, recollection

if TYPE_CHECKING:
    from poolkeeper_operator.runtime.failures import KubeError
    from poolkeeper_operator.runtime.kube import Kube

GROUP = "poolkeeper.dev"
LABEL = re.compile("[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


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
@click.option(
    "--recorded",
    type=click.IntRange(1, 1000),
    help="Also the last so many decisions as the store recorded them; in JSON with all that they were made from.",
)
@dsn
def explain(
    name: str, namespace: str, kubeconfig: str | None, output: str, recorded: int | None, dsn: str | None
) -> None:
    """Tell in sentences why a pool has its size: its last changes, and what keeps it where it is."""
    found = _read(name, namespace, kubeconfig)
    told = found.get("status") or {}
    kept = [] if recorded is None else ask(dsn, calls.decisions(f"{namespace}/{name}", recorded))
    if output == "json":
        shown = {key: told.get(key) for key in ("wanted", "decisions", "grace", "conditions")}
        if recorded is not None:
            shown["recorded"] = [{"at": at.isoformat(), **decision} for at, decision in kept]
        click.echo(json.dumps(shown, indent=2))
    else:
        click.echo("\n".join([*explanation(found), *recollection(kept)] if recorded else explanation(found)))


def _read(name: str, namespace: str, kubeconfig: str | None) -> Mapping[str, Any]:
    """The pool; raises NotFound, Unavailable and Misconfigured."""
    for what, text in (("NAME", name), ("--namespace", namespace)):
        if not LABEL.fullmatch(text):
            raise click.BadParameter(
                f"{ascii(text)[:100]} is no name of Kubernetes; use a-z, 0-9 and -, at most 63 characters",
                param_hint=what,
            )
    found = asyncio.run(_get(name, namespace, kubeconfig))
    if found is None:
        raise NotFound(
            Code.UNKNOWN_POOL,
            f'there is no pool "{name}" in namespace "{namespace}"; `kubectl get workerpools -A` lists them',
        )
    return found


def _told(error: "KubeError", where: str) -> PoolkeeperError:
    """What an answer of the API server means for the person who asked."""
    if error.status == 0:
        return Unavailable(Code.CLUSTER_UNREACHABLE, f"{error}; check the server of {where} and that it runs")
    if error.status == 401:  # noqa: PLR2004 - HTTP
        return Misconfigured(Code.SETTING_INVALID, f"{error}; {where} holds no valid credentials, log in anew")
    if error.forbidden:
        return Misconfigured(Code.RIGHT_MISSING, f"{error}; ask for get on workerpools.{GROUP} in that namespace")
    return Unavailable(Code.CLUSTER_UNREACHABLE, f"{error}; the API server of {where} cannot serve it now")


async def _get(name: str, namespace: str, kubeconfig: str | None) -> Mapping[str, Any] | None:
    from poolkeeper_operator.runtime import login
    from poolkeeper_operator.runtime.failures import KubeError
    from poolkeeper_operator.runtime.kinds import POOL
    from poolkeeper_operator.runtime.kube import Kube

    kube = Kube(await login.load(kubeconfig))
    try:
        found = await kube.get(POOL, namespace, name)
        if found is None and not await _served(kube, namespace):
            raise Misconfigured(
                Code.CRD_MISSING,
                f"the cluster knows no {POOL.plural}.{POOL.group}; `poolkeeper crds | kubectl apply --server-side -f -`",
            )
    except KubeError as error:
        raise _told(error, "the kubeconfig" if kubeconfig is None else f'kubeconfig "{kubeconfig}"') from error
    finally:
        await kube.close()
    return found


async def _served(kube: "Kube", namespace: str) -> bool:
    """Whether the cluster knows pools at all: a missing one and a missing definition are answered alike."""
    from poolkeeper_operator.runtime.failures import KubeError
    from poolkeeper_operator.runtime.kinds import POOL

    try:
        await kube.list(POOL, namespace, selector=f"{GROUP}/none=none")
    except KubeError as error:
        return not error.not_found
    return True
