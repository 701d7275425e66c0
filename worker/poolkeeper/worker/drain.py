"""Leaving in good order: when to hand back, and the report of how the drain went (Q48). Pure: no clock, no I/O."""

from dataclasses import dataclass, field

FORCE = 0.4
"""Share of the margin that handlers have to end after they were told, before their leases go back without them."""

LAST_CALL = 0.1
"""Share of the margin kept for the report and for ending the session."""


@dataclass
class Drain:
    """One drain, from the first SIGTERM to the exit. Times are monotonic seconds."""

    began: float
    grace: float
    margin: float
    started: int
    """deliveries in flight when it began"""
    handed_back: int = 0
    handed_back_before: int = 0
    """hand-backs of this process before handlers were told to stop: not the drain's"""
    truncated: bool = field(default=False)
    """handlers were cut off: the drain would have needed longer than the grace"""

    def shorten(self, grace: float) -> None:
        """Heed a shorter real grace; a longer one is not believed."""
        self.grace = min(self.grace, grace)
        self.margin = min(self.margin, self.grace / 2)

    @property
    def hand_back_at(self) -> float:
        """When handlers are cancelled and their leases handed back at the last checkpoint."""
        return self.began + self.grace - self.margin

    @property
    def force_at(self) -> float:
        """When leases go back although their handlers have not ended."""
        return self.hand_back_at + self.margin * FORCE

    @property
    def give_up_at(self) -> float:
        """When the process exits with what it could not say to the database left unsaid."""
        return self.began + self.grace - self.margin * LAST_CALL

    def report(self, now: float, *, abandoned: int) -> dict[str, float | int | bool]:
        """Return the drain report as the store takes it."""
        return {
            "duration_seconds": round(now - self.began, 3),
            "started": self.started,
            "finished": max(0, self.started - self.handed_back - abandoned),
            "handed_back": self.handed_back,
            "abandoned": abandoned,
            "truncated": self.truncated,
            "grace_seconds": self.grace,
        }
