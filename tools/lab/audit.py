"""The API server's own record of writes, read as values.

Guarantees that a write of which anybody can know is in what `since` returns: the server notes a request before it carries
it out, and again before it answers, so what was noted once and may have had its effect is waited for.
Reads and refused requests are not counted as writes.
"""

import json
import time
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


PATIENCE = 5.0
"""Seconds to wait for the second note of a request: then its server was ended, or nobody saw an effect of it yet."""


class AuditLog:
    """The log file of one API server."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._unanswered: set[str] = set()

    def mark(self) -> int:
        """The place in the log that is now its end; hand it to `since`."""
        return self._path.stat().st_size if self._path.exists() else 0

    def since(self, mark: int = 0, *, namespace: str | None = None, user: str | None = None) -> list[Write]:
        """Accepted writes after a mark, of one namespace or user where asked for."""
        self._wait()
        found = [Write.of(entry) for entry in self._entries(mark) if entry["stage"] == "ResponseComplete"]
        return [
            write
            for write in found
            if write.code < 300 and namespace in {None, write.namespace} and user in {None, write.user}
        ]

    def _wait(self) -> None:
        """Until every request that the log knows now is answered."""
        self._catch_up()
        asked, until = set(self._unanswered), time.monotonic() + PATIENCE
        while asked & self._unanswered and time.monotonic() < until:
            time.sleep(0.01)
            self._catch_up()
        self._unanswered -= asked

    def _catch_up(self) -> None:
        lines = self._lines(self._read)
        self._read += sum(map(len, lines))
        for entry in map(json.loads, lines):
            if entry["stage"] == "RequestReceived":
                self._unanswered.add(entry["auditID"])
            else:
                self._unanswered.discard(entry["auditID"])

    def _entries(self, mark: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines(mark)]

    def _lines(self, mark: int) -> list[bytes]:
        """Whole lines from a place on."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(mark)
            content = file.read()
        return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
