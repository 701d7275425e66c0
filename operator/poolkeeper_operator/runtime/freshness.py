"""SignalFresh: since when, and why, the queues of an object cannot be read (O18).

Guarantees one Event when the reading is lost and one when it is back, not one per tick; an operator that just started
tells nobody about the readings that it has not made yet.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from poolkeeper_operator.decide.conditions import Condition, stamp
from poolkeeper_operator.observe.link import Link
from poolkeeper_operator.runtime.context import Context


class Freshness:
    """Remembers which objects were told what."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @staticmethod
    def condition(link: Link, now: datetime) -> Condition:
        """Whether the figures are those of a recent reading; the message stays the same while nothing changes."""
        blind = link.blind(now)
        if blind is None:
            return Condition("SignalFresh", "True", "Reading", "the queues are read at every tick")
        since = f"last read {stamp(link.reading.at)}" if link.reading else "not read since the operator started"
        return Condition("SignalFresh", "False", "NoReading", f"{blind}; {since}; what stands is held")

    async def tell(self, manifest: Mapping[str, Any], link: Link, blind: str | None) -> None:
        """One Event for the change of the condition, whose last state is the object's own status."""
        conditions = (manifest.get("status") or {}).get("conditions") or []
        was = next((c["status"] for c in conditions if c["type"] == "SignalFresh"), None)
        if was == "True" and blind is not None and link.failures:
            await self._context.tell(manifest, "Warning", "SignalLost", f"{blind}; what stands is held")
        elif was == "False" and blind is None:
            await self._context.tell(manifest, "Normal", "SignalBack", f"{link.name} is read again")
