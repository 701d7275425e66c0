"""F26: a pool's size under real and made loads, in simulation: the operator's decision beside KEDA with an HPA.

The product's own code decides, at its defaults (target age 30 s, tick 5 s), with pods of four slots that start in 10 to 25 seconds, by a seed. Each
load is also played with every setting of KEDA that is tried; the cheapest of those that are late for at most 2 % is the one to beat. The
reference is what somebody would spend who knows all tasks beforehand (clairvoyant.py); the work is the busy seconds of all slots, divided by the slots of a pod.
"""

import csv
import math
import random
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks import clairvoyant
from benchmarks.figures import Figure
from benchmarks.rivals import Keda, settings
from poolkeeper_operator.decide.signals import ScalingPolicy
from poolkeeper_operator.simulation.own import Own
from poolkeeper_operator.simulation.world import Outcome, Scaler, World

TRACE = Path(__file__).parent / "traces" / "azure-llm-code.csv"
CONCURRENCY, MAXIMUM, TARGET = 4, 400, 30.0
START_UP = (10.0, 25.0)
HOUR = 3600.0
SEED = 26
Load = list[tuple[float, float]]


def trace(k: int) -> Load:
    """An hour of requests to a model, `k` seconds each on average, times a lognormal of 0.5."""
    draw = random.Random(SEED)  # noqa: S311 - the same each time
    with TRACE.open() as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        (
            (at - times[0]).total_seconds(),
            k * (int(row["ContextTokens"]) / 8000 + int(row["GeneratedTokens"]) / 40) * draw.lognormvariate(0, 0.5),
        )
        for at, row in zip(times, rows, strict=True)
    ]


def poisson(rate: Callable[[float], float], service: Callable[[random.Random], float], most: float) -> Load:
    """An hour of arrivals at a rate that changes and is at most `most` a second."""
    draw, at, made = random.Random(SEED), 0.0, []  # noqa: S311 - the same each time
    while (at := at + draw.expovariate(most)) < HOUR:
        if draw.random() < rate(at) / most:
            made.append((at, service(draw)))
    return made


def loads() -> dict[str, Load]:
    """All loads; `steady` and `bursty` ones have bounds of their own."""

    def exponential(mean: float) -> Callable[[random.Random], float]:
        return lambda draw: draw.expovariate(1 / mean)

    return {
        **{f"trace, k = {k}": trace(k) for k in (1, 10, 60)},
        "steady": poisson(lambda _: 2.0, exponential(20), 2),
        "steady, slow": poisson(lambda _: 0.5, exponential(90), 1),
        "step": poisson(lambda t: 0.5 if t < HOUR / 3 else 4.0, exponential(15), 4),
        "ramp": poisson(lambda t: 4 * t / HOUR, exponential(15), 4),
        "bursts": poisson(lambda t: 6.0 if t % 600 < 60 else 0.1, exponential(15), 6),
        "diurnal": poisson(lambda t: 2 + 1.9 * math.sin(2 * math.pi * t / HOUR), exponential(15), 4),
        "heavy tail": poisson(lambda _: 1.0, lambda draw: min(1200.0, 4 * draw.paretovariate(1.2)), 1),
    }


def play(scaler: Scaler, load: Load) -> Outcome:
    """One run of a load, and until what is left has drained."""
    draw = random.Random(SEED)  # noqa: S311 - the same each time
    return World(
        scaler, concurrency=CONCURRENCY, start_up=sum(START_UP) / 2, takes=lambda: draw.uniform(*START_UP)
    ).run(load, HOUR, overtime=HOUR / 6)


def own() -> Own:
    """The operator at its defaults."""
    return Own(ScalingPolicy(maximum=MAXIMUM, concurrency=CONCURRENCY, target_age=timedelta(seconds=TARGET)))


def figures(*, quick: bool) -> list[Figure]:
    """F26 for each load."""
    found: list[Figure] = []
    for name, load in loads().items():
        ours = play(own(), load)
        rivals = settings(MAXIMUM, CONCURRENCY)[:: 5 if quick else 1]
        played = [(rival, play(rival, load)) for rival in rivals]
        good = [(rival, outcome) for rival, outcome in played if outcome.late(TARGET) <= 0.02]
        best: tuple[Keda, Outcome] | None = min(good, key=lambda each: each[1].pod_seconds, default=None)
        work = ours.busy_seconds / CONCURRENCY
        late, cost = ours.late(TARGET), ours.pod_seconds / work
        least = clairvoyant.pod_seconds(
            load, concurrency=CONCURRENCY, start_up=sum(START_UP) / 2, target=TARGET, until=HOUR
        )
        print(
            f"  F26 {name}: late {late:.2%}, {cost:.2f} x the work, {ours.turns} turns, {ours.killed_busy} killed busy; clairvoyant {least / work:.2f} x; "
            + ("no setting of KEDA is late for 2 % or less" if best is None else
               f"KEDA ({best[0].name}): late {best[1].late(TARGET):.2%}, {best[1].pod_seconds / work:.2f} x, {best[1].turns} turns, {best[1].killed_busy} killed busy"),
            file=sys.stderr, flush=True,
        )  # fmt: skip
        found.append(Figure("F26", "<= 0.1 % late", "", f"{late:.2%}", name, late <= 0.001))
        if best is not None:
            ratio = ours.pod_seconds / best[1].pod_seconds
            got = f"{ratio:.2f} x ({ours.pod_seconds:,.0f} pod-seconds)"
            found.append(Figure("F26", "<= 0.9 x KEDA + HPA", "", got, f"{name}; beside {best[0].name}", ratio <= 0.9))
            found.append(
                Figure(
                    "F26",
                    "<= turns of the HPA + 20",
                    "",
                    f"{ours.turns}, {best[1].turns}",
                    name,
                    ours.turns <= best[1].turns + 20,
                )
            )
        bound = 1.15 if name.startswith("steady") else 2.0
        ratio = ours.pod_seconds / least
        found.append(Figure("F26", f"<= {bound:g} x clairvoyant", "", f"{ratio:.2f} x", name, ratio <= bound))
    return found
