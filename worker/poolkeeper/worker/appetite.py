"""How much to ask of the next turn: as many as there are free slots, and ahead of them what short handlers can do (Q16).

Guarantees: without handlers seen to be short nothing is claimed beyond free slots; with them at most one turn of work is
started ahead of a slot, and at most one more turn of it leased. Pure: no clock, no I/O.
"""

from dataclasses import dataclass

MOST_AHEAD = 500
"""Deliveries ahead of free slots, however short the handlers: one turn must stay short too."""

SEEN = 20
"""Deliveries to have seen before handlers count as short."""

SHORT = 0.25
"""Seconds: deliveries that take longer than this on average are not claimed ahead."""


@dataclass(frozen=True, slots=True)
class Appetite:
    """What a turn asks for: start so many of the leased ones; claim `want`, of which `slots` start at once."""

    starts: int = 0
    slots: int = 0
    want: int = 0

    def __bool__(self) -> bool:
        return self.starts > 0 or self.want > 0


def appetite(*, capacity: int, busy: int, leased: int, one_turn: int) -> Appetite:
    """Return what to ask for with `busy` deliveries started here, `leased` ones not, and `one_turn` done during a turn."""
    starts = min(leased, max(0, capacity + one_turn - busy))
    slots = max(0, capacity - busy - starts)
    return Appetite(starts, slots, slots + max(0, one_turn - (leased - starts)))


def one_turn_of_work(*, capacity: int, finished: int, typical: float, turn: float) -> int:
    """Return how many deliveries of `typical` seconds `capacity` slots finish while a turn of `turn` seconds is under way."""
    if finished < SEEN or typical > SHORT:
        return 0
    return min(MOST_AHEAD, int(capacity * turn / max(typical, 1e-6)))
