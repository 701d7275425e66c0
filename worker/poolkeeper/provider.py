"""What a handler tells of a provider's answer, checked before anything is sent: `ctx.report_provider` (Q40).

Guarantees: what passes is what the store takes; what does not raises ValueError that names the argument and what to give.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from poolkeeper import jsonsafe
from poolkeeper.redact import shown

WORDS = ("ok", "failed", "throttled")
"""What stands in place of HTTP's status where a provider speaks no HTTP."""

USED = ("requests", "tokens")
MOST = 999_999_999
LONGEST = 1e9
LOWEST_STATUS, HIGHEST_STATUS = 100, 599
LONGEST_NAME = 200


@dataclass(frozen=True)
class Report:
    """One answer of a provider. `used`: requests and tokens of that call."""

    name: str
    status: str
    retry_after: float | None = None
    used: dict[str, int] = field(default_factory=dict)


def reported(name: object, status: object, retry_after: object = None, used: object = None) -> Report:
    """Return the report of these arguments; raises ValueError."""
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME or jsonsafe.text_fault(name):
        raise ValueError(f"report_provider: name {shown(name)}: give the name of one of the pool's spec.providers")
    return Report(name, _status(status), _seconds(retry_after), _used(used))


def _status(status: object) -> str:
    if isinstance(status, int) and not isinstance(status, bool) and LOWEST_STATUS <= status <= HIGHEST_STATUS:
        return str(int(status))
    if isinstance(status, str) and status in WORDS:
        return status
    raise ValueError(
        f"report_provider: status {shown(status)}: give HTTP's, a number from {LOWEST_STATUS} to {HIGHEST_STATUS}, or {', '.join(WORDS)}"
    )


def _seconds(retry_after: object) -> float | None:
    seconds: Any = retry_after
    if isinstance(retry_after, timedelta):
        seconds = retry_after.total_seconds()
    elif isinstance(retry_after, str) and retry_after.strip().isascii() and retry_after.strip().isdigit():
        seconds = float(retry_after)  # as it stands in the header
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or math.isnan(seconds) or seconds < 0:
        raise ValueError(
            f"report_provider: retry_after {shown(retry_after)}: give seconds from 0, a timedelta, or None for no such header"
        )
    return float(min(seconds, LONGEST))


def _used(used: object) -> dict[str, int]:
    given = {} if used is None else used
    if not isinstance(given, Mapping) or not all(
        key in USED and isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MOST
        for key, number in given.items()
    ):
        raise ValueError(
            f"report_provider: used {shown(used)}: give {' and '.join(USED)}, whole numbers from 0 to {MOST}, such as "
            '{"requests": 1, "tokens": 1200}'
        )
    return dict(given)
