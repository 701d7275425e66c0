"""What may be said about a task when it is submitted, and the check of it before anything is sent (Q4, Q8).

Guarantees: what passes is of the kind that the store expects; what does not is refused with a code and a sentence that names
the argument, whatever it is, also where looking at it fails. What the value means is for the store to judge.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from poolkeeper import jsonsafe
from poolkeeper.codes import Code
from poolkeeper.errors import error
from poolkeeper.redact import shown


class Wishes(TypedDict, total=False):
    """What may be said about a task beside queue, type and payload; absent: the queue's default.

    `key` makes submitting idempotent within (tenant, queue); `run_at` must be aware of its time zone; `max_age` counts from
    `run_at`. Tasks of one `ordering_key` within (tenant, queue) run one after the other, in the order of their submits.
    """

    tenant: str
    key: str | None
    priority: int | None
    run_at: datetime | None
    delay: timedelta | None
    max_age: timedelta | None
    max_deliveries: int | None
    labels: Mapping[str, str] | None
    traceparent: str | None
    ordering_key: str | None


class Task(Wishes):
    """One task of `submit_many`."""

    type: str
    payload: Any


def text(value: object, name: str, code: Code = Code.OPTION_INVALID) -> str:
    """Return it, a text that Postgres can hold; raises the error of `code`."""
    if not isinstance(value, str):
        raise error(code, f"{name} is {shown(value)}, not a text")
    reason = jsonsafe.text_fault(value)
    if reason is not None:
        raise error(code, f"{name} {shown(value)} {reason}")
    return value


def task_id(value: object) -> UUID:
    """Return it, also where it is the text of one; raises Refused."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise error(Code.OPTION_INVALID, f"task_id {shown(value)} is no UUID; give what submit returned") from None


def sendable(wishes: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return the wishes of one task, each of its kind, its payload as JSON values; `where` is the task's place in its list."""
    for name, value in wishes.items():
        if value is not None and name in _KINDS:
            _KINDS[name](value, f"{where}{name}")
    payload = f"payload of {where[:-1]}" if where else "payload"
    return {**wishes, "payload": jsonsafe.plain(wishes.get("payload"), payload)}


def numbered(tasks: Iterable[Task]) -> Iterator[tuple[int, Task]]:
    """Number them; raises Refused for what is no task, or not several of them."""
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise error(
            Code.OPTION_INVALID,
            f'tasks is {shown(tasks)}, not a list of tasks; give [{{"type": …, "payload": …}}, …]',
        )
    for index, task in enumerate(tasks):
        if not isinstance(task, Mapping):
            raise error(
                Code.OPTION_INVALID,
                f'tasks[{index}] is {shown(task)}, not a mapping; give {{"type": …, "payload": …}}',
            )
        yield index, task


def _text(code: Code) -> Callable[[Any, str], None]:
    def check(value: Any, name: str) -> None:
        text(value, name, code)

    return check


def whole(value: Any, name: str) -> None:
    """Refuse what is no whole number that JSON can hold."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(Code.OPTION_INVALID, f"{name} is {shown(value)}, not a whole number")
    found = jsonsafe.find_fault(value)
    if found is not None:
        raise error(Code.OPTION_INVALID, f"{name} {found[1]}")


def _moment(value: Any, name: str) -> None:
    if isinstance(value, str):  # as a file of tasks has it, with its zone
        text(value, name)
        return
    if not isinstance(value, datetime):
        raise error(Code.OPTION_INVALID, f"{name} is {shown(value)}, not a datetime")
    if value.tzinfo is None:
        raise error(
            Code.OPTION_INVALID,
            f"{name} {value.isoformat()} says no time zone; use datetime.now(UTC) or .replace(tzinfo=…)",
        )


def _duration(value: Any, name: str) -> None:
    if isinstance(value, timedelta):
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or jsonsafe.find_fault(value) is not None:
        raise error(
            Code.OPTION_INVALID, f"{name} is {shown(value)}; a duration is a timedelta or seconds as a finite number"
        )


def _labels(value: Any, name: str) -> None:
    if not isinstance(value, Mapping):
        raise error(Code.LABELS_INVALID, f"{name} is {shown(value)}, not a mapping of names to texts")
    jsonsafe.plain(dict(value), name)


_KINDS: dict[str, Callable[[Any, str], None]] = {
    "type": _text(Code.TYPE_INVALID),
    "tenant": _text(Code.TENANT_INVALID),
    "key": _text(Code.KEY_INVALID),
    "priority": whole,
    "run_at": _moment,
    "delay": _duration,
    "max_age": _duration,
    "max_deliveries": whole,
    "labels": _labels,
    "traceparent": _text(Code.OPTION_INVALID),
    "ordering_key": _text(Code.OPTION_INVALID),
}
"""How each wish is checked. None is the store's to judge: it means the default, or what is missing."""
