"""A trial of a pool's policy: its manifest and a trace in, what it would have done out. Pure.

Guarantees: what cannot be read is named with its place and the remedy; the sum in words is that of the outcome.
"""

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from math import ceil, isfinite
from typing import Any

from poolkeeper_operator.decide.signals import ScalingPolicy
from poolkeeper_operator.simulation.own import Own
from poolkeeper_operator.simulation.world import Outcome, World

LONGEST = 7 * 24 * 3600.0
"""Seconds of a trace."""
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 72


class TraceError(ValueError):
    """A trace that cannot be read, with the line and the remedy."""


def arrivals(lines: Iterable[str]) -> list[tuple[float, float]]:
    """Read a CSV with the columns `at` (seconds, or ISO 8601) and `seconds` (of service): (seconds from the first, service), sorted."""
    rows = csv.DictReader(lines)
    if not {"at", "seconds"} <= set(rows.fieldnames or ()):
        raise TraceError("line 1: give a CSV whose first line names the columns `at` and `seconds`")
    found = sorted((_moment(row["at"], rows.line_num), _service(row["seconds"], rows.line_num)) for row in rows)
    if not found:
        raise TraceError("line 2: there is no task; give a line for each")
    first = found[0][0]
    if found[-1][0] - first > LONGEST:
        raise TraceError("the trace is longer than a week; cut it")
    return [(at - first, service) for at, service in found]


def _moment(text: str | None, line: int) -> float:
    try:
        at = float(text or "")
    except ValueError:
        try:
            at = datetime.fromisoformat(text or "").timestamp()
        except ValueError:
            raise TraceError(
                f"line {line}: at is {(text or '')[:40]!a}; give seconds, or a moment as ISO 8601"
            ) from None
    if not isfinite(at):
        raise TraceError(f"line {line}: at is {text!a}; give a finite number of seconds")
    return at


def _service(text: str | None, line: int) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST:
        raise TraceError(
            f"line {line}: seconds is {(text or '')[:40]!a}; give how long the task runs, from 0 to 604800"
        )
    return seconds


def play(policy: ScalingPolicy, load: list[tuple[float, float]], start_up: float) -> tuple[Outcome, Own]:
    """Play a load until its last task could have ended and the pool could be at rest again."""
    own = Own(policy)
    rest = policy.to_zero_after.total_seconds() + policy.down.window.total_seconds()
    until = load[-1][0] + max(service for _, service in load) + start_up + rest
    return World(own, concurrency=policy.concurrency, start_up=start_up).run(load, until), own


def summary(policy: ScalingPolicy, outcome: Outcome) -> dict[str, Any]:
    """The outcome in figures."""
    target = policy.target_age.total_seconds()
    waits = sorted(outcome.waits)
    return {
        "tasks": len(waits) + outcome.left,
        "not_started": outcome.left,
        "late_share": round(outcome.late(target), 5),
        "wait_p50_seconds": round(_quantile(waits, 0.5), 1),
        "wait_p99_seconds": round(_quantile(waits, 0.99), 1),
        "most_pods": max(outcome.sizes, default=0),
        "pod_seconds": round(outcome.pod_seconds),
        "work_pod_seconds": round(outcome.busy_seconds / policy.concurrency),
        "changes": sum(a != b for a, b in pairwise([0, *outcome.sizes])),
        "turns": outcome.turns,
    }


def words(policy: ScalingPolicy, outcome: Outcome, own: Own, most: int = 20) -> Iterator[str]:
    """The outcome for people: figures, a plot of the size, and the first changes with their reasons."""
    told = summary(policy, outcome)
    yield (
        f"{told['tasks']} tasks, {told['late_share']:.2%} started later than targetAge {policy.target_age.total_seconds():g} s; "
        f"waits: p50 {told['wait_p50_seconds']:g} s, p99 {told['wait_p99_seconds']:g} s"
    )
    if outcome.left:
        yield f"{outcome.left} tasks had not started at the end: scaling.max or another bound is too low for this load"
    yield (
        f"at most {told['most_pods']} pods, {told['pod_seconds']} pod-seconds for work of {told['work_pod_seconds']}, "
        f"{told['changes']} changes, {told['turns']} of them of direction"
    )
    yield f"pods over time, up to {told['most_pods']}:  |{plot(outcome.sizes)}|"
    for at, pods, sentence in own.sentences[:most]:
        yield f"{at:9.0f} s  {pods:4d}  {sentence}"
    if len(own.sentences) > most:
        yield f"... and {len(own.sentences) - most} changes more; --output json has all"


def plot(sizes: list[int]) -> str:
    """A line of bars: the most of each stretch of time."""
    if not sizes:
        return ""
    length, most = ceil(len(sizes) / WIDTH), max(1, *sizes)
    stretches = [max(sizes[first : first + length]) for first in range(0, len(sizes), length)]
    return "".join(BARS[ceil(size * (len(BARS) - 1) / most)] for size in stretches)


def _quantile(waits: list[float], share: float) -> float:
    return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0
