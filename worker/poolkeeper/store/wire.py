"""Wishes as JSON for the store: durations are seconds, moments say their zone."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any


def wire(value: Any) -> str:
    """Return the text that is sent."""
    return json.dumps(value, default=_wish)


def _wish(wish: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(wish, timedelta):
        return wish.total_seconds()
    if isinstance(wish, datetime):
        return wish.isoformat()
    if isinstance(wish, Mapping):
        return dict(wish)
    raise TypeError(f"a {type(wish).__name__} is no wish of a task")
