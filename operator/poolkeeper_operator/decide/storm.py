"""Whether retries storm a queue (Q13): more of them wait than their share of the claims, and that not only for a moment.

Guarantees: pure; no flapping: what is said changes only when both signs agree, that some are held back and that one has waited long.
"""

from datetime import timedelta

LONG = timedelta(seconds=30)


def storms(was: bool, held: int, oldest: timedelta | None) -> bool:
    """Given what was said last, how many retries are beyond the share, and how long the oldest ready one has waited."""
    long = oldest is not None and oldest >= LONG
    return long if (held > 0) is long else was
