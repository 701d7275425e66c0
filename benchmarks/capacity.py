"""What one Postgres carries, and where that ends: rates as functions of workers, backlog and tenants, and what tasks take on disk.

`python -m benchmarks.capacity` measures (half an hour, four minutes with --quick), writes benchmarks/results/capacity.json, and the
generated part and the plots of docs/capacity.md.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.drain import wait_for
from benchmarks.figures import RESULTS, about
from benchmarks.flatness import steps
from benchmarks.footprint import idle
from benchmarks.page import BEGIN, DOCS, END, PLOTS
from benchmarks.rig import BULK, Rig, fill, install, worker
from lab.postgres import Server
from poolkeeper.store import calls, connect, run

PAGE = DOCS / "capacity.md"
COUNT = 20_000


@dataclass(frozen=True)
class Curve:
    """One quantity as a function of another; `points` are pairs."""

    name: str
    of: str
    unit: str
    points: list[tuple[int, float]]


def drained(rig: Rig, processes: int, *, count: int) -> float:
    """Tasks per second of so many worker processes, from the first claim to the last settle."""
    with rig.database() as dsn, ExitStack() as stack:
        install(dsn)
        fill(dsn, count)
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        for _ in range(processes):
            stack.enter_context(worker(dsn))
        ended = "SELECT count(*), extract(epoch FROM max(ended_at) - min(claimed_at)) FROM poolkeeper.delivery WHERE outcome = 'succeeded'"
        wait_for(lambda: _row(conn, ended)[0] == count)
        return count / _row(conn, ended)[1]


def claimed(rig: Rig, waiting: int) -> float:
    """Tasks per second that one connection claims and settles in turns of 100, so many others behind them."""
    with rig.database() as dsn:
        install(dsn)
        fill(dsn, waiting)
        fill(dsn, COUNT)
        with connect(dsn) as conn:
            conn.execute("VACUUM (ANALYZE)")
            return steps(conn, COUNT, 100)


def dealt(rig: Rig, tenants: int) -> float:
    """The same, the tasks spread evenly over so many tenants, in their turn."""
    with rig.database() as dsn:
        install(dsn)
        with connect(dsn) as conn:
            for first in range(0, COUNT, BULK):
                tasks = [
                    {"type": "bench.noop", "payload": {"n": n}, "tenant": f"tenant-{n % tenants}"}
                    for n in range(first, first + BULK)
                ]
                run(conn, calls.submit_many("bench", tasks, notify=False))
            conn.execute("VACUUM (ANALYZE)")
            return steps(conn, COUNT, 100)


def sizes(rig: Rig) -> dict[str, float]:
    """Bytes that a task takes, indexes included, while it waits and once it has ended; its payload is of a few bytes."""
    total = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'poolkeeper' AND c.relkind = 'r'"
    with rig.database() as dsn:
        install(dsn)
        with connect(dsn) as conn:
            empty = float(_row(conn, total)[0])
            fill(dsn, COUNT)
            full = float(_row(conn, total)[0])
            steps(conn, COUNT, 100)
            conn.execute("VACUUM FULL")
            ended = float(_row(conn, total)[0])
    return {"waiting": (full - empty) / COUNT, "ended": (ended - empty) / COUNT}


def _row(conn: psycopg.Connection, query: str) -> tuple[float, ...]:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return tuple(float(each or 0) for each in row)


def _curve(name: str, of: str, unit: str, values: Sequence[int], measure: Callable[[int], float]) -> Curve:
    points = []
    for value in values:
        points.append((value, round(measure(value), 2)))
        print(f"  {name}, {value:,} {of}: {points[-1][1]:,} {unit}", flush=True)
    return Curve(name, of, unit, points)


def measured(*, quick: bool) -> tuple[list[Curve], dict[str, float]]:
    """All of it, on a server of our own."""
    with Server(fsync=True) as server:
        rig = Rig(server)
        print(f"server: {server.binaries}, fsync and synchronous_commit on", flush=True)
        processes = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16, 32, 64)
        backlogs = (0, 10_000, 100_000) if quick else (0, 10_000, 100_000, 1_000_000, 5_000_000)
        tenants = (1, 10, 100, 1_000, 10_000)
        idlers = (1, 8) if quick else (1, 8, 32)
        curves = [
            _curve(
                "throughput", "worker processes", "tasks/s", processes,
                lambda n: drained(rig, n, count=COUNT if quick else 100_000),
            ),
            _curve("claiming beside a backlog", "waiting tasks", "tasks/s", backlogs, partial(claimed, rig)),
            _curve("claiming for tenants", "tenants with work", "tasks/s", tenants, partial(dealt, rig)),
            _curve("asking while nothing comes", "idle worker processes", "statements/s", idlers, lambda n: idle(rig, n, 30)[0]),
        ]  # fmt: skip
        return curves, sizes(rig)


def plot(curve: Curve) -> Path:
    """One line."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "poolkeeper"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
    places = range(len(curve.points))
    axes.plot(list(places), [got for _, got in curve.points], marker="o", color="#1f6feb")
    axes.set_xticks(list(places), [f"{value:,}" for value, _ in curve.points])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.of, fontsize=8)
    axes.set_ylabel(curve.unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    path = PLOTS / f"capacity-{'-'.join(curve.name.split())}.svg"
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def page(result: dict[str, Any], curves: list[Curve], taken: dict[str, float]) -> str:
    """The generated part of the page."""
    lines = [f"`{result['command']}`, commit {result['commit'][:10]}, {result['at'][:10]}, {result['machine']}, Python {result['python']}.", ""]  # fmt: skip
    for curve in curves:
        lines += [f"### {curve.name.capitalize()}", "", f"| {curve.of} | {curve.unit} |", "| ---: | ---: |"]
        lines += [f"| {value:,} | {got:,} |" for value, got in curve.points]
        lines += ["", f"![{curve.name}](plots/{plot(curve).name})", ""]
    told = (
        f"A waiting task with a payload of some bytes takes {taken['waiting']:,.0f} bytes, indexes included; one that has ended "
        f"{taken['ended']:,.0f} bytes until retention removes it. Payloads and results come on top."
    )
    lines += ["### Disk", "", told]
    return "\n".join(lines)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the tasks, smaller steps")
    curves, taken = measured(quick=parser.parse_args().quick)
    result = about("python -m benchmarks.capacity")
    content = {"curves": [asdict(curve) for curve in curves], "bytes": taken, "about": result}
    (RESULTS / "capacity.json").write_text(json.dumps(content, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{page(result, curves, taken)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
