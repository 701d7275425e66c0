"""History is kept by classes of retention, of which there is one yet: whoever looks names it, so that another one's partitions are
in nobody's way, be they ever so large, or just being dropped (Q52, contract 8).
"""

from collections.abc import Iterator

import pytest

from fixtures.neighbours import PLAIN, Crowd
from poolkeeper.store import calls, run

LOOKS = (
    "SELECT poolkeeper.present_state(t.id), poolkeeper.task_view(t.id), poolkeeper.timeline(t.id), poolkeeper.ending_of(t.id) FROM poolkeeper.task AS t",
    (
        "SELECT poolkeeper.why_not(d.task_id, d.token_hash), poolkeeper.succeeded_in(d.task_id, d.session_id), poolkeeper.lost_by(d.task_id, d.session_id)"
        " FROM poolkeeper.delivery AS d WHERE d.retention = 0"
    ),
    "SELECT poolkeeper.tenure_end(l, q) FROM poolkeeper.lease AS l CROSS JOIN poolkeeper.queue AS q",
    "SELECT * FROM poolkeeper.history",
    "SELECT poolkeeper.audit_page('00000000-0000-0000-0000-000000000000', 100)",
    "SELECT poolkeeper.audit_tasks(NULL, 1000)",
    "SELECT poolkeeper.explain_expiries(ARRAY(SELECT s.id FROM poolkeeper.session AS s), now())",
    "SELECT poolkeeper.erase_results(ARRAY(SELECT t.id FROM poolkeeper.task AS t), now())",
    "SELECT poolkeeper.forget_ended(ARRAY(SELECT t.id FROM poolkeeper.task AS t LIMIT 1), now())",
    "SELECT poolkeeper.forget_tasks(ARRAY(SELECT t.id FROM poolkeeper.task AS t))",
)


@pytest.fixture
def beside_another_class(crowd: Crowd) -> Iterator[Crowd]:
    """Somebody has tables of another class to himself, and nobody waits long."""
    scene, tables = crowd.scene, ("delivery", "event")
    for table in tables:
        scene.owner.execute(f"CREATE TABLE poolkeeper.{table}_other PARTITION OF poolkeeper.{table} FOR VALUES IN (1)")
    conn = scene.connect("owner", autocommit=False)
    for table in tables:
        conn.execute(f"LOCK TABLE poolkeeper.{table}_other IN ACCESS EXCLUSIVE MODE")
    for each in (scene.owner, scene.actor("worker"), crowd.worker.conn):
        each.execute("SET lock_timeout = '1s'")
    try:
        yield crowd
    finally:
        conn.rollback()
        for table in tables:
            scene.owner.execute(f"DROP TABLE poolkeeper.{table}_other")


def test_another_class_is_in_nobodys_way(beside_another_class: Crowd) -> None:
    """Q52: of looks at history by settles, people, views, the audit, the upkeep and a purge."""
    crowd, scene = beside_another_class, beside_another_class.scene
    scene.queue(PLAIN, backoff_max_elapsed_seconds=10, max_tenure_seconds=60)
    one, two = crowd.take(crowd.worker, PLAIN), crowd.take(crowd.worker, PLAIN)
    assert crowd.worker.fail(one).state == "scheduled"
    assert run(crowd.worker.conn, calls.succeed(two.task_id, two.token)) is True
    assert run(crowd.worker.conn, calls.succeed(two.task_id, two.token)) is False
    with scene.owner.transaction(force_rollback=True):
        scene.owner.execute("UPDATE poolkeeper.queue SET max_tenure = '1 h'")
        scene.owner.execute("UPDATE poolkeeper.lease SET delivery = 2 WHERE started_at IS NOT NULL")
        for look in LOOKS:
            assert scene.owner.execute(look).rowcount > 0, look
