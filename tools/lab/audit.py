"""The API server's own record of writes, read as values.

Guarantees that a write whose answer has arrived is in what `since` returns (the log is written before the answer).
Reads and refused requests are not counted as writes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Write:
    """One request that changed something, or tried to: see `code`."""

    verb: str
    resource: str  # with its subresource: `deployments/scale`
    group: str
    namespace: str
    name: str
    user: str
    user_agent: str
    code: int
    at: datetime
    body: Any  # as sent: an object, a patch, or None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "Write":
        """From a line of the log."""
        ref = entry.get("objectRef", {})
        subresource = f"/{ref['subresource']}" if ref.get("subresource") else ""
        return cls(
            verb=entry["verb"],
            resource=ref.get("resource", "") + subresource,
            group=ref.get("apiGroup", ""),
            namespace=ref.get("namespace", ""),
            name=ref.get("name", ""),
            user=entry["user"]["username"],
            user_agent=entry.get("userAgent", ""),
            code=entry.get("responseStatus", {}).get("code", 0),
            at=datetime.fromisoformat(entry["requestReceivedTimestamp"]),
            body=entry.get("requestObject"),
        )


class AuditLog:
    """The log file of one API server."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> int:
        """The place in the log that is now its end; hand it to `since`."""
        return self._path.stat().st_size if self._path.exists() else 0

    def since(self, mark: int = 0, *, namespace: str | None = None, user: str | None = None) -> list[Write]:
        """Accepted writes after a mark, of one namespace or user where asked for."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(mark)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        found = [Write.of(json.loads(line)) for line in lines]
        return [
            write
            for write in found
            if write.code < 300 and namespace in {None, write.namespace} and user in {None, write.user}
        ]
