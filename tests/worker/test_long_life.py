"""Q49: a worker that has run a million tasks is as large as one that has run a tenth of them, and holds as many descriptors open."""

import os
from pathlib import Path

import pytest

from fixtures.workers import Stage, Worker, eventually
from poolkeeper.store import calls

TASKS = int(os.environ.get("POOLKEEPER_LONG_TASKS", "1000000"))
GROWTH = 5 * 1024 * 1024
PAGE = 10_000


def resident(worker: Worker) -> int:
    """Bytes of memory that the process has."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def descriptors(worker: Worker) -> int:
    """How many files and sockets it has open."""
    return len(list(Path(f"/proc/{worker.pid}/fd").iterdir()))


def waiting(stage: Stage) -> int:
    """How many have not ended."""
    return sum(queue.ready + queue.running + queue.leased for queue in stage.ask(calls.stats(cluster=None)).queues)


def run(stage: Stage, count: int) -> None:
    """Have so many tasks run, in pages, and wait until they are."""
    for first in range(0, count, PAGE):
        stage.submit_many("t.noop", list(range(first, min(first + PAGE, count))))
        eventually(lambda: waiting(stage) < 2 * PAGE, "the worker keeps up", 300)
    eventually(lambda: waiting(stage) == 0, "all have run", 300)


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_a_million_tasks_cost_no_memory_and_no_descriptor(stage: Stage) -> None:
    """Measured when idle, after a tenth and after all; prints both."""
    worker = stage.worker(concurrency=20).ready()
    run(stage, TASKS // 10)
    before, open_before = resident(worker), descriptors(worker)
    run(stage, TASKS - TASKS // 10)
    after, open_after = resident(worker), descriptors(worker)
    mib = 1024 * 1024
    told = f"{before / mib:.1f} MiB and {open_before} descriptors after a tenth, {after / mib:.1f} MiB and {open_after} after {TASKS}"
    print(told)  # noqa: T201 - a deep run says what it measured
    assert after <= before + GROWTH
    assert open_after == open_before
