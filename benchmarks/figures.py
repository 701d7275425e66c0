"""One figure as a value, the table and the JSON that a run leaves behind.

A figure is a ratio measured in one run beside a peer or the floor, or a bound. `ok` is against `work` (what must be
reached); `reach` is what we aim at. Nothing here measures.
"""

import json
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """What was got, what must be, what we aim at."""

    id: str
    work: str
    reach: str
    got: str
    unit: str
    ok: bool
    detail: dict[str, Any] = field(default_factory=dict)


def spread(samples: list[float]) -> dict[str, Any]:
    """Median with the extremes, rounded to what the noise allows."""
    return {
        "median": round(median(samples), 1),
        "least": round(min(samples), 1),
        "most": round(max(samples), 1),
        "rounds": len(samples),
    }


def write(name: str, figures: list[Figure]) -> Path:
    """Write the figures with versions, machine, commit and command."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"figures": [asdict(f) for f in figures], "about": _about()}, indent=2) + "\n")
    return path


def show(figures: list[Figure]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("id", "what", "got", "must", "reach", "ok", title="figures of this run")
    for f in figures:
        table.add_row(f.id, f.unit, f.got, f.work, f.reach, "yes" if f.ok else "NO")
    Console(width=150).print(table)


def _about() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions: dict[str, str | None] = {}
    for package in ("poolkeeper", "psycopg", "pgqueuer", "asyncpg", "uvloop"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "command": f"python -m benchmarks {' '.join(sys.argv[1:])}".strip(),
        "machine": f"{platform.machine()}, {_cores()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))
