"""Whether anything of a pool still runs: the condition Drained.

Guarantees (O3): True only by a reading in which no lease of the pool was left, with no pod of it, not even a terminating one, and none
asked for; in HoldAndDrain only once the store starts nothing more for it, so that it stays true. Without a reading nothing is said
unless pods are seen.
"""

from dataclasses import dataclass

from poolkeeper_operator.decide.conditions import Condition
from poolkeeper_operator.decide.signals import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left of a pool."""

    mode: Mode
    pods: int  # that exist, terminating ones included, or are asked for
    settled: bool  # the Deployment's controller has seen the last change
    tasks: int | None  # its leases in the store; None: no reading
    closed: bool  # the store starts no task for it


def drained(left: Left) -> Condition | None:
    """The condition; None where it cannot be told."""
    draining = left.mode is Mode.HOLD_AND_DRAIN
    if left.pods or left.tasks:
        tasks = "an unknown number of tasks" if left.tasks is None else _count(left.tasks, "task")
        text = f"{tasks} and {_count(left.pods, 'pod')} of it are left"
        return Condition("Drained", "False", "Draining" if draining else "Working", text)
    if left.tasks is None or not left.settled:
        return None
    if not draining:
        return Condition(
            "Drained", "True", "AtZero", "nothing of it runs now; only scaling.mode HoldAndDrain keeps it so"
        )
    if not left.closed:
        return Condition(
            "Drained", "False", "Draining", "no task and no pod of it is left; the store is told to start none"
        )
    return Condition(
        "Drained", "True", "Drained", "nothing of it runs, and nothing starts until scaling.mode is changed"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
