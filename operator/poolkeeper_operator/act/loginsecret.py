"""The Secret with a pool's database login: made, and read again. Pure (O5).

Guarantees: owned by its pool, so it goes with it; what it says of itself in annotations is no secret.
"""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from poolkeeper.store.logins import password_of
from poolkeeper_operator.act.children import head
from poolkeeper_operator.decide.logins import OTHER, Issued, Slot
from poolkeeper_operator.resources import DatabaseSpec
from poolkeeper_operator.resources.parts import SecretRef
from poolkeeper_operator.resources.templatepolicy import ROLE_SECRETS
from poolkeeper_operator.runtime.kinds import GROUP, SECRET

DSN, DIRECT = "dsn", "direct-dsn"
SLOT, SINCE, ROLE, GRANTED = (f"{GROUP}/{each}" for each in ("login", "login-since", "login-role", "login-wish"))
WISH = f"{GROUP}/rotate-login"
"""The annotation of a WorkerPool by which somebody has its password replaced now: another value each time."""


def name_of(pool: str) -> str:
    """The name of a pool's Secret."""
    return f"{ROLE_SECRETS}{pool}"


def mounted(database: DatabaseSpec, pool: str) -> DatabaseSpec:
    """The Database as the pods of a pool are to know it: by the pool's own Secret."""
    name = name_of(pool)
    direct = None if database.direct_secret_ref is None else SecretRef(name=name, key=DIRECT)
    return database.model_copy(update={"dsn_secret_ref": SecretRef(name=name, key=DSN), "direct_secret_ref": direct})


def build(
    pool: Mapping[str, Any],
    role: str,
    issued: Issued,
    dsns: Mapping[str, str],
    *,
    seen: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The Secret to apply: as it was seen or not at all, for an apply that arrives late would bring back a password that is none."""
    notes = {SLOT: issued.slot, SINCE: issued.since.isoformat(), ROLE: role, GRANTED: issued.wish}
    made = head(pool, SECRET, name_of(pool["metadata"]["name"]), notes)
    if seen is not None:
        made["metadata"]["resourceVersion"] = seen["metadata"]["resourceVersion"]
    return {
        **made,
        "type": "Opaque",
        "data": {key: base64.b64encode(dsn.encode()).decode() for key, dsn in dsns.items()},
    }


def issued(secret: Mapping[str, Any] | None) -> Issued | None:
    """Which login it has; None where there is none, or somebody broke it."""
    notes = ((secret or {}).get("metadata") or {}).get("annotations") or {}
    slot: Slot | None = next((each for each in OTHER if each == notes.get(SLOT)), None)
    try:
        since = datetime.fromisoformat(notes[SINCE])
    except (KeyError, ValueError):
        return None
    if slot is None or not notes.get(ROLE) or not password_of(dsns(secret).get(DSN, "")):
        return None
    return Issued(slot, since if since.tzinfo else since.replace(tzinfo=UTC), notes.get(GRANTED, ""))


def role(secret: Mapping[str, Any]) -> str:
    """The login's name."""
    return str((secret["metadata"].get("annotations") or {}).get(ROLE, ""))


def dsns(secret: Mapping[str, Any] | None) -> dict[str, str]:
    """The connection strings in it by their keys; nothing of one that cannot be read."""
    try:
        return {
            key: base64.b64decode(raw, validate=True).decode()
            for key, raw in ((secret or {}).get("data") or {}).items()
        }
    except (binascii.Error, UnicodeDecodeError):
        return {}
