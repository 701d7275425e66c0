"""Requests and tokens per window: granted at the claim, given back or charged (Q40, ADR 0035)."""

from typing import Any

import pytest

from poolkeeper.provider import reported
from poolkeeper.store import Settle, calls, run
from store.scene import Scene, seconds
from store.windowing import entry, known, most_in_a_window, taken, tell, use, window

MINUTE = {"requests": window(60)}


@pytest.fixture(autouse=True)
def plenty(scene: Scene) -> None:
    scene.queue(visibility_timeout_seconds=300)
    scene.submit_many(200)


def keep(scene: Scene) -> None:
    """They renew, whatever they hold."""
    scene.owner.execute("UPDATE poolkeeper.session SET renewed_at = poolkeeper.clock()")


def test_a_claim_takes_what_its_tasks_need_and_no_task_more(scene: Scene) -> None:
    """Q40 a: 60 requests and 12 for each task are five tasks, of all pools together."""
    use(scene, entry(12, windows=MINUTE))
    use(scene, entry(12, windows=MINUTE), pool="team/b")
    assert len(scene.worker().claim(3)) == 3
    assert len(scene.worker(pool="team/b").claim(10)) == 2
    assert taken(scene) == {"requests": 60}
    for pool in ("local/p", "team/b"):
        assert scene.worker(pool=pool).claim(10) == []


def test_the_scarcer_of_requests_and_tokens_counts_and_of_two_quotas(scene: Scene) -> None:
    """Q40 a: a task starts only where there is room for all that it needs."""
    both = {"requests": window(100), "tokens": window(1000)}
    other = entry(5, name="mail", quota="platform/mail", windows={"requests": window(15)})
    use(scene, entry(1, 200, windows=both), other)
    assert len(scene.worker().claim(10)) == 3
    use(scene, entry(1, 200, windows=both))
    assert len(scene.worker().claim(10)) == 2
    assert taken(scene) == {"requests": 5, "tokens": 1000}
    assert taken(scene, "platform/mail") == {"requests": 15}


def test_two_names_of_one_quota_need_both(scene: Scene) -> None:
    """Q40 a: a task that knows a quota by two names uses the sum."""
    use(scene, entry(4, windows=MINUTE), entry(6, name="again", windows=MINUTE))
    assert len(scene.worker().claim(10)) == 6
    assert taken(scene) == {"requests": 60}


def test_what_nobody_told_of_counts_from_its_end_for_a_window(scene: Scene) -> None:
    """Q40: a call may come at any time of the delivery; it is forgotten a window after that, at most five percent later."""
    use(scene, entry(20, windows=MINUTE))
    worker = scene.worker()
    held = worker.claim(10)
    scene.advance(100)
    keep(scene)
    assert worker.claim(5) == [], "it runs, however long"
    for one in held:
        assert worker.succeed(one).code is None
    scene.advance(59.9)
    keep(scene)
    assert worker.claim(5) == []
    assert taken(scene) == {"requests": 60}
    scene.advance(3.2)
    assert len(worker.claim(5)) == 3


def test_what_was_told_counts_from_then(scene: Scene) -> None:
    """Q40: a report says when; the window of that call ends while the delivery runs on, and only its rest is held."""
    use(scene, entry(3, windows={"requests": window(6)}))
    worker = scene.worker()
    first, _ = worker.claim(5)
    tell(scene, first, used={"requests": 2})
    assert taken(scene) == {"requests": 6}
    scene.advance(64)
    keep(scene)
    assert taken(scene) == {"requests": 4}
    tell(scene, first)
    assert taken(scene) == {"requests": 4}
    scene.advance(64)
    keep(scene)
    assert len(worker.claim(5)) == 1


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "rejected", "dead", "snoozed", "handed_back"])
def test_what_was_not_used_is_given_back_by_who_tells(scene: Scene, outcome: str) -> None:
    """Q40: unused tokens at once, as soon as the delivery has ended; of requests, told by their number, too."""
    use(scene, entry(2, 1000, windows={"requests": window(100), "tokens": window(2000)}))
    worker = scene.worker()
    first, second = worker.claim(5)
    tell(scene, first, used={"tokens": 300})
    assert taken(scene) == {"requests": 4, "tokens": 2000}, "it may yet use the rest"
    worker.settle(first, outcome)
    assert taken(scene) == {"requests": 4, "tokens": 1300}, "of requests it did not say how many"
    tell(scene, second, used={"requests": 1, "tokens": 0})
    worker.settle(second, outcome)
    assert taken(scene) == {"requests": 3, "tokens": 300}


def test_what_was_used_beyond_is_charged(scene: Scene) -> None:
    """Q40: it is held against all until its window has passed, also above the limit."""
    use(scene, entry(1, 100, windows={"requests": window(100), "tokens": window(500)}))
    worker = scene.worker()
    (first,) = worker.claim(1)
    tell(scene, first, used={"tokens": 5000})
    assert taken(scene)["tokens"] == 5000
    assert worker.claim(9) == []
    worker.succeed(first)
    assert taken(scene)["tokens"] == 5000
    scene.advance(64)
    keep(scene)
    assert len(worker.claim(9)) == 5


@pytest.mark.parametrize("how", ["expired", "process_died", "run time", "purged"])
def test_who_was_lost_may_have_used_all(scene: Scene, how: str) -> None:
    """Q40: also what it had told of so far; a crash gives nothing back."""
    policy: dict[str, Any] = {"max_run_time_seconds": 50} if how == "run time" else {}
    scene.queue(visibility_timeout_seconds=60, **policy)
    use(scene, entry(2, 1000, windows={"requests": window(100, 600), "tokens": window(2000, 600)}))
    worker = scene.worker()
    (first,) = worker.claim(1)
    tell(scene, first, used={"requests": 1, "tokens": 10})
    if how == "process_died":
        worker.settle(first, "failed", error_class="process_died")
    elif how == "purged":
        cursor = None
        for _ in range(10):
            removal = calls.purge("local", "default", "default", "q", who="t", cursor=cursor)
            cursor = scene.ask("operator", removal).cursor
            if cursor is None:
                break
    else:
        if how == "run time":
            scene.advance(40)
            keep(scene)
        scene.advance(61 if how == "expired" else 15)
        scene.sweep()
    assert scene.rows("SELECT FROM poolkeeper.lease") == []
    assert scene.rows("SELECT FROM poolkeeper.provider_hold") == []
    assert taken(scene) == {"requests": 2, "tokens": 1000}


def test_what_never_began_has_used_nothing(scene: Scene) -> None:
    """Q10, Q40: an answer that was lost, and a task that its worker gave back unstarted."""
    use(scene, entry(20, windows=MINUTE))
    worker = scene.worker()
    assert len(worker.turn(want=2, lost=True).claimed) == 2
    assert len(worker.claim(3)) == 3
    (one,) = scene.rows("SELECT count(*) AS n FROM poolkeeper.provider_hold")
    assert one.n == 3
    again = scene.worker()
    held = scene.rows("SELECT task_id FROM poolkeeper.lease")
    assert len(held) == 3
    assert again.claim(1) == []


def test_a_task_given_back_unstarted_frees_its_grant(scene: Scene) -> None:
    """Q16, Q40: user code never ran."""
    use(scene, entry(20, windows=MINUTE))
    worker = scene.worker()
    held = worker.claim(3)
    worker.turn([Settle(one.task_id, one.token, "handed_back", started=False) for one in held])
    assert taken(scene) == {"requests": 0}
    assert len(worker.claim(3)) == 3


def test_workers_come_again_when_a_window_has_room(scene: Scene) -> None:
    """Q15, Q40: not before, and not as late as an idle one."""
    use(scene, entry(30, windows=MINUTE))
    worker = scene.worker()
    for one in worker.claim(3):
        worker.succeed(one)
    answer = worker.turn(want=3)
    assert answer.claimed == []
    assert answer.come_again > seconds(1)
    scene.advance(58)
    keep(scene)
    came = worker.turn(want=3).come_again
    assert seconds(1) < came <= seconds(5.1)
    scene.queue("none")
    scene.advance(came.total_seconds() - 0.5)
    keep(scene)
    assert worker.turn(want=3).come_again <= seconds(0.6)
    assert scene.worker(queues=["none"]).turn(want=3).come_again > seconds(1), "without work nobody waits for it"
    scene.advance(0.6)
    assert len(worker.claim(3)) == 2


def test_a_refusal_lowers_windows_at_once(scene: Scene) -> None:
    """Q40: by the same percents as concurrent calls; nothing starts before Retry-After."""
    use(scene, entry(1, windows=MINUTE))
    worker = scene.worker()
    (first,) = worker.claim(1)
    tell(scene, first, 429, retry_after=10)
    assert worker.claim(60) == []
    scene.advance(10.1)
    keep(scene)
    assert len(worker.claim(60)) == 29
    worker = scene.worker()
    scene.advance(65)
    keep(scene)
    assert len(worker.claim(60)) in {3, 4}, "5 percent of 60 came back, and the spent one was forgotten"


def test_the_operator_hears_what_the_store_knows(scene: Scene) -> None:
    """O15: windows and needs are in the reading, and telling the same again changes nothing."""
    told = entry(12, 500, windows={"requests": window(60), "tokens": window(9000, 30)})
    use(scene, told)
    assert scene.ask("operator", calls.set_providers("local/p", [told])) is False
    found = [(one.measure, one.limit, one.window, one.taken) for one in known(scene).windows]
    assert found == [("requests", 60, 60.0, 0), ("tokens", 9000, 30.0, 0)]
    (pool,) = scene.ask("operator", calls.stats(cluster=None)).pools
    assert pool.needs == {"api": {"requests": 12, "tokens": 500}}
    assert scene.ask("operator", calls.set_providers("local/p", [told | {"requests": 13}])) is True
    assert scene.ask("operator", calls.set_providers("local/p", [told | {"windows": MINUTE}])) is True
    assert [one.measure for one in known(scene).windows] == ["requests"]


def test_what_a_lowered_need_was_granted_stays_held(scene: Scene) -> None:
    """Q40: a changed perTask is for what is claimed from now on; and a provider taken out of the pool keeps what its tasks hold."""
    use(scene, entry(20, windows=MINUTE))
    worker = scene.worker()
    assert len(worker.claim(2)) == 2
    use(scene, entry(1, windows=MINUTE))
    assert taken(scene) == {"requests": 40}
    use(scene)
    use(scene, entry(1, windows=MINUTE), pool="team/b")
    assert taken(scene) == {"requests": 40}
    assert len(scene.worker(pool="team/b").claim(100)) == 20
    assert len(worker.claim(1)) == 1, "without a provider nothing bounds it"


def test_a_busy_window_is_passed_over(scene: Scene) -> None:
    """Q12: nobody waits for one who claims; and who only ends is not in anybody's way."""
    use(scene, entry(1, windows=MINUTE))
    use(scene, entry(1, windows=MINUTE), pool="team/b")
    held = scene.worker().take()
    conn = scene.connect("worker", autocommit=False)
    other = scene.worker(pool="team/b", conn=conn)
    assert len(other.claim(2)) == 2
    worker = scene.worker()
    answer = worker.turn(want=2)
    assert (answer.claimed, answer.come_again) == ([], seconds(0.05))
    tell(scene, held, used={"requests": 1})
    assert worker.succeed(held).code is None
    conn.commit()
    assert len(worker.claim(100)) == 57


def test_a_report_that_is_not_over_keeps_nobody(scene: Scene) -> None:
    """Q51, Q40: its delivery ends meanwhile; what it holds counts until the upkeep finds it, and then for a window."""
    use(scene, entry(20, windows=MINUTE))
    worker = scene.worker()
    (first,) = worker.claim(1)
    conn = scene.connect("worker", autocommit=False)
    run(conn, calls.report_provider(first.task_id, first.token, reported("api", 200, used={"requests": 5})))
    assert worker.succeed(first).code is None
    assert taken(scene) == {"requests": 20}
    conn.commit()
    assert taken(scene) == {"requests": 20}, "15 that are held, 5 that are spent"
    scene.ask("operator", calls.maintain())
    assert scene.rows("SELECT FROM poolkeeper.provider_hold") == []
    assert taken(scene) == {"requests": 20}
    scene.advance(64)
    assert taken(scene) == {"requests": 0}


def test_a_report_waits_for_no_handler_s_own_transaction(scene: Scene) -> None:
    """Q18, Q40: its success is about to end the hold; the report counts on top until it has."""
    use(scene, entry(20, windows=MINUTE))
    worker = scene.worker()
    held = worker.take()
    conn = scene.connect("worker", autocommit=False)
    run(conn, calls.succeed(held.task_id, held.token))
    tell(scene, held, used={"requests": 5})
    assert taken(scene) == {"requests": 25}
    conn.rollback()
    assert taken(scene) == {"requests": 25}


def test_the_upkeep_adds_up_where_nobody_claims(scene: Scene) -> None:
    """Q14, Q40: reports without end leave a row for each twentieth of a window, and none when it has passed."""
    use(scene, entry(1, windows={"requests": window(1_000_000)}))
    held = scene.worker().take()
    for _ in range(30):
        tell(scene, held)
    assert scene.value("SELECT count(*) FROM poolkeeper.provider_spent") == 30
    scene.ask("operator", calls.maintain())
    assert scene.value("SELECT count(*) FROM poolkeeper.provider_spent") == 0
    assert scene.value("SELECT count(*) FROM poolkeeper.provider_slice") <= 2
    assert taken(scene) == {"requests": 30}
    scene.advance(64)
    keep(scene)
    tell(scene, held)
    scene.ask("operator", calls.maintain())
    assert scene.value("SELECT sum(amount) FROM poolkeeper.provider_slice") == 1


def test_so_much_that_is_not_added_up_counts_as_everything(scene: Scene) -> None:
    """Q14, Q40: a claim adds up a thousand rows and looks at a thousand; what lies behind is taken for the limit, until later claims have come so far."""
    use(scene, entry(1, windows={"requests": window(100_000)}))
    scene.owner.execute(
        "INSERT INTO poolkeeper.provider_spent (provider_id, at, requests, tokens)"
        " SELECT r.id, poolkeeper.clock(), 1, 0 FROM poolkeeper.provider AS r, generate_series(1, 2500)"
    )
    worker = scene.worker()
    assert worker.claim(1) == []
    assert len(worker.claim(1)) == 1
    assert taken(scene) == {"requests": 2501}


def test_a_restored_store_takes_what_it_lost_for_spent(scene: Scene) -> None:
    """Q24, Q40: after a person let it go on, nothing is granted until a window after it was held."""
    use(scene, entry(1, windows=MINUTE))
    scene.owner.execute("UPDATE poolkeeper.contact SET held_since = poolkeeper.clock(), held_why = 'older_copy'")
    scene.advance(30)
    keep(scene)
    assert scene.ask("person", calls.accept_installation(who="p", why="w")) is True
    worker = scene.worker()
    assert worker.claim(5) == []
    scene.advance(34)
    keep(scene)
    assert len(worker.claim(5)) == 5


def test_suspects_are_granted_too(scene: Scene) -> None:
    """Q27, Q40: what runs apart uses the provider as well."""
    scene.queue("one", visibility_timeout_seconds=10)
    scene.submit(queue="one")
    use(scene, entry(30, windows=MINUTE))
    lost = scene.worker(queues=["one"]).take()
    assert lost is not None
    scene.advance(11)
    scene.sweep()
    assert taken(scene) == {"requests": 30}
    assert scene.worker(queues=["one"]).alone()
    assert taken(scene) == {"requests": 60}
    assert scene.worker().claim(1) == []


def test_the_judge_finds_the_worst_interval() -> None:
    """The one that the random tests ask: both ends of an interval belong to it."""
    assert most_in_a_window([(0, 5), (10, 1), (10.5, 4), (20, 7)], 10) == 12
    assert most_in_a_window([(0, 5), (10, 1)], 9.9) == 5
    assert most_in_a_window([], 1) == 0
