"""How a delivery ends: what a handler may raise, and the one place that judges what it did raise (Q28).

Guarantees: every exception maps to exactly one outcome, whatever its own code does, with an error text that is bounded and redacted (Q54).
Does not decide when a retry comes: the store computes the backoff and its bounds.
"""

import asyncio
import sys
import traceback
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from poolkeeper.codes import Code
from poolkeeper.errors import LeaseLost, Refused
from poolkeeper.redact import bounded, redact, shown

MAX_NAME = 200
"""Bytes of the name of an error's class that are kept."""

Ending = Literal["succeeded", "failed", "rejected", "dead", "snoozed", "handed_back", "canceled"]


class EndsDelivery(Exception):
    """Raised by a handler to say how its delivery ends; not an error of the program."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Reject(EndsDelivery):
    """A final business failure: the task ends as `failed`, is never retried and pages nobody."""


class Dead(EndsDelivery):
    """Trying again cannot help and a person should look: the task becomes a dead letter."""


class RetryAfter(EndsDelivery):
    """The delivery failed; try again in `seconds` at the earliest (counts as a failure)."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        self.seconds = _seconds(seconds)
        super().__init__(reason or f"retry after {self.seconds:g} s")


class Snooze(EndsDelivery):
    """Nothing failed, the task is simply not due yet: deliver it again in `seconds` (bounded by `maxSnoozes`)."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        self.seconds = _seconds(seconds)
        super().__init__(reason or f"snoozed for {self.seconds:g} s")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one delivery ended. `error_class` and `error` are fit to be stored and shown."""

    ending: Ending
    result: Any = None
    error_class: str | None = None
    error: str | None = None
    retry_after: float | None = None


def judge(error: BaseException) -> Outcome:  # noqa: PLR0911  (a table of cases)
    """Return the outcome that `error`, raised by a handler, stands for; a group of a TaskGroup's may stand for one of its own."""
    error = _spokesman(error)
    match error:
        case RetryAfter():
            return Outcome("failed", None, "RetryAfter", _text(error), error.seconds)
        case Snooze():
            return Outcome("snoozed", None, None, _text(error), error.seconds)
        case Reject():
            return Outcome("rejected", None, "Reject", _text(error))
        case Dead():
            return Outcome("dead", None, "Dead", _text(error))
        case LeaseLost() if error.code == Code.CANCELED:
            return Outcome("canceled")
        case LeaseLost():
            return Outcome("handed_back", None, str(error.code), _text(error))
        case asyncio.CancelledError():
            return Outcome(
                "failed", None, "CancelledError", "the handler was cancelled from within; nobody asked for it"
            )
        case _:
            return Outcome("failed", None, _name(error), describe(error))


def _spokesman(error: BaseException) -> BaseException:
    """Of a group, who speaks for all: a lost lease, or the one that all agree with; else the group, which is an error like any other."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    alone = _alone(error, LeaseLost, among_others=True)
    for kind in (Reject, Dead, RetryAfter, Snooze):
        alone = alone or _alone(error, kind)
    return alone or error


def _alone(
    group: BaseExceptionGroup[BaseException], kind: type[Exception], *, among_others: bool = False
) -> BaseException | None:
    """The first of this kind in a group that holds nothing else, of those that wait the one that waits longest."""
    try:
        found, rest = group.split(kind)
        if found is None or (rest is not None and not among_others):
            return None
        leaves: list[BaseException] = []
        left: list[BaseException] = [found]
        while left:
            one = left.pop()
            if isinstance(one, BaseExceptionGroup):
                left.extend(reversed(one.exceptions))
            else:
                leaves.append(one)
        return max(leaves, key=lambda leaf: leaf.seconds if isinstance(leaf, RetryAfter | Snooze) else 0.0)
    except Exception:  # noqa: BLE001  (a group of the application's may do anything)
        return None


def misfit(error: ValidationError | Refused, what: str) -> Outcome:
    """Return the outcome of a payload or result that does not fit: no retry of this build can mend it."""
    too_large = isinstance(error, Refused) and error.code == Code.PAYLOAD_TOO_LARGE
    return Outcome("dead", None, f"{what}_{'too_large' if too_large else 'invalid'}", bounded(redact(_readable(error))))


def _readable(error: ValidationError | Refused) -> str:
    if isinstance(error, Refused):
        return str(error)
    faults = error.errors(include_input=False, include_url=False, include_context=False)
    places = (f"{'.'.join(str(step) for step in fault['loc']) or '$'}: {fault['msg']}" for fault in faults[:10])
    return f"{error.title}: " + "; ".join(places)


def describe(error: BaseException) -> str:
    """Return class, message and innermost line of an exception, redacted and bounded; never its locals."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = f" (in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return bounded(redact(f"{_name(error)}: {_words(error)}{place}"))


def _name(error: BaseException) -> str:
    return bounded(redact(type(error).__name__), MAX_NAME)


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as another:  # noqa: BLE001  (what the application wrote may raise anything)
        return f"(its text cannot be had: {_name(another)})"


def _text(error: BaseException) -> str | None:
    return bounded(redact(_words(error))) or None


def _seconds(given: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= sys.float_info.max:
        raise ValueError(f"seconds must be a finite number of at least 0, not {shown(given)}")
    return float(given)
