"""What a check found: a verdict, a sentence, and what to do. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    UNSEEN = "could not look"


@dataclass(frozen=True)
class Finding:
    """One check; ``remedy`` is empty where nothing is to be done."""

    check: str
    verdict: Verdict
    sentence: str
    remedy: str = ""


@dataclass(frozen=True)
class Unseen:
    """A fact that could not be had, why, and what would help."""

    why: str
    remedy: str


def ok(check: str, sentence: str) -> Finding:
    """All is well."""
    return Finding(check, Verdict.OK, sentence)


def warning(check: str, sentence: str, remedy: str) -> Finding:
    """It works, and may not for ever."""
    return Finding(check, Verdict.WARNING, sentence, remedy)


def fault(check: str, sentence: str, remedy: str) -> Finding:
    """It breaks a promise, or something does not work."""
    return Finding(check, Verdict.FAULT, sentence, remedy)


def unseen(check: str, why: Unseen) -> Finding:
    """Nothing can be said."""
    return Finding(check, Verdict.UNSEEN, why.why, why.remedy)


def named(names: list[str], most: int = 5) -> str:
    """The first of some names, in words."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
