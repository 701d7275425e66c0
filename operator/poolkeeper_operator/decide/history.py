"""What a pool's past decisions leave behind for the next one.

Guarantees: a frozen value that `decide` takes and returns anew; bounded (stretches of equal decisions are one entry); an empty history
(operator just started) never permits to shrink before a whole window was watched. It is not persisted.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

MAX_STRETCHES = 128
MAX_WAITED = 32
STEP_PERIOD = timedelta(seconds=15)  # maxStep* bounds the change within this time, as HPA's policies do


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time during which the same size stood and the same one was recommended."""

    since: datetime
    until: datetime
    recommended: int  # pods, after limits, before windows and steps
    size: int  # pods before the decision


@dataclass(frozen=True, slots=True)
class Waited:
    """How many tasks could run at one reading."""

    at: datetime
    tasks: int


@dataclass(frozen=True, slots=True)
class History:
    """The memory of one pool; `History()` is that of a pool never seen before."""

    stretches: tuple[Stretch, ...] = ()  # oldest first; contiguous readings since the last blind moment
    idle_since: datetime | None = None  # first of an unbroken row of successful readings of zero
    raised_at: datetime | None = None  # last time the size was raised
    blind_since: datetime | None = None  # first of an unbroken row of failed readings
    waited: tuple[Waited, ...] = ()  # oldest first; one for each reading for as long as a task of it may wait in time

    @property
    def watched_since(self) -> datetime | None:
        """The first reading of the present unbroken row of successful ones."""
        return self.stretches[0].since if self.stretches else None

    def lowest_recommended(self, since: datetime, now_recommended: int) -> int:
        """The smallest size recommended since then, this moment's included."""
        return min([now_recommended, *(s.recommended for s in self.stretches if s.until >= since)])

    def highest_recommended(self, since: datetime, now_recommended: int) -> int:
        """The largest size recommended since then, this moment's included."""
        return max([now_recommended, *(s.recommended for s in self.stretches if s.until >= since)])

    def usual_recommended(self, since: datetime, now: datetime) -> int:
        """The smallest size that was enough for three fifths of the time since then."""
        if not self.stretches:
            return 0
        ends = [*(stretch.since for stretch in self.stretches[1:]), now]
        held = sorted(
            (stretch.recommended, end - max(stretch.since, since))
            for stretch, end in zip(self.stretches, ends, strict=True)
            if end > since
        )
        enough = sum((time for _, time in held), timedelta(0)) * 3 // 5
        for size, time in held:
            enough -= time
            if enough <= timedelta(0):
                return size
        return 0

    def lowest_size(self, since: datetime, present: int) -> int:
        """The smallest size that stood since then, the present one included."""
        return min([present, *(s.size for s in self.stretches if s.until >= since)])

    def highest_size(self, since: datetime, present: int) -> int:
        """The largest size that stood since then, the present one included."""
        return max([present, *(s.size for s in self.stretches if s.until >= since)])

    def blinded(self, now: datetime) -> "History":
        """After a failed reading: what was recommended meanwhile is unknown, so windows begin anew."""
        return History(raised_at=self.raised_at, blind_since=self.blind_since or now)

    def extended(
        self,
        *,
        now: datetime,
        recommended: int,
        applied: int,
        was: int,
        idle: bool,
        keep: timedelta,
        waiting: int = 0,
        recall: timedelta = timedelta(0),
    ) -> "History":
        """After a decision.

        `was` is the size before it, `applied` the one steered to, `keep` the longest window that is asked about; `waiting` tasks could run,
        which is recalled for so long.
        """
        recalled = (mark for mark in self.waited if mark.at > now - recall)
        return replace(
            self,
            stretches=_appended(self.stretches, Stretch(now, now, recommended, was), now - keep),
            idle_since=(self.idle_since or now) if idle else None,
            raised_at=now if applied > was else self.raised_at,
            blind_since=None,
            waited=(*recalled, Waited(now, waiting))[-MAX_WAITED:],
        )


def _appended(stretches: tuple[Stretch, ...], new: Stretch, since: datetime) -> tuple[Stretch, ...]:
    """Add one moment; drop what no window reaches, yet keep the first of all as the beginning of the watch."""
    last = stretches[-1] if stretches else None
    if last and (last.recommended, last.size) == (new.recommended, new.size):
        stretches = (*stretches[:-1], replace(last, until=new.until))
    else:
        stretches = (*stretches, new)
    first, rest = stretches[0], stretches[1:]
    kept = [first, *(s for s in rest if s.until >= since)]
    if len(kept) > 1 and first.until < since:
        # An out-of-reach first entry only marks since when the pool is watched; it must not speak about sizes any more.
        kept[0] = replace(first, recommended=kept[1].recommended, size=kept[1].size)
    if len(kept) > MAX_STRETCHES:
        kept = [_merged(kept[0], kept[1]), *kept[2:]]
    return tuple(kept)


def _merged(a: Stretch, b: Stretch) -> Stretch:
    """One entry for two, erring towards the larger size (nothing shrinks for want of memory)."""
    return Stretch(a.since, b.until, max(a.recommended, b.recommended), max(a.size, b.size))
