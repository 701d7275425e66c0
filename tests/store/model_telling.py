"""A story is told: its stage, and each of its moves as a step of ``model_steps`` for one process and one delivery."""

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

from hypothesis import note

from store.model_steps import Held, Steps, named
from store.model_stories import CLAIMS, OUTCOMES, PAUSES, PEOPLE, SUBMITS, TIMES, USES, WRONG, Pick, wishes
from store.model_task import WAITING, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
ENOUGH = 7
"""Tasks that wait: more of them show nothing."""


ROLLS = range(120)
"""What is drawn for a choice among things that depend on what the store did: it may do otherwise in a life that is lived again."""


def some(among: "Sequence[T]", roll: int) -> T:
    return among[roll % len(among)]


class Telling:
    """One story in one life. ``it`` is the delivery that it is about, ``own`` that one's task, which comes before others."""

    def __init__(self, life: Steps, pick: Pick, bounds: dict[str, Any]) -> None:
        self.life = life
        self.pick = pick
        self.queue, self.tenant = pick(["q", "q", "r"]), pick(["acme", "zeta"])
        among = [n for n, (_, process) in enumerate(life.workers) if self.queue in process.queues]
        self.by = life.workers[some(among, pick(ROLLS))]
        self.it: Held | None = None
        self.own: UUID | None = None
        self._stage(bounds)

    def _stage(self, bounds: dict[str, Any]) -> None:
        """A stage of its own: these bounds and no others, a fresh process, nothing that runs apart. At times, only some of it."""
        alone, fresh = self.pick([True, True, True, bool(bounds)]), self.pick([True, False])
        if alone:
            self.life.apply(self.queue, Policy(**bounds))
        if fresh:
            _, process = self.by
            self.life.end_session(*self.by)
            self.life.workers.remove(self.by)
            self.by = self.life.register(process.queues, process.types)
            for task_id in self.life.model.at("suspect"):
                self.life.person("cancel", task_id, None)

    def move(self, move: str) -> None:
        """Take it; a life that disagrees is told with its moves."""
        note(f"{self.queue}, {self.tenant}: {move}")
        roll, random_wishes = self.pick(ROLLS), wishes(self.pick) if move == "any submit" else {}
        plain: dict[str, Callable[[], object]] = {
            "sweep": self.life.sweep,
            "renew": partial(self.life.renew, *self.by),
            "end": partial(self.life.end_session, *self.by),
            "any submit": partial(self.life.submit, random_wishes),
        }
        if move in plain:
            plain[move]()
        elif move in CLAIMS:
            self._claim(move, roll)
        elif move in SUBMITS:
            self._submit(SUBMITS[move])
        elif move in PAUSES:
            self.life.pause(self.queue, move)
        elif move in TIMES:
            self.life.advance(TIMES[move])
        else:
            self._with(move, roll)

    def _submit(self, wishes: dict[str, Any]) -> None:
        task_id = self.life.submit({"queue": self.queue, "tenant": self.tenant, "priority": 9, **wishes})
        self.own = self.own or task_id

    def _claim(self, move: str, roll: int) -> None:
        worker, process = self.by
        model = self.life.model
        if self.own is None and len(model.at(*WAITING)) < ENOUGH:
            self._submit({})
        if process.ended or process.renewed < model.now:
            self.life.renew(*self.by)
        want = some([1, 3, 3], roll)
        got = self.life.turn(
            worker,
            process,
            want=want,
            slots=0 if "ahead" in move else want,
            lost="lost" in move,
            isolated=bool(model.runnable(process, "suspect")),
        )
        self.it = next((h for h in got if h[2].task_id == self.own), got[0] if got else self.it)

    def _with(self, move: str, roll: int) -> None:
        verb = move.rpartition(" ")[2]
        tasks = list(self.life.model.tasks)
        if verb in PEOPLE:
            task_id = self.it[2].task_id if self.it else self.own or tasks[-1] if tasks else uuid4()
            people(self.life, roll, move, task_id)
        elif held := self.it or (self.life.held[-1] if self.life.held else None):
            handle(self.life, roll, move, held)


def people(life: Steps, roll: int, move: str, task_id: UUID) -> None:
    """Somebody cancels, requeues or discards this task, perhaps with a stale version, or one that is not there."""
    how, _, verb = move.rpartition(" ")
    task_id = uuid4() if how in WRONG else task_id
    task = life.model.tasks.get(task_id)
    seen = None if task is None else task.version - 1 if how == "stale" else some([None, task.version], roll)
    life.person(verb, task_id, seen)


def handle(life: Steps, roll: int, move: str, held: Held) -> None:
    """Its process does something with a delivery, or somebody else with a token that is none."""
    how, _, verb = move.rpartition(" ")
    wrong = how if how in WRONG else None
    if verb == "start":
        life.turn(held[0], held[1], starts=[named(held[2], wrong)])
    elif verb in OUTCOMES:
        life.settle(held, verb, some([0, 4, 4], roll), wrong)
    elif verb in USES:
        life.use(held, verb, "y" * (200 if how == "big" else 1), some([1, 2, 3], roll), wrong)
    else:
        raise LookupError(f"no move {move!r}")
