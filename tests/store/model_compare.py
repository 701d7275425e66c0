"""One random life of the store beside the model: after every step the real state, version and counters are those of the model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from poolkeeper.errors import PoolkeeperError
from poolkeeper.store import Claimed, Settle, calls, run
from poolkeeper.store.bulk import Filter, discard_matching, requeue_matching
from store.conftest import broken_invariants
from store.model import Model
from store.model_stories import CLAIMS, OUTCOMES, PAUSES, PEOPLE, TIMES, USES, policy, story, wishes
from store.model_task import ENDED, LEASE, WAITING, Policy, Process, Task
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
    SELECT t.id, p.state, p.state_version, p.reason, c.value AS checkpoint, x.*
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
_WRONG = st.sampled_from([None, None, None, "token", "task"])
_RNG = st.randoms(use_true_random=True)
Held = tuple[Worker, Process, Claimed]


class Comparison(RuleBasedStateMachine):
    """One example: an empty store, its processes and tasks, and the model beside it."""

    scene: Scene
    arrows: Counter[tuple[str, str, str]]
    refusals: Counter[tuple[str, str]]

    @initialize(rng=_RNG)
    def begin(self, rng: Random) -> None:
        self.scene.owner.execute(_CLEAN)
        self.model = Model({"q": Policy(**policy(rng)), "r": Policy(**policy(rng))}, self.arrows)
        self.workers: list[tuple[Worker, Process]] = []
        self.held: list[Held] = []
        self.was_full: dict[tuple[str, str], int] = {}
        for queue in self.model.policies:
            self.apply(queue)
        for queues, types in ((("q", "r"), ("a.b", "c.d")), (("q",), ("a.b",))):
            self.register(queues, types)
        for tenant in ("acme", "acme", "zeta"):
            self._submit({"tenant": tenant})
        for _ in range(3):
            self.life(rng)

    def teardown(self) -> None:
        assert broken_invariants(self.scene.owner) == {}

    def apply(self, queue: str) -> None:
        fixed = {"visibility_timeout_seconds": LEASE, "backoff_initial_seconds": 1, "backoff_max_seconds": 1}
        self.scene.queue(queue, **fixed, **asdict(self.model.policies[queue]))

    def agree(self, what: str, real: str | None, expected: str | None) -> None:
        """The same answer; a refusal is counted."""
        assert real == expected, f"{what}: {real}, expected {expected}"
        if real is not None:
            self.refusals[what, str(real)] += 1

    # submitters and policies

    @precondition(lambda self: len(self.model.at(*WAITING)) < 7)
    @rule(rng=_RNG)
    def submit(self, rng: Random) -> None:
        self._submit(wishes(rng))

    def _submit(self, wishes: dict[str, Any]) -> None:
        spans = {name: seconds(n) for name in ("delay", "max_age") if (n := wishes.get(name)) is not None}
        wire = {**wishes, **spans}
        verdict = self.scene.verdict(**wire)
        lane = wishes.get("queue", "q"), wishes["tenant"]
        if verdict.code in {"queue_limit", "tenant_queue_limit"} and self.model.now - self.was_full.get(lane, -9) < 3:
            self.refusals["submit", str(verdict.code)] += 1
            return  # it may be by the last count, which is a few seconds old (Q7)
        code, task_id = self.model.submit(verdict.task_id or uuid4(), **wishes)
        self.agree("submit", verdict.code, code)
        assert verdict.task_id == task_id

    @rule(queue=st.sampled_from(["q", "r"]), what=st.sampled_from(["resume", *PAUSES]))
    def change_policy(self, queue: str, what: str) -> None:
        none = {"paused": False, "paused_task_types": (), "suspended_tenants": ()}
        self.model.policies[queue] = replace(self.model.policies[queue], **{**none, **PAUSES[what]})
        self.apply(queue)

    # workers

    @precondition(lambda self: len(self.workers) < 3)
    @rule(queues=st.sampled_from([("q",), ("q", "r")]), types=st.sampled_from([("a.b",), ("a.b", "c.d")]))
    def register(self, queues: tuple[str, ...], types: tuple[str, ...]) -> None:
        self.workers.append((self.scene.worker(queues=queues, types=types), Process(self.model.now, queues, types)))

    @rule(
        data=st.data(),
        want=st.integers(0, 5),
        slots=st.integers(0, 3),
        sweep=st.booleans(),
        lost=st.booleans(),
        isolated=st.booleans(),
    )
    def turn(self, data: st.DataObject, want: int, slots: int, sweep: bool, lost: bool, isolated: bool) -> None:
        worker, process = data.draw(st.sampled_from(self.workers))
        self._turn(worker, process, want=want, slots=slots, sweep=sweep, lost=lost, isolated=isolated)

    @rule(rng=_RNG)
    def life(self, rng: Random) -> None:
        """What one process and the people around it do with its newest delivery."""
        worker, process = rng.choice(self.workers)
        queue, tenant = rng.choice(["q", "q", "r"]), rng.choice(["acme", "zeta"])
        for move in story(rng):
            if move in CLAIMS:
                if not self.model.runnable(process, "ready") and len(self.model.at(*WAITING)) < 7:
                    self._submit({"queue": queue, "tenant": tenant})
                self._renew(worker, process)
                alone = bool(self.model.runnable(process, "suspect"))
                self._turn(worker, process, want=1, slots=int("ahead" not in move), lost="lost" in move, isolated=alone)
            elif move in PAUSES:
                self.change_policy(queue, move)
            elif move in TIMES:
                self.advance(TIMES[move])
            elif move == "sweep":
                self.sweep()
            elif move == "renew":
                self._renew(worker, process)
            elif move == "submit":
                self._submit(wishes(rng))
            elif self.held:
                self._with(rng, self.held[-1], move)

    def _with(self, rng: Random, held: Held, move: str) -> None:
        if move == "start":
            self._start(held, None)
        elif move in OUTCOMES:
            self._settle(held, move, rng.choice([0, 4, 4]))
        elif move in USES:
            self._use(held, move, "y" * rng.choice([1, 1, 200]), rng.randint(1, 3))
        elif move in PEOPLE:
            task = self.model.tasks[held[2].task_id]
            self._person(
                move.removeprefix("stale "),
                held[2].task_id,
                task.version - 1 if "stale" in move else rng.choice([None, task.version]),
            )

    def _turn(
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
    ) -> None:
        model = self.model
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
        answer = worker.turn(want=want, sweep=sweep, lost=lost, isolated=isolated, slots=slots, starts=starts)
        for task_id, code in refused.items():
            self.agree("start", answer.refused.get(task_id), code)
        if not lost:
            process.received = process.turns
            self.held += [(worker, process, c) for c in answer.claimed]
        assert answer.isolate == isolates
        assert len(answer.claimed) == most, f"of {choice}"
        assert isolated or sum(c.state == "running" for c in answer.claimed) == min(slots, most)
        for claimed in answer.claimed:
            task = choice[claimed.task_id]
            task.claim(process, model.now, starts=claimed.state == "running", alone=beside == 1)
            assert (claimed.delivery, claimed.checkpoint) == (task.deliveries, task.checkpoint)
            assert (claimed.suspect, claimed.beside) == (isolated, beside)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), wrong=_WRONG)
    def start(self, data: st.DataObject, wrong: str | None) -> None:
        ahead = [h for h in self.held if h[2].state == "leased"]
        self._start(data.draw(st.sampled_from(ahead or self.held)), wrong)

    def _start(self, held: Held, wrong: str | None) -> None:
        worker, process, claimed = held
        self._turn(worker, process, starts=[self._beside(claimed, wrong)])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), wait=st.sampled_from([0, 4]), wrong=_WRONG)
    def settle(self, data: st.DataObject, outcome: str, wait: int, wrong: str | None) -> None:
        self._settle(data.draw(st.sampled_from(self.held)), outcome, wait, wrong)

    def _beside(self, claimed: Claimed, wrong: str | None) -> Claimed:
        """With a token that nobody gave out, or of a task that is not there."""
        forged = claimed._replace(token="pkt_of-nobody", delivery=0)
        return claimed if wrong is None else forged if wrong == "token" else forged._replace(task_id=uuid4())

    def _settle(self, held: Held, outcome: str, wait: int, wrong: str | None = None) -> None:
        worker, process, claimed = held
        it = self._beside(claimed, wrong)
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
        assert code is not None or verdict.state == state

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        verb=st.sampled_from(["checkpoint", "extend", "succeed"]),
        size=st.sampled_from([1, 1, 200]),
        sequence=st.integers(1, 3),
        wrong=_WRONG,
    )
    def use(self, data: st.DataObject, verb: str, size: int, sequence: int, wrong: str | None) -> None:
        """What a delivery asks for beside its turns."""
        self._use(data.draw(st.sampled_from(self.held)), verb, "y" * size, sequence, wrong)

    def _use(self, held: Held, verb: str, value: str, sequence: int, wrong: str | None = None) -> None:
        worker, _, claimed = held
        it = self._beside(claimed, wrong)
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

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        self._renew(*data.draw(st.sampled_from(self.workers)))

    def _renew(self, worker: Worker, process: Process) -> None:
        expected = self.model.renew(process)
        told_of = {task_id: str(code) for task_id, code in worker.renew(*self.model.tasks).codes.items()}
        assert told_of == expected
        self.refusals.update(("renew", code) for code in set(told_of.values()))

    @rule(data=st.data(), sure=st.sampled_from([True, False, False]))
    def end_session(self, data: st.DataObject, sure: bool) -> None:
        worker, process = data.draw(st.sampled_from(self.workers))
        if sure:
            worker.end()
            self.model.end_session(process)

    # time and people

    @rule(by=st.sampled_from([1, 4, 11]))
    def advance(self, by: int) -> None:
        self.scene.advance(by)
        self.model.now += by

    @rule()
    def sweep(self) -> None:
        self.scene.sweep()
        self.model.sweep()
        self.model.open_keys(("q", "r"))

    @rule(
        data=st.data(),
        verb=st.sampled_from(["cancel", "requeue", "requeue", "discard"]),
        wrong=st.sampled_from([None, None, None, "id", "version"]),
    )
    def person(self, data: st.DataObject, verb: str, wrong: str | None) -> None:
        dead = list(self.model.at("dead"))
        among = dead if dead and verb != "cancel" and data.draw(st.booleans()) else list(self.model.tasks)
        task_id = data.draw(st.sampled_from(among)) if among and wrong != "id" else uuid4()
        task = self.model.tasks.get(task_id)
        self._person(verb, task_id, task.version - (wrong == "version") if task and data.draw(st.booleans()) else None)

    def _person(self, verb: str, task_id: UUID, seen: int | None) -> None:
        task = self.model.tasks.get(task_id)
        call = {"cancel": calls.cancel, "requeue": calls.requeue, "discard": calls.discard}[verb]
        changed = self.scene.ask("person", call(task_id, who="ann", why="x", seen_version=seen))
        self.agree(verb, changed.code, self.model.person(verb, task, seen))
        assert task is None or (changed.state, changed.state_version) == (task.state, task.version)

    @precondition(lambda self: len(self.model.at("dead")) > 1)
    @rule(tenant=st.sampled_from([None, "acme"]), requeue=st.booleans())
    def bulk(self, tenant: str | None, requeue: bool) -> None:
        """All dead letters that a filter names, at once (Q29)."""
        call = requeue_matching if requeue else discard_matching
        done = self.scene.ask("person", call("q", Filter(tenant=tenant), who="ann", why="x"))
        chosen = {i: t for i, t in self.model.at("dead").items() if t.queue == "q" and tenant in {None, t.tenant}}
        assert set(done.task_ids) == set(chosen)
        for task in chosen.values():
            self.model.person("requeue" if requeue else "discard", task)

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        real = {r.id: r for r in self.scene.rows(_STATE)}
        assert set(real) == set(self.model.tasks)
        for task_id, task in self.model.tasks.items():
            row = real[task_id]
            assert (row.state, row.state_version, row.checkpoint) == (task.state, task.version, task.checkpoint)
            held_back = {"suspect": "isolation", "ordered": "ordering", "dead": task.reason, "ready": None}
            assert row.reason == held_back.get(task.place, row.reason)
            if task.place not in ENDED:
                counters = task.deliveries, task.spent, task.failures, task.expiries, task.hand_backs, task.snoozes
                assert (row.delivery, row.spent, row.failures, row.expiries, row.hand_backs, row.snoozes) == counters
        for queue in self.model.policies:
            for tenant in ("acme", "zeta"):
                if self.model.full(queue, tenant):
                    self.was_full[queue, tenant] = self.model.now
        del self.held[:-12]
