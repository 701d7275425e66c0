"""`poolkeeper submit --file`: tasks from a file of JSON lines, a page of them per call.

Guarantees: one round trip and one transaction for each page of 10,000; nothing of a file is kept beyond its page; a line that is
no task ends the command before its page is sent, and the message has its number. What was accepted before stays accepted:
give the tasks keys, and the same command can be repeated. Does not repeat anything by itself.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import IO, Any, get_type_hints

import click

from poolkeeper import jsonsafe
from poolkeeper.cli.output import harmless
from poolkeeper.client import PAGE, Client
from poolkeeper.durations import parse_duration
from poolkeeper.store.rows import Verdict
from poolkeeper.wishes import Task

TOLD = 20
"""Refusals that are written out; the others are counted."""


def submit_file(
    client: Client, queue: str, file: IO[str], given: Mapping[str, Any], tell: Callable[[str], None]
) -> int:
    """Submit every line as a task, with `given` where it says nothing itself; return how many were refused."""
    counts = {"created": 0, "known": 0}
    refused: dict[str, int] = {}
    tasks = _tasks(file, given)
    while page := list(islice(tasks, PAGE)):
        verdicts = client.submit_many(queue, [task for _, task in page])
        for (number, _), verdict in zip(page, verdicts, strict=True):
            if verdict.code is None:
                counts["created" if verdict.created else "known"] += 1
                continue
            if sum(refused.values()) < TOLD:
                click.echo(f"line {number}: {verdict.code}", err=True)
            refused[verdict.code] = refused.get(verdict.code, 0) + 1
        for line in _lines(verdicts):
            tell(line)
    total = sum(refused.values())
    told = ", ".join(f"{count} {code}" for code, count in sorted(refused.items()))
    summary = f"{counts['created']} created, {counts['known']} known by their keys, {total} refused"
    click.echo(f"{summary}: {told}" if told else summary, err=True)
    return total


def _lines(verdicts: Iterable[Verdict]) -> Iterator[str]:
    for verdict in verdicts:
        yield json.dumps(
            {
                "task_id": None if verdict.task_id is None else str(verdict.task_id),
                "code": verdict.code,
                "created": verdict.created,
                "state": verdict.state,
            }
        )


def _tasks(file: IO[str], given: Mapping[str, Any]) -> Iterator[tuple[int, Task]]:
    known = set(get_type_hints(Task))
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            task = {**given, **_object(jsonsafe.parse(line))}
        except ValueError as error:
            raise _wrong(number, str(error)) from error
        unknown = ", ".join(sorted(map(harmless, set(task) - known)))
        if unknown or "type" not in task:
            why = f"there is no field {unknown}" if unknown else "it has no type, and none was given"
            raise _wrong(number, why)
        yield number, task  # type: ignore[misc]  # the client checks the wishes, the store what they say


def _wrong(number: int, why: str) -> click.BadParameter:
    return click.BadParameter(f"line {number} is no task: {why}; nothing of its page was sent", param_hint="--file")


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError('it must be an object, such as {"type": "mail.send", "payload": {}}')  # noqa: TRY004  (as for bad JSON)
    for name in ("delay", "max_age"):
        if isinstance(value.get(name), str):
            value[name] = parse_duration(value[name])
    return value
