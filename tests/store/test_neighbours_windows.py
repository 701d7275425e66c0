"""Whose windows, holds and slices are meant (Q40, quality 3): beside each thing there is another one that must stay as it is."""

import threading
import time
from typing import Any

import pytest

from poolkeeper.store import calls, run
from store.scene import Scene
from store.windowing import entry, tell, use, window

MINUTE = {"requests": window(60)}
BOTH = {"requests": window(60), "tokens": window(1000)}


@pytest.fixture(autouse=True)
def plenty(scene: Scene) -> None:
    scene.queue(visibility_timeout_seconds=3600)
    scene.submit_many(20)


def quota(scene: Scene, name: str = "platform/api") -> int:
    return int(scene.value("SELECT id FROM poolkeeper.provider WHERE quota = %s", name))


def holds(scene: Scene) -> list[Any]:
    query = "SELECT task_id, delivery, requests, tokens FROM poolkeeper.provider_hold ORDER BY 1, 2"
    return [tuple(row) for row in scene.rows(query)]


def spent(scene: Scene) -> list[Any]:
    query = "SELECT r.quota, s.requests, s.tokens FROM poolkeeper.provider_spent AS s JOIN poolkeeper.provider AS r ON r.id = s.provider_id ORDER BY 1, 2, 3"
    return [tuple(row) for row in scene.rows(query)]


def room_in(scene: Scene) -> float:
    """Seconds until the pool's next task may start."""
    return float(
        scene.value(
            "SELECT extract(epoch FROM r.frees_at - poolkeeper.clock()) FROM poolkeeper.pool AS p, "
            "poolkeeper.provider_room(p.id, 10, 10, poolkeeper.clock()) AS r WHERE p.name = 'local/p'"
        )
    )


def test_what_was_claimed_before_there_were_windows_is_not_held(scene: Scene) -> None:
    use(scene, entry(2))
    worker = scene.worker()
    worker.claim(1)
    use(scene, entry(2, windows=MINUTE))
    (later,) = worker.claim(1)
    assert holds(scene) == [(later.task_id, 1, 2, 0)]


def test_a_delivery_that_told_all_along_leaves_no_row_of_nothing(scene: Scene) -> None:
    use(scene, entry(2, 10, windows=BOTH))
    worker = scene.worker()
    told = worker.take()
    tell(scene, told, used={"requests": 1, "tokens": 5})
    before = spent(scene)
    worker.succeed(told)
    assert holds(scene) == []
    assert spent(scene) == before == [("platform/api", 1, 5)]


def test_what_is_added_up_has_no_slices_of_nothing(scene: Scene) -> None:
    use(scene, entry(2, 10, windows=BOTH))
    tell(scene, scene.worker().take(), used={"requests": 1, "tokens": 0})
    scene.ask("operator", calls.maintain())
    query = "SELECT measure, amount FROM poolkeeper.provider_slice"
    assert [tuple(row) for row in scene.rows(query)] == [("requests", 1)]


def test_a_report_about_a_quota_without_windows_keeps_no_account_beside_one_with(scene: Scene) -> None:
    use(scene, entry(2, windows=MINUTE), entry(name="mail", quota="x/mail"))
    delivery = scene.worker().take()
    tell(scene, delivery, name="mail", used={"requests": 3})
    assert spent(scene) == []
    assert holds(scene) == [(delivery.task_id, 1, 2, 0)]


def test_the_upkeep_ends_what_an_earlier_delivery_left_while_a_later_one_runs(scene: Scene) -> None:
    use(scene, entry(2, windows=MINUTE))
    delivery = scene.worker().take()
    scene.owner.execute(
        "INSERT INTO poolkeeper.provider_hold (task_id, delivery, provider_id, requests, tokens) VALUES (%s, 0, %s, 7, 0)",
        [delivery.task_id, quota(scene)],
    )
    scene.ask("operator", calls.maintain())
    assert holds(scene) == [(delivery.task_id, 1, 2, 0)]
    assert scene.value("SELECT sum(amount) FROM poolkeeper.provider_slice") == 7


def test_the_upkeep_waits_for_nobody_who_reports(scene: Scene) -> None:
    """A hold that a report has locked as its delivery ended is left to the next time."""
    use(scene, entry(2, windows=MINUTE))
    scene.owner.execute(
        "INSERT INTO poolkeeper.provider_hold (task_id, delivery, provider_id, requests, tokens) "
        "VALUES (gen_random_uuid(), 1, %(q)s, 7, 0), (gen_random_uuid(), 1, %(q)s, 9, 0)",
        {"q": quota(scene)},
    )
    with scene.database.connect() as other, other.transaction():
        other.execute("SELECT FROM poolkeeper.provider_hold WHERE requests = 7 FOR UPDATE")
        scene.owner.execute("SET statement_timeout = '5s'")
        scene.owner.execute("SELECT poolkeeper.tidy_windows(10, poolkeeper.clock())")
        scene.owner.execute("RESET statement_timeout")
        assert [row[2] for row in holds(scene)] == [7]
    scene.owner.execute("SELECT poolkeeper.tidy_windows(10, poolkeeper.clock())")
    assert holds(scene) == []


def test_the_windows_of_others_are_not_locked(scene: Scene) -> None:
    use(scene, entry(2, windows=MINUTE), entry(2, name="mail", quota="x/mail", windows=MINUTE))
    lock = "SELECT poolkeeper.lock_windows(ARRAY[%s])"
    with scene.database.connect() as one, one.transaction(), scene.database.connect() as other, other.transaction():
        assert one.execute(lock, [quota(scene)]).fetchone() == (True,)
        assert other.execute(lock, [quota(scene, "x/mail")]).fetchone() == (True,)
        assert other.execute(lock, [quota(scene)]).fetchone() == (False,)


def test_each_delivery_ends_in_its_own_way(scene: Scene) -> None:
    """Of two tasks and two deliveries each some were never begun, the others did not tell what they used."""
    use(scene, entry(2, windows=MINUTE))
    one, two = (row[0] for row in scene.rows("SELECT id FROM poolkeeper.task ORDER BY id LIMIT 2"))
    ends = [(one, 1, 1, True), (one, 2, 20, False), (two, 1, 300, False), (two, 2, 4000, True), (two, 3, 50000, True)]
    for task, delivery, requests, _ in ends:
        scene.owner.execute(
            "INSERT INTO poolkeeper.provider_hold (task_id, delivery, provider_id, requests, tokens) VALUES (%s, %s, %s, %s, 0)",
            [task, delivery, quota(scene), requests],
        )
    ended = ends[:4]
    scene.owner.execute(
        "SELECT poolkeeper.end_holds(%s::uuid[], %s::integer[], %s::boolean[], %s::boolean[], poolkeeper.clock())",
        [[e[0] for e in ended], [e[1] for e in ended], [False] * 4, [e[3] for e in ended]],
    )
    assert spent(scene) == [("platform/api", 320, 0)]
    assert holds(scene) == [(two, 3, 50000, 0)]


def test_slices_of_others_are_left_to_their_own_time(scene: Scene) -> None:
    use(scene, entry(2, windows=BOTH), entry(2, name="mail", quota="x/mail", windows=BOTH))
    old = "INSERT INTO poolkeeper.provider_slice (provider_id, measure, ends_at, amount) VALUES (%s, %s, poolkeeper.clock() - interval '2 hours', 3)"
    for name in ("platform/api", "x/mail"):
        for measure in ("requests", "tokens"):
            scene.owner.execute(old, [quota(scene, name), measure])
    scene.owner.execute("SELECT poolkeeper.fold_spent(%s, 100, poolkeeper.clock())", [quota(scene)])
    query = "SELECT provider_id, measure FROM poolkeeper.provider_slice ORDER BY 2"
    assert [tuple(row) for row in scene.rows(query)] == [(quota(scene, "x/mail"), m) for m in ("requests", "tokens")]


def test_room_comes_when_its_own_measure_has_been_given_back(scene: Scene) -> None:
    """Tokens, and requests of another quota, were spent five minutes before the requests that fill the window of ten."""
    mine = {"requests": window(2, 600), "tokens": window(1000, 600)}
    use(scene, entry(1, 1, windows=mine), entry(1, name="mail", quota="x/mail", windows={"requests": window(60, 600)}))
    one, two = scene.worker().claim(2)
    tell(scene, one, name="mail", used={"requests": 9})
    tell(scene, one, used={"requests": 0, "tokens": 100})
    scene.advance(300)
    tell(scene, one, used={"requests": 1, "tokens": 0})
    tell(scene, two, used={"requests": 1, "tokens": 0})
    assert 400 < room_in(scene) <= 630


def test_room_comes_when_enough_has_been_given_back(scene: Scene) -> None:
    """A task needs two of two requests in ten minutes: one was spent five minutes before the other."""
    use(scene, entry(2, windows={"requests": window(2, 600)}))
    delivery = scene.worker().take()
    tell(scene, delivery, used={"requests": 1})
    scene.advance(300)
    tell(scene, delivery, used={"requests": 1})
    assert 400 < room_in(scene) <= 630


def test_a_pool_that_two_make_at_once_is_one(scene: Scene) -> None:
    """The second waits for the first, and goes on with its row."""
    made: list[Any] = []
    conn = scene.connect("operator")
    with scene.database.connect() as first, first.transaction():
        first.execute("INSERT INTO poolkeeper.pool (name) VALUES ('x/new')")
        second = threading.Thread(target=lambda: made.append(run(conn, calls.set_pool("x/new", max_running=3))))
        second.start()
        while not scene.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s", conn.info.backend_pid):
            time.sleep(0.01)
    second.join(30)
    assert len(made) == 1
    assert scene.rows("SELECT name, max_running FROM poolkeeper.pool WHERE name = 'x/new'") == [("x/new", 3)]


def test_lanes_that_are_named_twice_are_made_once(scene: Scene) -> None:
    queue = scene.queue(tenants_max_concurrency=1)
    scene.owner.execute("SELECT poolkeeper.make_lanes(%s, ARRAY[5, 5, 7]::bigint[])", [queue])
    query = "SELECT lane FROM poolkeeper.lane WHERE queue_id = %s AND lane IN (5, 7) ORDER BY 1"
    assert [row[0] for row in scene.rows(query, queue)] == [5, 7]
