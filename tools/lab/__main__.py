"""`python -m lab COMMAND`: run the lab's parts by hand."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lab.errors import LabError

if TYPE_CHECKING:
    from lab.cluster import LocalCluster


@click.group(help=__doc__)
@click.option("--name", default="dev", show_default=True, help="which cluster of this checkout")
@click.pass_context
def lab(context: click.Context, name: str) -> None:
    """Entry point."""
    context.obj = name


@lab.command()
@click.option("--address", multiple=True, help="listen here too (e.g. the gateway of the pods' bridge)")
@click.option("--port", type=int, default=None, help="default: a free one")
@click.option("--no-fsync", is_flag=True, help="quicker, for tests that say nothing about durability")
def postgres(address: tuple[str, ...], port: int | None, *, no_fsync: bool) -> None:
    """Run a Postgres in the foreground until Ctrl-C; the first line is its DSN."""
    from lab.postgres import Server

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with Server(addresses=address, port=port, fsync=not no_fsync) as server:
        print(server.dsn(), flush=True)
        print(f"{server.binaries}; Ctrl-C ends it and removes its data", file=sys.stderr, flush=True)
        while True:  # not signal.pause(): a signal that came just before it would be waited for in vain
            time.sleep(0.2)


@lab.command()
@click.option("--image/--no-image", default=True, help="also what building container images needs")
def tools(*, image: bool) -> None:
    """Build and install all that demo and tests need; quick when it is there already."""
    from lab import build, packages

    packages.need(packages.CONTROL_PLANE, purpose="a control plane", say=build.tell)
    if os.geteuid() == 0:
        packages.need(packages.NODE, purpose="a node", say=build.tell)
        if image:
            packages.need(packages.IMAGE, purpose="container images", say=build.tell)
    for folder in build.ensure():
        print(folder)
    if image and os.geteuid() == 0:
        from lab.image import build_images

        for archive in build_images():
            print(archive)


@lab.command()
@click.pass_obj
@click.option("--node", is_flag=True, help="also a real node, which runs pods (root on Linux)")
@click.option("--audit", is_flag=True, help="also the API server's record of all writes")
@click.option("--image", "images", type=click.Path(exists=True, path_type=Path), multiple=True, help="an image archive")
def up(name: str, images: tuple[Path, ...], *, node: bool, audit: bool) -> None:
    """Bring a cluster up until `down`; prints the path of its kubeconfig."""
    from lab import cluster

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is taken down
    why_not = cluster.why_no_node() if node else None
    if why_not:
        print(f"control plane only: {why_not}. Left out: {cluster.NO_NODE}", file=sys.stderr)
    print(_cluster(name).up(node=node and not why_not, audit=audit, images=images).kubeconfig)


@lab.command()
@click.pass_obj
def down(name: str) -> None:
    """Take the cluster of `up` down, and whatever killed test runs left."""
    from lab import build, teardown

    _cluster(name).down()
    teardown.take_down_orphans(build.tell)


@lab.command()
@click.pass_obj
def status(name: str) -> None:
    """Processes of the cluster of `up`, with memory and CPU time, as JSON."""
    print(json.dumps(_cluster(name).status(), indent=1))


@lab.command()
@click.pass_obj
def kubeconfig(name: str) -> None:
    """Path of the kubeconfig of the cluster of `up`."""
    print(_cluster(name).kubeconfig)


@lab.command()
@click.pass_obj
@click.argument("archives", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
def load(name: str, archives: tuple[Path, ...]) -> None:
    """Import image archives into the node of the cluster of `up`."""
    _cluster(name).load(*archives)


def _cluster(name: str) -> "LocalCluster":
    from lab.cluster import LocalCluster

    return LocalCluster(name, owned=False)


@lab.command()
def images() -> None:
    """Build the container images from the Dockerfile; quick when nothing in them changed."""
    from lab.image import build_images

    for archive in build_images():
        print(archive)


@lab.command("app-image")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("tag")
def app_image(folder: Path, tag: str) -> None:
    """Build an image of yours, whose Dockerfile in FOLDER starts FROM the worker's image; prints its archive, for `load`."""
    from lab.image import build_app_image

    print(build_app_image(folder.absolute(), tag))


@lab.command()
@click.option("--python", default="3.11", show_default=True, help="the Python of the base image")
def wheels(python: str) -> None:
    """Put into dist/ what the Dockerfile copies, for an image build by hand."""
    from lab.build import tell
    from lab.wheels import ROOT, prepare, wheels

    prepare(ROOT / "dist", wheels(python, tell))


def main() -> None:
    """Run, turning our own errors into one line."""
    try:
        lab()
    except LabError as error:
        sys.exit(f"lab: {error}")


if __name__ == "__main__":
    main()
