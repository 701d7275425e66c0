"""`poolkeeper submit QUEUE TYPE PAYLOAD`: one task, its verdict."""

import sys
from datetime import timedelta

import click

from poolkeeper import jsonsafe
from poolkeeper.cli.database import connected, dsn
from poolkeeper.cli.output import as_json, output
from poolkeeper.durations import parse_duration


def _duration(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _read() -> str:
    return sys.stdin.buffer.read().decode()


@click.command()
@click.argument("queue")
@click.argument("type")
@click.argument("payload", default="null")
@click.option("--tenant", default="default", show_default=True, help="The party that the task belongs to.")
@click.option("--key", default=None, help="Idempotency key: the same key and payload is the same task.")
@click.option("--ordering-key", default=None, help="Tasks of one ordering key run one after the other.")
@click.option("--priority", type=int, default=None, help="Higher goes first, within the queue's bounds.")
@click.option("--delay", callback=_duration, default=None, help="Not before this time has passed, such as 30s.")
@click.option(
    "--max-age",
    callback=_duration,
    default=None,
    help="No delivery begins after that: it becomes a dead letter; such as 1h.",
)
@click.option(
    "--max-deliveries", type=click.IntRange(1), default=None, help="Deliveries before it becomes a dead letter."
)
@dsn
@output
def submit(
    queue: str,
    type: str,  # noqa: A002  (the word of the store)
    payload: str,
    tenant: str,
    key: str | None,
    ordering_key: str | None,
    priority: int | None,
    delay: timedelta | None,
    max_age: timedelta | None,
    max_deliveries: int | None,
    dsn: str | None,
    form: str,
) -> None:
    """Submit one task of TYPE to QUEUE (namespace/name). PAYLOAD is JSON, or - to read it from standard input."""
    from poolkeeper.client import Client

    try:
        value = jsonsafe.parse(_read() if payload == "-" else payload)
    except ValueError as error:
        raise click.BadParameter(
            f"is no JSON ({error}); text needs quotes, as in '\"text\"'", param_hint="PAYLOAD"
        ) from error
    with connected(dsn) as conn:
        verdict = Client(conn).submit(
            queue,
            type,
            value,
            tenant=tenant,
            key=key,
            ordering_key=ordering_key,
            priority=priority,
            delay=delay,
            max_age=max_age,
            max_deliveries=max_deliveries,
        )
    print(as_json(verdict) if form == "json" else verdict.task_id)
