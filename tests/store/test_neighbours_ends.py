"""What has ended, how and when, is asked of one task; and what goes by its age is due in its own queue and of its own kind (Q6, Q52)."""

from datetime import timedelta
from typing import Any

from fixtures.neighbours import LIMITED, PLAIN
from store.walks import FEW, Walks

PLACES = ("ready", "later", "ordered", "suspect", "lease", "dead")
KINDS = ("payload", "result", "events")
FINAL = ("succeeded", "failed", "canceled")
COLUMNS = """
    SELECT string_agg(quote_ident(a.attname), ', ') FROM pg_attribute AS a
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attname NOT IN ('task_id', 'seq', 'place')
"""


def ended(walks: Walks, queue: str | None = None) -> dict[Any, tuple[Any, ...]]:
    """Task -> when and how it ended, of those in no place."""
    rows = walks.answers(
        "SELECT d.task_id, d.ended_at, d.next_state, d.queue_id FROM poolkeeper.delivery AS d WHERE d.next_state = ANY (%s)",
        list(FINAL),
    )
    home = walks.queue_ids[queue] if queue else None
    return {row[0]: row[1:3] for row in rows if home in {None, row[3]}}


def test_an_end_is_of_one_task_that_is_nowhere_else(walks: Walks) -> None:
    """Q52: by its own last delivery or event; none while any table holds it."""
    canceled, mine = ended(walks), sorted(ended(walks))
    by_event = walks.answers("SELECT task_id FROM poolkeeper.ready ORDER BY 1 LIMIT 1")[0][0]
    walks.owner.execute("DELETE FROM poolkeeper.ready WHERE task_id = %s", [by_event])
    nowhere = walks.answers("SELECT task_id FROM poolkeeper.later WHERE spent > 0 ORDER BY 1 LIMIT 1")[0][0]
    walks.owner.execute("DELETE FROM poolkeeper.later WHERE task_id = %s", [nowhere])
    event = "INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version) VALUES (%s, 1, now(), %s, 9)"
    walks.owner.execute(event, [by_event, "canceled"])
    walks.owner.execute(event, [nowhere, "woke"])
    look = "SELECT e.ended_at, e.state FROM poolkeeper.ending_of(%s) AS e"
    for (task,) in walks.answers("SELECT id FROM poolkeeper.task"):
        told = walks.answers(look, task)
        if task == by_event:
            assert [row[1] for row in told] == ["canceled"]
        else:
            assert told == ([canceled[task]] if task in canceled else [])
    for place in PLACES:
        columns = walks.scene.value(COLUMNS, f"poolkeeper.{place}")
        own = "place, " if place == "ordered" else "seq, " if place in {"suspect", "lease"} else ""
        with walks.owner.transaction(force_rollback=True):
            walks.owner.execute(
                "ALTER TABLE poolkeeper.ordered DROP CONSTRAINT ordered_pkey; DROP INDEX poolkeeper.ordered_next; UPDATE poolkeeper.lease SET gate = NULL"
            )
            walks.owner.execute(
                f"INSERT INTO poolkeeper.{place} (task_id, {own}{columns}) SELECT %s, {own}{columns} FROM poolkeeper.{place} LIMIT 1",
                [mine[0]],
            )
            assert walks.answers(look, mine[0]) == [], place
            assert walks.answers(look, mine[1]) == [canceled[mine[1]]]


def aged(walks: Walks) -> Any:
    """In one queue all is kept for 100 s, elsewhere for 1000 s; what ended did so 500 s ago. Answers the time."""
    now = walks.scene.value("SELECT poolkeeper.clock()")
    walks.owner.execute(
        "UPDATE poolkeeper.delivery SET ended_at = %s WHERE next_state = ANY (%s)",
        [now - timedelta(seconds=500), list(FINAL)],
    )
    short = ", ".join(
        f"retention_{kind} = CASE WHEN id = {walks.queue_ids[PLAIN]} THEN interval '100 s' ELSE '1000 s' END"
        for kind in KINDS
    )
    walks.owner.execute(
        f"UPDATE poolkeeper.queue SET retention_checkpoint = '1 s', retention_dead_letters = '1 s', retention_keys = CASE WHEN id = {walks.queue_ids[PLAIN]} THEN interval '100 s' ELSE '1000 s' END, {short}"
    )
    return now


def notes(walks: Walks) -> set[tuple[Any, ...]]:
    return set(walks.answers("SELECT kind, task_id FROM poolkeeper.retention_note"))


def test_what_is_noted_is_due_in_its_queue_and_kind(walks: Walks) -> None:
    """Q52: what ended there long enough ago and has not gone yet; the other notes stay, and those of other kinds."""
    now = aged(walks)
    walks.owner.execute("DELETE FROM poolkeeper.retention_walk")
    walks.owner.execute(
        "INSERT INTO poolkeeper.retention_walk (kind, task_id, began_at) SELECT k, 'ffffffff-ffff-ffff-ffff-ffffffffffff', %s FROM unnest(%s::text[]) AS k",
        [now, list(KINDS)],
    )
    mine = sorted(ended(walks, PLAIN))
    for kind in KINDS:
        walks.owner.execute(
            "DELETE FROM poolkeeper.retention_note; UPDATE poolkeeper.task SET payload_erased_at = NULL, result_erased_at = NULL"
        )
        fill = "INSERT INTO poolkeeper.retention_note (kind, task_id, queue_id, since) SELECT k, t.id, t.queue_id, %s FROM poolkeeper.task AS t, unnest(%s::text[]) AS k"
        other = [each for each in KINDS if each != kind]
        walks.owner.execute(fill, [now - timedelta(seconds=500), other])
        take = "SELECT * FROM poolkeeper.take_due(%s, %s, %s)"
        before = notes(walks)
        assert walks.answers(take, kind, FEW, now) == [([], False)]
        assert notes(walks) == before
        walks.owner.execute(fill, [now - timedelta(seconds=500), [kind]])
        gone = mine[:1] if kind != "events" else []
        if gone:
            walks.owner.execute(f"UPDATE poolkeeper.task SET {kind}_erased_at = now() WHERE id = %s", [gone[0]])
        before = notes(walks)
        assert walks.answers(take, kind, FEW, now) == [([task for task in mine if task not in gone], False)]
        assert notes(walks) == before - {(kind, task) for task in mine}


def test_each_kind_walks_by_itself(walks: Walks) -> None:
    """Q52: from where it stopped, not among what is too young, and from the beginning once in 30 days."""
    now = aged(walks)
    ids = sorted(task for (task,) in walks.answers("SELECT id FROM poolkeeper.task"))
    walk = "SELECT poolkeeper.walk_on(%s, %s, %s)"
    found = "SELECT kind, task_id, began_at FROM poolkeeper.retention_walk WHERE kind = ANY (%s)"
    late = now + timedelta(seconds=300)
    walks.owner.execute("DELETE FROM poolkeeper.retention_walk")
    assert walks.answers(walk, "payload", FEW, now) == [([],)]
    walks.owner.execute(
        "INSERT INTO poolkeeper.retention_walk (kind, task_id, began_at) VALUES ('result', %s, %s), ('events', %s, %s)",
        [ids[5], now, ids[9], now],
    )
    assert walks.answers(walk, "payload", 3, late) == [(ids[:3],)]
    assert walks.answers(walk, "result", 3, late) == [(ids[6:9],)]
    assert {row[:2] for row in walks.answers(found, list(KINDS))} == {
        ("payload", ids[2]),
        ("result", ids[8]),
        ("events", ids[9]),
    }
    walks.owner.execute(
        "UPDATE poolkeeper.retention_walk SET task_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff', began_at = began_at - interval '31 d' WHERE kind <> 'payload'"
    )
    assert walks.answers(walk, "result", 3, now) == [([],)]
    again = {kind: began == now for kind, _, began in walks.answers(found, list(KINDS))}
    assert again == {"payload": True, "result": True, "events": False}
    assert walks.answers(walk, "payload", 3, now)[0] == ([],)


def test_a_key_learns_the_end_of_its_own_task(walks: Walks) -> None:
    """Q6, Q52: of those that go, none of another tenant, queue or name, nor one that is another task's by now."""
    mine = sorted(ended(walks, PLAIN))
    own, retaken, stays = mine[0], mine[1], min(ended(walks, LIMITED))
    for n, task in enumerate((own, retaken, stays)):
        walks.owner.execute("UPDATE poolkeeper.task SET key = %s, tenant = 'kt' WHERE id = %s", [f"k{n}", task])
    walks.owner.execute(
        "INSERT INTO poolkeeper.task_key (tenant, queue_id, key, task_id, digest, created_at) SELECT t, q.id, k, gen_random_uuid(), '', now()"
        " FROM poolkeeper.queue AS q, unnest('{kt,lt}'::text[]) AS t, unnest('{k0,k1,k2}'::text[]) AS k"
    )
    for n, task, queue in ((0, own, PLAIN), (2, stays, LIMITED)):
        walks.owner.execute(
            "UPDATE poolkeeper.task_key SET task_id = %s WHERE tenant = 'kt' AND key = %s AND queue_id = %s",
            [task, f"k{n}", walks.queue_ids[queue]],
        )
    walks.owner.execute("UPDATE poolkeeper.task_key SET task_id = %s WHERE tenant = 'lt'", [own])
    walks.owner.execute(
        "UPDATE poolkeeper.task_key SET task_id = %s WHERE tenant = 'kt' AND (queue_id <> %s OR key = 'k1') AND key <> 'k2'",
        [own, walks.queue_ids[PLAIN]],
    )
    walks.answers(
        "SELECT poolkeeper.forget_ended(%s, now())", [own, retaken, mine[2]] if len(mine) > 2 else [own, retaken]
    )
    told = walks.answers(
        "SELECT tenant, queue_id, key FROM poolkeeper.task_key WHERE ended_at IS NOT NULL OR last_state IS NOT NULL"
    )
    assert told == [("kt", walks.queue_ids[PLAIN], "k0")]


def test_keys_sessions_and_reports_go_by_their_own_age(walks: Walks) -> None:
    """Q52: a key by its queue's policy, a session that holds nothing, a report of a pool that nobody reads any more."""
    now, home = aged(walks), walks.queue_ids[PLAIN]
    walks.owner.execute(
        "UPDATE poolkeeper.task_key SET ended_at = %s, last_state = 'failed'", [now - timedelta(seconds=500)]
    )
    count = walks.answers("SELECT count(*) FROM poolkeeper.task_key WHERE queue_id = %s", home)[0][0]
    assert walks.answers("SELECT poolkeeper.forget_old_keys(%s, %s)", FEW, now) == [(count,)]
    assert walks.answers("SELECT 1 FROM poolkeeper.task_key WHERE queue_id = %s", home) == []
    holders = {row[0] for row in walks.answers("SELECT DISTINCT session_id FROM poolkeeper.lease")}
    every = {row[0] for row in walks.answers("SELECT id FROM poolkeeper.session")}
    walks.owner.execute("UPDATE poolkeeper.session SET ended_at = %s", [now - timedelta(days=8)])
    assert holders < every
    assert walks.answers("SELECT poolkeeper.forget_sessions(%s, %s)", FEW, now) == [(len(every - holders),)]
    assert {row[0] for row in walks.answers("SELECT id FROM poolkeeper.session")} == holders
    walks.owner.execute(
        "DELETE FROM poolkeeper.retention_walk; DELETE FROM poolkeeper.decision;"
        "INSERT INTO poolkeeper.decision (pool_id, at, decision) SELECT p.id, now() - interval '40 d', '{}' FROM poolkeeper.pool AS p, generate_series(1, 20 + p.id);"
        "INSERT INTO poolkeeper.retention_walk (kind, began_at) SELECT k, now() FROM unnest('{payload,pools}'::text[]) AS k;"
        "UPDATE poolkeeper.retention_walk SET pool_id = 5 WHERE kind = 'payload'"
    )
    pools = walks.answers("SELECT pool_id, count(*) FROM poolkeeper.decision GROUP BY 1")
    assert walks.answers("SELECT decisions FROM poolkeeper.forget_reports(%s, %s)", FEW, now) == [
        (sum(n - 20 for _, n in pools),)
    ]
    assert {n for _, n in walks.answers("SELECT pool_id, count(*) FROM poolkeeper.decision GROUP BY 1")} == {20}
    assert walks.answers("SELECT kind, pool_id FROM poolkeeper.retention_walk ORDER BY 1") == [
        ("payload", 5),
        ("pools", 0),
    ]
