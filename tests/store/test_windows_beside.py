"""What is held and spent of one quota, or by one delivery, is nothing to another (P6, Q40, quality 3)."""

from typing import Any

import pytest

from poolkeeper.provider import reported
from poolkeeper.store import Settle, calls, run
from store.scene import Scene
from store.windowing import entry, taken, tell, use, window

MINUTE = {"requests": window(60)}


@pytest.fixture(autouse=True)
def plenty(scene: Scene) -> None:
    scene.queue(visibility_timeout_seconds=300)
    scene.submit_many(200)


def keep(scene: Scene) -> None:
    """They renew, whatever they hold."""
    scene.owner.execute("UPDATE poolkeeper.session SET renewed_at = poolkeeper.clock()")


_TABLES = ("provider_window", "provider_hold", "provider_spent", "provider_slice")


def rows_of(scene: Scene, quota: str) -> list[Any]:
    """All that the store has of one quota's windows."""
    query = "SELECT x::text FROM poolkeeper.{} AS x JOIN poolkeeper.provider AS r ON r.id = x.provider_id WHERE r.quota = %s ORDER BY 1"
    return [[row[0] for row in scene.rows(query.format(table), quota)] for table in _TABLES]


def test_a_quota_beside_it_is_not_touched(scene: Scene) -> None:
    """P6, Q40: what is held, spent, added up or set of one quota is nothing to another, whose windows are other ones."""
    mine = {"requests": window(60), "tokens": window(600, 10)}
    theirs = {"quota": "x/other", "windows": {"requests": window(30), "tokens": window(900, 20)}}
    use(scene, entry(1, 20, windows=mine))
    use(scene, entry(2, 50, **theirs), pool="team/b")
    ours, other = scene.worker(), scene.worker(pool="team/b")
    first, second = other.claim(2)
    tell(scene, first, used={"requests": 1, "tokens": 30})
    other.succeed(first)
    assert len(other.claim(1)) == 1, "and adds up"
    tell(scene, second, used={"requests": 1, "tokens": 3})
    before = rows_of(scene, "x/other")
    assert [len(rows) for rows in before] == [2, 2, 1, 2]
    held = ours.claim(3)
    for one in held:
        tell(scene, one, used={"requests": 1, "tokens": 7})
    ours.turn([Settle(one.task_id, one.token, "succeeded") for one in held], want=2)
    assert taken(scene) == {"requests": 5, "tokens": 61}
    assert taken(scene, "x/other") == {"requests": 5, "tokens": 130}
    scene.advance(11)
    keep(scene)
    assert ours.turn(want=1).claimed
    assert taken(scene) == {"requests": 6, "tokens": 60}
    use(scene, entry(1, 20, windows={"requests": window(60)}))
    use(scene)
    assert rows_of(scene, "x/other") == before
    assert [len(rows) for rows in rows_of(scene, "platform/api")][:2] == [1, 3]


def test_one_delivery_s_hold_is_not_another_s(scene: Scene) -> None:
    """Q40: a retried task holds anew; its earlier delivery, left by a report, is the upkeep's, and what runs is not touched by it."""
    scene.queue("two")
    scene.submit_many(2, queue="two")
    use(scene, entry(5, windows=MINUTE), entry(1, name="mail", quota="x/mail", windows={"requests": window(9)}))
    worker = scene.worker(queues=["two"])
    first, beside = worker.claim(2)
    conn = scene.connect("worker", autocommit=False)
    run(conn, calls.report_provider(first.task_id, first.token, reported("api", 200, used={"requests": 2})))
    worker.settle(first, "handed_back")
    conn.commit()
    (again,) = worker.claim(1)
    assert (again.task_id, again.delivery) == (first.task_id, 2)
    tell(scene, again, used={"requests": 1})
    tell(scene, beside, name="mail", used={"requests": 1})
    query = "SELECT h.delivery, r.quota, h.requests FROM poolkeeper.provider_hold AS h JOIN poolkeeper.provider AS r ON r.id = h.provider_id ORDER BY 1, 2, 3"
    found = [(1, "platform/api", 3), (1, "platform/api", 5), (1, "x/mail", 0), (2, "platform/api", 4), (2, "x/mail", 1)]
    assert [tuple(row) for row in scene.rows(query)] == found
    worker.succeed(again)
    assert [tuple(row) for row in scene.rows(query)] == found[:3]
    scene.ask("operator", calls.maintain())
    assert [tuple(row) for row in scene.rows(query)] == found[1:3]
    assert taken(scene) == {"requests": 11}


def test_a_quota_without_windows_keeps_no_account(scene: Scene) -> None:
    """Q40: reports are totals only."""
    use(scene, entry(5))
    held = scene.worker().take()
    tell(scene, held, used={"tokens": 5})
    assert scene.rows("SELECT FROM poolkeeper.provider_spent") == []
    assert scene.rows("SELECT FROM poolkeeper.lease WHERE held") == []
