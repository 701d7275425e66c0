"""Of the tasks of one ordering key one after the other, in the order of their submits (Q9, Q12, contract 22)."""

from uuid import UUID

import pytest

from poolkeeper.store import Settle, calls, run
from store.scene import Scene, seconds


def chain(scene: Scene, count: int, key: str = "k") -> list[UUID]:
    """So many tasks of one key."""
    return [scene.submit(payload=n, ordering_key=key) for n in range(count)]


def seen(scene: Scene, task_id: UUID) -> tuple[str, str | None]:
    """State and reason."""
    view = scene.ask("reader", calls.task(task_id))
    assert view is not None
    return view.state, view.reason


def test_one_runs_and_the_others_are_held_back(scene: Scene) -> None:
    """Q9: whatever the worker asks for; blocked ones are ready, with the reason ordering, and no reason for pods (O12)."""
    first, second, third = chain(scene, 3)
    assert [seen(scene, one) for one in (first, second)] == [("ready", "ordering")] * 2
    worker, other = scene.worker(), scene.worker()
    (held,) = worker.claim(10)
    assert held.task_id == first
    assert other.claim(10) == []
    assert [seen(scene, one) for one in (first, second, third)] == [
        ("running", None),
        ("ready", "ordering"),
        ("ready", "ordering"),
    ]
    (stats,) = scene.ask("operator", calls.stats(cluster=None)).queues
    assert (stats.ready, stats.running, stats.ordering, stats.types, stats.oldest_runnable) == (0, 1, 2, [], None)


def test_what_may_go_on_but_nobody_let_through_yet_asks_for_pods(scene: Scene) -> None:
    """O12: at zero pods nobody turns; the first of each key counts as ready, with its age from the submit (Q23)."""
    chain(scene, 3, "a")
    chain(scene, 2, "b")
    scene.advance(30)
    (stats,) = scene.ask("operator", calls.stats(cluster=None)).queues
    assert (stats.ready, stats.ordering, [(t.type, t.ready) for t in stats.types]) == (2, 3, [("a.b", 2)])
    assert stats.oldest_runnable is not None
    assert stats.oldest_runnable >= seconds(30)
    assert scene.sweep() == 2
    (stats,) = scene.ask("operator", calls.stats(cluster=None)).queues
    assert (stats.ready, stats.ordering) == (2, 3)


def test_the_next_is_claimed_by_the_turn_that_settles_the_head(scene: Scene) -> None:
    """Q9, P12: no turn is lost between two tasks of a key."""
    ids = chain(scene, 5)
    worker = scene.worker()
    held = worker.take()
    order = [held.task_id]
    for _ in range(4):
        (held,) = worker.turn([Settle(held.task_id, held.token, "succeeded")], want=1).claimed
        order.append(held.task_id)
    worker.succeed(held)
    assert order == ids
    assert scene.value("SELECT count(*) FROM poolkeeper.gate_due") == 0


def test_keys_are_those_of_a_tenant_and_a_queue(scene: Scene) -> None:
    """Q9: the same word of another tenant, or in another queue, is another key."""
    scene.queue("r")
    ids = [
        scene.submit(ordering_key="k", tenant="a"),
        scene.submit(ordering_key="k", tenant="b"),
        scene.submit(ordering_key="k", queue="r"),
        scene.submit(ordering_key="K", tenant="a"),
        scene.submit(),
    ]
    assert sorted(c.task_id for c in scene.worker(queues=["q", "r"]).claim(10)) == sorted(ids)


@pytest.mark.parametrize("outcome", ["failed", "snoozed", "handed_back"])
def test_a_head_that_comes_back_keeps_its_key(scene: Scene, outcome: str) -> None:
    """Q9: scheduled (backing off), waiting and ready again: the head blocks in every state that is not terminal."""
    first, second = chain(scene, 2)
    worker = scene.worker()
    held = worker.take()
    answer = worker.turn([Settle(held.task_id, held.token, outcome, retry_after=seconds(30))], want=5)
    if outcome == "handed_back":
        (again,) = answer.claimed
        assert again.task_id == first
    else:
        assert answer.claimed == []
        scene.advance(31)
        worker.renew()
        again = worker.take()
        assert again.task_id == first
    worker.succeed(again)
    assert worker.take().task_id == second


def test_a_head_whose_worker_dies_keeps_its_key(scene: Scene) -> None:
    """Q9, Q27: as a suspect, and while it runs apart."""
    first, second = chain(scene, 2)
    scene.worker().take()
    scene.advance(16)
    scene.sweep()
    worker = scene.worker()
    assert worker.turn(want=1).claimed == []
    again = worker.alone()
    assert again.task_id == first
    assert scene.worker().claim(5) == []
    worker.succeed(again)
    assert worker.take().task_id == second


def test_a_scheduled_head_blocks_until_it_has_run(scene: Scene) -> None:
    """Q9: the order is that of the submits, also where the first is due later; then a scheduled one that had to wait is ready."""
    first = scene.submit(ordering_key="k", delay=seconds(60))
    second = scene.submit(ordering_key="k")
    third = scene.submit(ordering_key="k", delay=seconds(30))
    worker = scene.worker()
    assert worker.claim(5) == []
    assert [seen(scene, one) for one in (first, second, third)] == [
        ("scheduled", None),
        ("ready", "ordering"),
        ("scheduled", "ordering"),
    ]
    (stats,) = scene.ask("operator", calls.stats(cluster=None)).queues
    assert (stats.ready, stats.scheduled, stats.ordering) == (0, 2, 1)
    scene.advance(61)
    worker.renew()
    for expected in (first, second, third):
        delivery = worker.take()
        assert delivery.task_id == expected
        worker.succeed(delivery)


@pytest.mark.parametrize(("ordering", "goes_on"), [("block", False), ("skip", True)])
def test_after_a_death_the_policy_decides(scene: Scene, ordering: str, goes_on: bool) -> None:
    """Q9: Block keeps the key until a person discards; Skip lets the next go."""
    scene.queue(ordering=ordering)
    first, second = chain(scene, 2)
    worker = scene.worker()
    worker.settle(worker.take(), "dead")
    assert [c.task_id for c in worker.claim(5)] == ([second] if goes_on else [])
    if not goes_on:
        assert seen(scene, second) == ("ready", "ordering")
        scene.ask("person", calls.discard(first, who="ann", why="x"))
        assert worker.take().task_id == second


def test_a_requeued_head_goes_first_again(scene: Scene) -> None:
    """Q9, Q29: under Block the key was kept for it; its budget is fresh, its delivery numbers go on."""
    first, second = chain(scene, 2)
    worker = scene.worker()
    worker.settle(worker.take(), "dead")
    changed = scene.ask("person", calls.requeue(first, who="ann", why="mended"))
    assert (changed.code, changed.state) == (None, "ready")
    (again,) = worker.claim(5)
    assert (again.task_id, again.delivery, again.deliveries_spent) == (first, 2, 1)
    worker.succeed(again)
    assert worker.take().task_id == second


def test_a_requeued_dead_letter_under_skip_goes_through_the_gate_again(scene: Scene) -> None:
    """Q9: it waits for the one that runs, then goes before those that have not begun."""
    scene.queue(ordering="skip")
    first, second, third = chain(scene, 3)
    worker = scene.worker()
    worker.settle(worker.take(), "dead")
    running = worker.take()
    assert running.task_id == second
    scene.ask("person", calls.requeue(first, who="ann", why="mended"))
    assert worker.claim(5) == []
    assert seen(scene, first) == ("ready", "ordering")
    worker.succeed(running)
    again = worker.take()
    assert again.task_id == first
    worker.succeed(again)
    assert worker.take().task_id == third


def test_a_policy_that_turns_to_skip_frees_the_keys_of_dead_letters(scene: Scene) -> None:
    """Q9, O1: without a hand on any of them; turned back, the dead letter blocks what has not begun."""
    first, second, third = chain(scene, 3)
    worker = scene.worker()
    worker.settle(worker.take(), "dead")
    assert worker.claim(5) == []
    scene.queue(ordering="skip")
    held = worker.take()
    assert held.task_id == second
    scene.queue(ordering="block")
    worker.succeed(held)
    assert worker.claim(5) == []
    scene.ask("person", calls.discard(first, who="ann", why="x"))
    assert worker.take().task_id == third


def test_cancelling_the_head_lets_the_next_go(scene: Scene) -> None:
    """Q39: a ready, a scheduled, a waiting and a running head."""
    ids = chain(scene, 4)
    cancel = [calls.cancel(one, who="ann", why="x") for one in ids]
    worker = scene.worker()
    scene.sweep()
    assert scene.ask("person", cancel[0]).state == "canceled"
    worker.settle(worker.take(), "failed", retry_after=seconds(100))
    assert scene.ask("person", cancel[1]).state == "canceled"
    held = worker.take()
    assert held.task_id == ids[2]
    assert scene.ask("person", cancel[2]).state == "running"
    assert worker.claim(1) == []
    worker.settle(held, "canceled")
    assert worker.take().task_id == ids[3]


def test_cancelling_a_blocked_one_leaves_the_others_in_order(scene: Scene) -> None:
    """Q39: at once, and it is never offered."""
    first, second, third = chain(scene, 3)
    worker = scene.worker()
    held = worker.take()
    assert scene.ask("person", calls.cancel(second, who="ann", why="x")).state == "canceled"
    assert seen(scene, second)[0] == "canceled"
    worker.succeed(held)
    assert [c.task_id for c in worker.claim(5)] == [third]
    assert held.task_id == first


@pytest.mark.parametrize("ordering", ["block", "skip"])
def test_a_blocked_one_that_grows_too_old_dies(scene: Scene, ordering: str) -> None:
    """Q9, Q27: where it waits; under Block it then blocks what came after it, and only that."""
    scene.queue(ordering=ordering)
    first = scene.submit(ordering_key="k")
    second = scene.submit(ordering_key="k", max_age=seconds(10))
    third = scene.submit(ordering_key="k")
    worker = scene.worker()
    held = worker.take()
    scene.advance(11)
    worker.renew()
    scene.sweep()
    assert seen(scene, second) == ("dead", "max_age")
    again = worker.turn([Settle(held.task_id, held.token, "handed_back")], want=1).claimed[0]
    assert again.task_id == first
    worker.succeed(again)
    if ordering == "block":
        assert worker.claim(5) == []
        scene.ask("person", calls.requeue(second, who="ann", why="still wanted"))
        delivery = worker.take()
        assert delivery.task_id == second
        worker.succeed(delivery)
    assert worker.take().task_id == third


def test_a_head_that_grows_too_old_frees_its_key(scene: Scene) -> None:
    """Q9: under Skip, from ready and from scheduled."""
    scene.queue(ordering="skip")
    first = scene.submit(ordering_key="k", max_age=seconds(10))
    second = scene.submit(ordering_key="k", delay=seconds(1), max_age=seconds(20))
    third = scene.submit(ordering_key="k")
    scene.sweep()
    scene.advance(11)
    scene.sweep()
    assert seen(scene, first) == ("dead", "max_age")
    scene.advance(20)
    scene.sweep()
    scene.sweep()
    assert seen(scene, second) == ("dead", "max_age")
    assert scene.worker().take().task_id == third


def test_a_submit_waits_for_no_gate_and_no_other_submit(scene: Scene) -> None:
    """Q4: of the same key, in transactions that are still open; the later commit is not lost."""
    one, two = (scene.connect("submitter", autocommit=False) for _ in range(2))
    for conn in (one, two):
        conn.execute("SET LOCAL lock_timeout = '100ms'")
    first = run(one, calls.submit("q", "a.b", 1, ordering_key="k")).task_id
    second = run(two, calls.submit("q", "a.b", 2, ordering_key="k")).task_id
    two.commit()
    worker = scene.worker()
    held = worker.take()
    assert held.task_id == second
    one.commit()
    assert worker.claim(1) == []
    worker.succeed(held)
    assert worker.take().task_id == first


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 201])
def test_a_key_that_is_none_is_refused(scene: Scene, key: str) -> None:
    """Q9, contract 10: as idempotency keys are."""
    assert scene.verdict(ordering_key=key).code == "key_invalid"


def test_a_task_shows_its_key(scene: Scene) -> None:
    """Q9: to people."""
    view = scene.ask("reader", calls.task(scene.submit(ordering_key="Käufer 7")))
    assert view is not None
    assert view.ordering_key == "Käufer 7"


def test_what_others_hold_costs_a_key_nothing_but_time(scene: Scene) -> None:
    """Q51: neither a held gate nor a held task makes a turn wait, nor others of the page; nothing is forgotten."""
    first, second = chain(scene, 2, "a")
    other = scene.submit(ordering_key="b")
    bad = scene.connect("person", autocommit=False)
    run(bad, calls.cancel(first, who="ann", why="x"))
    conn = scene.connect("worker")
    conn.execute("SET lock_timeout = '100ms'")
    worker = scene.worker(conn=conn)
    held = worker.claim(5)
    assert [c.task_id for c in held] == [other]
    worker.succeed(held[0])
    bad.rollback()
    (delivery,) = worker.claim(5)
    assert delivery.task_id == first
    scene.owner.execute("BEGIN")
    scene.owner.execute("SELECT FROM poolkeeper.gate FOR UPDATE")
    answer = worker.turn([Settle(delivery.task_id, delivery.token, "succeeded")], want=1)
    assert (answer.claimed, answer.come_again) == ([], seconds(0.05))
    scene.owner.execute("ROLLBACK")
    assert worker.take().task_id == second


@pytest.mark.usefixtures("this_month_again")
def test_a_dead_letter_that_nobody_looked_at_gives_its_key_back(scene: Scene) -> None:
    """Q52: discarded by its age, as by a person."""
    first, second = chain(scene, 2)
    worker = scene.worker()
    worker.settle(worker.take(), "dead")
    scene.advance(91 * 86400)
    assert scene.ask("operator", calls.maintain()).dead_letters == 1
    assert scene.state(first) == "canceled"
    assert scene.worker().take().task_id == second
