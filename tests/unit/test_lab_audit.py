"""The audit log as values: accepted writes only, whole lines only."""

import json
from pathlib import Path
from typing import Any

from lab.audit import AuditLog


def line(name: str, code: int = 200, **ref: str) -> str:
    entry: dict[str, Any] = {
        "verb": "patch",
        "user": {"username": "u"},
        "objectRef": {"resource": "deployments", "apiGroup": "apps", "namespace": "n", "name": name, **ref},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z",
    }
    return json.dumps(entry) + "\n"


def test_only_accepted_writes_after_the_mark_are_returned(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    assert (log.mark(), log.since()) == (0, [])
    (tmp_path / "audit.log").write_text(line("before"))
    mark = log.mark()
    with (tmp_path / "audit.log").open("a") as file:
        file.write(
            line("a", subresource="scale")
            + line("refused", code=409)
            + line("other", namespace="m")
            + line("half")[:30]
        )
    assert [(write.name, write.resource) for write in log.since(mark, namespace="n")] == [("a", "deployments/scale")]
    assert [write.name for write in log.since(mark)] == ["a", "other"]
    assert log.since(mark, user="somebody") == []
    assert log.since()[0].at.isoformat() == "2026-01-02T03:04:05.678901+00:00"
