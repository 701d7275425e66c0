"""F20 and F21 beside KEDA: one API server with its HPA controller, one Postgres, both operators at once, in turn in each round.

From nothing to the first replica; 500 at once to 100 replicas; a size outgrown by the age of what waits; what both cost when nothing happens.
Times run from before the insert to the moment when the API server received the write, by its audit log. There is no node: pods stay Pending,
so what is measured is decisions, and an HPA takes them without looking at pods' readiness where an external metric is an AverageValue.
"""

import random
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from benchmarks import ladder
from benchmarks.breach import ALLOWED, TARGET, outgrown, percentile
from benchmarks.figures import Figure, spread
from benchmarks.footprint import memory, processor
from benchmarks.ground import Ground, ground
from benchmarks.ladder import POLLS, Setting
from benchmarks.peers import Peer
from fixtures.stage import TEMPLATE, Operator, until
from lab import build, keda, network
from lab.audit import Write

BURST, TOP = 500, 100
OURS = "poolkeeper"
PODS = {
    "containers": [{"name": "worker", "image": TEMPLATE["image"], "resources": TEMPLATE["resources"]}],
    "automountServiceAccountToken": False,
}
Sides = dict[str, dict[str, Any]]


class Beside:
    """Both sides on one ground."""

    def __init__(self, place: Ground, theirs: keda.Keda, jobs: psycopg.Connection) -> None:
        self.place, self.theirs, self.jobs, self.stage = place, theirs, jobs, place.stage
        self.namespace = f"jobs-{secrets.token_hex(3)}"
        self.kubectl = self.stage.kubectl.within(self.namespace)
        self.kubectl("create", "namespace", self.namespace)
        self.server = {"host": "127.0.0.1", "port": str(jobs.info.port), "userName": "postgres", "dbName": jobs.info.dbname, "sslmode": "disable"}  # fmt: skip
        self.began: dict[str, datetime] = {}

    def make(self, pools: list[str], scaled: dict[str, Setting]) -> None:
        """Make objects of both sides, and wait until they are in force."""
        for name in pools:
            scaling = {"max": TOP, "targetAge": f"{TARGET.seconds}s", "toZeroAfter": "1m", "down": {"window": "2m"}}
            self.stage.apply(self.stage.queue(name), self.stage.pool(name, scaling=scaling))
        self.adjust(scaled)
        for name in pools:
            self.stage.wait_condition("workerpool", name, "SignalFresh", "True", timeout=120)

    def adjust(self, scaled: dict[str, Setting]) -> None:
        """Make or change ScaledObjects, and wait until KEDA says that they are ready."""
        self.kubectl.apply(
            *(each for name, setting in scaled.items() for each in setting.objects(name, self.server, PODS))
        )
        until(lambda: self._ready() >= set(scaled), timeout=300, what=f"ScaledObjects ready\n{self.theirs.tail()}")

    def _ready(self) -> set[str]:
        self.theirs.pids()
        return {each["metadata"]["name"] for each in self.kubectl.get("scaledobjects") if _is_ready(each)}

    def submit(self, name: str, count: int = 1) -> None:
        """Jobs for KEDA, tasks for ours, whichever has this name."""
        self.began[name] = datetime.now(UTC)
        if name.startswith("pk-"):
            self.stage.submit(name, count)
        else:
            self.jobs.execute("INSERT INTO jobs (queue) SELECT %s FROM generate_series(1, %s)", [name, count])

    def writes(self, mark: int) -> list[Write]:
        """Of both namespaces, in the API server's order."""
        mine = {self.namespace, self.stage.namespace}
        return sorted((w for w in self.place.audit.since(mark) if w.namespace in mine), key=lambda w: w.at)

    def empty(self) -> None:
        """Take everything away again, on both sides."""
        self.jobs.execute("TRUNCATE jobs")
        self.stage.kubectl("delete", "workerpool,taskqueue", "--all", "--wait=false")
        self.kubectl("delete", "scaledobject", "--all", "--timeout=120s")
        self.kubectl("delete", "deployment", "--all", "--wait=false")


def _is_ready(scaled: dict[str, Any]) -> bool:
    status = scaled.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or [])
    return ready and bool(status.get("hpaName")) and scaled["metadata"].get("deletionTimestamp") is None


@contextmanager
def _beside() -> Iterator[tuple[Beside, Operator]]:
    build.ensure([build.KUBERNETES, build.KEDA])  # not while a cluster waits for it, and while there is a network
    network.go_apart()
    with ground() as place, tempfile.TemporaryDirectory() as folder:
        dsn = place.stage.database.dsn
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("CREATE DATABASE jobs"))
        with (
            keda.Keda(place.stage.kubectl.kubeconfig, Path(folder)) as theirs,
            psycopg.connect(make_conninfo(dsn, dbname="jobs"), autocommit=True) as jobs,
        ):
            jobs.execute(ladder.JOBS)
            place.stage.apply(place.stage.db(tickInterval="5s"))
            yield Beside(place, theirs, jobs), place.start().wait_ready()


def figures(*, quick: bool) -> list[Figure]:
    """F20 and F21 of both sides, and what they cost idle."""
    rounds, bursts, breaches, many = (10, 3, 4, 30) if quick else (30, 6, 10, 60)
    found: list[Figure] = []
    with _beside() as (both, operator):
        parts: list[Callable[[], list[Figure]]] = [
            lambda: _breaches(both, breaches),
            lambda: _idle(both, operator, many, quick=quick),
            lambda: _empty(both, rounds),
            lambda: _bursts(both, bursts, every_default=not quick),
        ]
        for part in parts:
            made = part()
            for figure in made:
                print(f"  {figure.id} {figure.unit}: {figure.detail}", flush=True)
            found += made
            both.empty()
    return found


def peer() -> Peer:
    """KEDA as the results tell of it."""
    settings = {
        "from nothing": Setting(1, maximum=10).told(),
        "500 at once": Setting(1, maximum=TOP).told(),
        "500 at once, scale-up opened": Setting(1, opened=True, maximum=TOP).told(),
        "age": Setting(1, by_age=True, minimum=1, maximum=10).told(),
        "pollingInterval": list(POLLS),
    }
    return Peer("KEDA", (), about={"version": "2.21.0, HPA of Kubernetes 1.34.1", "settings": settings})


def _empty(both: Beside, rounds: int) -> list[Figure]:
    """Nothing, then one row: until replicas are written, and until a pod is created."""
    sides = {OURS: "pk-e", **{Setting(poll).name: f"k{poll}-e" for poll in POLLS}}
    scaled = {f"k{poll}-e{n}": Setting(poll, maximum=10) for poll in POLLS for n in range(rounds)}
    both.make([f"pk-e{n}" for n in range(rounds)], scaled)
    mark, draw = both.place.audit.mark(), random.Random(20)  # noqa: S311  # of pauses
    for n in range(rounds):
        for stem in sides.values():
            both.submit(f"{stem}{n}")
        time.sleep(draw.uniform(2, 8))
    names = [f"{stem}{n}" for stem in sides.values() for n in range(rounds)]
    labels = {name: "poolkeeper.dev/pool" if name.startswith("pk-") else "app" for name in names}
    writes = until(
        lambda: _all(both.writes(mark), lambda w: all(ladder.pods_made(w, labels[name], name) for name in names)),
        timeout=120, what="a pod for each",
    )  # fmt: skip
    written: dict[str, list[float]] = {}
    created: dict[str, list[float]] = {}
    for side, stem in sides.items():
        for name in (f"{stem}{n}" for n in range(rounds)):
            since = both.began[name]
            at = ladder.first(ladder.steps(writes, name), since)
            assert at is not None
            written.setdefault(side, []).append(at)
            created.setdefault(side, []).append(
                (min(ladder.pods_made(writes, labels[name], name)) - since).total_seconds()
            )
    return [
        _judged("from nothing: a row in an empty queue until replicas are written", written),
        _judged("from nothing: a row in an empty queue until a pod is created", created),
    ]


def _bursts(both: Beside, rounds: int, *, every_default: bool) -> list[Figure]:
    """500 at once, from zero, until 100 replicas are written."""
    settings = [Setting(poll, opened=opened, maximum=TOP) for poll in POLLS for opened in (False, True)]
    told = {setting.name: [f"k{setting.poll}-{'o' if setting.opened else 'd'}{n}" for n in range(rounds if setting.opened or every_default else 1)] for setting in settings}  # fmt: skip
    told[OURS] = [f"pk-b{n}" for n in range(rounds)]
    both.make(told[OURS], {name: setting for setting in settings for name in told[setting.name]})
    mark, draw = both.place.audit.mark(), random.Random(21)  # noqa: S311  # of pauses
    for n in range(rounds):
        for names in told.values():
            if n < len(names):
                both.submit(names[n], BURST)
        time.sleep(draw.uniform(20, 35))

    def climbs(writes: list[Write]) -> dict[str, list[tuple[float, list[int]] | None]]:
        return {
            side: [ladder.climb(ladder.steps(writes, name), both.began[name], TOP) for name in names]
            for side, names in told.items()
        }

    writes = until(
        lambda: _all(both.writes(mark), lambda w: all(each for found in climbs(w).values() for each in found)),
        timeout=240, what="100 replicas for each",
    )  # fmt: skip
    sides: Sides = {}
    for side, climbed in climbs(writes).items():
        reached = [each for each in climbed if each]
        sides[side] = spread([seconds for seconds, _ in reached], 2) | {"writes": max(len(sizes) for _, sizes in reached), "sizes": reached[0][1]}  # fmt: skip
    most, took = sides[OURS]["writes"], sides[OURS]["most"]
    got = f"{most} write{'s' * (most > 1)}, {took:.2f} s at most"
    return [Figure("F21", "= 1 write", "", got, f"{BURST} rows at once into an empty queue until {TOP} replicas are written", most == 1, sides)]  # fmt: skip


def _breaches(both: Beside, rounds: int) -> list[Figure]:
    """One replica is there and busy; what waits grows older than the target."""
    scaled = {
        f"k{poll}-a{n}": Setting(poll, by_age=True, minimum=1, maximum=10) for poll in POLLS for n in range(rounds)
    }
    both.make([], scaled)
    mark = both.place.audit.mark()
    late: dict[str, list[float]] = {OURS: []}
    for n in range(rounds):
        for poll in POLLS:
            both.submit(f"k{poll}-a{n}")
        late[OURS].append(outgrown(both.stage, both.place.audit, f"pk-a{n}"))

    def grown(writes: list[Write], name: str) -> float | None:
        return ladder.first(ladder.steps(writes, name, start=1), both.began[name], above=1)

    writes = until(lambda: _all(both.writes(mark), lambda w: all(grown(w, name) is not None for name in scaled)), timeout=120, what="growth of each")  # fmt: skip
    for name, setting in scaled.items():
        at = grown(writes, name)
        assert at is not None
        late.setdefault(setting.name, []).append(at - TARGET.total_seconds())
    return [_judged("from the breach of a target age of 5 s until replicas are written (negative: before it)", late)]


def _idle(both: Beside, operator: Operator, many: int, *, quick: bool) -> list[Figure]:
    """Queues that stay empty: statements, connections, writes to the API server, processor time and memory."""
    names = [f"k-i{n}" for n in range(many)]
    both.make([f"pk-i{n}" for n in range(many)], {name: Setting(POLLS[0]) for name in names})
    sides: Sides = {}
    pids = {OURS: [operator.process.pid], "KEDA": both.theirs.pids()}
    with psycopg.connect(both.stage.database.dsn, autocommit=True) as conn:
        for poll in POLLS:
            if poll != POLLS[0]:
                both.adjust({name: Setting(poll) for name in names})
            time.sleep(15 if quick else 60)  # until what a change of many objects causes has ended
            mark, before, began = both.place.audit.mark(), _counts(conn), time.monotonic()
            spent = {side: sum(map(processor, each)) for side, each in pids.items()}
            time.sleep(max(20, poll) if quick else max(60, 4 * poll))
            after, took, writes = _counts(conn), time.monotonic() - began, both.place.audit.since(mark)
            for side, each in pids.items():
                mine = conn.info.dbname if side == OURS else "jobs"
                wrote = [w for w in writes if _is_of(w, both, side)]
                name = OURS if side == OURS else f"KEDA, poll {poll} s"
                sides[name] = {
                    "statements_per_second": round((after[mine][0] - before[mine][0]) / took, 2),
                    "connections": after[mine][1] - 1,  # the one that looks, or that submits
                    "api_writes_per_second": round(len(wrote) / took, 2),
                    "cores": round((sum(map(processor, each)) - spent[side]) / took, 4),
                    "mebibytes": round(sum(map(memory, each))),
                    "kinds": {kind: sum(f"{w.verb} {w.resource}" == kind for w in wrote) for kind in sorted({f"{w.verb} {w.resource}" for w in wrote})},
                }  # fmt: skip
    ours = sides[OURS]
    got = f"{ours['statements_per_second']:.2f} statements/s, {ours['connections']} connections, {ours['api_writes_per_second']:.2f} writes/s"
    return [Figure("idle", "beside KEDA", "", got, f"{many} queues that stay empty, on each side", True, sides)]


def _is_of(write: Write, both: Beside, side: str) -> bool:
    """Whose write it is: its namespace tells, and nobody but KEDA's adapter has requests reviewed."""
    if side == OURS:
        return write.namespace == both.stage.namespace
    return write.namespace in {both.namespace, keda.NAMESPACE} or write.resource == "subjectaccessreviews"


def _counts(conn: psycopg.Connection) -> dict[str, tuple[int, int]]:
    """Transactions and connections of each database so far."""
    conn.execute("SELECT pg_stat_clear_snapshot()")
    rows = conn.execute(
        "SELECT datname, xact_commit + xact_rollback, numbackends FROM pg_stat_database WHERE datname IS NOT NULL"
    )
    return {name: (int(done), int(connected)) for name, done, connected in rows}


def _all(writes: list[Write], enough: Any) -> list[Write] | None:
    return writes if enough(writes) else None


def _judged(unit: str, samples: dict[str, list[float]]) -> Figure:
    worst = percentile(samples[OURS], 0.99)
    sides = {side: spread(each, 2) for side, each in samples.items()}
    return Figure("F20", "<= 2 s p99", "", f"{worst:.2f} s", unit, worst <= ALLOWED, sides)
