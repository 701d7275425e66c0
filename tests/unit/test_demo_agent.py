"""The example agent and its model, without a database: a real HTTP server, the handler in this process."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.agent import my_agent
from examples.demo import model, verify

from poolkeeper.testing import run_task

QUESTION = {"prompt_tokens": 10, "generated_tokens": 5, "seconds": [0.01, 0.01, 0.01]}


class Served:
    """A model server of this test's own, and what it wrote down."""

    def __init__(self, log: Path, per_second: int = 1000) -> None:
        self._log = log
        self.server = model.Server(("127.0.0.1", 0), model.Log(log), per_second)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def await_entry(self, what: str) -> dict[str, Any]:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for entry in self.entries():
                if entry["what"] == what:
                    return entry
            time.sleep(0.01)
        raise AssertionError(f"no entry {what!r}: {self.entries()}")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(model, "BUSY", 0.0)
    made = Served(tmp_path / "model.log")
    monkeypatch.setenv("MODEL_URL", made.url)
    with made.server as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def test_each_step_is_called_once_and_saved(served: Served) -> None:
    done = run_task(my_agent.app, "agent.answer", QUESTION)
    assert done.outcome == "succeeded"
    assert [len(saved) for saved in done.checkpoints] == [1, 2, 3]
    assert [entry["step"] for entry in served.entries() if entry["what"] == "began"] == list(my_agent.STEPS)


def test_finished_steps_are_not_called_again(served: Served) -> None:
    """A delivery that begins with two answers makes the third call only."""
    done = run_task(my_agent.app, "agent.answer", QUESTION, checkpoint=["one", "two"], delivery=2)
    assert done.outcome == "succeeded"
    assert done.result["answers"][:2] == ["one", "two"]
    assert [entry["step"] for entry in served.entries() if entry["what"] == "began"] == ["check"]


def test_a_busy_model_puts_the_task_off_for_as_long_as_it_says(served: Served) -> None:
    served.server._rate = model.Rate(0)
    done = run_task(my_agent.app, "agent.answer", QUESTION)
    assert (done.outcome, done.error_class, done.retry_after) == ("failed", "RetryAfter", model.RETRY_AFTER)
    assert [entry["what"] for entry in served.entries()] == ["refused"]
    assert run_task(my_agent.app, "agent.answer", {**QUESTION, "seconds": [0, 0, 0]}).outcome == "failed"


def test_who_was_refused_is_let_in_when_it_comes_back() -> None:
    """So that no task can be refused more than once per step, and none dies of a busy model."""
    rate = model.Rate(1)
    assert rate.admits(("a", "plan"), 0.0)
    assert not rate.admits(("b", "plan"), 0.5)
    assert rate.admits(("b", "plan"), 0.6)
    assert not rate.admits(("c", "plan"), 1.2)
    assert rate.admits(("d", "plan"), 1.7)


def test_a_call_whose_caller_goes_away_ends_in_that_moment(served: Served) -> None:
    """Its connection is closed by the kernel when the caller's process is killed."""
    body = json.dumps({"task": "a", "step": "plan", "seconds": 600}).encode()
    with socket.create_connection(("127.0.0.1", served.server.server_address[1])) as caller:
        caller.sendall(b"POST / HTTP/1.1\r\nHost: model\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        served.await_entry("began")
    assert served.await_entry("cut off")["call"] == 1


def test_what_it_is_tells_a_person(served: Served) -> None:
    with urllib.request.urlopen(served.url) as answer:  # noqa: S310
        assert "POST" in json.load(answer)["calls"]


def test_the_verdict_knows_the_agents_steps() -> None:
    assert verify.STEPS == my_agent.STEPS
