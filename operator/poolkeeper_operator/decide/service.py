"""How long a task keeps a slot busy, from counters that only rise and that vanish with their process.

Guarantees: only increments count, each once; a session seen for the first time brings its whole past; old work fades with a half-life.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

HALF_LIFE = timedelta(minutes=5)
ENOUGH = 1.0  # finished tasks (faded) below which there is no estimate
MOST = 1e8  # slot seconds between two readings; a worker that tells of more miscounts


@dataclass(frozen=True, slots=True)
class SessionCount:
    """The cumulative counters of one session (SessionStats.session_id, .finished, .busy_seconds)."""

    session: str
    finished: int
    busy_seconds: float


@dataclass(frozen=True, slots=True)
class ServiceMeter:
    """The estimate of one pool; start with `ServiceMeter()`, call `observe` once per reading and keep the answer."""

    finished: float = 0.0
    busy_seconds: float = 0.0
    at: datetime | None = None
    seen: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def service_time(self) -> timedelta | None:
        """Mean slot time per finished task; None while too few have finished."""
        return timedelta(seconds=self.busy_seconds / self.finished) if self.finished >= ENOUGH else None

    def observe(self, sessions: Iterable[SessionCount], now: datetime) -> "ServiceMeter":
        """Add what the live sessions did since the last reading."""
        fade = 0.5 ** ((now - self.at) / HALF_LIFE) if self.at else 1.0
        seen: dict[str, tuple[int, float]] = {}
        finished = busy = 0.0
        for count in sessions:
            was_finished, was_busy = self.seen.get(count.session, (0, 0.0))
            finished += max(0, count.finished - was_finished)
            busy += min(max(0.0, count.busy_seconds - was_busy), MOST)
            seen[count.session] = (count.finished, count.busy_seconds)
        return ServiceMeter(self.finished * fade + finished, self.busy_seconds * fade + busy, now, seen)
