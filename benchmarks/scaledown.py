"""F25: scale-downs of pools that are half busy, the busy pods the newest: 10,000 in simulation, 200 on the real controller manager.

In simulation the operator's choice meets the order that the controller documents; for real the API server's own log says whom the
controller deleted, and the store how often each task was delivered. Workers are played: their sessions claim while pods go.
"""

import sys
import time

from benchmarks.figures import Figure
from benchmarks.ground import ground
from fixtures.shrinking import SIZE, shrink
from poolkeeper_operator.simulation.leaving import scale_down

POOLS = ("one", "two", "three", "four")
MUST = "0 busy killed beside an idle one, 0 run again"


def figures(*, quick: bool) -> list[Figure]:
    """F25, both halves."""
    return [_simulated(1_000 if quick else 10_000), _real(2 if quick else 50)]


def _simulated(count: int) -> Figure:
    courses = [scale_down(seed) for seed in range(count)]
    killed = sum(len(course.killed_busy) for course in courses)
    gone, reached = sum(len(course.gone) for course in courses), sum(course.reached for course in courses)
    careless = sum(bool(scale_down(seed, careless=True).killed_busy) for seed in range(count))
    print(f"  F25 simulation: {count} scale-downs, {gone} pods went, {killed} busy beside an idle one", flush=True)
    detail = {"pods": gone, "reached": reached, "with_the_number_alone": careless}
    return Figure("F25", MUST, MUST, f"{killed} of {count}", "scale-downs in simulation", killed == 0, detail)


def _real(rounds: int) -> Figure:
    began = time.monotonic()
    with ground() as found:
        operator = found.start().wait_ready()
        shrunk = shrink(found.stage, found.audit, POOLS, rounds=rounds, tell=_progress)
        wrong = sum(operator.metric("poolkeeper_pool_wrong_victims_total", pool=pool) for pool in POOLS)
    again = shrunk.deliveries["deliveries"] - shrunk.tasks + shrunk.deliveries["otherwise"]
    reached = f"{len(shrunk.killed_busy)} of {shrunk.scale_downs}, {again} run again"
    print(
        f"  F25 controller manager: {reached}, {shrunk.deleted} pods deleted, in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    ok = not shrunk.killed_busy and not again and shrunk.deleted >= shrunk.scale_downs * SIZE // 2
    detail = {
        "pods_deleted": shrunk.deleted,
        "tasks": shrunk.tasks,
        "wrong_victims": wrong,
        "killed": shrunk.killed_busy,
    }
    return Figure("F25", MUST, MUST, reached, "scale-downs on the real controller manager", ok, detail)


def _progress(done: int) -> None:
    print(f"  F25 controller manager: {done} scale-downs", file=sys.stderr, flush=True)
