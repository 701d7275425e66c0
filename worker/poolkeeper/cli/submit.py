"""`poolkeeper submit QUEUE TYPE PAYLOAD`: one task, its verdict; with `--file` as many as there are lines."""

import sys
from datetime import timedelta
from typing import IO

import click

from poolkeeper import jsonsafe
from poolkeeper.cli.database import connected, dsn
from poolkeeper.cli.output import as_json, output
from poolkeeper.durations import parse_duration


def duration(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> timedelta | None:
    """Read an option that is a duration."""
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
@click.argument("type", required=False)
@click.argument("payload", default="null")
@click.option(
    "--file",
    type=click.File(encoding="utf-8"),
    default=None,
    help='Tasks as JSON lines, such as {"type": "mail.send", "payload": {"to": "x"}, "key": "m1"}; - is standard input. '
    "Sent in pages of 10,000; TYPE and options are for lines that do not say it themselves.",
)
@click.option("--tenant", default="default", show_default=True, help="The party that the task belongs to.")
@click.option("--key", default=None, help="Idempotency key: the same key and payload is the same task.")
@click.option("--ordering-key", default=None, help="Tasks of one ordering key run one after the other.")
@click.option("--priority", type=int, default=None, help="Higher goes first, within the queue's bounds.")
@click.option("--delay", callback=duration, default=None, help="Not before this time has passed, such as 30s.")
@click.option(
    "--max-age",
    callback=duration,
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
    type: str | None,  # noqa: A002  (the word of the store)
    payload: str,
    file: IO[str] | None,
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

    wishes = {
        "tenant": tenant,
        "priority": priority,
        "delay": delay,
        "max_age": max_age,
        "max_deliveries": max_deliveries,
    }
    if file is not None:
        from poolkeeper.cli.submitfile import submit_file

        if key is not None or payload != "null":
            raise click.UsageError("--file has payloads and keys in its lines; leave PAYLOAD and --key out")
        given = {name: wish for name, wish in {**wishes, "type": type}.items() if wish is not None}
        with connected(dsn) as conn:
            refused = submit_file(Client(conn), queue, file, given, print if form == "json" else lambda _line: None)
        if refused:
            raise click.exceptions.Exit(4)
        return
    if type is None:
        raise click.UsageError("say the TYPE of the task, or give --file")
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
