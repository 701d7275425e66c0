"""The store once more, written from the specification: what it accepts, to whom it gives a task, what time and people do.

Time is a whole number of seconds. ``model_task`` has the arrows of one task; here is all that concerns several.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from store.model_task import ENDED, HELD, LEASE, LIMITS, WAITING, Policy, Process, Task


@dataclass
class Model:
    """Some queues and one pool."""

    policies: dict[str, Policy]
    taken: Counter[tuple[str, ...]] = field(default_factory=Counter)
    now: int = 0
    tasks: dict[UUID, Task] = field(default_factory=dict)
    keys: dict[tuple[str, str, str], UUID] = field(default_factory=dict)
    isolating: Process | None = None

    def at(self, *places: str) -> dict[UUID, Task]:
        return {i: t for i, t in self.tasks.items() if t.place in places}

    def holds(self, process: Process) -> list[Task]:
        return [t for t in self.at(*HELD).values() if t.owner is process]

    def apply(self, queue: str, policy: Policy) -> None:
        """Other limits of time hold for what runs already (Q21)."""
        before, self.policies[queue] = self.policies[queue], policy
        for task in self.at("running").values():
            if task.queue == queue and before.limits() != policy.limits():
                task.limit(self.now)

    # what submit accepts: Q6, Q7 and Q9

    def submit(
        self,
        new_id: UUID,
        queue: str = "q",
        *,
        tenant: str = "default",
        type: str = "a.b",  # noqa: A002 - the word of the contract
        payload: Any = 1,
        key: str | None = None,
        delay: int = 0,
        max_age: int | None = None,
        ordering_key: str | None = None,
    ) -> tuple[str | None, UUID | None]:
        """The code of a refusal, or the task: the first one of its key."""
        policy = self.policies.get(queue)
        if policy is None:
            return "unknown_queue", None
        code = self._refusal(policy, tenant, type, payload, max_age)
        if key is not None and (first := self.keys.get((tenant, queue, key))):
            same = self.tasks[first].payload == payload
            return (None, first) if same else (code or "key_conflict", None)
        code = code or self.full(queue, tenant)
        if code:
            return code, None
        if key is not None:
            self.keys[tenant, queue, key] = new_id
        ages = [a for a in (max_age, policy.max_age_seconds) if a is not None]
        task = Task(self.policies, self.taken, queue, tenant, type, payload, ordering_key, len(self.tasks))
        task.since = self.now + delay
        task.expires = task.since + min(ages) if ages else None
        task.due = task.since if delay else None
        self.tasks[new_id] = task
        task.go("ordered" if ordering_key else "scheduled" if delay else "ready", "submit")
        return None, new_id

    def _refusal(self, policy: Policy, tenant: str, type_: str, payload: Any, max_age: int | None) -> str | None:
        if policy.paused:
            return "queue_paused"
        if tenant in policy.suspended_tenants:
            return "tenant_suspended"
        if policy.task_types and type_ not in policy.task_types:
            return "unknown_type"
        if len(str(payload)) > policy.max_payload_bytes:
            return "payload_too_large"
        return "max_age_passed" if max_age is not None and max_age <= 0 else None

    def full(self, queue: str, tenant: str) -> str | None:
        """Which limit of waiting tasks is reached."""
        policy = self.policies[queue]
        waiting = [t.tenant for t in self.at(*WAITING).values() if t.queue == queue]
        if policy.max_waiting_per_tenant is not None and waiting.count(tenant) >= policy.max_waiting_per_tenant:
            return "tenant_queue_limit"
        return "queue_limit" if policy.max_waiting is not None and len(waiting) >= policy.max_waiting else None

    # what time does: Q9, Q21 and Q22

    def wake(self) -> None:
        for task in self.at("scheduled", "waiting").values():
            if task.due is not None and task.due <= self.now:
                task.go("ready", "woke")

    def sweep(self) -> None:
        for task in self.at(*HELD).values():
            if task.lease_end() <= self.now:
                task.end("expired" if task.place == "running" else "returned", self.now)
        self.end_long_runs()
        for task in self.at(*WAITING).values():
            if task.aged(self.now):
                task.go("dead", "max_age")
        self.wake()

    def end_long_runs(self) -> None:
        for task in self.at("running").values():
            if limit := task.too_long(self.now):
                task.end(limit, self.now, LEASE // 2)

    def open_keys(self, queues: tuple[str, ...]) -> None:
        """The next task of every ordering key that is free."""
        for task in sorted(self.at("ordered").values(), key=lambda t: t.number):
            mates = [
                t for t in self.tasks.values()
                if (t.queue, t.tenant, t.ordering_key) == (task.queue, task.tenant, task.ordering_key) and t is not task
            ]  # fmt: skip
            taken = any(
                t.place in {*WAITING, *HELD} and (t.place != "ordered" or t.number < task.number) for t in mates
            )
            blocked = task.policy.ordering == "block" and any(
                t.place == "dead" and t.number < task.number for t in mates
            )
            if task.queue not in queues or taken or blocked:
                continue
            if task.due is None:
                task.place = "ready"
            elif task.due <= self.now:
                task.go("ready", "woke")
            else:
                task.place = "scheduled"

    # claims (Q10 to Q12, Q16, Q27)

    def lost_answers(self, process: Process) -> None:
        """A new turn: deliveries of answers that never arrived go back."""
        process.turns += 1
        for task in self.holds(process):
            if process.received < task.turn < process.turns:
                task.end("returned", self.now)

    def room(self, queue: str, tenant: str | None = None) -> int:
        policy = self.policies[queue]
        most = policy.concurrency_max if tenant is None else policy.per_tenant_max
        held = [t for t in self.at(*HELD).values() if t.queue == queue and tenant in {None, t.tenant}]
        return 1000 if most is None else max(0, most - len(held))

    def runnable(self, process: Process, place: str) -> dict[UUID, Task]:
        """What this process may have, one by one."""
        return {
            i: t
            for i, t in self.at(place).items()
            if t.queue in process.queues and t.type in process.types and not t.aged(self.now)
            and not self.policies[t.queue].stops(t) and self.room(t.queue) and self.room(t.queue, t.tenant)
        }  # fmt: skip

    def capacity(self, tasks: dict[UUID, Task]) -> int:
        """How many of these may run together."""
        lanes = Counter((t.queue, t.tenant) for t in tasks.values())
        queues: Counter[str] = Counter()
        for (queue, tenant), count in lanes.items():
            queues[queue] += min(count, self.room(queue, tenant))
        return sum(min(count, self.room(queue)) for queue, count in queues.items())

    def shares(self, process: Process, taken: list[tuple[str, bool]]) -> None:
        """Claims of a session in a row, by queue and whether they are retries: these have their share and, with others left, no more (Q13)."""
        left = {(t.queue, t.again) for t in self.runnable(process, "ready").values()}
        for queue in process.queues:
            share = self.policies[queue].retry_share_percent
            for again in (False, True):
                claims, retries = process.in_a_row.pop((queue, again), (0, 0))
                claims += sum(of == queue for of, _ in taken)
                retries += taken.count((queue, True))
                if (queue, again) not in left or share == 100:
                    continue  # of one kind alone it takes what there is
                process.in_a_row[queue, again] = claims, retries
                fair = retries >= claims * share // 100 if again else retries <= -(-claims * share // 100)
                assert fair, f"{retries} of {claims} claims from {queue} were retries; their share is {share} %"

    def isolates(self, process: Process, *, isolated: bool) -> bool:
        """Whether this process takes suspects and nothing else, from now on: it holds nothing else, or makes room."""
        if not process.alive(self.now) or not self.runnable(process, "suspect"):
            if self.isolating is process and not any(t.apart for t in self.holds(process)):
                self.isolating = None
            return False
        if isolated or all(t.apart for t in self.holds(process)):
            return True
        if self.isolating is not process and self.isolating is not None and self.isolating.alive(self.now):
            return False
        self.isolating = process
        return True

    def apart(self, process: Process, want: int) -> tuple[dict[UUID, Task], int, int]:
        """From which suspects it takes, how many at most, and how many may be there then."""
        held = self.holds(process)
        suspects = self.runnable(process, "suspect")
        if any(t.alone or not t.apart for t in held):
            return {}, 0, 0
        misses = held[0].misses if held else min((t.misses for t in suspects.values()), default=0)
        beside = max(1, (len(held) + want) // 4**misses)
        among = {i: t for i, t in suspects.items() if t.misses == misses}
        return among, max(0, min(want, beside - len(held), self.capacity(among))), beside

    def start(self, process: Process, task: Task | None, delivery: int) -> str | None:
        """A delivery that was claimed ahead begins; or why not, and it goes back at no cost."""
        if task is None:
            return "unknown_task"
        if task.place not in HELD or task.deliveries != delivery:
            return task.why_not(delivery)
        if task.place == "running":
            return None
        stopped = self.policies[task.queue].stops(task)
        late = not process.alive(self.now)
        if task.canceled or task.aged(self.now) or stopped or late:
            code = (
                "canceled" if task.canceled else "max_age_passed" if task.aged(self.now) else stopped or "lease_expired"
            )
            task.end("returned" if code == "lease_expired" else "refused", self.now)
            return code
        task.start(self.now)
        return None

    # what a delivery does (Q18 to Q20, Q30)

    def settle(self, task: Task | None, delivery: int, outcome: str, wait: int = 0) -> str | None:
        """Late is fine while the lease stands; what never started can only be given back."""
        if task is None:
            return "unknown_task"
        gentle = outcome in {"handed_back", "canceled"}
        if task.deliveries != delivery or task.place not in (HELD if gentle else ("running",)):
            return task.why_not(delivery)
        task.end(outcome, self.now, wait)
        return None

    def succeed(self, task: Task | None, delivery: int) -> str | None:
        """The same in a transaction of the handler's own: what ended otherwise is no success, and it is told so."""
        code = self.settle(task, delivery, "succeeded")
        well = task is not None and task.endings.get(delivery, (None, ""))[1] == "succeeded"
        return "stale_token" if code == "already_done" and not well else code

    def in_time(self, task: Task | None, delivery: int) -> str | None:
        """Whether this delivery may extend its lease or save its checkpoint: never late."""
        if task is None:
            return "unknown_task"
        if task.place not in HELD or task.deliveries != delivery:
            code = task.why_not(delivery)
            return "stale_token" if code == "already_done" else code
        if task.canceled:
            return "canceled"
        return "lease_expired" if task.lease_end() <= self.now else None

    def checkpoint(self, task: Task | None, delivery: int, value: Any, sequence: int) -> str | None:
        code = self.in_time(task, delivery)
        if code or task is None:
            return code
        if len(str(value)) > task.policy.checkpoint_max_bytes:
            return "checkpoint_too_large"
        if (delivery, sequence) > task.saved or task.checkpoint is None:
            task.checkpoint, task.saved = value, (delivery, sequence)
        task.progress(self.now)
        return None

    def extend(self, task: Task | None, delivery: int, by: int) -> str | None:
        code = self.in_time(task, delivery)
        if task is not None and code is None:
            task.extended = self.now + by
        return code

    def renew(self, process: Process) -> dict[UUID, str]:
        """What it is told of each task, if it believed that it held it."""
        process.renewed, process.ended = self.now, False
        self.end_long_runs()
        told = {}
        for task_id, task in self.tasks.items():
            mine = [how for owner, how in task.endings.values() if owner is process]
            if task.owner is process:
                told.update({task_id: "canceled"} if task.canceled else {})
            elif "succeeded" not in mine:
                told[task_id] = mine[-1] if mine and mine[-1] in LIMITS else "lease_expired"
        return told

    def end_session(self, process: Process) -> None:
        if self.isolating is process:
            self.isolating = None
        for task in self.holds(process):
            task.end("handed_back", self.now)
        process.ended = True

    # what people do: Q1, Q29 and Q39

    def person(self, verb: str, task: Task | None, seen: int | None = None) -> str | None:
        """Cancel, requeue or discard, of a task as it was seen."""
        if task is None:
            return "unknown_task"
        if verb == "cancel" and task.place in {*ENDED, "dead"}:
            return "already_ended"
        if verb != "cancel" and task.place != "dead":
            return "not_dead"
        if seen is not None and seen != task.version:
            return "stale_version"
        if verb == "requeue":
            task.requeue(self.now)
        elif task.place in HELD:
            task.canceled = True
        else:
            task.go("canceled", verb)
        return None
