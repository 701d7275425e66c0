"""The provider's own log: no interval as long as a window holds more than the limit, whatever workers do (Q40, quality 3)."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poolkeeper.provider import reported
from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, Worker
from store.windowing import Use, entry, most_in_a_window, taken, use, window

REQUESTS, TOKENS = 12, 1500
WIDTHS = {"requests": 60.0, "tokens": 30.0}
WINDOWS = {"requests": window(REQUESTS, WIDTHS["requests"]), "tokens": window(TOKENS, WIDTHS["tokens"])}
NEEDS = {"team/a": (1, 100), "team/b": (3, 250), "team/c": (5, 700)}
ENDS = ("succeeded", "failed", "rejected", "snoozed", "handed_back")
STEPS = (
    ("claim",) * 4
    + ("ask",) * 8
    + ("tell",) * 2
    + ("end",) * 3
    + ("pass",) * 3
    + ("unused", "lost", "kill", "sweep", "upkeep")
)


@dataclass
class Running:
    """A delivery: what it may still use by its pool's declaration, and what it has used and not told."""

    of: Claimed
    worker: Worker
    requests: int
    tokens: int
    tells: str
    untold: list[int] = field(default_factory=list)
    asked: bool = False


class Lives:
    """Workers of three pools at one provider, which writes down each request when it comes."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        scene.clear()
        scene.queue(visibility_timeout_seconds=20, max_hand_backs=1000, max_deliveries=100)
        for pool, (requests, tokens) in NEEDS.items():
            use(scene, entry(requests, tokens, windows=WINDOWS), pool=pool)
        scene.submit_many(60)
        self.workers = [scene.worker(pool=pool) for pool in NEEDS for _ in range(2)]
        self.pools = [pool for pool in NEEDS for _ in range(2)]
        self.running: list[Running] = []
        self.log: dict[str, list[Use]] = {"requests": [], "tokens": []}

    def now(self) -> float:
        return float(self.scene.value("SELECT extract(epoch FROM poolkeeper.clock())::float8"))

    def step(self, what: str, n: int) -> None:
        place = n % len(self.workers)
        worker, one = self.workers[place], self.running[n % len(self.running)] if self.running else None
        if what == "claim":
            needs = NEEDS[self.pools[place]]
            answer = worker.turn(want=1 + n % 4)
            suspects = worker.claim(1 + n % 4, isolated=True) if answer.isolate else []  # what a death left (Q27)
            for claimed in [*answer.claimed, *suspects]:
                tells = ("nothing", "tokens", "all")[n % 3]
                self.running.append(Running(claimed, worker, *needs, tells))
        elif what == "lost":
            worker.turn(want=1 + n % 3, lost=True)
        elif what == "kill":
            self.running = [each for each in self.running if each.worker is not worker]
            self.workers[place] = self.scene.worker(pool=self.pools[place])
        elif what == "pass":
            self.scene.advance(0.5 + n % 12)
            alive = [each.session.id for each in self.workers]
            self.scene.owner.execute(
                "UPDATE poolkeeper.session SET renewed_at = poolkeeper.clock() WHERE id = ANY (%s)", [alive]
            )
        elif what == "sweep":
            self.scene.sweep()
        elif what == "upkeep":
            self.scene.ask("operator", calls.maintain())
        elif one is not None:
            self.act(what, one, n)

    def act(self, what: str, one: Running, n: int) -> None:
        if what == "ask" and one.requests:
            used = one.tokens if one.requests == 1 else min(one.tokens, 1 + n % 200)
            at = self.now()
            self.log["requests"].append((at, 1))
            self.log["tokens"].append((at, used))
            one.requests, one.tokens, one.asked = one.requests - 1, one.tokens - used, True
            one.untold.append(used)
        elif what == "tell":
            self.tell(one)
        elif what == "end" or (what == "unused" and one.asked):
            self.tell(one)
            assert one.worker.settle(one.of, ENDS[n % len(ENDS)]).code is None
            self.running.remove(one)
        elif what == "unused":
            one.worker.turn([Settle(one.of.task_id, one.of.token, "handed_back", started=False)])
            self.running.remove(one)

    def tell(self, one: Running) -> None:
        for tokens in one.untold if one.tells != "nothing" else ():
            used = {"tokens": tokens} if one.tells == "tokens" else {"requests": 1, "tokens": tokens}
            report = reported("api", 200, used=used)
            assert self.scene.ask("worker", calls.report_provider(one.of.task_id, one.of.token, report)).code is None
        one.untold.clear()

    def judge(self) -> None:
        """Never passed; and when all has ended and a window is over, nothing is left behind."""
        for measure, limit in (("requests", REQUESTS), ("tokens", TOKENS)):
            assert most_in_a_window(self.log[measure], WIDTHS[measure]) <= limit, measure
        self.scene.advance(21)
        self.scene.sweep()
        assert self.scene.rows("SELECT FROM poolkeeper.lease") == []
        assert self.scene.rows("SELECT FROM poolkeeper.provider_hold") == []
        self.scene.advance(64)
        assert taken(self.scene) == {"requests": 0, "tokens": 0}


@settings(
    max_examples=30,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 10_000)), min_size=20, max_size=120))
def test_no_interval_holds_more_than_the_limit(scene: Scene, steps: list[tuple[str, int]]) -> None:
    """Q40: claims, requests at any time, reports at once, late or never, kills, expiries, hand-backs, answers that were lost."""
    lives = Lives(scene)
    for what, n in steps:
        lives.step(what, n)
    lives.judge()


@pytest.mark.parametrize("seed", range(6))
def test_a_busy_provider_is_never_asked_too_often(scene: Scene, seed: int) -> None:
    """Q40: the same by long lives, in which the limit is reached again and again."""
    lives, rng = Lives(scene), random.Random(seed)
    for _ in range(400):
        lives.step(rng.choice(STEPS), rng.randrange(10_000))
    assert len(lives.log["requests"]) >= REQUESTS, "there is something to judge"
    lives.judge()


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        ("poolkeeper.window_taken(poolkeeper.provider_window, timestamptz)", "h.held + x.spent", "x.spent"),
        ("poolkeeper.window_taken(poolkeeper.provider_window, timestamptz)", "k.ends_at > _now - (_w).width", "k.ends_at > _now - (_w).width / 2"),
        ("poolkeeper.end_holds(uuid[], integer[], boolean[], boolean[], timestamptz)", "d.unused OR (d.told AND g.told_requests)", "d.unused OR d.told"),
    ],
)  # fmt: skip
def test_the_log_tells_of_a_guard_that_is_missing(scene: Scene, function: str, old: str, new: str) -> None:
    """Quality 3: the judge can say no."""
    with scene.without(function, old, new):
        for seed in range(20):
            lives, rng = Lives(scene), random.Random(seed)
            for _ in range(400):
                lives.step(rng.choice(STEPS), rng.randrange(10_000))
            log = lives.log
            if any(
                most_in_a_window(log[m], WIDTHS[m]) > most for m, most in (("requests", REQUESTS), ("tokens", TOKENS))
            ):
                return
    raise AssertionError("nobody noticed")


def test_sessions_side_by_side_in_real_time(scene: Scene) -> None:
    """Q40, Q12: eight processes of two pools turn at once, some die with what they hold; the log has the machine's own time, which is the server's."""
    limit, width, ends = 20, 1.0, time.time() + 8
    scene.queue(visibility_timeout_seconds=1, max_deliveries=1000, max_hand_backs=1000)
    for pool, need in (("team/a", 1), ("team/b", 3)):
        use(scene, entry(need, windows={"requests": window(limit, width)}), pool=pool)
    scene.submit_many(1000)
    log: list[Use] = []
    lock = threading.Lock()

    def lives(seed: int) -> None:
        rng, pool, need = random.Random(seed), ("team/a", "team/b")[seed % 2], (1, 3)[seed % 2]
        conn = scene.connect("worker")
        while time.time() < ends:
            worker = scene.worker(pool=pool, conn=conn)
            for _ in range(rng.randrange(5, 40)):
                settles = []
                for one in [*worker.claim(rng.randrange(1, 6)), *worker.claim(1, isolated=True)]:
                    for _ in range(need):
                        with lock:
                            log.append((time.time(), 1))
                    how: dict[str, Any] = {"used": {"requests": need}} if rng.random() < 0.5 else {}
                    if how:
                        run(conn, calls.report_provider(one.task_id, one.token, reported("api", 200, **how)))
                    settles.append(Settle(one.task_id, one.token, rng.choice(ENDS)))
                if rng.random() < 0.05:
                    break  # dies with what it holds
                worker.turn(settles)
                worker.renew()
                time.sleep(rng.random() / 20)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lives, range(8)))
    assert most_in_a_window(log, width) <= limit
    assert len(log) > 2 * limit
