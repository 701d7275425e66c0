"""What random lives are made of: policies, submits, and stories of one delivery that lead to the bounds and beyond.

``pick`` chooses one of a few things: everything that is random is drawn by it, one thing at a time.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Pick(Protocol):
    def __call__(self, among: Sequence[T], /) -> T: ...


OUTCOMES = ("succeeded", "failed", "rejected", "dead", "snoozed", "handed_back", "canceled", "process_died")
TIMES = {"moment": 1, "while": 4, "too long": 11}
PAUSES: dict[str, dict[str, Any]] = {
    "pause": {"paused": True},
    "pause type": {"paused_task_types": ("a.b",)},
    "suspend": {"suspended_tenants": ("acme", "zeta")},
    "resume": {},
}
SUBMITS: dict[str, dict[str, Any]] = {
    "submit": {},
    "submit later": {"delay": 5},
    "submit short": {"max_age": 6},
    "submit old": {"max_age": 0},
    "submit big": {"payload": "x" * 200},
    "submit odd": {"type": "e.f"},
    "submit nowhere": {"queue": "nowhere"},
    "submit keyed": {"key": "k"},
    "submit other": {"key": "k", "payload": 2},
    "submit ordered": {"ordering_key": "o"},
}
USES = ("checkpoint", "big checkpoint", "extend", "succeed")
PEOPLE = ("cancel", "requeue", "discard")
CLAIMS = ("claim", "ahead", "lost", "lost ahead")
MOVES = (*CLAIMS, "start", "sweep", "renew", "end", "any submit", *SUBMITS, *USES, *PEOPLE, *OUTCOMES, *TIMES, *PAUSES)
WRONG = ("forged", "unknown")
"""Before a verb of a delivery: with a token of nobody, or of a task that is not there."""

BOUNDS: dict[str, dict[str, Any]] = {
    "age": {"max_age_seconds": 12},
    "run": {"max_run_time_seconds": 2.5},
    "tenure": {"max_tenure_seconds": 3.5},
    "progress": {"progress_timeout_seconds": 0.5},
    "elapsed": {"backoff_max_elapsed_seconds": 6},
    "few": {"max_waiting": 4},
    "few each": {"max_waiting_per_tenant": 2},
    "slots": {"concurrency_max": 2},
    "slots each": {"per_tenant_max": 1},
    "skip": {"ordering": "skip"},
    "types": {"task_types": ("a.b", "c.d")},
}
"""Halves of seconds: no moment is the bound itself."""

_EVERY_USE = "succeeded, succeed, checkpoint, extend, start"
STORIES = (
    "claim, big checkpoint, checkpoint, succeeded, succeeded, succeed, extend, checkpoint, start",
    "claim, rejected",
    "ahead, start, rejected, start",
    f"claim, forged succeeded, forged succeed, forged checkpoint, forged extend, forged start, {_EVERY_USE}",
    "claim, unknown succeeded, unknown succeed, unknown checkpoint, unknown extend, unknown start",
    "claim, failed, while, sweep, claim, failed, while, sweep, claim, failed, while, sweep",
    "claim, too long, sweep, claim, too long, sweep, claim, too long, sweep, claim, too long, sweep",
    "claim, process_died, claim, process_died, claim, process_died",
    "claim, snoozed, while, sweep, claim, snoozed, while, sweep, claim, snoozed",
    "claim, handed_back, claim, handed_back, claim, handed_back, claim, handed_back, claim, handed_back",
    "ahead, handed_back, ahead, handed_back, ahead, handed_back, ahead, handed_back, ahead, handed_back",
    "ahead, too long, sweep, ahead, too long, sweep, ahead, too long, start, ahead, too long, start",
    "ahead, pause, start, resume, ahead, suspend, start, resume, ahead, pause type, start, resume",
    "ahead, cancel, start, start",
    "ahead, cancel, handed_back",
    "ahead, start, succeeded",
    f"claim, cancel, extend, checkpoint, big checkpoint, renew, handed_back, {_EVERY_USE}",
    f"ahead, cancel, extend, checkpoint, renew, canceled, {_EVERY_USE}",
    "claim, cancel, failed",
    "claim, cancel, succeed, cancel",
    "claim, snoozed, cancel, cancel",
    "claim, failed, cancel, requeue, discard",
    "submit, cancel, submit later, cancel, submit ordered, cancel",
    "age: submit, submit, too long, moment, sweep",
    "age: claim, snoozed, too long, moment, sweep",
    "age: claim, failed, too long, moment, sweep",
    "age: claim, while, renew, while, renew, while, renew, failed",
    "age: claim, while, renew, while, renew, while, handed_back",
    "age: ahead, too long, moment, start",
    "age: ahead, while, renew, while, renew, while, renew, start, start",
    "age: ahead, too long, moment, sweep",
    "submit short, submit short, while, while, sweep",
    "claim, dead, stale requeue, stale discard, stale cancel, discard, cancel",
    "claim, dead, requeue, requeue, claim, dead, discard, requeue",
    "claim, stale cancel, unknown cancel, unknown requeue, unknown discard, requeue, discard",
    "submit, submit, submit, submit, submit, submit",
    "few: submit, submit, submit, submit, submit, submit",
    "few each: submit, submit, submit, submit",
    "types: submit odd, submit, submit odd, submit nowhere",
    "submit big, submit old, submit nowhere, submit keyed, submit other, submit keyed",
    "suspend, submit, submit keyed, resume, pause, submit, submit old, resume, pause type, submit, resume",
    f"run: claim, while, sweep, renew, {_EVERY_USE}, claim",
    f"run: claim, while, renew, {_EVERY_USE}, while",
    "run: claim, while, sweep, too long, sweep, claim, while, sweep, too long, sweep, claim, while, sweep, renew",
    f"tenure: claim, while, sweep, renew, {_EVERY_USE}",
    "tenure: claim, moment, moment, failed, while, sweep, claim, moment, moment, renew, succeeded",
    f"progress: claim, while, renew, while, sweep, renew, {_EVERY_USE}",
    f"progress: claim, while, renew, while, renew, {_EVERY_USE}",
    f"progress: claim, while, checkpoint, while, renew, while, renew, {_EVERY_USE}",
    "progress: claim, while, renew, while, sweep, too long, claim, while, renew, while, sweep, too long, claim, while, renew, while, sweep",
    "elapsed: claim, while, renew, while, failed",
    f"claim, too long, checkpoint, extend, checkpoint, sweep, {_EVERY_USE}, renew",
    "claim, extend, too long, checkpoint, succeed",
    "claim, while, renew, while, renew, while, renew, failed",
    "lost, claim, lost ahead, claim",
    "claim, checkpoint, end, sweep, succeeded, renew, claim, checkpoint, handed_back",
    "submit ordered, submit ordered, claim, claim, dead, claim, requeue, claim, succeeded, claim",
    "skip: submit ordered, submit ordered, claim, dead, claim, failed, while, claim",
    "slots: submit, submit, submit, claim, claim, claim, succeeded, claim",
    "slots each: submit, submit, claim, claim, failed, claim",
    "anything",
)  # fmt: skip
"""The bounds of the queue, if any but the usual; then what happens. Each is known to lead somewhere."""


def story(pick: Pick, among: Sequence[str] = STORIES) -> tuple[str, dict[str, Any], list[str]]:
    """One of them, with something else in between: its name, the bounds, the moves."""
    name = pick(among)
    if name == "anything":
        return name, {}, [pick(MOVES) for _ in range(pick(range(3, 12)))]
    bounds, _, told = name.rpartition(": ")
    moves = told.split(", ")
    for _ in range(pick([0, 0, 0, 0, 1, 1, 2])):
        moves.insert(pick(range(len(moves) + 1)), pick(MOVES))
    return name, BOUNDS.get(bounds, {}), moves


def policy(pick: Pick) -> dict[str, Any]:
    """A few bounds at a time: each has lives in which no other comes first."""
    chosen: dict[str, Any] = {}
    for _ in range(pick(range(5))):
        chosen |= BOUNDS[pick(tuple(BOUNDS))]
    return chosen


def wishes(pick: Pick) -> dict[str, Any]:
    """One submit."""
    return {
        "queue": pick(["q", "q", "q", "q", "r", "r", "nowhere"]),
        "tenant": pick(["acme", "acme", "zeta"]),
        "type": pick(["a.b", "a.b", "a.b", "a.b", "c.d", "e.f"]),
        "payload": pick([1, 1, 1, 2, "x" * 200]),
        "key": pick([None, None, None, "k", "l"]),
        "delay": pick([0, 0, 0, 5]),
        "max_age": pick([None, None, None, 6, 6, 0]),
        "ordering_key": pick([None, None, "o"]),
        "priority": pick([None, None, 0, 9]),
    }
