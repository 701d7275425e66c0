"""The audit log as values: accepted writes only, whole lines only."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from lab.audit import AuditLog


def line(name: str, code: int = 200, stage: str = "ResponseComplete", **ref: str) -> str:
    entry: dict[str, Any] = {
        "stage": stage,
        "auditID": name,
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


def test_what_was_received_and_may_be_seen_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write is in effect before its answer is noted: who has seen the effect finds it all the same."""
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    path.write_text(line("begun", stage="RequestReceived"))
    mark = log.mark()

    def answer() -> None:
        with path.open("a") as file:
            file.write(line("begun"))

    answering = threading.Timer(0.3, answer)
    answering.start()
    assert [write.name for write in log.since(mark)] == ["begun"]
    answering.join()
    monkeypatch.setattr("lab.audit.PATIENCE", 0.1)
    with path.open("a") as file:
        file.write(line("never", stage="RequestReceived") + line("streams", stage="ResponseStarted"))
    assert [write.name for write in log.since(mark)] == ["begun"]
