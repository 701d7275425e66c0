"""One life of the store beside the model: each step is done to both, and what they answer and what is there then is compared.

No step draws anything: who calls them says it all, so that the rules of ``model_compare`` can be read without them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import Claimed, Settle, calls, run
from poolkeeper.store.bulk import Filter, discard_matching, requeue_matching
from store.conftest import broken_invariants
from store.model import Model
from store.model_stories import PAUSES
from store.model_task import ENDED, LEASE, Policy, Process, Task
from store.scene import Scene, Worker, seconds

_CLEAN = """
    TRUNCATE poolkeeper.task, poolkeeper.task_key, poolkeeper.ready, poolkeeper.later, poolkeeper.suspect, poolkeeper.ordered,
        poolkeeper.gate_due, poolkeeper.opening, poolkeeper.lease, poolkeeper.dead, poolkeeper.checkpoint, poolkeeper.delivery,
        poolkeeper.event, poolkeeper.session, poolkeeper.drain_report, poolkeeper.decision, poolkeeper.pool;
    UPDATE poolkeeper.clock_offset SET by = '0';
    UPDATE poolkeeper.contact SET seen_at = poolkeeper.clock(), gap_from = NULL, gap_to = NULL, whole = false, proven = false;
    UPDATE poolkeeper.queue_count SET lease_expiries = 0;
    UPDATE poolkeeper.backlog SET counted_at = '-infinity';
"""
_COUNTERS = "delivery, spent, failures, expiries, hand_backs, snoozes"
_STATE = f"""
    SELECT t.id, p.state, p.state_version, p.reason, c.value AS checkpoint, x.*,
        (SELECT again FROM poolkeeper.ready WHERE task_id = t.id) AS again
    FROM poolkeeper.task AS t
    CROSS JOIN LATERAL poolkeeper.present_state(t.id) AS p
    LEFT JOIN poolkeeper.checkpoint AS c ON c.task_id = t.id
    LEFT JOIN LATERAL (
        SELECT {_COUNTERS} FROM poolkeeper.ready WHERE task_id = t.id
        UNION ALL SELECT {_COUNTERS} FROM poolkeeper.later WHERE task_id = t.id
        UNION ALL SELECT {_COUNTERS} FROM poolkeeper.suspect WHERE task_id = t.id
        UNION ALL SELECT delivery, 0, 0, 0, 0, 0 FROM poolkeeper.ordered WHERE task_id = t.id
        UNION ALL SELECT {_COUNTERS} FROM poolkeeper.lease WHERE task_id = t.id
        UNION ALL SELECT {_COUNTERS} FROM poolkeeper.dead WHERE task_id = t.id) AS x ON true
"""
Held = tuple[Worker, Process, Claimed]


def named(claimed: Claimed, wrong: str | None) -> Claimed:
    """The delivery itself; or with a token that nobody gave out (forged), or of a task that is not there (unknown)."""
    forged = claimed._replace(token="pkt_of-nobody", delivery=0)
    return claimed if wrong is None else forged if wrong == "forged" else forged._replace(task_id=uuid4())


def same(what: object, real: object, expected: object) -> None:
    """The store's answer or state is the model's; ``what`` is only written out where it is not."""
    assert real == expected, f"{what}: {real}, expected {expected}"


class Steps:
    """An empty store, its processes and tasks, and the model beside it."""

    scene: Scene
    taken: Counter[tuple[str, ...]]
    model: Model
    workers: list[tuple[Worker, Process]]
    held: list[Held]

    def open(self, policies: dict[str, Policy]) -> None:
        """Begin from nothing."""
        self.scene.owner.execute(_CLEAN)
        self.model = Model(policies, self.taken)
        self.workers, self.held, self._was_full = [], [], dict[tuple[str, str], int]()
        for queue, policy in policies.items():
            self.apply(queue, policy)

    def agree(self, what: str, real: str | None, expected: str | None) -> None:
        """The same answer; a refusal is counted."""
        same(what, real, expected)
        if real is not None:
            self.taken[what, str(real)] += 1

    # submitters and policies

    def apply(self, queue: str, policy: Policy) -> None:
        fixed = {"visibility_timeout_seconds": LEASE, "backoff_initial_seconds": 1, "backoff_max_seconds": 1}
        self.scene.queue(queue, **fixed, **asdict(policy))
        self.model.apply(queue, policy)
        self.look()

    def pause(self, queue: str, what: str) -> None:
        none = {"paused": False, "paused_task_types": (), "suspended_tenants": ()}
        self.apply(queue, replace(self.model.policies[queue], **{**none, **PAUSES[what]}))

    def submit(self, wishes: dict[str, Any]) -> UUID | None:
        spans = {name: seconds(n) for name in ("delay", "max_age") if (n := wishes.get(name)) is not None}
        verdict = self.scene.verdict(**{**wishes, **spans})
        wishes = {name: wish for name, wish in wishes.items() if name != "priority"}  # the model knows no order
        lane = wishes.get("queue", "q"), wishes["tenant"]
        if verdict.code in {"queue_limit", "tenant_queue_limit"} and self.model.now - self._was_full.get(lane, -9) < 3:
            self.taken["submit", str(verdict.code)] += 1
            return None  # it may be by the last count, which is a few seconds old (Q7)
        code, task_id = self.model.submit(verdict.task_id or uuid4(), **wishes)
        self.agree("submit", verdict.code, code)
        same("the task", verdict.task_id, task_id)
        self.look()
        return task_id

    # workers

    def register(self, queues: tuple[str, ...], types: tuple[str, ...]) -> tuple[Worker, Process]:
        one = self.scene.worker(queues=queues, types=types), Process(self.model.now, queues, types)
        self.workers.append(one)
        return one

    def turn(
        self,
        worker: Worker,
        process: Process,
        *,
        want: int = 0,
        slots: int = 0,
        sweep: bool = False,
        lost: bool = False,
        isolated: bool = False,
        starts: Sequence[Claimed] = (),
        idle: bool = False,
    ) -> list[Held]:
        """One turn; answers what it claimed, if the answer arrives."""
        model = self.model
        lives_on = idle and not process.ended and not model.holds(process)
        isolates = want > 0 and model.isolates(process, isolated=isolated)
        model.lost_answers(process)
        refused = {c.task_id: model.start(process, model.tasks.get(c.task_id), c.delivery) for c in starts}
        if sweep:
            model.sweep()
        elif want:
            model.wake()
        model.open_keys(process.queues)
        beside, choice = 0, dict[UUID, Task]()
        if isolated:
            choice, most, beside = model.apart(process, want) if isolates else (choice, 0, 0)
        else:
            isolates = isolates or (want > 0 and any(t.apart for t in model.holds(process)))
            choice = model.runnable(process, "ready") if process.alive(model.now) and not isolates else {}
            most = min(want, model.capacity(choice))
        answer = worker.turn(
            want=want, sweep=sweep, lost=lost, isolated=isolated, slots=slots, starts=starts, idle=idle
        )
        for task_id, code in refused.items():
            self.agree("start", answer.refused.get(task_id), code)
        same("isolate", answer.isolate, isolates)
        same(("how many of", choice), len(answer.claimed), most)
        assert isolated or sum(c.state == "running" for c in answer.claimed) == min(slots, most)
        taken = [(choice[c.task_id].queue, choice[c.task_id].again) for c in answer.claimed]
        for claimed in answer.claimed:
            task = choice[claimed.task_id]
            task.claim(process, model.now, starts=claimed.state == "running", alone=beside == 1)
            same("what is claimed", (claimed.delivery, claimed.checkpoint), (task.deliveries, task.checkpoint))
            same("who runs beside it", (claimed.suspect, claimed.beside), (isolated, beside))
        if not isolated:
            model.shares(process, taken)
        same("renewed by the turn", answer.position is not None, lives_on)
        process.renewed = model.now if lives_on else process.renewed
        got: list[Held] = []
        if not lost:
            process.received = process.turns
            got = [(worker, process, c) for c in answer.claimed]
        self.held = (self.held + got)[-12:]
        self.look()
        return got

    def settle(self, held: Held, outcome: str, wait: int, wrong: str | None = None) -> None:
        worker, process, claimed = held
        it = named(claimed, wrong)
        task = self.model.tasks.get(it.task_id)
        self.model.lost_answers(process)
        died = outcome == "process_died"
        what = Settle(
            it.task_id,
            it.token,
            "failed" if died else outcome,
            error_class=outcome if died else None,
            retry_after=timedelta(seconds=wait),
        )
        code = self.model.settle(task, it.delivery, outcome, wait)
        state = task.state if task else None
        self.model.open_keys(process.queues)
        (verdict,) = worker.turn([what]).verdicts
        process.received = process.turns
        self.agree("settle", verdict.code, code)
        same("what follows", code or verdict.state, code or state)
        self.look()

    def use(self, held: Held, verb: str, value: str, sequence: int, wrong: str | None = None) -> None:
        """What a delivery asks for beside its turns."""
        worker, _, claimed = held
        it = named(claimed, wrong)
        task = self.model.tasks.get(it.task_id)
        real: str | None
        if verb == "extend":
            code = self.model.extend(task, it.delivery, 3)
            real = run(worker.conn, calls.extend(it.task_id, it.token, seconds(3))).code
        elif verb == "checkpoint":
            code = self.model.checkpoint(task, it.delivery, value, sequence)
            real = run(worker.conn, calls.checkpoint(it.task_id, it.token, value, sequence=sequence)).code
        else:
            code = self.model.succeed(task, it.delivery)
            try:
                real = None if run(worker.conn, calls.succeed(it.task_id, it.token)) else "already_done"
            except PoolkeeperError as refused:
                real = refused.code
        self.agree(verb, real, code)
        self.look()

    def renew(self, worker: Worker, process: Process) -> None:
        expected = self.model.renew(process)
        told_of = {task_id: str(code) for task_id, code in worker.renew(*self.model.tasks).codes.items()}
        same("renew", told_of, expected)
        self.taken.update(("renew", code) for code in set(told_of.values()))
        self.look()

    def end_session(self, worker: Worker, process: Process) -> None:
        worker.end()
        self.model.end_session(process)
        self.look()

    # time and people

    def advance(self, by: int) -> None:
        self.scene.advance(by)
        self.model.now += by
        self.look()

    def sweep(self) -> None:
        self.scene.sweep()
        self.model.sweep()
        self.model.open_keys(tuple(self.model.policies))
        self.look()

    def person(self, verb: str, task_id: UUID, seen: int | None) -> None:
        task = self.model.tasks.get(task_id)
        call = {"cancel": calls.cancel, "requeue": calls.requeue, "discard": calls.discard}[verb]
        changed = self.scene.ask("person", call(task_id, who="ann", why="x", seen_version=seen))
        self.agree(verb, changed.code, self.model.person(verb, task, seen))
        if task is not None:
            same(verb, (changed.state, changed.state_version), (task.state, task.version))
        self.look()

    def bulk(self, verb: str, tenant: str | None) -> None:
        """All dead letters that a filter names, at once (Q29)."""
        call = requeue_matching if verb == "requeue" else discard_matching
        done = self.scene.ask("person", call("q", Filter(tenant=tenant), who="ann", why="x"))
        chosen = {i: t for i, t in self.model.at("dead").items() if t.queue == "q" and tenant in {None, t.tenant}}
        same(verb, set(done.task_ids), set(chosen))
        for task in chosen.values():
            self.model.person(verb, task)
        self.look()

    def audit(self) -> None:
        """What holds at every end of a test of the store holds here (Q61)."""
        same("broken invariants", broken_invariants(self.scene.owner), {})

    def look(self) -> None:
        """Every task is where the model has it, with its version, counters, reason and checkpoint."""
        real = {r.id: r for r in self.scene.rows(_STATE)}
        same("tasks", set(real), set(self.model.tasks))
        for task_id, task in self.model.tasks.items():
            row = real[task_id]
            same(task, (row.state, row.state_version, row.checkpoint), (task.state, task.version, task.checkpoint))
            held_back = {"suspect": "isolation", "ordered": "ordering", "dead": task.reason, "ready": None}
            same(("reason", task), row.reason, held_back.get(task.place, row.reason))
            same(("a retry", task), row.again, task.again if task.place == "ready" else None)
            if task.place not in ENDED:
                counters = task.deliveries, task.spent, task.failures, task.expiries, task.hand_backs, task.snoozes
                real_ones = row.delivery, row.spent, row.failures, row.expiries, row.hand_backs, row.snoozes
                same(("counters", task), real_ones, counters)
        for queue in self.model.policies:
            for tenant in ("acme", "zeta"):
                if self.model.full(queue, tenant):
                    self._was_full[queue, tenant] = self.model.now
