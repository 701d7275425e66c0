"""Ready, Reconciling and Stalled: the three conditions that tools such as `kubectl wait` and Flux read (kstatus). Pure."""

from collections.abc import Iterable
from typing import Literal

from poolkeeper_operator.decide.conditions import Condition

Truth = Literal["True", "False", "Unknown"]


def truth(value: bool) -> Truth:
    """A condition's status."""
    return "True" if value else "False"


def ready(reason: str, message: str) -> list[Condition]:
    """In force; nothing under way."""
    return [
        Condition("Ready", "True", reason, message),
        Condition("Reconciling", "False", reason, ""),
        Condition("Stalled", "False", reason, ""),
    ]


def waiting(reason: str, message: str) -> list[Condition]:
    """Not in force, and it will come right without a hand."""
    return [
        Condition("Ready", "False", reason, message),
        Condition("Reconciling", "True", reason, message),
        Condition("Stalled", "False", reason, ""),
    ]


def stalled(reason: str, message: str) -> list[Condition]:
    """Not in force until somebody does what the message says."""
    return [
        Condition("Ready", "False", reason, message),
        Condition("Reconciling", "False", reason, ""),
        Condition("Stalled", "True", reason, message),
    ]


def without(conditions: Iterable[dict[str, object]], *types: str) -> list[dict[str, object]]:
    """The conditions but for these types: what is no longer judged must not linger."""
    return [condition for condition in conditions if condition.get("type") not in types]
