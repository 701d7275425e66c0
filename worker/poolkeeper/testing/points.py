"""The points of a delivery at which a test can let something happen (Q50)."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Point:
    """One moment of a delivery; its text is its name: `str(Point.after_checkpoint(2))` is "after checkpoint 2"."""

    name: str
    number: int | None = None

    start: ClassVar["Point"]
    """Before the first line of the handler."""
    in_transaction: ClassVar["Point"]
    """`succeed_in` was called, its transaction is not committed yet."""
    before_settle: ClassVar["Point"]
    """The handler has ended, the store has not heard of it."""
    after_settle: ClassVar["Point"]
    """The store knows how the delivery ended, the worker did not get the answer."""

    @classmethod
    def before_checkpoint(cls, number: int) -> "Point":
        """The handler calls `save_checkpoint` for the `number`-th time in this delivery; nothing is stored yet."""
        return cls("before checkpoint", _counted(number))

    @classmethod
    def after_checkpoint(cls, number: int) -> "Point":
        """The `number`-th checkpoint of this delivery is stored, the handler has not gone on."""
        return cls("after checkpoint", _counted(number))

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name} {self.number}"

    __repr__ = __str__


Point.start = Point("at the start")
Point.in_transaction = Point("in the transaction of succeed_in")
Point.before_settle = Point("before settle")
Point.after_settle = Point("after settle")


def _counted(number: int) -> int:
    if number < 1:
        raise ValueError(f"checkpoints are counted from 1, not {number}")
    return number
