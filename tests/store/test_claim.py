"""Claiming: how many, of what, in which order; lost answers; what may not start (Q9, Q10, Q11, Q16)."""

import psycopg
import pytest

from poolkeeper.codes import Code
from poolkeeper.store import Settle, calls, run
from store.scene import Scene, seconds


@pytest.mark.parametrize("want", [0, 1, 3, 7, 20])
def test_never_more_than_asked(scene: Scene, want: int) -> None:
    """Q10: exactly the smaller of wish and stock, and each once."""
    stock = set(scene.submit_many(7))
    got = [c.task_id for c in scene.worker().claim(want)]
    assert len(got) == min(want, 7)
    assert len(set(got)) == len(got)
    assert set(got) <= stock


def test_never_more_than_asked_over_several_queues(scene: Scene) -> None:
    """Q10: the wish is for all queues together."""
    for name in ("r", "s"):
        scene.queue(name)
        scene.submit_many(5, queue=name)
    scene.submit_many(5)
    worker = scene.worker(queues=["q", "r", "s"])
    assert [len(worker.claim(4)) for _ in range(5)] == [4, 4, 4, 3, 0]


def test_queues_take_turns_in_coming_first(scene: Scene) -> None:
    """P6: a session of two queues does not starve the second while the first has work."""
    scene.queue("r")
    scene.submit_many(20)
    scene.submit_many(20, queue="r")
    worker = scene.worker(queues=["q", "r"])
    assert {c.queue for _ in range(4) for c in worker.claim(2)} == {"default/q", "default/r"}


def test_a_claim_is_the_start(scene: Scene) -> None:
    """Contract 21: claimed for a free slot, the task is running, durable in the same commit."""
    task_id = scene.submit(payload={"x": 1}, labels={"l": "1"}, traceparent="00-t")
    delivery = scene.worker().take()
    assert scene.state(task_id) == "running"
    assert (delivery.task_id, delivery.delivery, delivery.payload) == (task_id, 1, {"x": 1})
    assert (delivery.labels, delivery.traceparent, delivery.queue) == ({"l": "1"}, "00-t", "default/q")
    assert (delivery.deliveries_spent, delivery.failures, delivery.suspect) == (1, 0, False)


def test_two_sessions_never_get_the_same_task(scene: Scene) -> None:
    """P2: also while the first one's claim is not committed; the second takes others without waiting."""
    scene.submit_many(6)
    first = scene.worker(conn=scene.connect("worker", autocommit=False))
    first.conn.commit()
    second = scene.worker()
    a = {c.task_id for c in first.claim(3)}
    b = {c.task_id for c in second.claim(5)}
    first.conn.commit()
    assert len(a) == len(b) == 3
    assert not a & b


def test_within_a_lane_and_priority_first_come_is_first_served(scene: Scene) -> None:
    """Contract 22: seq decides."""
    ids = scene.submit_many(12)
    worker = scene.worker()
    assert [c.task_id for _ in range(4) for c in worker.claim(3)] == ids


def test_higher_priority_goes_first(scene: Scene) -> None:
    """Q9, contract 22: inside a lane."""
    low, high, middle = (scene.submit(priority=p) for p in (0, 9, 5))
    worker = scene.worker()
    assert [worker.take().task_id for _ in range(3)] == [high, middle, low]


def test_the_lowest_priority_ages_past_newer_high_ones(scene: Scene) -> None:
    """Q9: one step per ageEvery, so that it runs within a stated bound."""
    scene.queue(priority_age_seconds=10)
    low = scene.submit(priority=0)
    scene.advance(91)
    high = scene.submit(priority=9)
    worker = scene.worker()
    assert [worker.take().task_id for _ in range(2)] == [low, high]


def test_only_the_sessions_types_are_offered_and_others_burn_nothing(scene: Scene) -> None:
    """Q11: what nobody here can run stays untouched."""
    other = scene.submit("other.type")
    mine = scene.submit("a.b")
    worker = scene.worker(types=["a.b"])
    assert [c.task_id for c in worker.claim(10)] == [mine]
    assert scene.counters(other)["delivery"] == 0
    assert scene.state(other) == "ready"


def test_only_the_sessions_queues_are_offered(scene: Scene) -> None:
    """Q11: a session sees what it registered for."""
    scene.queue("r")
    scene.submit(queue="r")
    mine = scene.submit()
    assert [c.task_id for c in scene.worker().claim(10)] == [mine]


def test_many_foreign_types_in_a_lane_hide_nothing(scene: Scene) -> None:
    """Q11: more kinds of foreign work than a claim looks at do not starve what this session can run."""
    scene.ask(
        "submitter",
        calls.submit_many(
            "q", [{"type": f"x.t{n}", "payload": 1, "priority": p} for n in range(40) for p in range(10)]
        ),
    )
    mine = {scene.submit("a.b"), scene.submit("z.z"), scene.submit("a.b", tenant="other")}
    worker = scene.worker(types=["a.b", "z.z"])
    assert {c.task_id for _ in range(3) for c in worker.claim(3)} == mine


def test_many_kinds_of_own_work_in_one_lane_do_not_hide_the_next_lane(scene: Scene) -> None:
    """P6: a tenant that uses every type at every priority, all the time, leaves the others their turns."""
    types = [f"x.t{n}" for n in range(30)]
    wishes = [{"type": t, "payload": 1, "priority": p, "tenant": "hog"} for t in types for p in range(10)] * 4
    scene.ask("submitter", calls.submit_many("q", wishes))
    others = {scene.submit("x.t1", tenant=f"small{n}") for n in range(6)}
    worker = scene.worker(types=types)
    got = {c.task_id for _ in range(40) for c in worker.claim(1)}
    assert others <= got


def test_one_turn_looks_at_every_lane_before_it_says_that_there_is_no_more(scene: Scene) -> None:
    """Q10, F3: free slots are filled in the same turn, wherever the walk over the lanes had stopped."""
    scene.ask(
        "submitter",
        calls.submit_many("q", [{"type": "a.b", "payload": 1, "tenant": f"t{n}"} for n in range(30) for _ in range(2)]),
    )
    worker = scene.worker()
    assert len(worker.claim(5)) == 5
    assert len(worker.claim(200)) == 55


def test_a_lost_answer_returns_its_deliveries_unstarted(scene: Scene) -> None:
    """Q10: the next turn names the last answer that arrived; what never arrived costs no delivery."""
    task_id = scene.submit()
    worker = scene.worker()
    (lost,) = worker.turn(want=1, lost=True).claimed
    again = worker.take()
    assert (again.task_id, again.delivery, again.deliveries_spent) == (task_id, 2, 1)
    assert again.token != lost.token
    assert worker.succeed(lost).code == "lease_expired"
    assert worker.succeed(again).code is None


def test_an_answer_that_arrived_keeps_its_deliveries(scene: Scene) -> None:
    """Q10: only turns between the last received one and this one are taken for lost."""
    scene.submit_many(3)
    worker = scene.worker()
    kept = worker.take()
    worker.turn(want=1, lost=True)
    worker.turn(want=1, lost=True)
    later = worker.claim(5)
    assert len(later) == 2
    assert worker.succeed(kept).code is None


def test_answers_that_are_always_lost_end_in_a_dead_letter(scene: Scene) -> None:
    """P4, Q16: returns are bounded as hand-backs are; beyond, each spends a delivery. Nothing loops for ever."""
    scene.queue(max_hand_backs=3, max_deliveries=2)
    task_id = scene.submit()
    worker = scene.worker()
    turns = 0
    while scene.state(task_id) != "dead":
        worker.turn(want=1, lost=True)
        turns += 1
        assert turns < 20
    assert scene.counters(task_id)["delivery"] == 5
    (letter,) = scene.ask("reader", calls.dead_letters())
    assert letter.reason == "deliveries_exhausted"


def test_a_session_that_did_not_renew_in_time_claims_nothing(scene: Scene) -> None:
    """Q20: a lease of a silent session would be born expired; after its next renewal it claims again."""
    scene.submit()
    worker = scene.worker()
    scene.advance(15.1)
    assert worker.claim(1) == []
    worker.renew()
    assert len(worker.claim(1)) == 1


def test_an_ended_session_claims_nothing(scene: Scene) -> None:
    """Q48: what said that it runs nothing any more gets nothing."""
    scene.submit()
    worker = scene.worker()
    worker.end()
    assert worker.claim(1) == []


def test_a_session_marked_as_draining_claims_nothing_and_settles_all(scene: Scene) -> None:
    """Q48, O22: the operator's mark."""
    scene.submit_many(2)
    worker = scene.worker(pod_name="pod-1")
    delivery = worker.take()
    assert scene.ask("operator", calls.mark_sessions("local/p", ["pod-1"], draining=True)) == {"pod-1": 1}
    answer = worker.turn([Settle(delivery.task_id, delivery.token, "succeeded")], want=5)
    assert (answer.claimed, answer.draining, answer.verdicts[0].code) == ([], True, None)
    assert worker.renew().draining
    scene.ask("operator", calls.mark_sessions("local/p", ["pod-1"], draining=False))
    assert len(worker.claim(5)) == 1


def test_a_queue_that_comes_later_is_picked_up(scene: Scene) -> None:
    """Registering for a queue that is not there yet is no error; it is served once it exists."""
    worker = scene.worker(queues=["q", "later"])
    assert worker.session.unknown_queues == ["default/later"]
    scene.queue("later")
    task_id = scene.submit(queue="later")
    assert [c.task_id for c in worker.claim(1, sweep=True)] == [task_id]


def test_a_session_without_any_known_queue_does_not_ask_all_the_time(scene: Scene) -> None:
    """F4: it comes again about as often as an idle one."""
    worker = scene.worker(queues=["nowhere"])
    assert worker.turn(want=1).come_again >= seconds(1)


def test_an_idle_session_comes_again_when_something_is_due(scene: Scene) -> None:
    """Q15: polling is the truth: at the next due task, else within a third of the lease."""
    worker = scene.worker()
    assert seconds(1) <= worker.turn(want=1).come_again <= seconds(5)
    scene.submit(delay=seconds(2))
    assert worker.turn(want=1).come_again <= seconds(2)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stronger_isolation_than_read_committed_is_refused(scene: Scene, level: str) -> None:
    """Q12: limits would be counted on an old snapshot; the message names the remedy."""
    conn = scene.connect("worker")
    worker = scene.worker(conn=conn)
    conn.execute(f"SET default_transaction_isolation = '{level.lower()}'")
    with pytest.raises(psycopg.Error, match="READ COMMITTED") as caught:
        worker.turn(want=1)
    assert caught.value.sqlstate == "PK400"
    assert "default_transaction_isolation" in (caught.value.diag.message_hint or "")


def test_a_session_is_its_own_logins_alone(scene: Scene) -> None:
    """Q51: neither a wrong secret nor another login can speak for it."""
    worker = scene.worker()
    real = worker.session.secret
    worker.session.secret = "pkt_wrong"
    with pytest.raises(psycopg.Error) as caught:
        worker.claim(1)
    assert caught.value.sqlstate == "PK401"
    worker.session.secret = real
    worker.conn = scene.owner
    with pytest.raises(psycopg.Error) as caught:
        worker.claim(1)
    assert caught.value.sqlstate == "PK401"


def test_ahead_of_a_slot_a_delivery_is_leased_and_starts_later(scene: Scene) -> None:
    """Q16, contract 21: the first `slots` run, the rest waits for a later turn that names it."""
    scene.submit_many(3)
    worker = scene.worker()
    worker.turn_no += 1
    answer = run(worker.conn, calls.turn(worker.session, 1, 0, [], 3, slots=1))
    worker.received = 1
    assert [scene.state(c.task_id) for c in answer.claimed] == ["running", "leased", "leased"]
    worker.turn_no += 1
    run(worker.conn, calls.turn(worker.session, 2, 1, [], 0, starts=answer.claimed[1:2]))
    worker.received = 2
    assert [scene.state(c.task_id) for c in answer.claimed] == ["running", "running", "leased"]
    timeline = scene.ask("reader", calls.timeline(answer.claimed[1].task_id))
    assert [(row.what, row.state, row.state_version) for row in timeline] == [
        ("accepted", "ready", 1),
        ("claimed", "leased", 2),
        ("started", "running", 3),
    ]


@pytest.mark.parametrize("why", ["canceled", "queue_paused", "max_age_passed", "lease_expired"])
def test_a_start_is_refused_where_it_must_not_begin_and_costs_nothing(scene: Scene, why: str) -> None:
    """Q16: cancelled, paused, past its age, or of a session that is out of time."""
    task_id = scene.submit(max_age=seconds(10))
    worker = scene.worker()
    worker.turn_no = worker.received = 1
    (ahead,) = run(worker.conn, calls.turn(worker.session, 1, 0, [], 1, slots=0)).claimed
    if why == "canceled":
        scene.ask("person", calls.cancel(task_id, who="ann", why="no"))
    elif why == "queue_paused":
        scene.ask("person", calls.pause("q", True, who="ann"))
    elif why == "max_age_passed":
        scene.advance(11)
    else:
        scene.advance(16)
    answer = run(worker.conn, calls.turn(worker.session, 2, 1, [], 0, starts=[ahead]))
    if why == "lease_expired":
        assert set(answer.refused) == {task_id}
        assert scene.state(task_id) != "running"
        return
    assert answer.refused == {task_id: why}
    assert scene.state(task_id) == {"canceled": "canceled", "queue_paused": "ready", "max_age_passed": "dead"}[why]
    if why == "queue_paused":
        assert scene.counters(task_id)["spent"] == 0


def test_a_refused_start_costs_nothing_however_often(scene: Scene) -> None:
    """Q16: also beyond the bound of hand-backs; one that comes too late is bounded, and told as that."""
    scene.queue(max_deliveries=1, max_hand_backs=1)
    task_id = scene.submit()
    worker = scene.worker()
    for _ in range(3):
        (ahead,) = worker.claim(slots=0)
        scene.ask("person", calls.pause("q", True, who="ann"))
        assert worker.turn(starts=[ahead]).refused == {task_id: "queue_paused"}
        scene.ask("person", calls.pause("q", False, who="ann"))
        assert (scene.state(task_id), scene.counters(task_id)["spent"]) == ("ready", 0)
    (ahead,) = worker.claim(slots=0)
    scene.advance(16)
    assert worker.turn(starts=[ahead]).refused == {task_id: "lease_expired"}
    assert scene.state(task_id) == "dead"


def test_a_refused_start_beyond_the_bound_of_hand_backs_breaks_no_sum(scene: Scene) -> None:
    """Q16, Q61: it costs nothing there either, and the audit, which ends every test, knows it."""
    scene.queue(max_hand_backs=1)
    task_id = scene.submit(max_age=seconds(10))
    worker = scene.worker()
    (ahead,) = worker.claim(slots=0)
    worker.settle(ahead, "handed_back")
    (ahead,) = worker.claim(slots=0)
    scene.advance(11)
    assert worker.turn(starts=[ahead]).refused == {task_id: "max_age_passed"}
    assert (scene.counters(task_id)["hand_backs"], scene.counters(task_id)["spent"]) == (2, 0)


def test_a_start_in_the_moment_of_its_claim_is_a_step_of_its_own(scene: Scene) -> None:
    """Q2: the clock may stand still, or be set back, between the two."""
    task_id = scene.submit()
    worker = scene.worker()
    (ahead,) = worker.claim(slots=0)
    scene.advance(-5)
    worker.turn(starts=[ahead])
    steps = [(row.what, row.state_version) for row in scene.ask("person", calls.timeline(task_id))]
    assert steps == [("accepted", 1), ("claimed", 2), ("started", 3)]


def test_an_expiry_before_the_start_returns_the_delivery(scene: Scene) -> None:
    """Q16, Q27: a task that never started is no suspect and has spent nothing."""
    task_id = scene.submit()
    worker = scene.worker()
    run(worker.conn, calls.turn(worker.session, 1, 0, [], 1, slots=0))
    scene.advance(16)
    scene.sweep()
    assert scene.state(task_id) == "ready"
    assert scene.value("SELECT count(*) FROM poolkeeper.suspect") == 0
    assert scene.counters(task_id)["spent"] == 0


def test_codes_of_a_claim_are_of_the_list(scene: Scene) -> None:
    """Contract 2: what `start` refuses with is a code that programs know."""
    assert {"canceled", "queue_paused", "max_age_passed", "lease_expired"} <= set(Code)


def test_a_turn_that_commits_after_its_successor_keeps_nothing(scene: Scene) -> None:
    """Q10: its answer went to nobody; the next complete renewal gives its deliveries back unstarted, and only these."""
    scene.submit_many(4)
    worker = scene.worker()
    with scene.connect("worker", autocommit=False) as slow:
        slow_claims = run(slow, calls.turn(worker.session, 1, 0, [], 2)).claimed
        worker.turn_no = 1
        own = worker.claim(2)  # a new connection, turn 2: the first one was given up, but is not over
        slow.commit()
    assert len(slow_claims) == len(own) == 2
    held = [c.task_id for c in own]
    run(worker.conn, calls.renew(worker.session, worker.received, held))
    assert {scene.state(c.task_id) for c in slow_claims} == {"running"}, "a renewal that is not complete moves nothing"
    run(worker.conn, calls.renew(worker.session, worker.received, held, complete=True))
    assert {scene.state(c.task_id) for c in slow_claims} == {"ready"}
    assert {scene.state(task_id) for task_id in held} == {"running"}
    again = scene.worker().claim(4)
    assert {c.task_id for c in again} == {c.task_id for c in slow_claims}
    assert {c.deliveries_spent for c in again} == {1}, "a delivery that never began costs nothing"
