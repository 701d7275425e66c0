"""Schedules of recurring tasks, as `Client` and `AsyncClient` set and change them: one core, two faces (Q34).

Guarantees: an expression, zone or catch-up policy that cannot be is refused before anything is sent; so is what is no JSON. What the
store refuses is raised, with the schedule's name and the remedy.
"""

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack

from poolkeeper.codes import Code
from poolkeeper.errors import error
from poolkeeper.recurrence import CATCH_UP, ScheduleError, check
from poolkeeper.redact import shown
from poolkeeper.refusals import REMEDIES, about, accepted, path
from poolkeeper.store import Call, Verdict, calls
from poolkeeper.store.recurring import Schedule, ScheduleChanged, ScheduleSet
from poolkeeper.wishes import sendable, text, whole

T = TypeVar("T")

MOST = 1000
"""Slots that a catch-up makes up for at most."""

LIMIT = 100
"""The same where nothing is said."""

_OWN = {
    Code.SCHEDULE_INVALID: "a name is 1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-', and begins with a letter or digit",
    Code.OPTION_INVALID: "leave key, run_at, delay and traceparent out, which the slot gives, and keep the others within their bounds",
    Code.UNKNOWN_SCHEDULE: "poolkeeper schedule list has those that are there",
}


class Recurring(TypedDict, total=False):
    """What may be said about the tasks of a schedule; absent: the queue's default.

    `max_age` counts from the slot: a slot that is later than that is left out. Tasks of one `ordering_key` run one after the other.
    """

    tenant: str
    priority: int | None
    max_age: timedelta | None
    max_deliveries: int | None
    labels: dict[str, str] | None
    ordering_key: str | None


class Schedules(ABC):
    """The synchronous face; schedules are named within a queue and tenant."""

    @abstractmethod
    def _run(self, call: Call[T]) -> T:
        """Run a call on the client's connection."""

    def schedule(
        self, queue: str, name: str, cron: str, type: str, payload: Any = None, *,  # noqa: A002
        zone: str = "UTC", catch_up: str = "latest", catch_up_limit: int = LIMIT, who: str = "client", **wishes: Unpack[Recurring],
    ) -> ScheduleSet:  # fmt: skip
        """Submit a task of `type` at each slot of `cron` in `zone`; the same again changes nothing, so say it at each start.

        `catch_up`: what becomes of slots that nobody could fire in time: `skip`, `latest`, or `all`, at most `catch_up_limit`.
        Raises Refused and NotFound.
        """
        return self._run(_set(queue, name, cron, type, payload, zone, catch_up, catch_up_limit, who, wishes))

    def remove_schedule(self, queue: str, name: str, *, tenant: str = "default") -> None:
        """Remove a schedule; tasks that it submitted stay. Raises NotFound."""
        self._run(_changed(queue, name, tenant, calls.remove_schedule(*_words(queue, name), tenant=_tenant(tenant))))

    def pause_schedule(self, queue: str, name: str, *, tenant: str = "default", paused: bool = True) -> None:
        """Pause a schedule, or let it go on (`paused=False`); slots of the pause are left out. Raises NotFound."""
        call = calls.pause_schedule(*_words(queue, name), bool(paused), tenant=_tenant(tenant))
        self._run(_changed(queue, name, tenant, call))

    def run_schedule(self, queue: str, name: str, *, tenant: str = "default") -> Verdict:
        """Submit the schedule's task now, outside of its slots; raises what submit raises, and NotFound."""
        return self._run(_ran(queue, name, tenant))

    def schedules(self, queue: str | None = None) -> list[Schedule]:
        """Return the schedules of a queue (None: of all) that this login may see."""
        return self._run(_listed(queue))


class AsyncSchedules(ABC):
    """The asynchronous face of the same."""

    @abstractmethod
    async def _run(self, call: Call[T]) -> T:
        """Run a call on the client's connection."""

    async def schedule(
        self, queue: str, name: str, cron: str, type: str, payload: Any = None, *,  # noqa: A002
        zone: str = "UTC", catch_up: str = "latest", catch_up_limit: int = LIMIT, who: str = "client", **wishes: Unpack[Recurring],
    ) -> ScheduleSet:  # fmt: skip
        """See `Schedules.schedule`."""
        return await self._run(_set(queue, name, cron, type, payload, zone, catch_up, catch_up_limit, who, wishes))

    async def remove_schedule(self, queue: str, name: str, *, tenant: str = "default") -> None:
        """See `Schedules.remove_schedule`."""
        call = calls.remove_schedule(*_words(queue, name), tenant=_tenant(tenant))
        await self._run(_changed(queue, name, tenant, call))

    async def pause_schedule(self, queue: str, name: str, *, tenant: str = "default", paused: bool = True) -> None:
        """See `Schedules.pause_schedule`."""
        call = calls.pause_schedule(*_words(queue, name), bool(paused), tenant=_tenant(tenant))
        await self._run(_changed(queue, name, tenant, call))

    async def run_schedule(self, queue: str, name: str, *, tenant: str = "default") -> Verdict:
        """See `Schedules.run_schedule`."""
        return await self._run(_ran(queue, name, tenant))

    async def schedules(self, queue: str | None = None) -> list[Schedule]:
        """See `Schedules.schedules`."""
        return await self._run(_listed(queue))


def _set(
    queue: str, name: str, cron: str, type_: str, payload: Any, zone: str, catch_up: str, limit: int, who: str, wishes: Recurring
) -> Call[ScheduleSet]:  # fmt: skip
    task = sendable({**wishes, "type": type_, "payload": payload})
    named = _named(*_words(queue, name), task.get("tenant", "default"))
    text(cron, "cron", Code.SCHEDULE_INVALID)
    text(zone, "zone", Code.SCHEDULE_INVALID)
    whole(limit, "catch_up_limit")
    try:
        check(cron, zone, datetime.now(UTC))
    except ScheduleError as fault:
        raise error(Code.SCHEDULE_INVALID, f"{named}: {fault}") from fault
    if text(catch_up, "catch_up", Code.SCHEDULE_INVALID) not in CATCH_UP:
        raise error(Code.SCHEDULE_INVALID, f"{named}: catch_up {shown(catch_up)} is none of {', '.join(CATCH_UP)}")
    if not 1 <= limit <= MOST:
        raise error(Code.SCHEDULE_INVALID, f"{named}: catch_up_limit {shown(limit)} is not from 1 to {MOST}")
    call = calls.set_schedule(
        queue, name, cron=cron, zone=zone, catch_up=catch_up, catch_up_limit=limit, task=task, who=text(who, "who")
    )

    def read(rows: list[Any]) -> ScheduleSet:
        answer = call.read(rows)
        if answer.code is not None:
            what = about(answer.code, {**wishes, "type": type_})
            remedy = _OWN.get(answer.code) or REMEDIES.get(answer.code, "change it")
            raise error(answer.code, f"{named}: {answer.code}{f' ({what})' if what else ''}; {remedy}")
        return answer

    return Call(call.name, call.params, read)


def _changed(queue: str, name: str, tenant: str, call: Call[ScheduleChanged]) -> Call[None]:
    def read(rows: list[Any]) -> None:
        _known(queue, name, tenant, call.read(rows).code)

    return Call(call.name, call.params, read)


def _ran(queue: str, name: str, tenant: str) -> Call[Verdict]:
    call = calls.run_schedule(*_words(queue, name), tenant=_tenant(tenant))

    def read(rows: list[Any]) -> Verdict:
        verdict = call.read(rows)
        _known(queue, name, tenant, verdict.code)
        return accepted(queue, {"tenant": tenant}, verdict)

    return Call(call.name, call.params, read)


def _listed(queue: str | None) -> Call[list[Schedule]]:
    return calls.schedules(None if queue is None else text(queue, "queue"), 100_000)


def _known(queue: str, name: str, tenant: str, code: Code | None) -> None:
    if code is Code.UNKNOWN_SCHEDULE:
        raise error(code, f"{_named(queue, name, tenant)}: there is none of that name; {_OWN[code]}")


def _words(queue: str, name: str) -> tuple[str, str]:
    return text(queue, "queue"), text(name, "name of the schedule", Code.SCHEDULE_INVALID)


def _tenant(tenant: str) -> str:
    return text(tenant, "tenant", Code.TENANT_INVALID)


def _named(queue: str, name: str, tenant: str) -> str:
    whose = "" if tenant == "default" else f" of tenant {shown(tenant)}"
    return f'schedule {shown(name)}{whose} in queue "{path(queue)}"'
