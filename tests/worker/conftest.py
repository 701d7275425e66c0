"""Workers as processes of their own on a database of the test's own; what their handlers say; conditions to wait for."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fixtures.postgres import Database
from poolkeeper import Client, PoolkeeperError
from poolkeeper.policy import QueuePolicy
from poolkeeper.store import calls, connect, run

HERE = Path(__file__).parent
LEASE = 2.0
"""Seconds: short, yet long enough for a machine that is busy with something else."""


def eventually(condition: Callable[[], Any], what: str, timeout: float = 40.0) -> Any:
    """Wait until the condition holds and return its value; the time-out is a liveness bound, not a measurement."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {timeout} s: {what}"
        time.sleep(0.02)
    return value


@dataclass
class Worker:
    """One worker process."""

    process: "subprocess.Popen[bytes]"
    log_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def address(self) -> str:
        """Where it answers over HTTP, once it does."""
        line = eventually(lambda: next((x for x in self.log.splitlines() if "listening:" in x), ""), "the worker listens")
        return line.partition("http://")[2].partition("/")[0]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address()}{path}", timeout=10) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> "Worker":
        eventually(lambda: self.process.poll() is not None or self.get("/readyz")[0] == 200, "the worker is ready")
        assert self.process.poll() is None, self.log
        return self

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 40.0) -> int:
        return self.process.wait(timeout)


@dataclass
class Stage:
    """One database, its queue, the workers on it and what their handlers said."""

    dsn: str
    folder: Path
    workers: list[Worker] = field(default_factory=list)
    _conn: "psycopg.Connection[Any] | None" = None

    @property
    def notes_file(self) -> Path:
        return self.folder / "notes"

    def apply(self, queue: str = "default/q", **policy: Any) -> None:
        settings = {"visibility_timeout": f"{int(LEASE * 1000)}ms", "backoff": {"initial": "10ms", "max": "100ms"}, **policy}
        namespace, name = queue.split("/")
        with connect(self.dsn) as conn:
            spec = QueuePolicy.model_validate(settings).to_store()
            assert run(conn, calls.apply_policy("local", namespace, namespace, name, spec, who="test")).code is None

    def submit(self, type_: str, payload: Any = None, queue: str = "default/q", **wishes: Any) -> UUID:
        with Client(dsn=self.dsn) as client:
            task_id = client.submit(queue, type_, payload, **wishes).task_id
        assert task_id is not None
        return task_id

    def submit_many(self, type_: str, payloads: list[Any], queue: str = "default/q") -> list[UUID]:
        with Client(dsn=self.dsn) as client:
            verdicts = client.submit_many(queue, [{"type": type_, "payload": each} for each in payloads])
        return [each.task_id for each in verdicts if each.task_id is not None]

    def worker(self, *, queues: str = "default/q", concurrency: int = 4, **env: str) -> Worker:
        number = len(self.workers)
        log_file = self.folder / f"worker{number}.log"
        given = {name: value for name, value in os.environ.items() if not name.startswith("POOLKEEPER_")}
        given |= {
            "POOLKEEPER_DSN": self.dsn,
            "POOLKEEPER_QUEUES": queues,
            "POOLKEEPER_CONCURRENCY": str(concurrency),
            "POOLKEEPER_HTTP_ADDR": "127.0.0.1:0",
            "POOLKEEPER_POOL": "default/pool",
            "POOLKEEPER_LOG_FORMAT": "text",
            "TEST_NOTES": str(self.notes_file),
            **env,
        }
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "poolkeeper", "worker", "app_under_test:app"], cwd=HERE, env=given, stdout=log, stderr=log
            )
        worker = Worker(process, log_file)
        self.workers.append(worker)
        return worker

    def notes(self, what: str | None = None, task: UUID | None = None) -> list[dict[str, Any]]:
        if not self.notes_file.exists():
            return []
        lines = [json.loads(line) for line in self.notes_file.read_text().splitlines()]
        return [x for x in lines if what in {None, x["what"]} and (task is None or x["task"] == str(task))]

    def note(self, what: str, task: UUID | None = None, count: int = 1) -> dict[str, Any]:
        """Wait until a handler has said `what` for the `count`-th time and return that note."""
        found = eventually(lambda: self.notes(what, task)[count - 1 :], f'a handler says "{what}" {count} times')
        return found[0]

    def release(self, name: str) -> None:
        (self.folder / name).touch()

    def view(self, task: UUID) -> Any:
        if self._conn is None or self._conn.closed:
            self._conn = connect(self.dsn)
        try:
            return run(self._conn, calls.task(task))
        except PoolkeeperError:  # the test restarted the server: once more, on a new connection
            self._conn = None
            with connect(self.dsn) as conn:
                return run(conn, calls.task(task))

    def ends(self, task: UUID, state: str = "succeeded") -> Any:
        """Wait until a task has ended, in the state that is expected, and return it."""
        final = {"succeeded", "failed", "canceled", "dead"}
        view = eventually(lambda: (seen := self.view(task)).state in final and seen, f"task {task} ends")
        assert view.state == state, view
        return view

    def deliveries(self, task: UUID) -> list[str]:
        """How the deliveries of a task ended, in order."""
        with connect(self.dsn) as conn:
            return [row.outcome for row in run(conn, calls.timeline(task)) if row.outcome is not None]

    def states(self) -> dict[str, int]:
        with psycopg.connect(self.dsn) as conn:
            return dict(conn.execute("SELECT state, count(*) FROM poolkeeper.tasks GROUP BY state").fetchall())

    def close(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.signal(signal.SIGCONT)
            worker.process.kill()
            worker.process.wait()
        if self._conn is not None:
            self._conn.close()


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Iterator[Stage]:
    """An empty stage with one queue, default/q, whose leases last LEASE seconds."""
    made = Stage(database.dsn, tmp_path)
    made.apply()
    yield made
    made.close()
