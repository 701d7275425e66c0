"""`poolkeeper queue …`: policies without Kubernetes, and how the queues are."""

import re
from pathlib import Path
from typing import Any

import click

from poolkeeper.cli.database import ask, connected, dsn, who
from poolkeeper.cli.output import as_json, output, table
from poolkeeper.codes import Code
from poolkeeper.errors import Conflict, Misconfigured
from poolkeeper.store import calls

_LABEL = re.compile("[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


@click.group()
def queue() -> None:
    """Apply policies, list, pause and resume queues."""


@queue.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@dsn
@output
def apply(file: Path, dsn: str | None, form: str) -> None:
    """Apply the TaskQueues of FILE (YAML, as kubectl takes them); the same policy again changes nothing."""
    from poolkeeper.store import run

    done: list[dict[str, Any]] = []
    wanted = [(*_name(document, file), document) for document in _documents(file)]
    policies = [
        (namespace, name, _policy(document, file, f"{namespace}/{name}")) for namespace, name, document in wanted
    ]
    with connected(dsn) as conn:
        for namespace, name, policy in policies:
            applied = run(conn, calls.apply_policy("local", namespace, namespace, name, policy, who=who()))
            if applied.code is not None:
                raise Conflict(
                    applied.code,
                    f'queue "{namespace}/{name}" belongs to a cluster or an older namespace; apply it there',
                )
            done.append(
                {"queue": f"{namespace}/{name}", "policy_version": applied.policy_version, "changed": applied.changed}
            )
    if form == "json":
        print(as_json(done))
    else:
        print(table(("QUEUE", "POLICY", "CHANGED"), ([*one.values()] for one in done)))


@queue.command("list")
@dsn
@output
def list_(dsn: str | None, form: str) -> None:
    """List all queues with their depth and the age of the oldest task that could run.

    NO WORKER counts the ready tasks of types that no worker can run, as far as workers have told what they can. RETRIES HELD
    counts those that have failed or expired before and wait for first deliveries, because they are more than retrySharePercent.
    """
    found = ask(dsn, calls.queues())
    if form == "json":
        print(as_json(found))
        return
    heads = (
        "QUEUE",
        "PAUSED",
        "READY",
        "NO WORKER",
        "RETRIES HELD",
        "SCHEDULED",
        "WAITING",
        "RUNNING",
        "DEAD",
        "OLDEST",
    )
    print(
        table(
            heads,
            (
                (
                    f"{q.namespace}/{q.name}",
                    q.paused,
                    q.ready,
                    q.no_capable_worker,
                    q.held_back.retry_share,
                    q.scheduled,
                    q.waiting,
                    q.running + q.leased,
                    q.dead,
                    q.oldest_runnable,
                )
                for q in found
            ),
        )
    )


@queue.command()
@click.argument("name")
@dsn
@output
def pause(name: str, dsn: str | None, form: str) -> None:
    """Pause a queue: nothing is accepted or claimed, what runs goes on."""
    _pause(name, True, dsn, form)


@queue.command()
@click.argument("name")
@dsn
@output
def resume(name: str, dsn: str | None, form: str) -> None:
    """Resume a paused queue."""
    _pause(name, False, dsn, form)


def _pause(name: str, paused: bool, dsn: str | None, form: str) -> None:
    version = ask(dsn, calls.pause(name, paused, who=who()))
    print(
        as_json({"queue": name, "paused": paused, "policy_version": version})
        if form == "json"
        else f"{name}  {'paused' if paused else 'resumed'}"
    )


def _documents(file: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        found = [document for document in yaml.safe_load_all(file.read_text("utf-8")) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Misconfigured(
            Code.SETTING_INVALID, f"{file}: no YAML: {' '.join(str(error).split())[:500]}; correct it there"
        ) from error
    queues = [document for document in found if isinstance(document, dict) and document.get("kind") == "TaskQueue"]
    if not queues:
        raise Misconfigured(
            Code.SETTING_INVALID,
            f"{file}: holds no TaskQueue; each document needs kind: TaskQueue, metadata.name and spec",
        )
    return queues


def _name(document: dict[str, Any], file: Path) -> tuple[str, str]:
    metadata = document.get("metadata")
    found = metadata if isinstance(metadata, dict) else {}
    name = found.get("name")
    if not isinstance(name, str) or not name:
        raise Misconfigured(Code.SETTING_INVALID, f"{file}: a TaskQueue has no metadata.name; give it one")
    namespace = found.get("namespace") or "default"
    for field, text in (("name", name), ("namespace", namespace)):
        if not isinstance(text, str) or not _LABEL.fullmatch(text):
            raise Misconfigured(
                Code.SETTING_INVALID,
                f"{file}: metadata.{field} {str(text)[:100]!a} is no DNS label; use a-z, 0-9 and -, at most 63 characters",
            )
    return namespace, name


def _policy(document: dict[str, Any], file: Path, name: str) -> dict[str, Any]:
    from poolkeeper.policy import PolicyError, read_policy

    spec = document.get("spec") or {}
    if not isinstance(spec, dict):
        raise Misconfigured(
            Code.SETTING_INVALID, f'queue "{name}" in {file}: spec is no mapping of fields; write fields'
        )
    try:
        return read_policy(spec, what=f'queue "{name}" in {file}').to_store()
    except PolicyError as error:
        raise Misconfigured(Code.SETTING_INVALID, str(error)) from error
