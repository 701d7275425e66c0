"""Small parts of a reading: what builds can run, signs of trouble, what providers said (Q11, O25, Q40)."""

from dataclasses import dataclass, field
from datetime import datetime


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


@dataclass(frozen=True)
class WindowStats:
    """What a quota grants of one measure in any interval of ``window`` seconds; ``taken`` of it: held, or spent in the last one."""

    measure: str  # requests or tokens
    limit: int
    window: float
    taken: int


@dataclass(frozen=True)
class ProviderStats:
    """A provider's quota as workers found it by ``report_provider``; policy and reports are this database's (Q40).

    ``percent`` is left of it now, ``cut_to`` was right after the last cut at ``cut_at``; until ``retry_at`` nothing starts.
    """

    quota: str
    cut: int
    floor: int
    recover: int
    percent: float
    cut_to: float
    cut_at: datetime | None
    retry_at: datetime | None
    ok: int
    failed: int
    throttled: int
    requests: int
    tokens: int
    windows: list[WindowStats] = field(default_factory=list)


@dataclass(frozen=True)
class ReportVerdict:
    """``code`` None: taken. ``percent`` is left of the quota, ``closed_for`` seconds nothing that uses it starts."""

    code: str | None
    percent: float | None
    closed_for: float | None
