"""What the operator reads and writes: one statement for everything, marks, batches, decisions (Q22, Q39, Q48, Q49)."""

from uuid import UUID

import pytest

from poolkeeper.store import calls, run
from poolkeeper.store.rows import PoolStats, QueueStats
from store.scene import Scene, seconds


def queue_of(scene: Scene, name: str = "q") -> QueueStats:
    (found,) = [q for q in scene.ask("operator", calls.stats(cluster="local")).queues if q.name == name]
    return found


def pool_of(scene: Scene, name: str = "local/p") -> PoolStats:
    (found,) = [p for p in scene.ask("operator", calls.stats(cluster="local")).pools if p.pool == name]
    return found


def test_counts_of_every_state(scene: Scene) -> None:
    """Q39, O10: ready, scheduled, waiting, leased, running, dead, suspects."""
    worker = scene.worker()
    scene.submit(max_deliveries=1)
    worker.fail(worker.take())
    scene.submit()
    worker.settle(worker.take(), "snoozed", retry_after=seconds(100))
    scene.submit()
    worker.take()
    other = scene.worker()
    scene.submit_many(4)
    run(other.conn, calls.turn(other.session, 1, 0, [], 2, slots=1))
    scene.advance(16)
    other.renew()
    scene.sweep()
    scene.submit(delay=seconds(50))
    scene.submit()
    stats = queue_of(scene)
    assert (stats.running, stats.leased, stats.scheduled, stats.waiting, stats.dead) == (1, 1, 1, 1, 1)
    assert (stats.ready, stats.suspects) == (4, 1)
    assert (stats.dead_recent, stats.lease_expiries) == (1, 1)
    assert stats.next_due is not None
    assert seconds(40) < stats.next_due <= seconds(50)


def test_the_age_of_the_oldest_runnable_task(scene: Scene) -> None:
    """O10: counts from when it became runnable; None where nothing is."""
    assert queue_of(scene).oldest_runnable is None
    scene.submit(delay=seconds(5))
    assert queue_of(scene).oldest_runnable is None
    scene.advance(12)
    age = queue_of(scene).oldest_runnable
    assert age is not None
    assert seconds(7) <= age < seconds(10)


def test_a_task_that_is_due_counts_before_anybody_swept(scene: Scene) -> None:
    """O12, P9: at zero pods nobody moves it, and it is runnable all the same."""
    scene.submit(delay=seconds(5))
    scene.advance(6)
    stats = queue_of(scene)
    assert (stats.ready, stats.scheduled) == (1, 0)


def test_an_expired_lease_counts_as_runnable_before_anybody_swept(scene: Scene) -> None:
    """Q22, O12: so that an operator starts somebody who sweeps."""
    scene.submit()
    scene.worker().take()
    scene.advance(30)
    stats = queue_of(scene)
    assert (stats.ready, stats.running) == (1, 0)
    assert stats.oldest_runnable is not None
    assert seconds(14) <= stats.oldest_runnable < seconds(20)


def test_types_with_their_ages(scene: Scene) -> None:
    """Q11, O10: what nobody can run is told by its type."""
    scene.submit_many(3, type="a.b")
    scene.advance(5)
    scene.submit("c.d")
    types = {t.type: t for t in queue_of(scene).types}
    assert {name: t.ready for name, t in types.items()} == {"a.b": 3, "c.d": 1}
    (first, second) = (types["a.b"].oldest, types["c.d"].oldest)
    assert first is not None
    assert second is not None
    assert first > second


def test_counts_stop_at_their_cap(scene: Scene) -> None:
    """O10: the cost does not follow the backlog."""
    scene.submit_many(10_500)
    assert queue_of(scene).ready == 10_000


def test_only_the_clusters_own_queues(scene: Scene) -> None:
    """Contract 11: another cluster's are not ours to scale by."""
    call = calls.apply_policy("other-cluster", "uid", "team", "theirs", {}, who="x")
    assert scene.ask("operator", call).code is None
    assert [q.name for q in scene.ask("operator", calls.stats(cluster="local")).queues] == ["q"]
    assert len(scene.ask("operator", calls.stats(cluster=None)).queues) == 2


def test_sessions_of_a_pool(scene: Scene) -> None:
    """O20, Q49: busy slots by leases, service time as the process counts it, silence, idleness."""
    scene.submit_many(2)
    worker = scene.worker(pod_name="pod-1", pod_uid="u-1", build="3fa9", concurrency=4)
    held = worker.claim(2)
    scene.advance(5)
    call = calls.renew(
        worker.session, worker.received, [c.task_id for c in held], stats={"finished": 7, "busy_seconds": 1.5}
    )
    run(worker.conn, call)
    scene.advance(2)
    pool = pool_of(scene)
    (session,) = pool.sessions
    assert (pool.running, pool.max_running) == (2, None)
    assert (session.pod_name, session.pod_uid, session.build, session.concurrency) == ("pod-1", "u-1", "3fa9", 4)
    assert (session.busy, session.finished, session.busy_seconds, session.draining) == (2, 7, 1.5, False)
    assert seconds(2) <= session.renewed_ago < seconds(5)
    assert session.registered_ago >= seconds(7)
    assert session.idle_for is None
    for delivery in held:
        worker.succeed(delivery)
    worker.renew()
    scene.advance(3)
    (session,) = pool_of(scene).sessions
    assert session.idle_for is not None
    assert session.idle_for >= seconds(3)


def test_ended_sessions_are_gone_and_silent_ones_after_a_while(scene: Scene) -> None:
    """O10: a session that still holds something stays in sight until it is swept."""
    scene.submit()
    ended, silent, holding = scene.worker(), scene.worker(), scene.worker()
    holding.take()
    ended.end()
    assert {s.session_id for s in pool_of(scene).sessions} == {silent.session.id, holding.session.id}
    scene.advance(130)
    assert {s.session_id for s in pool_of(scene).sessions} == {holding.session.id}
    scene.sweep()
    assert pool_of(scene).sessions == []


def test_drain_reports_are_samples_of_the_pool(scene: Scene) -> None:
    """Q48, O20: with what was cut marked as such."""
    worker = scene.worker()
    report = {"duration_seconds": 12.5, "truncated": True, "handed_back": 3, "grace_seconds": 15.0}
    run(worker.conn, calls.report_drain(worker.session, report))
    scene.advance(60)
    (sample,) = pool_of(scene).drains
    assert (sample.seconds, sample.truncated, sample.grace) == (12.5, True, 15.0)
    assert seconds(60) <= sample.ended_ago < seconds(70)
    scene.advance(14 * 86400)
    assert pool_of(scene).drains == []


def test_a_worker_hears_the_real_grace_of_its_pod(scene: Scene) -> None:
    """O20, Q48: of its own pod and pool only, with its next renewal."""
    mine = scene.worker(pod_uid="uid-1")
    other, elsewhere = scene.worker(pod_uid="uid-2"), scene.worker(pool="local/x", pod_uid="uid-1")
    assert scene.ask("operator", calls.tell_grace("local/p", {"uid-1": 7.0, "uid-9": 1.0})) == 1
    assert scene.ask("operator", calls.tell_grace("local/p", {"uid-1": 7.0})) == 0
    graces = [run(each.conn, calls.renew(each.session, 0, [])).grace for each in (mine, other, elsewhere)]
    assert graces == [seconds(7), None, None]
    mine.end()
    assert scene.ask("operator", calls.tell_grace("local/p", {"uid-1": 5.0})) == 0, "it has ended"


def test_marking_answers_how_busy_each_pod_is(scene: Scene) -> None:
    """O22: after marking; only the pool's own pods; a pod without a session is not in the answer."""
    scene.submit_many(2)
    worker = scene.worker(pod_name="pod-1")
    scene.worker(pod_name="pod-2")
    scene.worker(pool="local/x", pod_name="pod-1")
    worker.claim(2)
    marked = scene.ask("operator", calls.mark_sessions("local/p", ["pod-1", "pod-2", "pod-3"], draining=True))
    assert marked == {"pod-1": 2, "pod-2": 0}
    assert [s.draining for s in pool_of(scene).sessions] == [True, True]
    assert [s.draining for s in pool_of(scene, "local/x").sessions] == [False]


class TestDeadBatches:
    """Announced once: a batch keeps its number and content until it is confirmed (O24)."""

    def kill(self, scene: Scene, count: int, **wishes: str) -> list[UUID]:
        ids = scene.submit_many(count, **wishes)
        worker = scene.worker(types=["a.b", "c.d"])
        for delivery in worker.claim(count):
            worker.settle(delivery, "dead", error_class="E", error="gone")
        return ids

    def test_the_same_batch_until_it_is_confirmed(self, scene: Scene) -> None:
        queue_id = queue_of(scene).queue_id
        assert scene.ask("operator", calls.dead_batch(queue_id)) is None
        ids = self.kill(scene, 2) + self.kill(scene, 1, type="c.d")
        first = scene.ask("operator", calls.dead_batch(queue_id))
        assert first is not None
        assert (first.number, first.count, first.first_error) == (1, 3, "gone")
        assert first.first_task in ids
        assert (first.types, first.reasons) == ({"a.b": 2, "c.d": 1}, {"permanent_error": 3})
        self.kill(scene, 4)
        assert scene.ask("operator", calls.dead_batch(queue_id)) == first
        assert scene.ask("operator", calls.dead_batch_announced(queue_id, 1)) is True
        assert scene.ask("operator", calls.dead_batch_announced(queue_id, 1)) is False
        second = scene.ask("operator", calls.dead_batch(queue_id))
        assert second is not None
        assert (second.number, second.count) == (2, 4)

    def test_a_batch_that_was_requeued_away_leaves_no_empty_announcement(self, scene: Scene) -> None:
        queue_id = queue_of(scene).queue_id
        (task_id,) = self.kill(scene, 1)
        assert scene.ask("operator", calls.dead_batch(queue_id)) is not None
        scene.ask("person", calls.requeue(task_id, who="ann", why="x"))
        assert scene.ask("operator", calls.dead_batch(queue_id)) is None
        self.kill(scene, 1)
        assert scene.ask("operator", calls.dead_batch(queue_id)) is not None


def test_decisions_are_kept_newest_first(scene: Scene) -> None:
    """O11, P8: with all that they were made from."""
    for n in range(3):
        scene.ask("operator", calls.record_decision("local/p", {"n": n}))
    assert [d for _, d in scene.ask("reader", calls.decisions("local/p", 2))] == [{"n": 2}, {"n": 1}]
    assert scene.ask("reader", calls.decisions("local/other")) == []


class TestPolicies:
    """Versions and ownership (O1, contract 11)."""

    def test_the_same_policy_again_changes_nothing(self, scene: Scene) -> None:
        first = scene.ask(
            "operator", calls.apply_policy("local", "default", "default", "q", {"max_deliveries": 3}, who="a")
        )
        again = scene.ask(
            "operator", calls.apply_policy("local", "default", "default", "q", {"max_deliveries": 3}, who="b")
        )
        assert (first.policy_version, first.changed) == (2, True)
        assert (again.policy_version, again.changed) == (2, False)
        assert scene.value("SELECT count(*) FROM poolkeeper.policy") == 2

    @pytest.mark.parametrize(("cluster", "uid"), [("other", "default"), ("local", "new-namespace")])
    def test_a_queue_of_another_owner_is_refused_until_adopted(self, scene: Scene, cluster: str, uid: str) -> None:
        """Contract 11: a new tenant must not inherit the old one's tasks."""
        task_id = scene.submit()
        refused = scene.ask("operator", calls.apply_policy(cluster, uid, "default", "q", {"paused": True}, who="b"))
        assert (refused.code, refused.changed) == ("queue_owned", False)
        assert scene.verdict().code is None
        adopted = scene.ask(
            "operator", calls.apply_policy(cluster, uid, "default", "q", {}, who="b", adopt=refused.owner)
        )
        assert (adopted.code, adopted.queue_id) == (None, refused.queue_id)
        assert scene.state(task_id) == "ready"

    def test_a_queue_applied_again_adopts_its_rows(self, scene: Scene) -> None:
        """Contract 11: GitOps re-creates objects in the same namespace."""
        task_id = scene.submit()
        again = scene.ask(
            "operator", calls.apply_policy("local", "default", "default", "q", {"max_deliveries": 9}, who="b")
        )
        assert again.code is None
        assert scene.worker().take().task_id == task_id
