"""The calls of `poolkeeper doctor`: what the store tells of itself, and what any login may see of the server.

Each is one statement that writes nothing; all but ``doctor`` need no right of ours.
"""

from typing import Any

from poolkeeper.store.call import Call, value


def doctor() -> Call[dict[str, Any]]:
    """What the installation and other sessions are like; for a login of people, readers or the operator, without limits."""
    return Call("doctor", {}, value)


def look(name: str) -> Call[Any]:
    """One of the looks of ``doctor.sql``."""
    return Call(name, {}, value, "doctor.sql")
