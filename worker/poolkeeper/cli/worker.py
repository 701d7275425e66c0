"""`poolkeeper worker module:app`: work off tasks until told to stop."""

import click

from poolkeeper.cli.database import dsn


@click.command()
@click.argument("app", required=False)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    help="A queue to work off, namespace/name; may be repeated. Default POOLKEEPER_QUEUES.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=None,
    help="Slots; default POOLKEEPER_CONCURRENCY, else 10.",
)
@dsn
@click.pass_context
def worker(
    ctx: click.Context, app: str | None, queues: tuple[str, ...], concurrency: int | None, dsn: str | None
) -> None:
    """Run a worker process for APP, written as module:attribute (default POOLKEEPER_APP).

    SIGTERM or Ctrl-C drains it: nothing new is claimed, what runs may finish, the rest is handed back in time.
    """
    from poolkeeper.worker.main import main

    ctx.exit(main(app, queues=queues, concurrency=concurrency, dsn=dsn))
