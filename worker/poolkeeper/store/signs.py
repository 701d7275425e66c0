"""Small parts of a reading: what builds can run, and signs of trouble (Q11, O25)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Expired:
    """Deliveries that expired within ten minutes, counted up to 1,000 (O25)."""

    live: int = 0  # of workers that have renewed since: their lease was too short for them
    dead: int = 0  # of workers that have not
    cause: str | None = None  # how most of these ended, as the cluster tells it (O26)


@dataclass(frozen=True)
class ScheduleTrouble:
    """Schedules whose slots are not fired, counted up to 1,000: late by two minutes or more, or refused (Q34, O25)."""

    late: int = 0
    first_late: str | None = None
    refused: int = 0
    first_refused: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class BuildStats:
    """What a build of a pool can run."""

    build: str | None
    types: list[str]
