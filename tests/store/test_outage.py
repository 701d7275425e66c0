"""Expiry needs proof that the store could have been reached (Q23, ADR 0021): gaps, clocks, and who is not to blame."""

import pytest

from poolkeeper.store import calls, run
from store.scene import Scene, seconds

LEASE = 15.0


def contact(scene: Scene, spacing: float, count: int) -> None:
    """Time passes while an operator sweeps so often, and says so by its own monotonic clock."""
    for _ in range(count):
        scene.jump(spacing)
        scene.ask("operator", calls.sweep(since=spacing))


@pytest.mark.parametrize("away", [8.0, 3 * LEASE, 3600.0], ids=["half", "three", "hour"])
@pytest.mark.parametrize("first", ["sweep", "peer", "newcomer", "turn"])
def test_a_gap_in_which_nobody_came_ends_no_delivery(scene: Scene, away: float, first: str) -> None:
    """Q23: whoever comes first afterwards, the others have time to renew; nothing is spent, nothing is a suspect."""
    ids = scene.submit_many(2)
    worker, peer = scene.worker(), scene.worker()
    held, other = worker.take(), peer.take()
    scene.jump(away)
    if first == "sweep":
        assert scene.sweep() == 0
    elif first == "peer":
        assert peer.renew(other.task_id).lost == []
    elif first == "newcomer":
        scene.worker().renew()
    else:
        peer.turn(want=1, sweep=True)
    contact(scene, 4, 3)
    assert [scene.state(i) for i in ids] == ["running", "running"]
    assert worker.renew(held.task_id).lost == []
    assert peer.renew(other.task_id).lost == []
    assert worker.succeed(held).code is None
    assert scene.counters(other.task_id)["expiries"] == 0


def test_after_the_further_timeout_the_silent_expire(scene: Scene) -> None:
    """Q23: one further visibility timeout, not more, while an operator proves that the store can be reached."""
    task_id = scene.submit()
    scene.worker().take()
    scene.jump(3 * LEASE)
    contact(scene, 5, 3)
    assert scene.state(task_id) == "running"
    contact(scene, 5, 2)
    assert scene.state(task_id) == "ready"


def test_a_worker_that_died_in_an_outage_does_not_spend_nor_make_suspects(scene: Scene) -> None:
    """Q23: a peer of before came back by itself, so there was an outage; who did not come back is not to blame."""
    scene.submit()
    worker, peer = scene.worker(), scene.worker()
    held = worker.take()
    scene.jump(3 * LEASE)
    peer.renew()
    contact(scene, 5, 4)
    assert scene.state(held.task_id) == "ready"
    assert scene.counters(held.task_id) == {
        "delivery": 1, "state_version": 3, "spent": 0, "failures": 0, "expiries": 1, "hand_backs": 1, "snoozes": 0, "waits": 0,
    }  # fmt: skip
    assert scene.value("SELECT count(*) FROM poolkeeper.suspect") == 0
    (row,) = scene.rows("SELECT outcome, reason FROM poolkeeper.delivery")
    assert row == ("expired", "outage")


def test_a_task_that_kills_its_only_worker_is_not_spared(scene: Scene) -> None:
    """Q27: where nobody came there may have been nobody: no outage is proven, so the delivery is spent, and the next one apart."""
    scene.submit()
    held = scene.worker().take()
    scene.jump(3 * LEASE)
    restarted = scene.worker()
    restarted.renew()
    contact(scene, 5, 4)
    assert scene.counters(held.task_id)["spent"] == 1
    restarted.renew()
    assert restarted.turn(want=1).isolate


@pytest.mark.parametrize("tick", [1.0, 5.0, 9.5])
def test_the_only_worker_that_dies_expires_as_ever_while_an_operator_sweeps(scene: Scene, tick: float) -> None:
    """Q22, Q23: after its visibility timeout and at most one tick: the sweeps are the proof."""
    task_id = scene.submit()
    scene.ask("operator", calls.sweep())
    scene.worker().take()
    contact(scene, tick, int((LEASE - 0.5) // tick))
    assert scene.state(task_id) == "running"
    contact(scene, tick, 1)
    assert scene.state(task_id) == "ready"
    assert scene.counters(task_id)["spent"] == 1
    assert scene.value("SELECT count(*) FROM poolkeeper.suspect") == 1


def test_a_sweeper_that_comes_seldom_does_not_keep_the_dead_for_ever(scene: Scene) -> None:
    """Q22: minutes between two sweeps prove nothing about the time between; after three graces the silent expire all the same."""
    task_id = scene.submit()
    scene.worker().take()
    for _ in range(4):
        scene.jump(300)
        assert scene.sweep() == 0
    scene.jump(1)
    assert scene.ask("operator", calls.sweep(since=1)) == 0 or scene.state(task_id) == "ready"
    scene.jump(300)
    scene.sweep()
    scene.jump(1)
    scene.sweep()
    assert scene.state(task_id) == "ready"


@pytest.mark.parametrize("spacing", [2.0, 5.0])
def test_a_clock_that_is_set_forward_under_a_sweeper_is_an_outage_of_its_own_kind(scene: Scene, spacing: float) -> None:
    """Q23: database time in excess of the sweeper's monotonic time extends leases, and proves that nobody is to blame."""
    task_id = scene.submit()
    scene.worker().take()
    contact(scene, spacing, 2)
    scene.jump(3600)
    assert scene.ask("operator", calls.sweep(since=spacing)) == 0
    contact(scene, 5, 4)
    assert scene.state(task_id) == "ready"
    assert scene.counters(task_id)["spent"] == 0


def test_a_clock_that_goes_back_ends_nothing_and_keeps_nothing(scene: Scene) -> None:
    """Q23: the living go on; the dead expire one visibility timeout later, not an hour."""
    alive, dead = scene.submit_many(2)
    worker, gone = scene.worker(), scene.worker()
    held = {c.task_id: c for c in (*worker.claim(1), *gone.claim(1))}
    assert set(held) == {alive, dead}
    contact(scene, 2, 1)
    scene.jump(-3600)
    contact(scene, 3, 1)
    assert worker.renew(alive).lost == []
    contact(scene, 3, 3)
    assert worker.renew(alive).lost == []
    assert (scene.state(alive), scene.state(dead)) == ("running", "running")
    contact(scene, 3, 3)
    assert worker.renew(alive).lost == []
    assert (scene.state(alive), scene.state(dead)) == ("running", "ready")
    assert scene.counters(dead)["spent"] == 0


def test_what_extend_said_is_kept_over_a_gap_and_moves_back_with_the_clock(scene: Scene) -> None:
    """Q20, Q23: a worker that extends instead of renewing has its further visibility timeout as well."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    assert run(worker.conn, calls.extend(task_id, delivery.token, seconds(60))).code is None
    scene.advance(50)
    scene.jump(120)
    contact(scene, 5, 2)
    assert run(worker.conn, calls.extend(task_id, delivery.token, seconds(60))).code is None
    scene.jump(-3600)
    contact(scene, 5, 14)
    assert scene.state(task_id) == "ready"


def test_a_checkpoint_after_a_jump_of_the_clock_is_taken(scene: Scene) -> None:
    """Q19, Q23: the worker knows of nothing and is not told that it came late."""
    task_id = scene.submit()
    worker = scene.worker()
    delivery = worker.take()
    scene.jump(3600)
    assert run(worker.conn, calls.checkpoint(task_id, delivery.token, 1, sequence=1)).code is None
    scene.advance(16)
    assert run(worker.conn, calls.checkpoint(task_id, delivery.token, 2, sequence=2)).code == "lease_expired"


def test_figures_of_a_gap_take_nobody_for_dead(scene: Scene) -> None:
    """O10, Q23: the first reading after an outage counts as running what nobody could renew."""
    scene.submit()
    scene.worker().take()
    scene.jump(3600)
    (queue,) = scene.ask("operator", calls.stats(cluster=None)).queues
    assert (queue.running, queue.ready) == (1, 0)


def test_a_start_of_the_server_is_told_by_itself_not_by_its_time(scene: Scene) -> None:
    """Q23: a promoted standby has been up for days, a clock may have gone back since: any other start is a restart."""
    task_id = scene.submit()
    scene.worker().take()
    contact(scene, 5, 2)
    scene.jump(5.5)
    scene.owner.execute("UPDATE poolkeeper.contact SET started_at = started_at + interval '1 day'")
    assert scene.sweep() == 0
    contact(scene, 5, 2)
    assert scene.state(task_id) == "running"
    contact(scene, 5, 2)
    assert scene.state(task_id) == "ready"
    assert scene.counters(task_id)["spent"] == 0
