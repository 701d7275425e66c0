"""F4 and F11: what a worker costs when it does nothing, and what a task costs when the handler does nothing.

Statements are counted by the server (pg_stat_statements where it is there, else transactions), processor time and memory by the kernel, of workers as users run them.
"""

import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

from benchmarks.drain import wait_for
from benchmarks.figures import Figure
from benchmarks.rig import Rig, fill, install, worker

SETTLE_IN = 15.0  # seconds until an idle worker asks as seldom as it will


def processor(pid: int) -> float:
    """Seconds of processor time of a process, as its scheduler counts them: ticks would blame whoever wakes with the clock."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def memory(pid: int) -> float:
    """Resident memory in MiB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _number(conn: psycopg.Connection, query: str) -> int:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def _commits(conn: psycopg.Connection) -> int:
    """Transactions of the others in this database; each statement of a worker is one."""
    conn.execute("SELECT pg_stat_clear_snapshot()")
    return _number(conn, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")


def idle(rig: Rig, processes: int, seconds: float) -> tuple[float, float, float]:
    """Statements a second of all of them, processor time a second of each, and memory of one in MiB."""
    with rig.database() as dsn, ExitStack() as stack:
        install(dsn)
        workers = [stack.enter_context(worker(dsn)) for _ in range(processes)]
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        wait_for(lambda: _number(conn, "SELECT count(*) FROM poolkeeper.session") == processes)
        time.sleep(SETTLE_IN)
        before, spent, began = _commits(conn), sum(processor(each.pid) for each in workers), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        ours = 2  # clearing the snapshot and looking, of this connection
        return (
            (_commits(conn) - before - ours) / took,
            (sum(processor(each.pid) for each in workers) - spent) / took / processes,
            memory(workers[0].pid),
        )


def start(rig: Rig) -> tuple[float, int]:
    """Seconds from the start of the process to its first claim, and how many connections it has then."""
    with rig.database() as dsn:
        install(dsn)
        fill(dsn, 1)
        began = time.time()
        with worker(dsn), psycopg.connect(dsn, autocommit=True) as conn:
            wait_for(lambda: _number(conn, "SELECT count(*) FROM poolkeeper.delivery") == 1)
            row = conn.execute("SELECT extract(epoch FROM claimed_at)::float8 FROM poolkeeper.delivery").fetchone()
            assert row is not None
            time.sleep(3)
            mine = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return row[0] - began, _number(conn, mine)


def per_task(rig: Rig, count: int) -> float:
    """Microseconds of the worker's processor time for a task."""
    with rig.database() as dsn:
        install(dsn)
        with worker(dsn) as process, psycopg.connect(dsn, autocommit=True) as conn:
            wait_for(lambda: _number(conn, "SELECT count(*) FROM poolkeeper.session") == 1)
            time.sleep(1)
            before = processor(process.pid)
            fill(dsn, count)
            wait_for(lambda: _number(conn, "SELECT count(*) FROM poolkeeper.delivery") == count)
            return (processor(process.pid) - before) / count * 1e6


def figures(rig: Rig, ids: set[str], *, quick: bool) -> list[Figure]:
    """F4 and F11, as asked."""
    found: list[Figure] = []
    seconds = 30.0 if quick else 120.0
    megabytes = 0.0
    for processes, must in ((1, 0.5), (8, 2.0)):
        if "F4" not in ids and processes > 1:
            break
        statements, share, megabytes = idle(rig, processes, seconds)
        if "F4" in ids:
            unit = f"idle for {seconds:g} s, {processes} process{'es' * (processes > 1)}"
            found.append(Figure("F4", f"<= {must:g} statements/s", "", f"{statements:.2f}/s", unit, statements <= must))
            found.append(Figure("F4", "<= 0.5 % of a core each", "", f"{share * 100:.2f} %", unit, share <= 0.005))
    if "F11" in ids:
        cost = per_task(rig, 20_000 if quick else 100_000)
        soon, connections = start(rig)
        for must, reach, got, text, unit in (
            (80, 40, cost, f"{cost:.0f} µs", "worker: processor time for a no-op task"),
            (90, 60, megabytes, f"{megabytes:.0f} MiB", "worker: memory when idle"),
            (1.5, 0.7, soon, f"{soon:.2f} s", "worker: start to first claim"),
            (3, 2, connections, str(connections), "worker: connections"),
        ):
            of = text.split(" ")[-1] if " " in text else ""
            found.append(Figure("F11", f"<= {must:g} {of}".strip(), f"<= {reach:g}", text, unit, got <= must))
    return found
