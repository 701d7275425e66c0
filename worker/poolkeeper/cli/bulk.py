"""Dead letters by a filter: how many and which, then all of them (Q29)."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import click

from poolkeeper.cli.database import connected, who
from poolkeeper.cli.output import as_json, table
from poolkeeper.codes import Code
from poolkeeper.errors import NotFound
from poolkeeper.store import run
from poolkeeper.store.bulk import PAGE, Done, Filter, Matching, dead_matching, discard_matching, requeue_matching

SHOWN = 20
VERBS = {"requeue": requeue_matching, "discard": discard_matching}
PAST = {"requeue": "requeued", "discard": "discarded"}
F = TypeVar("F", bound=Callable[..., Any])


def _moment(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"is no moment ({error}); write it as 2030-01-31T07:00:00Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def chosen(command: F) -> F:
    """The options that name dead letters by what they have in common."""
    options = (
        click.option(
            "--queue", default=None, help="Instead of TASK_IDS: the dead letters of this queue, namespace/name."
        ),
        click.option("--type", "type_", default=None, help="Of this task type."),
        click.option("--tenant", default=None, help="Of this tenant."),
        click.option("--reason", default=None, help="That died for this reason, as dlq list shows it."),
        click.option("--error-class", default=None, help="Whose last error is of this class, such as ValueError."),
        click.option(
            "--before", callback=_moment, default=None, help="That died before this moment; UTC unless it says."
        ),
        click.option("--after", callback=_moment, default=None, help="That died at this moment or later."),
        click.option("--limit", type=click.IntRange(1), default=None, help="At most so many, oldest first."),
        click.option("--dry-run", is_flag=True, help="Only say how many, and show the first of them."),
        click.option(
            "--why", default=None, help="The reason, kept in the history of the task. Required, unless with --dry-run."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class Choice:
    """What the options of `chosen` said."""

    queue: str | None
    type_: str | None
    tenant: str | None
    reason: str | None
    error_class: str | None
    before: datetime | None
    after: datetime | None
    limit: int | None
    dry_run: bool

    def demand(self, task_ids: tuple[UUID, ...], version: int | None, why: str | None) -> str:
        """Return the reason; raises UsageError where letters are named by ids and filters or by neither, or a reason is missing."""
        filters = [field.name for field in fields(self) if getattr(self, field.name)]
        if task_ids and filters:
            message = "name dead letters by TASK_IDS or by --queue and its filters, not by both"
            raise click.UsageError(message)
        if not task_ids and self.queue is None:
            message = "name dead letters by TASK_IDS or by --queue"
            raise click.UsageError(message)
        if version is not None and len(task_ids) != 1:
            message = "--version is that of one task; name one"
            raise click.UsageError(message)
        if why is None and not self.dry_run:
            message = "Missing option '--why'."
            raise click.UsageError(message)
        return why or ""


def work_off(dsn: str | None, form: str, verb: str, choice: Choice, why: str) -> None:
    """Look at what matches, or do it, page by page; raises NotFound for a queue that is not there."""
    assert choice.queue is not None  # noqa: S101 - demanded before
    what = Filter(choice.type_, choice.tenant, choice.reason, choice.error_class, choice.before, choice.after)
    if choice.dry_run:
        count, first = _look(dsn, choice, what)
        _told(form, verb, count, first)
        return
    done: list[UUID] = []
    cursor: dict[str, Any] | None = None
    with connected(dsn) as conn:
        while True:
            want = PAGE if choice.limit is None else min(PAGE, choice.limit - len(done))
            page: Done = run(conn, VERBS[verb](choice.queue, what, who=who(), why=why, cursor=cursor, want=want))
            _there(choice.queue, page.code)
            done += page.task_ids
            if form == "text" and page.task_ids:
                print(f"{len(done)} {PAST[verb]}", flush=True)
            cursor = page.cursor
            if cursor is None or len(done) == choice.limit:
                break
    if form == "json":
        print(as_json({PAST[verb]: len(done), "task_ids": done}))
    elif not done:
        print("no dead letter matches")


def _look(dsn: str | None, choice: Choice, what: Filter) -> tuple[int, list[Matching]]:
    count, first = 0, list[Matching]()
    cursor: dict[str, Any] | None = None
    assert choice.queue is not None  # noqa: S101 - demanded before
    with connected(dsn) as conn:
        while True:
            want = PAGE if choice.limit is None else min(PAGE, choice.limit - count)
            page = run(conn, dead_matching(choice.queue, what, cursor=cursor, want=want))
            _there(choice.queue, page.code)
            count += len(page.letters)
            first = (first + page.letters)[:SHOWN]
            cursor = page.cursor
            if cursor is None or count == choice.limit:
                return count, first


def _there(queue: str, code: Code | None) -> None:
    if code is not None:
        raise NotFound(code, f'there is no queue "{queue}", or not for this login; see: poolkeeper queue list')


def _told(form: str, verb: str, count: int, first: list[Matching]) -> None:
    if form == "json":
        print(as_json({"matching": count, "first": first}))
        return
    if first:
        heads = ("TASK", "TYPE", "TENANT", "DIED", "REASON", "ERROR")
        print(table(heads, ((x.task_id, x.type, x.tenant, x.died_at, x.reason, x.error) for x in first)))
    shown = f", the oldest {SHOWN} of them above" if count > SHOWN else ""
    print(
        f"{count} dead letters match{shown}; without --dry-run they are {PAST[verb]}"
        if count
        else "no dead letter matches"
    )
