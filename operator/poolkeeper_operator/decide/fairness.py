"""Weighted max-min fairness in whole slots.

Guarantees: the sum never passes the capacity; nobody gets more than asked; what one leaves goes to the others by weight; the answer
depends on the arguments alone (ties by name), and cost on the number of askers, not on the capacity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True)
class Ask:
    """One asker: `slots` wanted, each of `unit` calls, with a weight."""

    name: str
    slots: int
    unit: int  # >= 1
    weight: int  # >= 1


def fair(capacity: int, asks: Sequence[Ask]) -> dict[str, int]:
    """Slots for each asker out of `capacity` calls."""
    capacity = max(capacity, 0)
    got = _whole(asks, _level(capacity, asks))
    left = capacity - sum(got[ask.name] * ask.unit for ask in asks)
    if sum(ask.unit for ask in asks if ask.slots) <= capacity:
        got, left = _nobody_starves(asks, got, left)
    return _topped_up(asks, got, left)


def _level(capacity: int, asks: Sequence[Ask]) -> Fraction | None:
    """The calls per weight at which the capacity is used up; None when all asks fit."""
    left, weights = Fraction(capacity), sum(ask.weight for ask in asks)
    for ask in sorted(asks, key=_saturation):
        level = left / weights
        if _saturation(ask) > level:
            return level
        left -= ask.slots * ask.unit
        weights -= ask.weight
    return None


def _saturation(ask: Ask) -> Fraction:
    """The level at which an asker has all that it wants."""
    return Fraction(ask.slots * ask.unit, ask.weight)


def _whole(asks: Sequence[Ask], level: Fraction | None) -> dict[str, int]:
    if level is None:
        return {ask.name: ask.slots for ask in asks}
    return {ask.name: min(ask.slots, int(level * ask.weight // ask.unit)) for ask in asks}


def _nobody_starves(asks: Sequence[Ask], got: Mapping[str, int], left: int) -> tuple[dict[str, int], int]:
    """Give a first slot to those whose share is less than one, from those with the most per weight; and what is left then."""
    out, by_name = dict(got), {ask.name: ask for ask in asks}
    for ask in asks:
        if ask.slots and not out[ask.name]:
            out[ask.name] = 1
            left -= ask.unit
    heap = [(-Fraction(out[a.name] * a.unit, a.weight), a.name) for a in asks if out[a.name] > 1]
    heapify(heap)
    while left < 0:
        _, name = heappop(heap)
        ask = by_name[name]
        out[name] -= 1
        left += ask.unit
        if out[name] > 1:
            heappush(heap, (-Fraction(out[name] * ask.unit, ask.weight), name))
    return out, left


def _topped_up(asks: Sequence[Ask], got: Mapping[str, int], left: int) -> dict[str, int]:
    """Hand out what rounding left, a slot at a time, to the one with the least per weight."""
    out, by_name = dict(got), {ask.name: ask for ask in asks}
    heap = [(Fraction(out[a.name] * a.unit, a.weight), a.name) for a in asks if out[a.name] < a.slots]
    heapify(heap)
    while heap:
        _, name = heappop(heap)
        ask = by_name[name]
        if ask.unit > left:
            continue
        out[name] += 1
        left -= ask.unit
        if out[name] < ask.slots:
            heappush(heap, (Fraction(out[name] * ask.unit, ask.weight), name))
    return out
