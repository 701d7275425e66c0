"""What a webhook has not taken yet is kept by its batch's number, once, until it was taken (O24)."""

from typing import Any

import psycopg
import pytest

from poolkeeper.store import calls
from poolkeeper.store.rows import QueueStats
from store.scene import Scene


def queue_of(scene: Scene, name: str = "q") -> QueueStats:
    (found,) = [q for q in scene.ask("operator", calls.stats(cluster="local")).queues if q.name == name]
    return found


def kept(scene: Scene, queue_id: int, most: int = 10) -> list[tuple[int, Any]]:
    return [(post.number, post.news) for post in scene.ask("operator", calls.posts(queue_id, most))]


def test_the_first_word_of_a_batch_stands_until_it_was_taken(scene: Scene) -> None:
    """O24: kept again by an operator that was killed, it changes nothing; oldest first; each queue by itself."""
    mail, other = scene.queue("mail"), scene.queue("other")
    for number in (2, 1):
        assert scene.ask("operator", calls.keep_post(mail, number, {"n": number}))
    assert scene.ask("operator", calls.keep_post(mail, 1, {"n": "another"})) is False
    assert scene.ask("operator", calls.keep_post(other, 1, {"n": "other"}))
    assert kept(scene, mail) == [(1, {"n": 1}), (2, {"n": 2})]
    assert kept(scene, mail, 1) == [(1, {"n": 1})]
    assert (queue_of(scene, "mail").posts, queue_of(scene, "other").posts) == (2, 1)
    assert scene.ask("operator", calls.post_taken(mail, 1))
    assert scene.ask("operator", calls.post_taken(mail, 1)) is False
    assert kept(scene, mail) == [(2, {"n": 2})]
    assert kept(scene, other) == [(1, {"n": "other"})]


def test_what_nobody_takes_goes_after_a_week_and_with_its_queue(scene: Scene) -> None:
    """O24, Q52: bounded by time; a purged queue has no news."""
    mail, gone = scene.queue("mail"), scene.queue("gone")
    scene.ask("operator", calls.keep_post(mail, 1, {}))
    scene.advance(6 * 86400)
    scene.ask("operator", calls.keep_post(mail, 2, {}))
    scene.ask("operator", calls.maintain())
    assert len(kept(scene, mail)) == 2
    scene.advance(2 * 86400)
    scene.ask("operator", calls.maintain())
    assert kept(scene, mail) == [(2, {})]
    scene.ask("operator", calls.keep_post(gone, 1, {}))
    cursor: Any = None
    for _ in range(20):
        cursor = scene.ask(
            "operator", calls.purge("local", "default", "default", "gone", who="t", cursor=cursor)
        ).cursor
        if cursor is None:
            break
    assert scene.value("SELECT count(*) FROM poolkeeper.dead_post") == 1


def test_nonsense_and_strangers_get_nothing(scene: Scene) -> None:
    """Q51: a login that keeps other queues neither reads nor keeps; nor does a pool's."""
    mail = scene.queue("mail")
    scene.ask("operator", calls.keep_post(mail, 1, {"n": 1}))
    for number, news in ((0, {}), (1, {"x": "y" * 70_000})):
        with pytest.raises(psycopg.Error, match="this is no news of a batch"):
            scene.ask("operator", calls.keep_post(mail, number, news))
    scene.allow(scene.database.login("operator"), queues=["default/q"])
    assert kept(scene, mail) == []
    assert scene.ask("operator", calls.keep_post(mail, 2, {})) is False
    assert scene.ask("operator", calls.post_taken(mail, 1)) is False
    scene.allow(scene.database.login("operator"), pool="local/p")
    assert kept(scene, mail) == []
    assert scene.value("SELECT count(*) FROM poolkeeper.dead_post") == 1
