"""`poolkeeper task …`: what happened to one task, and what a person may do about it."""

import dataclasses
from collections.abc import Callable
from typing import Any
from uuid import UUID

import click

from poolkeeper.cli.database import ask, connected, dsn, version, who, why
from poolkeeper.cli.output import as_json, lines, output, table
from poolkeeper.codes import Code
from poolkeeper.errors import NotFound, error
from poolkeeper.store import Call, calls
from poolkeeper.store.rows import Changed


@click.group()
def task() -> None:
    """Look at one task, cancel or requeue it."""


@task.command()
@click.argument("task_id", type=click.UUID)
@dsn
@output
def show(task_id: UUID, dsn: str | None, form: str) -> None:
    """Show a task as it is now, with its last error."""
    from poolkeeper.store import run

    with connected(dsn) as conn:
        view = run(conn, calls.task(task_id))
        if view is None:
            raise NotFound(Code.UNKNOWN_TASK, f"there is no task {task_id}, or not for this login")
        errors = [row.error for row in run(conn, calls.timeline(task_id)) if row.error is not None]
    shown = {field.name: getattr(view, field.name) for field in dataclasses.fields(view)}
    shown["last_error"] = errors[-1] if errors else None
    print(as_json(shown) if form == "json" else lines(shown.items()))


@task.command()
@click.argument("task_id", type=click.UUID)
@dsn
@output
def timeline(task_id: UUID, dsn: str | None, form: str) -> None:
    """Show everything that happened to a task, in order."""
    history = ask(dsn, calls.timeline(task_id))
    if not history:
        raise NotFound(Code.UNKNOWN_TASK, f"there is no task {task_id}, or not for this login")
    if form == "json":
        print(as_json(history))
        return
    heads = ("AT", "WHAT", "DELIVERY", "OUTCOME", "STATE", "REASON", "WHO", "ERROR")
    print(
        table(
            heads,
            (
                (row.at, row.what, row.delivery, row.outcome, row.state, row.reason, row.actor, row.error)
                for row in history
            ),
        )
    )


@task.command()
@click.argument("task_id", type=click.UUID)
@version
@why
@dsn
@output
def cancel(task_id: UUID, version: int | None, why: str, dsn: str | None, form: str) -> None:
    """Cancel a task: at once while it waits; a running one is told and ends when it heeds that."""
    change(dsn, form, [task_id], lambda one: calls.cancel(one, who=who(), why=why, seen_version=version))


@task.command()
@click.argument("task_id", type=click.UUID)
@version
@why
@dsn
@output
def requeue(task_id: UUID, version: int | None, why: str, dsn: str | None, form: str) -> None:
    """Give a dead letter a fresh budget of deliveries; its checkpoint stays."""
    change(dsn, form, [task_id], lambda one: calls.requeue(one, who=who(), why=why, seen_version=version))


def change(dsn: str | None, form: str, task_ids: list[UUID], call: Callable[[UUID], Call[Changed]]) -> None:
    """Do something to tasks and print their states; raises for the first that is refused, the ones before are done."""
    from poolkeeper.store import run

    done: list[dict[str, Any]] = []
    with connected(dsn) as conn:
        for task_id in task_ids:
            changed = run(conn, call(task_id))
            if changed.code is not None:
                raise error(
                    changed.code,
                    f"task {task_id}: {changed.code}; its state is {changed.state or 'unknown'} (version {changed.state_version}), see: poolkeeper task show {task_id}",
                )
            done.append({"task_id": task_id, "state": changed.state, "state_version": changed.state_version})
            if form == "text":
                print(f"{task_id}  {changed.state}")
    if form == "json":
        print(as_json(done))
