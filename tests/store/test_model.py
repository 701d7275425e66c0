"""Random interleavings of everything, beside a small model of the rules (quality 3; deepened later).

Several processes, people, time and lost answers on one queue; after every step the real state and counters of every
task are those of the model. The clock stands still between steps, so that nothing depends on how fast they run.
"""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from poolkeeper.store import Claimed, Settle, calls
from store.conftest import broken_invariants
from store.model import ENDED, LEASE, MAX_DELIVERIES, MAX_HAND_BACKS, MAX_SNOOZES, Model, Process, Task
from store.scene import Scene, Worker, seconds

_FROZEN = """
    CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT timestamptz ''2100-01-01 00:00Z'' + (SELECT o.by FROM poolkeeper.clock_offset AS o)';
"""
_CLEAN = """
    TRUNCATE poolkeeper.task, poolkeeper.ready, poolkeeper.later, poolkeeper.suspect, poolkeeper.lease, poolkeeper.dead,
        poolkeeper.delivery, poolkeeper.event, poolkeeper.session, poolkeeper.drain_report, poolkeeper.decision, poolkeeper.pool;
    UPDATE poolkeeper.clock_offset SET by = '0';
    UPDATE poolkeeper.contact SET seen_at = poolkeeper.clock(), gap_from = NULL, gap_to = NULL, whole = false, proven = false;
    UPDATE poolkeeper.queue_count SET lease_expiries = 0;
"""
_STATE = """
    SELECT t.id, p.state, p.reason = 'isolation' AS suspect, x.delivery, x.spent, x.failures, x.expiries, x.hand_backs, x.snoozes
    FROM poolkeeper.task AS t
    CROSS JOIN LATERAL poolkeeper.present_state(t.id) AS p
    LEFT JOIN LATERAL (
        SELECT delivery, spent, failures, expiries, hand_backs, snoozes FROM poolkeeper.ready WHERE task_id = t.id
        UNION ALL SELECT delivery, spent, failures, expiries, hand_backs, snoozes FROM poolkeeper.later WHERE task_id = t.id
        UNION ALL SELECT delivery, spent, failures, expiries, hand_backs, snoozes FROM poolkeeper.suspect WHERE task_id = t.id
        UNION ALL SELECT delivery, spent, failures, expiries, hand_backs, snoozes FROM poolkeeper.lease WHERE task_id = t.id
        UNION ALL SELECT delivery, spent, failures, expiries, hand_backs, snoozes FROM poolkeeper.dead WHERE task_id = t.id) AS x ON true
"""
OUTCOMES = ("succeeded", "failed", "rejected", "dead", "snoozed", "handed_back", "canceled")
_ENDS = (*OUTCOMES, "lost", "expired", "expired")


class Comparison(RuleBasedStateMachine):
    """One example: an empty store, its processes and tasks, and the model beside it."""

    scene: Scene

    @initialize()
    def begin(self) -> None:
        self.scene.owner.execute(_CLEAN)
        self.scene.queue(
            visibility_timeout_seconds=LEASE,
            max_deliveries=MAX_DELIVERIES,
            max_hand_backs=MAX_HAND_BACKS,
            max_snoozes=MAX_SNOOZES,
        )
        self.model = Model()
        self.workers: list[tuple[Worker, Process]] = []
        self.held: list[tuple[Worker, Claimed]] = []
        for _ in range(2):
            self.register()
        self.submit(3, 0)

    def teardown(self) -> None:
        assert broken_invariants(self.scene.owner) == {}

    @precondition(lambda self: len(self.workers) < 3)
    @rule()
    def register(self) -> None:
        self.workers.append((self.scene.worker(), Process(self.model.now)))

    @precondition(lambda self: len(self.model.at("ready", "scheduled", "waiting")) < 4)
    @rule(count=st.integers(1, 3), delay=st.sampled_from([0, 0, 5]))
    def submit(self, count: int, delay: int) -> None:
        for _ in range(count):
            task_id = self.scene.submit(delay=seconds(delay) if delay else None)
            task = Task("scheduled" if delay else "ready", self.model.now + delay)
            self.model.tasks[task_id] = task

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), want=st.integers(0, 5), sweep=st.booleans(), lost=st.booleans(), isolated=st.booleans())
    def turn(self, data: st.DataObject, want: int, sweep: bool, lost: bool, isolated: bool) -> None:
        worker, process = data.draw(st.sampled_from(self.workers))
        self._turn(worker, process, want, sweep, lost, isolated)

    @precondition(lambda self: self.workers and self.model.tasks)
    @rule(
        data=st.data(),
        ends=st.lists(st.sampled_from(_ENDS), min_size=2, max_size=5)
        | st.sampled_from(_ENDS).map(lambda end: [end] * 5),
        cold=st.booleans(),
    )
    def one_after_another(self, data: st.DataObject, ends: list[str], cold: bool) -> None:
        """One process meets these ends in a row: to the bounds of the budgets and beyond."""
        worker, process = data.draw(st.sampled_from(self.workers))
        for outcome in ends:
            if not cold:
                self._renew(worker, process)
            before = len(self.held)
            alone = bool(self.model.at("suspect"))
            self._turn(worker, process, 1, sweep=False, lost=outcome == "lost", isolated=alone)
            if outcome == "expired":
                self.advance(11)
                self.sweep()
            elif len(self.held) > before:
                self._settle(len(self.held) - 1, outcome, 0, keep=False)

    def _turn(self, worker: Worker, process: Process, want: int, sweep: bool, lost: bool, isolated: bool) -> None:
        model = self.model
        alive = process.alive(model.now)
        isolates = want > 0 and model.isolates(process, alive=alive, isolated=isolated)
        process.turns += 1
        for task in model.at("running").values():
            if task.owner is process and process.received < task.turn < process.turns:
                task.end("returned", model.now)
        if sweep:
            model.sweep()
        elif want:
            model.wake()
        room = want if alive else 0
        beside = 0
        if isolated:
            choice, room, beside = model.apart(process, want, room) if isolates else ({}, 0, 0)
        else:
            isolates = isolates or (want > 0 and any(t.apart for t in model.holds(process)))
            choice = {} if isolates else model.at("ready")
        answer = worker.turn(want=want, sweep=sweep, lost=lost, isolated=isolated)
        if not lost:
            process.received = process.turns
            self.held += [(worker, c) for c in answer.claimed]
        assert answer.isolate == isolates
        assert len(answer.claimed) == min(room, len(choice))
        for claimed in answer.claimed:
            assert claimed.task_id in choice
            model.tasks[claimed.task_id].begin(process, process.turns, alone=beside == 1)
            assert claimed.delivery == model.tasks[claimed.task_id].deliveries
            assert (claimed.suspect, claimed.beside) == (isolated, beside)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), wait=st.sampled_from([0, 4]), keep=st.booleans())
    def settle(self, data: st.DataObject, outcome: str, wait: int, keep: bool) -> None:
        self._settle(data.draw(st.integers(0, len(self.held) - 1)), outcome, wait, keep)

    def _settle(self, index: int, outcome: str, wait: int, keep: bool) -> None:
        worker, delivery = self.held[index] if keep else self.held.pop(index)
        process = next(p for w, p in self.workers if w is worker)
        task = self.model.tasks[delivery.task_id]
        process.turns += 1
        for other in self.model.at("running").values():
            if other.owner is process and process.received < other.turn < process.turns:
                other.end("returned", self.model.now)
        current = task.place == "running" and task.deliveries == delivery.delivery
        (verdict,) = worker.turn(
            [Settle(delivery.task_id, delivery.token, outcome, retry_after=timedelta(seconds=wait))]
        ).verdicts
        process.received = process.turns
        assert (verdict.code is None) == current
        if current:
            task.end(outcome, self.model.now, wait)
            assert verdict.state == task.state

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        self._renew(*data.draw(st.sampled_from(self.workers)))

    def _renew(self, worker: Worker, process: Process) -> None:
        mine = [i for i, t in self.model.tasks.items() if t.owner is process]
        answer = worker.renew(*self.model.tasks)
        process.renewed, process.ended = self.model.now, False
        assert set(answer.lost) == set(self.model.tasks) - set(mine)
        assert set(answer.canceled) == {i for i in mine if self.model.tasks[i].canceled}

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def end_session(self, data: st.DataObject) -> None:
        worker, process = data.draw(st.sampled_from(self.workers))
        worker.end()
        if self.model.isolating is process:
            self.model.isolating = None
        for task in self.model.at("running").values():
            if task.owner is process:
                task.end("handed_back", self.model.now)
        process.ended = True

    @rule(by=st.sampled_from([1, 4, 11]))
    def advance(self, by: int) -> None:
        self.scene.advance(by)
        self.model.now += by

    @rule()
    def sweep(self) -> None:
        self.scene.sweep()
        self.model.sweep()

    @precondition(lambda self: self.model.tasks)
    @rule(data=st.data(), verb=st.sampled_from(["cancel", "requeue", "requeue", "discard"]))
    def person(self, data: st.DataObject, verb: str) -> None:
        task_id = data.draw(st.sampled_from(list(self.model.tasks)))
        task = self.model.tasks[task_id]
        call = {"cancel": calls.cancel, "requeue": calls.requeue, "discard": calls.discard}[verb]
        code = self.scene.ask("person", call(task_id, who="ann", why="x")).code
        if verb == "cancel":
            assert (code is None) == (task.place not in {*ENDED, "dead"})
            if task.place == "running":
                task.canceled = True
            elif code is None:
                task.place = "canceled"
        else:
            assert (code is None) == (task.place == "dead")
            if code is None and verb == "requeue":
                task.requeue()
            elif code is None:
                task.place = "canceled"

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        real = {r.id: r for r in self.scene.rows(_STATE)}
        assert set(real) == set(self.model.tasks)
        for task_id, task in self.model.tasks.items():
            row = real[task_id]
            assert (row.state, bool(row.suspect)) == (task.state, task.place == "suspect")
            if task.place not in ENDED:
                assert (row.delivery, row.spent, row.failures, row.expiries, row.hand_backs, row.snoozes) == (
                    task.deliveries,
                    task.spent,
                    task.failures,
                    task.expiries,
                    task.hand_backs,
                    task.snoozes,
                )


def compare(scene: Scene, examples: int, steps: int) -> None:
    """Run so many random lives, each from an empty store."""
    scene.owner.execute(_FROZEN)
    kind = type("Comparison", (Comparison,), {"scene": scene})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=examples < 100,
        phases=[Phase.generate] if examples < 100 else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(kind, settings=chosen)


def test_random_interleavings_agree_with_the_model(scene: Scene) -> None:
    """Q1, Q10, Q16, Q19, Q22, Q25 to Q29, Q39: a few lives, the same in every run."""
    compare(scene, 40, 20)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_many_random_interleavings_agree_with_the_model(scene: Scene) -> None:
    """The same, other lives in every run, for as long as patience lasts."""
    compare(scene, 1000, 40)
