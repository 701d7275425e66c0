"""Q20, F4: a session that holds nothing lives by the turns that it takes anyway, and comes the more seldom the more there are."""

from datetime import timedelta

import pytest

from store.scene import Scene, Worker


def sweeping(worker: Worker) -> Worker:
    """Some worker's turn that sweeps, for what has expired."""
    worker.turn(sweep=True)
    return worker


def test_an_idle_session_lives_on_by_its_turns(scene: Scene) -> None:
    """Q20: fourteen seconds after the last one it may claim, thirty after its registration."""
    worker = scene.worker()
    scene.advance(14)
    assert worker.turn(sweep=True, idle=True).position is not None
    scene.advance(14)
    scene.submit()
    assert worker.take()


def test_what_others_hold_does_not_keep_it_from_that(scene: Scene) -> None:
    """Q20: also where the rest of the pool is busy."""
    worker, busy = scene.worker(), scene.worker()
    scene.submit()
    assert busy.take()
    assert worker.turn(sweep=True, idle=True).position is not None


def test_what_it_claims_by_such_a_turn_has_its_whole_lease(scene: Scene) -> None:
    """Q20: not what was left of the session's time."""
    worker = scene.worker()
    scene.submit()
    scene.advance(14)
    (held,) = worker.claim(1, idle=True)
    scene.advance(14)
    sweeping(scene.worker())
    assert worker.succeed(held).code is None


def test_a_session_that_holds_something_does_not(scene: Scene) -> None:
    """Q20: its thread must be alive, not only its loop; and a wrong word of a worker keeps no lease."""
    worker = scene.worker()
    scene.submit()
    held = worker.take()
    scene.advance(10)
    assert worker.turn(idle=True, sweep=True).position is None
    scene.advance(5.1)
    sweeping(scene.worker())
    assert worker.succeed(held).code == "lease_expired"


def test_a_session_that_ended_stays_so(scene: Scene) -> None:
    """Q20: only a renewal of its own brings it back."""
    worker = scene.worker()
    scene.submit()
    worker.end()
    assert worker.turn(idle=True, sweep=True).position is None
    assert worker.claim(1) == []


def test_no_turn_waits_for_a_renewal(scene: Scene) -> None:
    """Q20: whoever holds the session's row renews it anyway."""
    worker = scene.worker()
    with scene.owner.transaction():
        scene.owner.execute("SELECT FROM poolkeeper.session WHERE id = %s FOR UPDATE", [worker.session.id])
        assert worker.turn(idle=True).position is None
    assert worker.turn(idle=True).position is not None


@pytest.mark.parametrize(
    ("sessions", "least", "most"), [(1, 4.9, 5), (4, 4.9, 5), (5, 6.2, 6.3), (6, 7.4, 7.5), (12, 7.4, 7.5)]
)
def test_many_idle_sessions_come_more_seldom(scene: Scene, sessions: int, least: float, most: float) -> None:
    """F4: never more seldom than half of the visibility timeout, so that one can be told from a dead one."""
    worker = [scene.worker() for _ in range(sessions)].pop()
    assert timedelta(seconds=least) <= worker.turn(want=1, idle=True).come_again <= timedelta(seconds=most)


def test_who_does_not_listen_comes_as_often_as_ever(scene: Scene) -> None:
    """Q15: behind a pooler polling is all that there is; such a worker renews by its thread."""
    worker = [scene.worker() for _ in range(12)].pop()
    assert worker.turn(want=1).come_again <= timedelta(seconds=3.75)


def test_neither_the_dead_nor_other_pools_make_it_come_more_seldom(scene: Scene) -> None:
    """F4: nobody looks for it."""
    gone = [scene.worker() for _ in range(12)]
    gone[0].end()
    scene.advance(61)
    for _ in range(12):
        scene.worker(pool="other")
    assert scene.worker().turn(want=1, idle=True).come_again <= timedelta(seconds=5)
