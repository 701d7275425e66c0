"""What random lives are made of: policies, submits, and stories of one delivery that lead to the bounds and beyond."""

from random import Random
from typing import Any

OUTCOMES = ("succeeded", "failed", "rejected", "dead", "snoozed", "handed_back", "canceled", "process_died")
TIMES = {"moment": 1, "while": 4, "too long": 11}
PAUSES: dict[str, dict[str, Any]] = {
    "pause": {"paused": True},
    "pause type": {"paused_task_types": ("a.b",)},
    "suspend": {"suspended_tenants": ("acme", "zeta")},
    "resume": {},
}
USES = ("checkpoint", "extend", "succeed")
PEOPLE = ("cancel", "requeue", "discard", "stale cancel", "stale requeue", "stale discard")
CLAIMS = ("claim", "ahead", "lost", "lost ahead")
MOVES = (*CLAIMS, "start", "sweep", "renew", "submit", *USES, *PEOPLE, *OUTCOMES, *TIMES, *PAUSES)
_MOTIFS = [
    line.split(", ")
    for line in (
        "resume, claim, succeeded, succeeded, succeed, extend",
        "resume, claim, failed, while, sweep, claim, failed, while, sweep, claim, failed, while, sweep",
        "resume, claim, too long, sweep, claim, too long, sweep, claim, too long, sweep, claim, too long, sweep",
        "resume, claim, process_died, claim, process_died, claim, process_died",
        "resume, claim, snoozed, while, sweep, claim, snoozed, while, sweep, claim, snoozed",
        "resume, claim, handed_back, claim, handed_back, claim, handed_back, claim, handed_back, claim, handed_back",
        "resume, ahead, handed_back, ahead, handed_back, ahead, handed_back, ahead, handed_back, ahead, handed_back",
        "resume, ahead, too long, sweep, ahead, too long, sweep, ahead, too long, start, ahead, too long, start",
        "resume, ahead, pause, start, resume, ahead, suspend, start, resume, ahead, pause type, start, resume, ahead, pause, start",
        "resume, ahead, cancel, start, start",
        "resume, ahead, start, succeeded",
        "resume, claim, cancel, extend, checkpoint, renew, handed_back, succeeded, checkpoint, extend, succeed, start",
        "resume, claim, cancel, succeed",
        "resume, claim, snoozed, cancel",
        "resume, claim, failed, cancel",
        "resume, claim, snoozed, too long, moment, sweep",
        "resume, claim, failed, too long, moment, sweep",
        "resume, ahead, too long, moment, start",
        "resume, claim, dead, stale requeue, stale discard, stale cancel, discard, cancel",
        "resume, submit, submit, submit, submit, submit, submit",
        "suspend, submit, submit, pause, submit, pause type, submit",
        "resume, claim, moment, while, sweep, renew, checkpoint, extend, succeeded, succeed, start",
        "resume, claim, while, renew, moment, moment, sweep, checkpoint, extend, succeeded, succeed, renew, start",
        "resume, claim, too long, checkpoint, extend, checkpoint, sweep, succeed, succeeded, extend, checkpoint",
        "resume, claim, while, renew, while, renew, while, renew, failed",
        "resume, claim, dead, discard, claim, dead, requeue, requeue",
        "resume, lost, claim, lost ahead, claim",
    )
]


def story(rng: Random) -> list[str]:
    """A way that is known to lead somewhere, with something else in between; or whatever comes."""
    if rng.random() < 0.3:
        return rng.choices(MOVES, k=rng.randint(3, 12))
    moves = list(rng.choice(_MOTIFS))
    for _ in range(rng.choice([0, 0, 1, 2])):
        moves.insert(rng.randint(1, len(moves)), rng.choice(MOVES))
    return moves


_SPECIAL: dict[str, Any] = {
    "max_age_seconds": 12,
    "max_run_time_seconds": 2.5,
    "max_tenure_seconds": 3.5,
    "progress_timeout_seconds": 0.5,
    "backoff_max_elapsed_seconds": 6,
    "max_waiting": 4,
    "max_waiting_per_tenant": 2,
    "concurrency_max": 2,
    "per_tenant_max": 1,
    "ordering": "skip",
    "task_types": ("a.b", "c.d"),
}


def policy(rng: Random) -> dict[str, Any]:
    """A few bounds at a time: each has lives in which no other comes first. Halves of seconds: no moment is the bound itself."""
    return {name: _SPECIAL[name] for name in rng.sample(sorted(_SPECIAL), rng.randint(0, 4))}


def wishes(rng: Random) -> dict[str, Any]:
    """One submit."""
    return {
        "queue": rng.choices(["q", "r", "nowhere"], [12, 4, 1])[0],
        "tenant": rng.choice(["acme", "acme", "zeta"]),
        "type": rng.choices(["a.b", "c.d", "e.f"], [8, 1, 1])[0],
        "payload": rng.choices([1, 2, "x" * 200], [8, 2, 1])[0],
        "key": rng.choice([None, None, None, "k", "l"]),
        "delay": rng.choice([0, 0, 0, 5]),
        "max_age": rng.choices([None, 6, 0], [8, 3, 1])[0],
        "ordering_key": rng.choice([None, None, "o"]),
    }
