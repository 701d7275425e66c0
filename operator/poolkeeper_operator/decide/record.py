"""The inputs of a scaling decision, as JSON and back (O11).

Guarantees: what is recorded is all that the decision depended on, so that it can be made again years later and without a cluster.
Durations are seconds, times ISO 8601.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter

from poolkeeper_operator.decide.history import History
from poolkeeper_operator.decide.signals import Blind, ScalingPolicy, Signals

_POLICY, _SIGNALS, _BLIND = TypeAdapter(ScalingPolicy), TypeAdapter(Signals), TypeAdapter(Blind)
_HISTORY, _TIME = TypeAdapter(History), TypeAdapter(datetime)


@dataclass(frozen=True, slots=True)
class Given:
    """Everything that `decide` is given."""

    policy: ScalingPolicy
    signals: Signals | Blind
    history: History
    now: datetime

    def as_record(self) -> dict[str, Any]:
        """JSON-able; `from_record` reads it back."""
        reading = "blind" if isinstance(self.signals, Blind) else "signals"
        given = {
            "now": self.now,
            "policy": asdict(self.policy),
            reading: asdict(self.signals),
            "history": asdict(self.history),
        }
        plain: dict[str, Any] = _plain(given)
        return plain


def from_record(recorded: Mapping[str, Any]) -> Given:
    """What was given to a recorded decision; raises ValueError (pydantic's) for what is no such record."""
    blind = recorded.get("blind")
    return Given(
        _POLICY.validate_python(recorded["policy"]),
        _SIGNALS.validate_python(recorded["signals"]) if blind is None else _BLIND.validate_python(blind),
        _HISTORY.validate_python(recorded["history"]),
        _TIME.validate_python(recorded["now"]),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else value
