"""What may have killed its process runs apart, so that blame is exact (Q27, F10, C10)."""

from typing import Any

from poolkeeper.store import Claimed, Settle, calls
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


def test_suspects_run_side_by_side_on_each_worker_that_holds_nothing_else(scene: Scene) -> None:
    """C10, Q27: as many as it asks for, several workers of the pool at once; nothing else runs beside them."""
    suspects = scene.submit_many(7)
    scene.worker().claim(7)
    crash(scene)
    plain = scene.submit_many(2)
    one, two, busy = scene.worker(), scene.worker(), scene.worker(queues=["q", "r"])
    for worker in (one, two):
        answer = worker.turn(want=10)
        assert (answer.isolate, answer.claimed) == (True, [])
    first = one.claim(3, isolated=True)
    second = two.claim(10, isolated=True)
    assert [(c.task_id, c.delivery, c.suspect) for c in first + second] == [(task_id, 2, True) for task_id in suspects]
    assert ({c.beside for c in first}, {c.beside for c in second}) == ({3}, {10})
    answer = one.turn(want=7)
    assert (answer.isolate, answer.claimed) == (True, [])
    assert [c.task_id for c in busy.claim(5)] == plain
    one.turn([Settle(c.task_id, c.token, "succeeded") for c in first])
    more = scene.submit()
    assert one.take().task_id == more


def test_a_worker_that_asks_for_one_runs_it_alone(scene: Scene) -> None:
    """Q27: nothing comes beside it, whatever the worker asks for later; a worker with others has no room for one."""
    scene.submit_many(4)
    scene.worker().claim(4)
    crash(scene)
    one, two = scene.worker(), scene.worker()
    delivery = one.alone()
    assert delivery.beside == 1
    assert one.claim(5, isolated=True) == []
    assert [c.beside for c in two.claim(2, isolated=True)] == [2, 2]
    assert [c.beside for c in two.claim(1, isolated=True)] == [3]


def test_of_workers_that_hold_something_one_makes_room(scene: Scene) -> None:
    """Q27, P6: it is asked to, and takes suspects once it is empty; the others go on with the rest."""
    scene.submit()
    scene.worker().take()
    held = scene.submit_many(4)
    one, two = scene.worker(), scene.worker()
    (mine,), _ = one.claim(1), two.claim(1)
    crash(scene, one, two)
    answer = one.turn(want=2)
    assert (answer.isolate, answer.claimed) == (True, [])
    answer = two.turn(want=2)
    assert (answer.isolate, [c.task_id for c in answer.claimed]) == (False, held[2:])
    assert one.claim(1, isolated=True) == []
    one.succeed(mine)
    assert one.alone()


def test_who_holds_suspects_alone_keeps_nobody_from_making_room(scene: Scene) -> None:
    """Q27: it takes none of the turns in which one of the others is emptied."""
    scene.submit_many(3)
    scene.worker().claim(3)
    scene.submit()
    one, busy = scene.worker(), scene.worker()
    held = busy.take()
    crash(scene, one, busy)
    one.alone()
    assert one.turn(want=1).isolate
    assert busy.turn(want=1).isolate
    busy.succeed(held)
    assert busy.alone()


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


def test_who_makes_room_is_each_pools_own_affair(scene: Scene) -> None:
    """Q27: a second pool on the same queue has a turn of its own."""
    scene.submit_many(3)
    scene.worker().claim(3)
    scene.submit_many(2)
    a, b = scene.worker(pool="local/a"), scene.worker(pool="local/b")
    held = [(worker, worker.take()) for worker in (a, b)]
    crash(scene, a, b)
    for worker, delivery in held:
        assert worker.turn(want=1).isolate
        worker.succeed(delivery)
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


def isolated(scene: Scene, count: int, **policy: Any) -> tuple[Worker, list[Claimed]]:
    """A worker with so many suspects side by side."""
    scene.queue(**policy)
    scene.submit_many(count)
    scene.worker().claim(count)
    crash(scene)
    worker = scene.worker()
    return worker, worker.claim(count, isolated=True)


def test_a_death_beside_others_counts_for_none_of_them_and_the_next_run_is_alone(scene: Scene) -> None:
    """F10, Q27: who broke out of its process is not known; no innocent dies of it, the poison is exact in what it spends."""
    _, (poison, *others) = isolated(scene, 4, max_deliveries=2)
    crash(scene)
    for delivery in (poison, *others):
        counters = scene.counters(delivery.task_id)
        assert (counters["spent"], counters["expiries"]) == (1, 2)
        last = scene.ask("reader", calls.timeline(delivery.task_id))[-1]
        assert (last.outcome, last.reason, last.state) == ("expired", "beside_others", "ready")
    while scene.state(poison.task_id) != "dead" or any(scene.state(o.task_id) != "succeeded" for o in others):
        worker = scene.worker()
        (delivery,) = worker.claim(4, isolated=True)
        assert (delivery.beside, delivery.delivery, delivery.deliveries_spent) == (1, 3, 2)
        assert worker.claim(4, isolated=True) == []
        if delivery.task_id == poison.task_id:
            crash(scene)
        else:
            worker.succeed(delivery)
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert (letter.task_id, letter.spent, letter.expiries) == (poison.task_id, 2, 3)


def test_each_death_beside_others_divides_how_many_run_together_by_four(scene: Scene) -> None:
    """C10, Q27: the innocents of two lost nodes do not have to go one by one; what was alone stays alone."""
    isolated(scene, 16, max_deliveries=2)
    for beside in (4, 1):
        crash(scene)
        workers = [scene.worker() for _ in range(16 // beside)]
        held = [worker.claim(16, isolated=True) for worker in workers]
        assert [[c.beside for c in each] for each in held] == [[beside] * beside] * len(workers)
        assert [worker.claim(16 - beside, isolated=True) for worker in workers] == [[]] * len(workers)
    assert {c.deliveries_spent for each in held for c in each} == {2}
    workers[0].settle(held[0][0], "handed_back")
    assert [c.beside for c in workers[0].claim(1000, isolated=True)] == [1]


def test_those_with_fewer_misses_go_first_and_never_beside_those_with_more(scene: Scene) -> None:
    """C10: a worker that holds suspects takes more of the same kind only; one that holds none takes what has missed least."""
    worker, (first, second) = isolated(scene, 2)
    worker.settle(first, "handed_back", error_class="memory_share")
    scene.submit()
    hold(scene, scene.worker())
    crash(scene, worker)
    (third,) = worker.claim(5, isolated=True)
    assert (third.task_id not in {first.task_id, second.task_id}, third.beside) == (True, 6)
    assert worker.claim(5, isolated=True) == []
    worker.succeed(second)
    worker.succeed(third)
    (again,) = worker.claim(5, isolated=True)
    assert (again.task_id, again.beside) == (first.task_id, 1)


def test_a_share_that_was_too_small_costs_nothing(scene: Scene) -> None:
    """Q27, Q26: handed back with the reason, once more beside fewer; alone it stays until it has cleared itself."""
    worker, (large, _) = isolated(scene, 2)
    verdict = worker.settle(large, "handed_back", error_class="memory_share", error="needs more")
    assert (verdict.code, verdict.state) == (None, "ready")
    assert scene.counters(large.task_id)["spent"] == 1
    last = scene.ask("reader", calls.timeline(large.task_id))[-1]
    assert (last.reason, last.error_class, last.error) == ("beside_others", "memory_share", "needs more")
    other = scene.worker()
    (again,) = other.claim(2, isolated=True)
    assert again.beside == 1
    other.settle(again, "failed", error_class="process_died")
    (again,) = other.claim(100, isolated=True)
    assert again.beside == 1
    other.fail(again)
    scene.advance(5)
    other.renew()
    assert scene.counters(large.task_id)["spent"] == 3
    assert other.take().suspect is False


def test_a_child_that_died_beside_others_is_known(scene: Scene) -> None:
    """Q27: the delivery is spent, the next may have others beside it again."""
    worker, (poison, _) = isolated(scene, 2)
    worker.settle(poison, "failed", error_class="process_died", error="exit code 7")
    (again,) = worker.claim(2, isolated=True)
    assert (again.task_id, again.beside, again.deliveries_spent) == (poison.task_id, 3, 3)


def test_a_process_known_to_have_died_is_reported_by_its_worker(scene: Scene) -> None:
    """Q27: a child's death settles as process_died: spent, suspect at once, state and history agree."""
    task_id = scene.submit()
    worker = scene.worker()
    verdict = worker.settle(worker.take(), "failed", error_class="process_died", error="exit code -9")
    assert (verdict.code, verdict.state) == (None, "ready")
    assert scene.state(task_id) == "ready"
    assert worker.turn(want=1).isolate
    assert worker.alone().deliveries_spent == 2


def test_suspects_honour_the_limits(scene: Scene) -> None:
    """Q12: of their queue and of their pool, as any other."""
    scene.submit_many(5)
    scene.worker().claim(5)
    crash(scene)
    scene.queue(concurrency_max=2)
    worker, other = scene.worker(), scene.worker()
    held = worker.claim(5, isolated=True)
    assert len(held) == 2
    assert other.turn(want=1).isolate is False
    assert other.claim(1, isolated=True) == []
    worker.succeed(held[0])
    scene.ask("operator", calls.set_pool("local/p", max_running=1))
    assert other.claim(1, isolated=True) == []
    scene.ask("operator", calls.set_pool("local/p", max_running=None))
    assert len(other.claim(3, isolated=True)) == 1


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


def test_who_makes_room_and_is_gone_is_replaced(scene: Scene) -> None:
    """P4: the turn does not stay with a worker that is gone, ended or draining."""
    scene.submit()
    scene.worker().take()
    crash(scene)
    for how in ("ended", "draining", "silent"):
        scene.submit_many(2, type="c.d")
        holder = scene.worker(types=["a.b", "c.d"], pod_name=f"pod-{how}")
        other = scene.worker(types=["c.d", "a.b"])
        for worker in (holder, other):
            hold(scene, worker)
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


def hold(scene: Scene, worker: Worker) -> None:
    """Let it have a task, although suspects wait."""
    with scene.without(
        "poolkeeper.turn(uuid, text, bigint, bigint, jsonb, integer, boolean, boolean, jsonb, integer, jsonb, double precision, boolean)",
        "IF _waits THEN\n            _isolate",
        "IF false THEN\n            _isolate",
    ):
        worker.take()


def test_suspects_of_types_that_the_session_cannot_run_are_not_its_business(scene: Scene) -> None:
    """Q11: it goes on."""
    scene.submit("x.y")
    scene.worker(types=["x.y"]).take()
    crash(scene)
    scene.submit()
    answer = scene.worker(types=["a.b"]).turn(want=1)
    assert (answer.isolate, len(answer.claimed)) == (False, 1)
