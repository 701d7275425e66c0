"""Scale-downs in a model world: who goes, by the operator's choice of pods and the controller's documented order (O17, F25).

Guarantees: the same seed gives the same pool and the same course. Between a reading and what follows from it idle pods claim, starting
ones begin and busy ones finish; a mark stops claims from the moment when it is written, not before. The controller is written down here
from its documentation, apart from what the operator believes of it. Assumes that the operator sees a pod's readiness as the controller
does: one that turns unready within the milliseconds between both is taken by nobody's fault.
"""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from poolkeeper_operator.decide.victims import PodState, plan

BEGIN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
TICKS = 40
MOST = 12  # pods


@dataclass
class Pod:
    """One pod and its worker."""

    name: str
    age: int  # seconds since it was made; the newest is the youngest
    session: bool
    busy: int
    scheduled: bool
    phase: str
    ready: bool
    ready_for: int  # seconds
    restarts: int
    rank: int  # pods of the same set on its node
    marked: bool = False
    cost: int = 0


@dataclass
class Course:
    """How one scale-down went."""

    gone: list[str] = field(default_factory=list)
    killed_busy: list[str] = field(default_factory=list)  # while an idle one stayed
    reached: bool = False  # the goal, or the busy pods that keep the size up


def scale_down(seed: int, *, careless: bool = False) -> Course:
    """Shrink a random pool, half of it busy and the busy ones the newest, towards a random goal; careless: by the number alone."""
    draw = random.Random(seed)  # noqa: S311 - the same each time
    pods, course = _pool(draw), Course()
    goal = draw.randint(0, len(pods))
    replicas = len(pods) + draw.choice([0, 0, 0, 1, 2])  # some not created yet
    for _ in range(TICKS):
        reading = [_seen(pod) for pod in pods]
        _time_passes(draw, pods)
        busy = sum(pod.busy > 0 for pod in reading)
        chosen = plan(reading, goal=max(goal, min(busy, replicas)), replicas=replicas)
        _mark(pods, () if careless else chosen.mark, marked=True)
        _time_passes(draw, pods)
        _mark(pods, chosen.unmark, marked=False)
        for pod in pods:
            pod.cost = -1 if pod.name in chosen.costs and not careless else 0
        _time_passes(draw, pods)
        _mark(pods, chosen.going, marked=True)
        if any(pod.busy for pod in pods if pod.name in chosen.going):
            continue
        replicas = min(replicas, goal if careless else chosen.replicas)
        pods = _controller(pods, replicas, course)
        if replicas <= max(goal, sum(pod.busy > 0 for pod in pods)):
            course.reached = True
            break
        _ready(draw, pods)
    return course


def _pool(draw: random.Random) -> list[Pod]:
    count = draw.randint(1, MOST)
    made = []
    for number in range(count):
        busy = draw.randint(1, 4) if number < count // 2 else 0  # the first are the newest
        session = busy > 0 or _chance(draw, 0.9)
        ready = session and _chance(draw, 0.9)
        made.append(
            Pod(f"p{number}", number * draw.randint(1, 60), session, busy, session or _chance(draw, 0.5),
                "Running" if session else "Pending", ready, draw.randint(0, 600), draw.choice([0, 0, 0, 1, 5]), draw.randint(1, 3))
        )  # fmt: skip
    return made


def _chance(draw: random.Random, share: float) -> bool:
    return draw.random() < share


def _time_passes(draw: random.Random, pods: list[Pod]) -> None:
    """What workers do in a moment: begin, claim unless marked, finish."""
    for pod in pods:
        if not pod.session:
            if pod.scheduled and _chance(draw, 0.1):
                pod.session, pod.phase = True, "Running"
        elif pod.busy and _chance(draw, 0.1):
            pod.busy -= 1
        elif not pod.marked and _chance(draw, 0.2):
            pod.busy += 1


def _ready(draw: random.Random, pods: list[Pod]) -> None:
    """Readiness comes and goes; a busy worker may look unready for long."""
    for pod in pods:
        pod.scheduled = pod.scheduled or _chance(draw, 0.5)
        if pod.session and _chance(draw, 0.2):
            pod.ready = _chance(draw, 0.8)


def _mark(pods: list[Pod], names: list[str] | tuple[str, ...], *, marked: bool) -> None:
    """The store marks sessions; a pod without one has none to mark."""
    for pod in pods:
        if pod.name in names and pod.session:
            pod.marked = marked


def _controller(pods: list[Pod], replicas: int, course: Course) -> list[Pod]:
    """The ReplicaSet controller, by https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#scaling-down."""
    order = sorted(
        pods,
        key=lambda p: (
            p.scheduled,
            ("Pending", "Unknown", "Running").index(p.phase),
            p.ready,
            p.cost,
            -p.rank,
            p.ready_for,
            -p.restarts,
            p.age,
        ),
    )
    gone, kept = order[: max(0, len(order) - replicas)], order[max(0, len(order) - replicas) :]
    idle = any(pod.session and not pod.busy for pod in kept)
    course.gone += [pod.name for pod in gone]
    course.killed_busy += [pod.name for pod in gone if pod.busy and idle]
    return [pod for pod in pods if pod in kept]


def _seen(pod: Pod) -> PodState:
    return PodState(
        name=pod.name,
        created_at=BEGIN - timedelta(seconds=pod.age),
        busy=pod.busy,
        marked=pod.marked and pod.session,
        has_session=pod.session,
        idle_for=timedelta(seconds=pod.age) if pod.session and not pod.busy else None,
        costed=pod.cost < 0,
        scheduled=pod.scheduled,
        phase=pod.phase,
        ready=pod.ready,
    )
