"""What is left of a quota that its provider refused, in numbers and in words (O15).

Guarantees: the least of what several databases know counts; a pool's size is bounded by what the store lets start, with at least one
slot, so that somebody finds out when the provider gives more. The words change only when the provider refuses anew, opens or is whole
again, so that they can stand in a status.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from poolkeeper_operator.decide.conditions import stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """A quota that is lowered now."""

    percent: float  # left of it, by the database that knows the least
    cut_to: float  # right after the cut
    cut_at: datetime
    opens: datetime | None  # nothing starts before; None: it is open
    whole: datetime  # when all of it is back, if nothing is refused any more

    @property
    def state(self) -> tuple[datetime, bool]:
        """What there is to tell about it, apart from what the clock does."""
        return self.cut_at, self.opens is not None

    def share(self, whole: int) -> int:
        """So many of a number that is not zero."""
        return min(whole, max(1, int(whole * self.percent / 100)))

    def sentence(self, quota: str) -> str:
        """In words; `quota` is "namespace/name"."""
        closed = f", nothing starts before {stamp(self.opens)}" if self.opens else ""
        return (
            f"429 from {quota.partition('/')[2]}, cut to {self.cut_to:.0f} % at {stamp(self.cut_at)}{closed}; "
            f"all of it is back at {stamp(self.whole)} if it refuses no more"
        )


def throttle(
    *, percent: float, cut_to: float, cut_at: datetime | None, retry_at: datetime | None, recover: int, now: datetime
) -> Throttle | None:
    """What one database knows, as of its own clock; None where the quota is whole."""
    opens = retry_at if retry_at is not None and retry_at > now else None
    if cut_at is None or (percent >= 100 and opens is None):  # noqa: PLR2004 - percent
        return None
    since = max(cut_at, retry_at) if retry_at is not None else cut_at
    whole = since + timedelta(minutes=(100 - cut_to) / recover)
    return Throttle(percent=percent, cut_to=cut_to, cut_at=cut_at, opens=opens, whole=whole)


def least(found: Iterable[Throttle]) -> Throttle | None:
    """The one that counts of several: closed for longest, else with the least left."""
    return min(found, key=lambda one: (-one.opens.timestamp() if one.opens else 0.0, one.percent), default=None)
