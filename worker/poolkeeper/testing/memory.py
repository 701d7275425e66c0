"""The tasks of a kit in this process: what the store's arrows do to one task, without a database (Q50).

Guarantees: budgets, retries, leases and refusals are those of the store, as the tests of the kit show by running on both. Knows
one task at a time: no fairness, limits, keys or history. Of a transaction of `succeed_in` nothing is known here: a handler
that returns has committed it, one that raises has rolled it back.
"""

import random
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

from poolkeeper.app import Handler
from poolkeeper.codes import ALREADY_DONE, Code
from poolkeeper.context import Context
from poolkeeper.errors import error
from poolkeeper.outcome import Outcome
from poolkeeper.policy import QueuePolicy
from poolkeeper.provider import Report
from poolkeeper.redact import shown
from poolkeeper.store.rows import Claimed
from poolkeeper.testing.place import ENDED, Held, TaskNow
from poolkeeper.testing.runner import size_of, through_json
from poolkeeper.wishes import sendable
from poolkeeper.worker.owntransaction import kept

PLAYED = ("visibility_timeout", "max_deliveries", "max_hand_backs", "max_snoozes", "backoff", "checkpoint", "admission")
"""Fields of a policy that a kit plays; of `backoff` all but maxElapsed, of `checkpoint` and `admission` the sizes."""

YEAR = timedelta(days=365)
HIGHEST = 2**31
MAX_TENANT = 200
MAX_LABELS = 4096


@dataclass(eq=False)
class _Task:
    id: UUID
    handler: Handler
    payload: Any
    tenant: str
    labels: dict[str, Any] | None
    max_deliveries: int
    submitted_at: datetime
    due: datetime
    number: int
    state: str = "ready"
    reason: str | None = None
    result: Any = None
    checkpoint: Any = None
    checkpoint_version: int | None = None
    cancel_requested: bool = False
    delivery: int = 0
    spent: int = 0
    failures: int = 0
    hand_backs: int = 0
    snoozes: int = 0
    holder: "_Held | None" = None
    endings: list[str] = field(default_factory=list)


class _Held(Held):
    def __init__(self, claimed: Claimed, until: datetime) -> None:
        super().__init__(claimed)
        self.until = until
        self.silent = False
        self.over: str | None = None  # how it ended, once it has
        self.own: list[Any] = []  # what succeed_in was called with


class Memory:
    """See the module."""

    name: Literal["process", "postgres"] = "process"

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._now = datetime.now(UTC)
        self._tasks: dict[UUID, _Task] = {}
        self._lock = threading.RLock()

    def now(self) -> datetime:
        """Return the time: it stands still but for `move`."""
        return self._now

    def move(self, seconds: float) -> None:
        """Let time pass, and do what time does by itself."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            for task in self._tasks.values():
                self._sweep(task)

    def _sweep(self, task: _Task) -> None:
        now, holder = self.now(), task.holder
        if holder is not None and holder.silent and holder.until <= now:
            self._end(task, "expired", now)
        if task.state in {"scheduled", "waiting"} and task.due <= now:
            task.state = "ready"

    def submit(self, handler: Handler, payload: Any, wishes: Mapping[str, Any]) -> UUID:
        """Accept a task."""
        _demand(handler.type, wishes)
        stored = through_json(payload, "payload")
        if size_of(stored) > self._policy.admission.max_payload_size:
            raise error(Code.PAYLOAD_TOO_LARGE, f"{handler.type}: the payload is larger than admission.maxPayloadSize")
        now = self.now()
        with self._lock:
            task = _Task(
                id=uuid4(),
                handler=handler,
                payload=stored,
                tenant=wishes.get("tenant") or "default",
                labels=wishes.get("labels"),
                max_deliveries=min(wishes.get("max_deliveries", HIGHEST), self._policy.max_deliveries),
                submitted_at=now,
                due=now + (wishes.get("delay") or timedelta()),
                number=len(self._tasks) + 1,
            )
            task.state = "ready" if task.due <= now else "scheduled"
            self._tasks[task.id] = task
        return task.id

    def due(self, task_id: UUID) -> datetime:
        """Return when the next delivery can begin."""
        task = self._task(task_id)
        return task.due if task.holder is None else max(task.due, task.holder.until)

    def claim(self, task_id: UUID) -> Held | None:
        """Begin the next delivery."""
        with self._lock:
            task, now = self._task(task_id), self.now()
            self._sweep(task)
            if task.state in ENDED or task.holder is not None or task.due > now:
                return None
            task.state = "running"
            task.delivery += 1
            task.spent += 1
            claimed = Claimed(
                state="running",
                task_id=task.id,
                token=secrets.token_hex(8),
                delivery=task.delivery,
                queue=f"default/test-{task.number}",
                type=task.handler.type,
                tenant=task.tenant,
                payload=task.payload,
                checkpoint=task.checkpoint,
                checkpoint_version=task.checkpoint_version,
                labels=task.labels,
                traceparent=None,
                submitted_at=task.submitted_at,
                failures=task.failures,
                deliveries_spent=task.spent,
                max_deliveries=task.max_deliveries,
                suspect=False,
            )
            task.holder = _Held(claimed, now + self._policy.visibility_timeout)
            return task.holder

    def save(self, held: Held, value: Any, sequence: int, version: int) -> None:
        """Store a checkpoint."""
        del sequence  # one process, one order
        with self._lock:
            task = self._in_time(held)
            size = size_of(value)
            if size > self._policy.checkpoint.max_size:
                raise error(
                    Code.CHECKPOINT_TOO_LARGE,
                    f"task {task.id}: checkpoint has {size} bytes, the queue takes {self._policy.checkpoint.max_size}; "
                    "make it smaller, the previous one stays",
                )
            task.checkpoint, task.checkpoint_version = value, version

    def report(self, held: Held, report: Report) -> None:
        """Take a report of whoever holds the task, also where its cancel was asked for: what a provider said is true all the same."""
        del report
        with self._lock:
            task = self._task(held.claimed.task_id)
            if task.holder is not held:
                code = getattr(held, "over", None) or Code.STALE_TOKEN
                code = Code.STALE_TOKEN if code == ALREADY_DONE else Code(code)
                raise error(code, f"task {task.id}: {code}")

    async def succeed(self, held: Held, ctx: Context, connection: Any, result: Any) -> bool:
        """Remember the result."""
        return self.succeed_sync(held, ctx, connection, result)

    def succeed_sync(self, held: Held, ctx: Context, connection: Any, result: Any) -> bool:
        """Remember the result; the connection may be anything."""
        del ctx, connection
        with self._lock:
            self._holding(held).own.append(kept(result))
        return True

    def silence(self, held: Held) -> None:
        """Renew no more for this delivery; its lease counts from now."""
        if isinstance(held, _Held):
            held.silent = True
            held.until = self.now() + self._policy.visibility_timeout

    def died(self, held: Held) -> None:
        """What a handler that has returned did in its own transaction is committed."""
        if isinstance(held, _Held) and held.own and held.over is None:
            self.settle(held, Outcome("succeeded"))

    def settle(self, held: Held, outcome: Outcome) -> str | None:
        """End the delivery, unless the task is another's."""
        assert isinstance(held, _Held)  # noqa: S101
        with self._lock:
            task = self._task(held.claimed.task_id)
            if task.holder is not held:
                return held.over
            result = held.own[-1] if held.own and outcome.ending == "succeeded" else outcome.result
            self._end(task, outcome.ending, self.now(), result=result, retry_after=outcome.retry_after)
            return None

    def cancel(self, task_id: UUID) -> None:
        """Cancel: at once while it waits, by telling its handler while it runs."""
        with self._lock:
            task = self._task(task_id)
            if task.state in ENDED:
                raise error(Code.ALREADY_ENDED, f"task {task_id}: already_ended, its state is {task.state}")
            if task.holder is not None:
                task.cancel_requested = True
            else:
                self._final(task, "canceled")

    def look(self, task_id: UUID) -> TaskNow:
        """Return a task."""
        with self._lock:
            task = self._task(task_id)
            self._sweep(task)
            return TaskNow(
                task.id,
                task.state,
                task.reason,
                task.result,
                task.checkpoint,
                task.delivery,
                task.cancel_requested,
                tuple(task.endings),
            )

    def close(self) -> None:
        """Forget everything."""
        self._tasks.clear()

    def _task(self, task_id: UUID) -> _Task:
        found = self._tasks.get(task_id)
        if found is None:
            raise error(Code.UNKNOWN_TASK, f"there is no task {task_id}")
        return found

    def _holding(self, held: Held) -> _Held:
        task = self._task(held.claimed.task_id)
        if not isinstance(held, _Held) or task.holder is not held:
            code = getattr(held, "over", None) or Code.STALE_TOKEN
            code = Code.STALE_TOKEN if code == ALREADY_DONE else Code(code)
            raise error(code, f"task {task.id}: {code}")
        if task.cancel_requested:
            raise error(Code.CANCELED, f"task {task.id}: canceled")
        return held

    def _in_time(self, held: Held) -> _Task:
        holding = self._holding(held)
        if holding.silent and holding.until <= self.now():
            raise error(Code.LEASE_EXPIRED, f"task {held.claimed.task_id}: lease_expired")
        return self._task(held.claimed.task_id)

    def _end(
        self, task: _Task, ending: str, now: datetime, *, result: Any = None, retry_after: float | None = None
    ) -> None:
        """What follows a delivery: the rule of `poolkeeper.what_follows`."""
        assert task.holder is not None  # noqa: S101
        canceled = ending == "canceled" or (task.cancel_requested and ending not in {"succeeded", "dead", "rejected"})
        task.holder.over = {"expired": "lease_expired", "canceled": "canceled"}.get(ending, ALREADY_DONE)
        if canceled:
            task.holder.over = "canceled"
        task.holder, task.cancel_requested = None, False
        task.endings.append("canceled" if canceled else ending)
        policy = self._policy
        gives_back = ending == "snoozed" or (ending == "handed_back" and task.hand_backs < policy.max_hand_backs)
        bound = None
        if ending == "snoozed" and task.snoozes >= policy.max_snoozes:
            bound = "snoozes_exhausted"
        elif ending in {"failed", "expired", "handed_back"} and not gives_back and task.spent >= task.max_deliveries:
            bound = "deliveries_exhausted"
        elif ending == "dead":
            bound = "permanent_error"
        task.spent -= gives_back
        task.failures += ending in {"failed", "dead"}
        task.hand_backs += ending == "handed_back"
        task.snoozes += ending == "snoozed"
        if ending == "succeeded":
            self._final(task, "succeeded", result)
        elif canceled:
            self._final(task, "canceled")
        elif ending == "rejected":
            self._final(task, "failed")
        elif bound is not None:
            task.state, task.reason = "dead", bound
        elif ending in {"failed", "snoozed"}:
            task.state = "scheduled" if ending == "failed" else "waiting"
            task.due = now + (self._pause(task.failures) if retry_after is None else _within_a_year(retry_after))
        else:
            task.state = "ready"

    @staticmethod
    def _final(task: _Task, state: str, result: Any = None) -> None:
        task.state, task.result = state, result
        task.checkpoint = task.checkpoint_version = None

    def _pause(self, failures: int) -> timedelta:
        backoff = self._policy.backoff
        bound = min(backoff.max / backoff.initial, (backoff.factor_percent / 100) ** min(failures - 1, 50))
        return backoff.initial * bound * random.random()  # noqa: S311  (jitter)


def _within_a_year(seconds: float) -> timedelta:
    return YEAR if seconds > YEAR.total_seconds() else timedelta(seconds=seconds)


def _demand(type_: str, wishes: Mapping[str, Any]) -> None:
    """Refuse wishes as the client and the store do."""
    sendable({**wishes, "type": type_})
    tenant, labels = wishes.get("tenant", "default"), wishes.get("labels", {})
    if not (1 <= len(tenant) <= MAX_TENANT and tenant.isprintable()):
        raise error(Code.TENANT_INVALID, f"tenant {shown(tenant)}: a tenant is 1 to {MAX_TENANT} printable characters")
    if size_of(dict(labels)) > MAX_LABELS or not all(isinstance(value, str) for value in labels.values()):
        raise error(Code.LABELS_INVALID, f"labels are texts by name, at most {MAX_LABELS} bytes as JSON")
    if wishes.get("max_deliveries", 1) < 1:
        raise error(Code.OPTION_INVALID, f"max_deliveries {wishes['max_deliveries']} is below 1")


def demand_played(policy: QueuePolicy) -> None:
    """Refuse a policy with a field that a kit does not play: a test of it would show nothing."""
    default, asked = QueuePolicy(), []
    for name, info in QueuePolicy.model_fields.items():
        if name not in PLAYED and getattr(policy, name) != getattr(default, name):
            asked.append(info.alias or name)
    for group, name in (
        ("backoff", "max_elapsed"),
        ("checkpoint", "max_per_second"),
        ("admission", "max_waiting"),
        ("admission", "max_waiting_per_tenant"),
    ):
        if getattr(getattr(policy, group), name) != getattr(getattr(default, group), name):
            asked.append(f"{group}.{type(getattr(policy, group)).model_fields[name].alias}")
    if asked:
        raise ValueError(
            f"a kit delivers one task at a time and does not play {', '.join(asked)} of a policy; leave it out"
        )
