"""`poolkeeper maintain`: what the operator and workers do by themselves, by hand."""

import dataclasses

import click

from poolkeeper.cli.database import connected, dsn
from poolkeeper.cli.output import as_json, lines, output

WORDS = {
    "tasks": "ended tasks removed",
    "payloads": "payloads emptied",
    "results": "results emptied",
    "checkpoints": "checkpoints of dead letters removed",
    "dead_letters": "dead letters discarded",
    "keys": "idempotency keys freed",
    "sessions": "ended sessions removed",
    "decisions": "decisions removed",
    "drains": "drain reports removed",
    "made": "months of the history made",
    "dropped": "months of the history dropped",
    "holders": "sessions ended that kept a limit from others",
}


@click.command()
@dsn
@output
def maintain(dsn: str | None, form: str) -> None:
    """Remove now what is older than the retention of its queue. The operator does so each minute, and so do workers outside Kubernetes."""
    from poolkeeper.store import calls, run

    total = dict.fromkeys(WORDS, 0)
    with connected(dsn) as conn:
        more = True
        while more:
            done = dataclasses.asdict(run(conn, calls.maintain()))
            total = {name: count + done[name] for name, count in total.items()}
            more = done["more"]
    if form == "json":
        print(as_json(total))
    else:
        print(lines((WORDS[name], count) for name, count in total.items()))
