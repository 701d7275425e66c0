"""Strict order per key while many work at once, some of them die, and others submit (Q9, Q12)."""

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import psycopg

from poolkeeper.store import Claimed, Settle, calls, run
from store.scene import Scene, seconds

KEYS, EACH = 12, 15
ENDS = ("succeeded", "rejected", "dead")
OUTCOMES = (*ENDS, "succeeded", "failed", "handed_back")


class Log:
    """What began and ended: a begin is noted when its claim has answered, an end before its settle is sent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._next = dict.fromkeys(range(KEYS), 0)
        self.wrong: list[str] = []

    def begin(self, claimed: list[Claimed]) -> None:
        """Each must be the first of its key that has not ended."""
        with self._lock:
            for one in claimed:
                key, n = one.payload
                if n != self._next[key]:
                    self.wrong.append(f"key {key}: {n} began while it was the turn of {self._next[key]}")

    def end(self, held: list[Claimed], settles: list[Settle]) -> None:
        """Behind those that end, the next may begin."""
        ends = {settle.token for settle in settles if settle.outcome in ENDS}
        with self._lock:
            for one in held:
                if one.token in ends:
                    key, n = one.payload
                    self._next[key] = n + 1

    @property
    def left(self) -> int:
        """Tasks that have not ended."""
        return sum(EACH - n for n in self._next.values())


def submits(conn: psycopg.Connection, keys: range) -> None:
    """One task of each of its keys after the other."""
    for n in range(EACH):
        tasks = [{"type": "a.b", "payload": [key, n], "ordering_key": f"k{key}"} for key in keys]
        run(conn, calls.submit_many("q", tasks))


def works(scene: Scene, log: Log, seed: int) -> None:
    """Claims and settles at will until all has ended; now and then it dies, and another is started."""
    rng, conn = random.Random(seed), scene.connect("worker")
    worker, held = scene.worker(conn=conn), list[Claimed]()
    while log.left:
        if rng.random() < 0.05:
            kill = "UPDATE poolkeeper.session SET renewed_at = renewed_at - interval '1 hour' WHERE id = %s"
            scene.owner.execute(kill, [worker.session.id])
            worker, held = scene.worker(conn=conn), []
        settles = [
            Settle(one.task_id, one.token, rng.choice(OUTCOMES), retry_after=seconds(0))
            for one in held
            if rng.random() < 0.8
        ]
        log.end(held, settles)
        held = [one for one in held if one.token not in {settle.token for settle in settles}]
        answer = worker.turn(settles, want=rng.randint(1, 4), sweep=rng.random() < 0.3)
        claimed = answer.claimed or (worker.claim(2, isolated=True) if answer.isolate else [])
        log.begin(claimed)
        held += claimed


def test_strict_order_under_many_workers(scene: Scene) -> None:
    """Q9: four workers, two submitters of different keys, retries, hand-backs and crashes; each key in the order of its submits."""
    scene.queue(ordering="skip", max_deliveries=100, max_hand_backs=100)
    log = Log()
    for kind in ("submitter", "worker"):
        scene.actor(kind)  # its login is made before the threads want it
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(submits, scene.connect("submitter"), range(n, KEYS, 2)) for n in range(2)]
        jobs += [pool.submit(works, scene, log, seed) for seed in range(4)]
        for job in jobs:
            job.result(300)
    assert (log.wrong, log.left) == ([], 0)
    assert scene.value("SELECT count(*) FROM poolkeeper.delivery WHERE outcome = 'expired'") > 0


def test_of_two_who_look_at_once_one_lets_a_task_through(scene: Scene) -> None:
    """Q9: also where the second sees an earlier task, whose submit was committed between the two looks."""
    slow = scene.connect("submitter", autocommit=False)
    first = run(slow, calls.submit("q", "a.b", 1, ordering_key="k")).task_id
    second = scene.submit(ordering_key="k")
    one = scene.worker(conn=scene.connect("worker", autocommit=False))
    one.conn.commit()
    (held,) = one.claim(1)  # and its turn is not committed yet
    assert held.task_id == second
    slow.commit()
    conn = scene.connect("worker")
    conn.execute("SET lock_timeout = '100ms'")
    other = scene.worker(conn=conn)
    answer = other.turn(want=1)
    assert (answer.claimed, answer.come_again) == ([], seconds(0.05))
    one.conn.commit()
    assert other.claim(1) == []
    one.succeed(held)
    one.conn.commit()
    assert other.take().task_id == first
