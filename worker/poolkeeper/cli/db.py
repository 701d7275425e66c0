"""`poolkeeper db accept`: go on with a database that came back as another one (Q24)."""

import click

from poolkeeper.cli.database import ask, dsn, who
from poolkeeper.store import calls


@click.group()
def db() -> None:
    """Accept a database that came back as another one."""


@db.command()
@dsn
@click.option("--why", required=True, help="The reason, kept with who accepted and when.")
def accept(dsn: str | None, why: str) -> None:
    """Go on with a held installation as it is now: after a restore, on a clone, or after a fail-over that lost commits."""
    accepted = ask(dsn, calls.accept_installation(who(), why))
    print("accepted: claims go on" if accepted else "it was not held")
