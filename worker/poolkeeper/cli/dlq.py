"""`poolkeeper dlq …`: dead letters, one by one or by a filter; nothing here is automatic (Q29)."""

from typing import Any
from uuid import UUID

import click

from poolkeeper.cli.bulk import Choice, chosen, work_off
from poolkeeper.cli.database import ask, dsn, version, who
from poolkeeper.cli.output import as_json, output, table
from poolkeeper.cli.task import change
from poolkeeper.store import calls


@click.group()
def dlq() -> None:
    """List dead letters, requeue or discard them."""


@dlq.command("list")
@click.option("--queue", default=None, help="Of this queue alone, namespace/name.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many, newest first."
)
@dsn
@output
def list_(queue: str | None, limit: int, dsn: str | None, form: str) -> None:
    """List dead letters, newest first, with what to do."""
    letters = ask(dsn, calls.dead_letters(queue, limit))
    if form == "json":
        print(as_json(letters))
        return
    heads = ("TASK", "QUEUE", "TYPE", "TENANT", "DIED", "REASON", "DELIVERIES", "ERROR", "WHAT TO DO")
    print(
        table(
            heads,
            (
                (
                    one.task_id,
                    one.queue,
                    one.type,
                    one.tenant,
                    one.died_at,
                    one.reason,
                    one.deliveries,
                    one.error,
                    one.action,
                )
                for one in letters
            ),
        )
    )


@dlq.command()
@click.argument("task_ids", type=click.UUID, nargs=-1)
@chosen
@version
@dsn
@output
def requeue(
    task_ids: tuple[UUID, ...], version: int | None, why: str | None, dsn: str | None, form: str, **choice: Any
) -> None:
    """Give dead letters a fresh budget of deliveries; their checkpoints stay. Name them by TASK_IDS, or by --queue and filters."""
    asked = Choice(**choice)
    reason = asked.demand(task_ids, version, why)
    if not task_ids:
        work_off(dsn, form, "requeue", asked, reason)
        return
    change(dsn, form, list(task_ids), lambda one: calls.requeue(one, who=who(), why=reason, seen_version=version))


@dlq.command()
@click.argument("task_ids", type=click.UUID, nargs=-1)
@chosen
@version
@dsn
@output
def discard(
    task_ids: tuple[UUID, ...], version: int | None, why: str | None, dsn: str | None, form: str, **choice: Any
) -> None:
    """End dead letters for good; who and why stay in their history. Name them by TASK_IDS, or by --queue and filters."""
    asked = Choice(**choice)
    reason = asked.demand(task_ids, version, why)
    if not task_ids:
        work_off(dsn, form, "discard", asked, reason)
        return
    change(dsn, form, list(task_ids), lambda one: calls.discard(one, who=who(), why=reason, seen_version=version))
