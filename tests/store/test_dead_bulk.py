"""Dead letters by a filter: what matches, each done once, by whom it is allowed to, with who and why (Q29, Q51)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from poolkeeper.errors import Forbidden
from poolkeeper.store import Settle, calls, run
from poolkeeper.store.bulk import Done, Filter, dead_matching, discard_matching, requeue_matching
from store.scene import Scene

VERBS = {"requeue": requeue_matching, "discard": discard_matching}
BECOMES = {"requeue": "ready", "discard": "canceled"}


def dead(
    scene: Scene, count: int = 1, *, outcome: str = "dead", error: str = "ValueError", **wishes: Any
) -> list[UUID]:
    """So many dead letters, all of one moment."""
    kinds = wishes.pop("type", "a.b")
    ids = scene.submit_many(count, type=kinds, max_deliveries=1, **wishes)
    worker = scene.worker(types=["a.b", "c.d"], concurrency=5000)
    held = [c for c in worker.claim(5000) if c.task_id in ids]
    worker.turn([Settle(c.task_id, c.token, outcome, error_class=error, error="why") for c in held])
    worker.end()
    return ids


def look(scene: Scene, most: int = 1000, kind: str = "person", **chosen: Any) -> list[UUID]:
    """All that matches, in its order."""
    found, cursor = list[UUID](), None
    while True:
        page = scene.ask(kind, dead_matching("q", Filter(**chosen), cursor=cursor, most=most))
        assert page.code is None
        found += [letter.task_id for letter in page.letters]
        cursor = page.cursor
        if cursor is None:
            return found


def do(conn: psycopg.Connection, verb: str, want: int = 1000, most: int = 1000, **chosen: Any) -> list[UUID]:
    """All pages of it; answers what was done."""
    done, cursor = list[UUID](), None
    while True:
        call = VERBS[verb]("q", Filter(**chosen), who="ann", why="mended", cursor=cursor, want=want, most=most)
        page: Done = run(conn, call)
        assert page.code is None
        assert len(page.task_ids) <= min(want, most)
        done += page.task_ids
        cursor = page.cursor
        if cursor is None:
            return done


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "abcd"),
        ({"type": "c.d"}, "b"),
        ({"tenant": "acme"}, "c"),
        ({"reason": "deliveries_exhausted"}, "d"),
        ({"error_class": "ValueError"}, "abc"),
        ({"error_class": "ValueError", "tenant": "default"}, "ab"),
        ({"tenant": "nobody"}, ""),
    ],
)
def test_a_filter_names_what_has_it_in_common(scene: Scene, chosen: dict[str, Any], expected: str) -> None:
    """Q29: by type, tenant, reason, class of the error; and what it names is what is done."""
    ids = {
        "a": dead(scene),
        "b": dead(scene, type="c.d"),
        "c": dead(scene, tenant="acme"),
        "d": dead(scene, outcome="failed", error="KeyError"),
    }
    wanted = [task_id for letter in expected for task_id in ids[letter]]
    assert look(scene, **chosen) == wanted
    assert scene.value("SELECT count(*) FROM poolkeeper.dead") == 4, "a look changes nothing"
    assert sorted(do(scene.actor("person"), "requeue", **chosen)) == sorted(wanted)
    assert {scene.state(task_id) for task_id in wanted} <= {"ready"}
    assert scene.value("SELECT count(*) FROM poolkeeper.dead") == 4 - len(wanted)


def test_a_filter_names_when_they_died(scene: Scene) -> None:
    """Q29: from a moment on, and before a moment."""
    first = dead(scene)
    scene.advance(3600)
    second = dead(scene)
    between = datetime.now(UTC) + timedelta(minutes=30)
    assert (look(scene, before=between), look(scene, after=between)) == (first, second)
    assert look(scene, after=between, before=between) == []


@pytest.mark.parametrize("verb", list(VERBS))
@pytest.mark.parametrize(("want", "most"), [(1000, 1000), (3, 7), (7, 3), (1, 1)])
def test_pages_are_bounded_and_miss_nothing(scene: Scene, verb: str, want: int, most: int) -> None:
    """Q29: deaths of one moment fall into different pages; each is recorded with who and why."""
    dead(scene, 10, tenant="other")
    ids = dead(scene, 20)
    assert look(scene, most, tenant="default") == sorted(ids)
    assert sorted(do(scene.actor("person"), verb, want, most, tenant="default")) == sorted(ids)
    assert {scene.state(task_id) for task_id in ids} == {BECOMES[verb]}
    assert scene.value("SELECT count(*) FROM poolkeeper.dead") == 10
    last = scene.ask("reader", calls.timeline(ids[0]))[-1]
    assert (last.actor, last.reason) == ("ann", "mended")


def test_two_at_once_do_each_task_once(scene: Scene) -> None:
    """Q29: and each says what it did."""
    ids = dead(scene, 200)
    conns = [scene.connect("person") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda conn: do(conn, "requeue", 7, 20), conns))
    assert sorted(done[0] + done[1]) == sorted(ids)
    assert scene.value("SELECT count(*) FROM poolkeeper.event WHERE kind = 'requeued'") == 200


def test_what_dies_again_meanwhile_is_left_alone(scene: Scene) -> None:
    """Q29: a cause that was not mended makes no endless round."""
    (first, *_) = sorted(dead(scene, 3))
    page = scene.ask("person", requeue_matching("q", Filter(), who="ann", why="x", want=1))
    assert page.task_ids == [first]
    scene.advance(1)
    worker = scene.worker()
    worker.settle(worker.take(), "dead")
    again = scene.ask("person", requeue_matching("q", Filter(), who="ann", why="x", cursor=page.cursor))
    assert (len(again.task_ids), again.cursor) == (2, None)
    assert look(scene) == [first]


def test_who_is_limited_to_tenants_sees_and_changes_only_theirs(scene: Scene) -> None:
    """Q51: as with single ones; who may only read changes nothing, and a foreign queue is none."""
    mine, theirs = dead(scene, 3, tenant="acme"), dead(scene, 3, tenant="other")
    scene.allow(scene.database.login("person"), tenants=["acme"])
    assert look(scene) == sorted(mine)
    assert look(scene, tenant="other") == []
    assert sorted(do(scene.actor("person"), "discard")) == sorted(mine)
    assert {scene.state(task_id) for task_id in theirs} == {"dead"}
    assert look(scene, kind="reader") == sorted(theirs)
    for kind in ("reader", "submitter", "worker", "operator"):
        with pytest.raises(Forbidden):
            scene.ask(kind, discard_matching("q", Filter(), who="eve", why="x"))
    scene.allow(scene.database.login("person"), queues=["default/other"])
    assert scene.ask("person", dead_matching("q", Filter())).code == "unknown_queue"
    assert scene.ask("person", requeue_matching("q", Filter(), who="a", why="b")).code == "unknown_queue"


def test_letters_with_ordering_keys_go_through_the_gate(scene: Scene) -> None:
    """Q9: many of one key, requeued at once, run one after the other in their old order."""
    scene.queue(ordering="skip")
    ids = [scene.submit(ordering_key="k", payload=n) for n in range(3)]
    worker = scene.worker()
    for _ in ids:
        worker.settle(worker.take(), "dead")
    assert sorted(do(scene.actor("person"), "requeue")) == sorted(ids)
    for expected in ids:
        (delivery,) = worker.claim(5)
        assert delivery.task_id == expected
        worker.succeed(delivery)


def test_discarding_frees_ordering_keys(scene: Scene) -> None:
    """Q9: under Block each key goes on with its next."""
    firsts = [scene.submit(ordering_key=f"k{n}") for n in range(5)]
    seconds_ = [scene.submit(ordering_key=f"k{n}") for n in range(5)]
    worker = scene.worker()
    worker.turn([Settle(c.task_id, c.token, "dead") for c in worker.claim(10)])
    assert worker.claim(10) == []
    assert sorted(do(scene.actor("person"), "discard")) == sorted(firsts)
    assert sorted(c.task_id for c in worker.claim(10)) == sorted(seconds_)


@pytest.mark.parametrize("chosen", ['{"typ": "a.b"}', '{"before": "yesterday"}', "[]", '"x"'])
def test_what_is_no_filter_is_refused(scene: Scene, chosen: str) -> None:
    """Q29: a misspelt filter must not mean all of them."""
    dead(scene)
    with pytest.raises(psycopg.Error) as caught:
        scene.actor("person").execute("SELECT * FROM poolkeeper.discard_matching('q', %s::jsonb, 'ann', 'x')", [chosen])
    assert caught.value.sqlstate == "PK400"
    assert len(look(scene)) == 1


def test_nobody_waits_for_one_in_hand(scene: Scene) -> None:
    """Q51: a letter that another transaction holds is passed by, and stays."""
    first, second = sorted(dead(scene, 2))
    other = scene.connect("person", autocommit=False)
    run(other, calls.discard(first, who="bob", why="x"))
    conn = scene.connect("person")
    conn.execute("SET lock_timeout = '100ms'")
    assert do(conn, "requeue") == [second]
    other.rollback()
    assert look(scene) == [first]
    assert scene.ask("person", calls.requeue(first, who="ann", why="x", seen_version=1)).code == "stale_version"
