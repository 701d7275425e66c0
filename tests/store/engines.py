"""A durable task engine as test_founding sees it: the plain model in memory, and the store on Postgres."""

from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID, uuid4

from poolkeeper.store import Claimed, calls, run
from store.model import Model
from store.model_task import LEASE, Policy, Process
from store.scene import Scene, Worker, seconds

LATE = LEASE + 1
BUDGET = 3


@dataclass
class Delivery:
    """One task in one worker's hands; ``grip`` is what the engine needs to recognise it."""

    task_id: UUID
    number: int
    checkpoint: Any
    grip: Any = field(repr=False)


class Engine(Protocol):
    """What every test may do."""

    def submit(self, payload: Any = 1, key: str | None = None) -> tuple[str | None, UUID | None]: ...
    def worker(self) -> Any: ...
    def claim(self, worker: Any, want: int = 1) -> list[Delivery]: ...
    def claim_at_once(self, one: Any, other: Any, want: int) -> tuple[list[Delivery], list[Delivery]]: ...
    def settle(self, delivery: Delivery, outcome: str, wait: int = 0) -> str | None: ...
    def save(self, delivery: Delivery, value: Any, sequence: int = 1) -> str | None: ...
    def renew(self, worker: Any) -> None: ...
    def drain(self, worker: Any) -> None: ...
    def person(self, verb: str, task_id: UUID) -> str | None: ...
    def advance(self, by: int) -> None: ...
    def sweep(self) -> None: ...
    def state(self, task_id: UUID) -> str: ...
    def counters(self, task_id: UUID) -> dict[str, int]: ...
    def dead(self) -> dict[UUID, str]: ...


class InMemory:
    """The model as an engine: the first task comes first."""

    def __init__(self) -> None:
        self.model = Model({"q": Policy(max_deliveries=BUDGET)})

    def submit(self, payload: Any = 1, key: str | None = None) -> tuple[str | None, UUID | None]:
        return self.model.submit(uuid4(), payload=payload, key=key)

    def worker(self) -> Process:
        return Process(self.model.now)

    def claim(self, worker: Process, want: int = 1) -> list[Delivery]:
        self.model.lost_answers(worker)
        worker.received = worker.turns
        self.model.sweep()
        beside = 0
        if self.model.isolates(worker, isolated=False):
            choice, most, beside = self.model.apart(worker, want)
        else:
            choice = self.model.runnable(worker, "ready") if worker.alive(self.model.now) else {}
            most = want
        taken = list(choice.items())[:most]
        for _, task in taken:
            task.claim(worker, self.model.now, alone=beside == 1)
        return [Delivery(i, t.deliveries, t.checkpoint, worker) for i, t in taken]

    def claim_at_once(self, one: Process, other: Process, want: int) -> tuple[list[Delivery], list[Delivery]]:
        return self.claim(one, want), self.claim(other, want)

    def settle(self, delivery: Delivery, outcome: str, wait: int = 0) -> str | None:
        return self.model.settle(self.model.tasks[delivery.task_id], delivery.number, outcome, wait)

    def save(self, delivery: Delivery, value: Any, sequence: int = 1) -> str | None:
        return self.model.checkpoint(self.model.tasks[delivery.task_id], delivery.number, value, sequence)

    def renew(self, worker: Process) -> None:
        self.model.renew(worker)

    def drain(self, worker: Process) -> None:
        self.model.end_session(worker)

    def person(self, verb: str, task_id: UUID) -> str | None:
        return self.model.person(verb, self.model.tasks[task_id])

    def advance(self, by: int) -> None:
        self.model.now += by

    def sweep(self) -> None:
        self.model.sweep()

    def state(self, task_id: UUID) -> str:
        return self.model.tasks[task_id].state

    def counters(self, task_id: UUID) -> dict[str, int]:
        return vars(self.model.tasks[task_id])

    def dead(self) -> dict[UUID, str]:
        return {i: t.reason or "" for i, t in self.model.at("dead").items()}


class OnPostgres:
    """The store's functions, each called with the rights of its own role."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        scene.queue(visibility_timeout_seconds=LEASE, max_deliveries=BUDGET)

    def submit(self, payload: Any = 1, key: str | None = None) -> tuple[str | None, UUID | None]:
        verdict = self.scene.verdict(payload=payload, key=key)
        return verdict.code, verdict.task_id

    def worker(self) -> Worker:
        return self.scene.worker()

    def claim(self, worker: Worker, want: int = 1) -> list[Delivery]:
        """As the worker does: what the first turn's sweep found, the next one offers, a suspect to those that run nothing else."""
        answer = worker.turn(want=want, sweep=True)
        if not answer.claimed:
            answer = worker.turn(want=want)
        if answer.isolate and not answer.claimed:
            answer = worker.turn(want=want, isolated=True)
        return [self._delivery(worker, claimed) for claimed in answer.claimed]

    def _delivery(self, worker: Worker, claimed: Claimed) -> Delivery:
        return Delivery(claimed.task_id, claimed.delivery, claimed.checkpoint, (worker, claimed))

    def claim_at_once(self, one: Worker, other: Worker, want: int) -> tuple[list[Delivery], list[Delivery]]:
        """The second claims while the first one's transaction is still open."""
        conn = self.scene.connect("worker", autocommit=False)
        first = run(conn, calls.turn(one.session, 1, 0, [], want)).claimed
        second = self.claim(other, want)
        conn.commit()
        one.turn_no = one.received = 1
        return [self._delivery(one, claimed) for claimed in first], second

    def settle(self, delivery: Delivery, outcome: str, wait: int = 0) -> str | None:
        worker, claimed = delivery.grip
        code: str | None = worker.settle(claimed, outcome, retry_after=seconds(wait)).code
        return code

    def save(self, delivery: Delivery, value: Any, sequence: int = 1) -> str | None:
        worker, claimed = delivery.grip
        return run(worker.conn, calls.checkpoint(claimed.task_id, claimed.token, value, sequence=sequence)).code

    def renew(self, worker: Worker) -> None:
        worker.renew()

    def drain(self, worker: Worker) -> None:
        worker.end()

    def person(self, verb: str, task_id: UUID) -> str | None:
        call = {"requeue": calls.requeue, "discard": calls.discard, "cancel": calls.cancel}[verb]
        return self.scene.ask("person", call(task_id, who="ann", why="mended")).code

    def advance(self, by: int) -> None:
        self.scene.advance(by)

    def sweep(self) -> None:
        self.scene.sweep()

    def state(self, task_id: UUID) -> str:
        return self.scene.state(task_id)

    def counters(self, task_id: UUID) -> dict[str, int]:
        return self.scene.counters(task_id)

    def dead(self) -> dict[UUID, str]:
        return {letter.task_id: letter.reason for letter in self.scene.ask("person", calls.dead_letters("q"))}
