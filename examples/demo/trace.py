"""The real arrivals that the demo replays: one task per row of trace.csv. Pure but for reading that file.

Guarantees that everybody who asks gets the same tasks with the same keys: the story submits them, `verify` looks for them.
"""

import csv
import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("trace.csv")
COMPRESSION = 2.0  # times faster than it was, arrivals and service alike
SHARES = (0.25, 0.5, 0.25)  # of a task's service time per step
SEED = 2023


@dataclass(frozen=True)
class Arrival:
    """One task: when it comes (seconds from the start), under which key, and what it asks for."""

    at: float
    key: str
    payload: dict[str, Any]


def arrivals(lines: list[str] | None = None, compression: float = COMPRESSION) -> list[Arrival]:
    """The tasks in the order of their coming."""
    lines = FILE.read_text().splitlines() if lines is None else lines
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    began = moment(rows[0]["TIMESTAMP"])
    noise = random.Random(SEED)
    found = []
    for number, row in enumerate(rows):
        prompt, generated = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        seconds = service(prompt, generated) * noise.lognormvariate(0, 0.5) / compression
        payload = {
            "prompt_tokens": prompt,
            "generated_tokens": generated,
            "seconds": [round(seconds * share, 3) for share in SHARES],
        }
        at = (moment(row["TIMESTAMP"]) - began).total_seconds() / compression
        found.append(Arrival(at, f"row-{number:04}", payload))
    return found


def service(prompt: int, generated: int, k: float = 1.0) -> float:
    """Seconds that a model needs for a request of so many tokens; about one on average with k = 1."""
    return k * (prompt / 8000 + generated / 40)


def moment(text: str) -> datetime:
    """A time stamp of the trace, which has seven digits after the second."""
    return datetime.fromisoformat(text[:26])
