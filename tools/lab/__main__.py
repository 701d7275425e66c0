"""`python -m lab COMMAND`: run the lab's parts by hand."""

import os
import signal
import sys

import click

from lab.errors import LabError


@click.group(help=__doc__)
def lab() -> None:
    """Entry point."""


@lab.command()
@click.option("--address", multiple=True, help="listen here too (e.g. the gateway of the pods' bridge)")
@click.option("--port", type=int, default=None, help="default: a free one")
@click.option("--no-fsync", is_flag=True, help="quicker, for tests that say nothing about durability")
def postgres(address: tuple[str, ...], port: int | None, *, no_fsync: bool) -> None:
    """Run a Postgres in the foreground until Ctrl-C; the first line is its DSN."""
    from lab.postgres import Server

    with Server(addresses=address, port=port, fsync=not no_fsync) as server:
        print(server.dsn(), flush=True)
        print(f"{server.binaries}; Ctrl-C ends it and removes its data", file=sys.stderr, flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            signal.pause()
        except KeyboardInterrupt:
            sys.exit(0)


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


def main() -> None:
    """Run, turning our own errors into one line."""
    try:
        lab()
    except LabError as error:
        sys.exit(f"lab: {error}")


if __name__ == "__main__":
    main()
