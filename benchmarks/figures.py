"""One figure as a value, the table and the JSON that a run leaves behind.

A figure is a ratio measured in one run beside a peer or the floor, or a bound. `ok` is against `work` (what must be
reached); `reach` is what we aim at. Nothing here measures.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import Peer

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


def spread(samples: list[float], digits: int = 1) -> dict[str, Any]:
    """Median with the extremes, rounded to what the noise allows."""
    return {
        "median": round(median(samples), digits),
        "least": round(min(samples), digits),
        "most": round(max(samples), digits),
        "rounds": len(samples),
    }


def beside(
    rate: dict[str, float],
    name: str,
    unit: str,
    bounds: Mapping[str, tuple[float | None, float | None]],
    detail: dict[str, Any],
) -> list[Figure]:
    """Ours as a multiple of each other side of the same run; `bounds`: must and reach, for a side that judges us. Others are told."""
    found = []
    for other, theirs in rate.items():
        if other == "poolkeeper":
            continue
        must, reach = bounds.get(other, (None, None))
        ratio = rate["poolkeeper"] / theirs
        got = f"{ratio:.2f} x ({rate['poolkeeper']:,.0f}/s, {theirs:,.0f}/s)"
        work = f"beside {other}" if must is None else f">= {must:g} x {other}"
        aim = "" if reach is None else f">= {reach:g} x"
        found.append(Figure(name, work, aim, got, unit, must is None or ratio >= must, detail))
    return found


def write(name: str, figures: list[Figure], peers: Sequence[Peer] = ()) -> Path:
    """Write the figures with versions, settings of the peers, machine, commit and command."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(
        json.dumps(
            {
                "figures": [asdict(f) for f in figures],
                "about": {**about("python -m benchmarks"), "peers": {peer.name: peer.about for peer in peers}},
            },
            indent=2,
        )
        + "\n"
    )
    return path


def show(figures: list[Figure]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("id", "what", "got", "must", "reach", "ok", title="figures of this run")
    for f in figures:
        table.add_row(f.id, f.unit, f.got, f.work, f.reach, "yes" if f.ok else "NO")
    Console(width=150).print(table)


def about(program: str) -> dict[str, Any]:
    """When, of what and on what a run was made."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions: dict[str, str | None] = {}
    for package in ("poolkeeper", "psycopg", "asyncpg", "uvloop"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "command": f"{program} {' '.join(sys.argv[1:])}".strip(),
        "machine": f"{platform.machine()}, {_cores()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))
