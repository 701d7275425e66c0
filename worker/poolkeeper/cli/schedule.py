"""`poolkeeper schedule …`: recurring tasks: set, list, pause, resume, run by hand, remove."""

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from poolkeeper import jsonsafe
from poolkeeper.cli.database import connected, dsn, who
from poolkeeper.cli.output import as_json, output, table
from poolkeeper.cli.submit import duration

if TYPE_CHECKING:
    from poolkeeper.store.recurring import Schedule

tenant = click.option("--tenant", default="default", show_default=True, help="The party that the schedule belongs to.")


@click.group()
def schedule() -> None:
    """Set, list, pause and remove schedules of recurring tasks."""


@schedule.command("set")
@click.argument("queue")
@click.argument("name")
@click.argument("cron")
@click.argument("type")
@click.argument("payload", default="null")
@click.option("--zone", default="UTC", show_default=True, help="The time zone of CRON, such as Europe/Berlin.")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "latest", "all"]),
    default="latest",
    show_default=True,
    help="What becomes of slots that nobody could fire in time.",
)
@click.option(
    "--catch-up-limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Of --catch-up all: at most so many, the latest.",
)
@tenant
@click.option(
    "--ordering-key", default=None, help="Tasks of one ordering key run one after the other, never two at once."
)
@click.option("--priority", type=int, default=None, help="Higher goes first, within the queue's bounds.")
@click.option(
    "--max-age", callback=duration, default=None, help="A slot that is later than that is left out; such as 1h."
)
@click.option(
    "--max-deliveries", type=click.IntRange(1), default=None, help="Deliveries before a task becomes a dead letter."
)
@dsn
@output
def set_(
    queue: str,
    name: str,
    cron: str,
    type: str,  # noqa: A002  (the word of the store)
    payload: str,
    zone: str,
    catch_up: str,
    catch_up_limit: int,
    tenant: str,
    ordering_key: str | None,
    priority: int | None,
    max_age: timedelta | None,
    max_deliveries: int | None,
    dsn: str | None,
    form: str,
) -> None:
    """Submit a task of TYPE to QUEUE at each slot of CRON, such as "30 2 * * MON-FRI"; PAYLOAD is JSON.

    CRON has minute, hour, day of month, month and day of week, or six fields with seconds first. NAME names the schedule within its
    queue and tenant; setting it again changes it, and the same again changes nothing.
    """
    from poolkeeper.client import Client

    try:
        value = jsonsafe.parse(payload)
    except ValueError as error:
        raise click.BadParameter(
            f"is no JSON ({error}); text needs quotes, as in '\"text\"'", param_hint="PAYLOAD"
        ) from error
    with connected(dsn) as conn:
        done = Client(conn).schedule(
            queue, name, cron, type, value, zone=zone, catch_up=catch_up, catch_up_limit=catch_up_limit, who=who(), tenant=tenant,
            ordering_key=ordering_key, priority=priority, max_age=max_age, max_deliveries=max_deliveries,
        )  # fmt: skip
    if form == "json":
        print(as_json({"queue": queue, "name": name, "created": done.created, "changed": done.changed}))
    else:
        print(f"{name}  {'set' if done.created else 'changed' if done.changed else 'unchanged'}")


@schedule.command("list")
@click.argument("queue", required=False)
@dsn
@output
def list_(queue: str | None, dsn: str | None, form: str) -> None:
    """List the schedules of QUEUE, or all.

    NEXT is the next slot, LAST the last one that has its task, MISSED the last one that was left out. REFUSED says why nothing could
    be fired when it was tried last: it is tried again.
    """
    from poolkeeper.client import Client

    with connected(dsn) as conn:
        found = Client(conn).schedules(queue)
    if form == "json":
        print(as_json(found))
        return
    heads = (
        "QUEUE",
        "TENANT",
        "NAME",
        "CRON",
        "ZONE",
        "CATCH-UP",
        "TYPE",
        "PAUSED",
        "NEXT",
        "LAST",
        "MISSED",
        "REFUSED",
    )
    print(table(heads, (_row(one) for one in found)))


def _row(one: "Schedule") -> tuple[object, ...]:
    return (
        one.queue, one.tenant, one.name, one.cron, one.zone, one.catch_up, one.task.get("type"), one.paused, one.due_at, one.fired_at,
        one.missed_at, one.refused,
    )  # fmt: skip


@schedule.command()
@click.argument("queue")
@click.argument("name")
@tenant
@dsn
@output
def remove(queue: str, name: str, tenant: str, dsn: str | None, form: str) -> None:
    """Remove a schedule; tasks that it submitted stay."""
    from poolkeeper.client import Client

    with connected(dsn) as conn:
        Client(conn).remove_schedule(queue, name, tenant=tenant)
    print(as_json({"queue": queue, "name": name, "removed": True}) if form == "json" else f"{name}  removed")


@schedule.command()
@click.argument("queue")
@click.argument("name")
@tenant
@dsn
@output
def pause(queue: str, name: str, tenant: str, dsn: str | None, form: str) -> None:
    """Pause a schedule, whoever sets it again meanwhile."""
    _pause(queue, name, tenant, True, dsn, form)


@schedule.command()
@click.argument("queue")
@click.argument("name")
@tenant
@dsn
@output
def resume(queue: str, name: str, tenant: str, dsn: str | None, form: str) -> None:
    """Let a paused schedule go on from its next slot; those of the pause are left out."""
    _pause(queue, name, tenant, False, dsn, form)


@schedule.command()
@click.argument("queue")
@click.argument("name")
@tenant
@dsn
@output
def run(queue: str, name: str, tenant: str, dsn: str | None, form: str) -> None:
    """Submit the task of a schedule now; its slots stay as they are."""
    from poolkeeper.client import Client

    with connected(dsn) as conn:
        verdict = Client(conn).run_schedule(queue, name, tenant=tenant)
    print(as_json(verdict) if form == "json" else verdict.task_id)


def _pause(queue: str, name: str, tenant: str, paused: bool, dsn: str | None, form: str) -> None:
    from poolkeeper.client import Client

    with connected(dsn) as conn:
        Client(conn).pause_schedule(queue, name, tenant=tenant, paused=paused)
    print(
        as_json({"queue": queue, "name": name, "paused": paused})
        if form == "json"
        else f"{name}  {'paused' if paused else 'resumed'}"
    )
