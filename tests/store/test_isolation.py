"""What may have killed its process runs alone, so that blame is exact (Q27, F10)."""

from poolkeeper.store import calls
from store.scene import Scene, Worker


def crash(scene: Scene, *workers: Worker) -> None:
    """Their processes die; somebody sweeps after the lease."""
    scene.advance(16)
    for other in workers:
        other.renew()
    scene.sweep()


def test_after_a_death_each_task_of_the_process_is_a_suspect(scene: Scene) -> None:
    """Q27: the innocent too; each loses at most this one delivery."""
    ids = scene.submit_many(3)
    scene.worker().claim(3)
    crash(scene)
    for task_id in ids:
        view = scene.ask("reader", calls.task(task_id))
        assert view is not None
        assert (view.state, view.reason) == ("ready", "isolation")
        assert scene.counters(task_id)["spent"] == 1


def test_a_suspect_runs_alone_on_one_worker_of_the_pool(scene: Scene) -> None:
    """Q27: one worker is asked to make room and claims it when it is empty; the others go on with the rest."""
    suspect = scene.submit()
    scene.worker().take()
    crash(scene)
    plain = scene.submit_many(4)
    one, two = scene.worker(), scene.worker()
    answer = one.turn(want=2)
    assert (answer.isolate, answer.claimed) == (True, [])
    answer = two.turn(want=2)
    assert answer.isolate is False
    assert {c.task_id for c in answer.claimed} == set(plain[:2])
    delivery = one.alone()
    assert (delivery.task_id, delivery.delivery, delivery.deliveries_spent) == (suspect, 2, 2)
    assert one.turn(want=2).claimed == []
    assert two.claim(1, isolated=True) == []


def test_a_worker_that_still_holds_something_gets_no_suspect(scene: Scene) -> None:
    """Q27: the only task of its worker."""
    scene.submit()
    scene.worker().take()
    scene.submit()
    other = scene.worker()
    held = other.take()
    crash(scene, other)
    assert other.turn(want=1).isolate
    assert other.claim(1, isolated=True) == []
    other.succeed(held)
    assert other.alone()


def test_one_at_a_time_per_pool_and_pools_apart(scene: Scene) -> None:
    """Q27: a second pool on the same queue has a turn of its own."""
    scene.submit_many(3)
    scene.worker().claim(3)
    crash(scene)
    a, b = scene.worker(pool="local/a"), scene.worker(pool="local/b")
    assert a.turn(want=1).isolate
    assert b.turn(want=1).isolate
    assert a.alone().task_id != b.alone().task_id


def test_an_innocent_one_goes_back_to_the_others(scene: Scene) -> None:
    """Q27: a suspect that ends otherwise than by death is one no more."""
    task_id = scene.submit()
    scene.worker().take()
    crash(scene)
    worker = scene.worker()
    worker.turn(want=1)
    worker.fail(worker.alone())
    assert scene.state(task_id) == "scheduled"
    scene.advance(5)
    worker.renew()
    assert worker.turn(want=1, isolated=True).claimed == []
    assert worker.take().suspect is False


def test_handed_back_it_stays_a_suspect(scene: Scene) -> None:
    """Q27: a drain proves nothing."""
    scene.submit()
    scene.worker().take()
    crash(scene)
    worker = scene.worker()
    worker.turn(want=1)
    worker.settle(worker.alone(), "handed_back")
    assert worker.alone().delivery == 3


def test_a_poison_task_is_dead_after_exactly_max_deliveries_and_no_neighbour_is(scene: Scene) -> None:
    """Q27, F10: by the sweep alone, with the evidence; neighbours lose at most one delivery and succeed."""
    poison = scene.submit(payload="poison")
    neighbours = scene.submit_many(3)
    deaths, turns = 0, 0
    worker = scene.worker()
    while scene.state(poison) != "dead":
        turns += 1
        assert turns < 200
        answer = worker.turn(want=4)
        claimed = answer.claimed or (worker.claim(1, isolated=True) if answer.isolate else [])
        if any(c.payload == "poison" for c in claimed):
            deaths += 1
            crash(scene)
            worker = scene.worker()
        else:
            for delivery in claimed:
                worker.succeed(delivery)
    assert deaths == 5
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert (letter.reason, letter.expiries, letter.spent, letter.error_class) == (
        "deliveries_exhausted",
        5,
        5,
        "lease_expired",
    )
    while left := [n for n in neighbours if scene.state(n) != "succeeded"]:
        answer = worker.turn(want=4)
        for delivery in answer.claimed or worker.claim(1, isolated=True):
            assert delivery.deliveries_spent <= 2
            worker.succeed(delivery)
        turns += 1
        assert turns < 250, left


def test_a_process_known_to_have_died_is_reported_by_its_worker(scene: Scene) -> None:
    """Q27: a child's death settles as process_died: spent, suspect at once, state and history agree."""
    task_id = scene.submit()
    worker = scene.worker()
    verdict = worker.settle(worker.take(), "failed", error_class="process_died", error="exit code -9")
    assert (verdict.code, verdict.state) == (None, "ready")
    assert scene.state(task_id) == "ready"
    assert worker.turn(want=1).isolate
    assert worker.alone().deliveries_spent == 2


def test_a_suspect_honours_the_limits(scene: Scene) -> None:
    """Q12: of its queue and of its pool, as any other."""
    scene.submit_many(2)
    scene.worker().take()
    crash(scene)
    scene.queue(concurrency_max=1)
    busy, alone = scene.worker(), scene.worker()
    alone.turn(want=1)
    held = busy.claim(1)
    assert len(held) == 1
    assert alone.claim(1, isolated=True) == []
    busy.succeed(held[0])
    scene.ask("operator", calls.set_pool("local/p", max_running=0))
    assert alone.claim(1, isolated=True) == []
    scene.ask("operator", calls.set_pool("local/p", max_running=None))
    assert alone.alone()


def test_a_suspect_that_cannot_run_idles_nobody(scene: Scene) -> None:
    """P6: while its queue is paused, or too old, the worker goes on with its other queue."""
    scene.queue("other")
    scene.submit()
    scene.worker().take()
    crash(scene)
    scene.ask("person", calls.pause("q", True, who="ann"))
    scene.submit_many(2, queue="other")
    worker = scene.worker(queues=["q", "other"])
    answer = worker.turn(want=1)
    assert (answer.isolate, len(answer.claimed)) == (False, 1)
    scene.ask("person", calls.pause("q", False, who="ann"))
    assert worker.turn(want=1).isolate


def test_a_dead_isolator_is_replaced(scene: Scene) -> None:
    """P4: the turn does not stay with a worker that is gone, ended or draining."""
    scene.submit()
    scene.worker().take()
    crash(scene)
    for how in ("ended", "draining", "silent"):
        holder = scene.worker(pod_name=f"pod-{how}")
        other = scene.worker()
        assert holder.turn(want=1).isolate
        assert not other.turn(want=1).isolate
        if how == "ended":
            holder.end()
        elif how == "draining":
            scene.ask("operator", calls.mark_sessions("local/p", ["pod-draining"], draining=True))
        else:
            scene.advance(16)
            other.renew()
        assert other.turn(want=1).isolate
        other.end()


def test_suspects_of_types_that_the_session_cannot_run_are_not_its_business(scene: Scene) -> None:
    """Q11: it goes on."""
    scene.submit("x.y")
    scene.worker(types=["x.y"]).take()
    crash(scene)
    scene.submit()
    answer = scene.worker(types=["a.b"]).turn(want=1)
    assert (answer.isolate, len(answer.claimed)) == (False, 1)
