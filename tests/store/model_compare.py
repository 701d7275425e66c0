"""Random lives of the store beside the model: which step comes next. ``model_steps`` takes it, on both, and compares.

Hypothesis draws every choice by itself. A seed for a generator of random numbers would be no choice to it: it prefers the ends of
so wide a range and copies what it drew before, so that five lives of six were told twice. What is drawn, and when, never depends
on the store: ids are random, so that a life which is lived again may go otherwise.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from store.model_steps import Steps
from store.model_stories import OUTCOMES, PAUSES, STORIES, USES, WRONG, Pick, policy, story, wishes
from store.model_taken import Course
from store.model_task import WAITING, Policy
from store.model_telling import ENOUGH, ROLLS, Telling, handle, people, some

T = TypeVar("T")
ROLL = st.sampled_from(ROLLS)
_FIRST_STORIES = 8


class Comparison(Steps, RuleBasedStateMachine):
    """One life; the stories are those of its course."""

    course: Course

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        pick = _picking(data)
        self.open({queue: Policy(**policy(pick)) for queue in ("q", "r")})
        for queues, types in ((("q", "r"), ("a.b", "c.d")), (("q",), ("a.b",))):
            self.register(queues, types)
        for tenant in ("acme", "acme", "zeta"):
            self.submit({"tenant": tenant})
        for _ in range(_FIRST_STORIES):
            self._tell(pick)

    def teardown(self) -> None:
        self.audit()

    # submitters and policies

    @rule(data=st.data())
    def anyone_submits(self, data: st.DataObject) -> None:
        wanted = wishes(_picking(data))
        if len(self.model.at(*WAITING)) < ENOUGH:
            self.submit(wanted)

    @rule(queue=st.sampled_from(["q", "r"]), what=st.sampled_from(["resume", *PAUSES]))
    def somebody_pauses(self, queue: str, what: str) -> None:
        self.pause(queue, what)

    # stories

    @rule(data=st.data())
    def life(self, data: st.DataObject) -> None:
        """What one process and the people around it do with one delivery."""
        self._tell(_picking(data))

    def _tell(self, pick: Pick) -> None:
        before = Counter(self.taken)
        name, bounds, moves = story(pick, self.course.stories)
        one = Telling(self, pick, bounds)
        for move in moves:
            one.move(move)
        self.course.note(name, self.taken - before)

    @rule(data=st.data())
    def two_lives(self, data: st.DataObject) -> None:
        """Two of them at a time, each getting into the other's way."""
        pick = _picking(data)
        told = [(Telling(self, pick, bounds), moves) for _, bounds, moves in (story(pick, STORIES) for _ in range(2))]
        while told := [(one, moves) for one, moves in told if moves]:
            one, moves = told[pick(range(len(told)))]
            one.move(moves.pop(0))

    # workers

    @rule(queues=st.sampled_from([("q",), ("q", "r")]), types=st.sampled_from([("a.b",), ("a.b", "c.d")]))
    def begin_worker(self, queues: tuple[str, ...], types: tuple[str, ...]) -> None:
        if len(self.workers) < 3:
            self.register(queues, types)

    @rule(
        which=ROLL,
        want=st.integers(0, 5),
        slots=st.integers(0, 3),
        sweep=st.booleans(),
        lost=st.booleans(),
        isolated=st.booleans(),
        idle=st.booleans(),
    )
    def take(self, which: int, want: int, slots: int, sweep: bool, lost: bool, isolated: bool, idle: bool) -> None:
        worker, process = some(self.workers, which)
        self.turn(worker, process, want=want, slots=slots, sweep=sweep, lost=lost, isolated=isolated, idle=idle)

    @rule(
        which=ROLL,
        roll=ROLL,
        verb=st.sampled_from(["start", *OUTCOMES, *USES]),
        wrong=st.sampled_from([None, None, None, *WRONG]),
    )
    def something_with_a_delivery(self, which: int, roll: int, verb: str, wrong: str | None) -> None:
        ahead = [h for h in self.held if h[2].state == "leased"]
        among = ahead if verb == "start" and ahead else self.held
        if among:
            handle(self, roll, f"{wrong} {verb.removeprefix('big ')}" if wrong else verb, some(among, which))

    @rule(which=ROLL, what=st.sampled_from(["renew", "renew", "end"]))
    def a_process(self, which: int, what: str) -> None:
        worker, process = some(self.workers, which)
        (self.renew if what == "renew" else self.end_session)(worker, process)

    # time and people

    @rule(by=st.sampled_from([1, 4, 11]))
    def time_passes(self, by: int) -> None:
        self.advance(by)

    @rule()
    def operator_sweeps(self) -> None:
        self.sweep()

    @rule(
        which=ROLL,
        roll=ROLL,
        verb=st.sampled_from(["cancel", "requeue", "requeue", "discard"]),
        how=st.sampled_from(["", "", "", "unknown", "stale"]),
        of_dead=st.booleans(),
    )
    def somebody(self, which: int, roll: int, verb: str, how: str, of_dead: bool) -> None:
        among = list((of_dead and verb != "cancel" and self.model.at("dead")) or self.model.tasks)
        if among:
            people(self, roll, f"{how} {verb}".strip(), some(among, which))

    @rule(tenant=st.sampled_from([None, "acme"]), verb=st.sampled_from(["requeue", "discard"]))
    def many_dead(self, tenant: str | None, verb: str) -> None:
        if len(self.model.at("dead")) > 1:
            self.bulk(verb, tenant)


def _picking(data: st.DataObject) -> Pick:
    def pick(among: Sequence[T], /) -> T:
        return data.draw(st.sampled_from(among))

    return pick
