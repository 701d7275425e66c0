"""What the tables refuse by themselves, whoever writes and whatever a function forgets: the same twice, what is no value, what belongs
to nothing (P2, Q6, Q9, O1, quality 3).
"""

import psycopg
import pytest
from psycopg.errors import CheckViolation, ForeignKeyViolation, UniqueViolation

from fixtures.neighbours import Crowd

ONCE = {
    "acceptance": ("no",),
    "access": ("role",),
    "backlog": ("queue_id",),
    "backlog_lane": ("queue_id, lane",),
    "checkpoint": ("task_id",),
    "code": ("code",),
    "contact": ("singleton",),
    "dead": ("task_id",),
    "dead_post": ("queue_id, number",),
    "decision": ("no",),
    "delivery": ("retention, task_id, delivery",),
    "drain_report": ("no",),
    "event": ("retention, task_id, no",),
    "expiry": ("task_id, delivery",),
    "functions": ("singleton",),
    "gate": ("queue_id",),
    "gate_due": ("queue_id, no",),
    "instance": ("singleton",),
    "lane": ("queue_id, lane",),
    "later": ("task_id",),
    "leader": ("cluster, namespace",),
    "lease": ("gate", "task_id"),
    "migration": ("version",),
    "opening": ("queue_id, lane, no",),
    "ordered": ("queue_id, gate, place", "task_id"),
    "policy": ("queue_id, version",),
    "pool": ("id", "name"),
    "provider": ("id", "quota"),
    "provider_hold": ("task_id, delivery, provider_id",),
    "provider_slice": ("provider_id, measure, ends_at",),
    "provider_spent": ("provider_id, no",),
    "provider_window": ("provider_id, measure",),
    "queue": ("id", "namespace, name"),
    "queue_count": ("queue_id",),
    "ready": ("queue_id, again, lane, type_key, priority, seq", "task_id"),
    "reason": ("reason",),
    "retention_note": ("task_id, kind",),
    "retention_walk": ("kind",),
    "schedule": ("id", "queue_id, tenant, name"),
    "session": ("id",),
    "suspect": ("task_id",),
    "task": ("id",),
    "task_key": ("tenant, queue_id, key",),
    "tenant_rule": ("queue_id, tenant",),
}
"""Table -> what no two rows of it have in common."""
NO_VALUE = (
    ("contact", "singleton = false"),
    ("delivery", "outcome = 'lost'"),
    ("event", "kind = 'seen'"),
    ("functions", "singleton = false"),
    ("instance", "singleton = false"),
    ("pool", "name = ''"),
    ("pool", "max_running = -1"),
    ("provider", "quota = ''"),
    ("provider", "cut = 100"),
    ("provider", "floor = 0"),
    ("provider", "recover = 0"),
    ("provider", "percent = 101"),
    ("provider_hold", "requests = -1"),
    ("provider_hold", "tokens = -1"),
    ("provider_slice", "amount = -1"),
    ("provider_spent", "requests = -1"),
    ("provider_spent", "tokens = -1"),
    ("provider_window", "measure = 'calls'"),
    ("provider_window", "most = 0"),
    ("provider_window", "width = '0.9 s'"),
    ("provider_window", "width = '25 h'"),
    ("queue", "name = 'Upper'"),
    ("queue", "namespace = '-a'"),
    ("queue", "ordering = 'none'"),
    ("queue", "wake_up = 'never'"),
    ("queue", "backoff_factor = 0.9"),
    ("queue", "max_waiting = -1"),
    ("queue", "max_waiting_per_tenant = -1"),
    ("queue", "concurrency_max = -1"),
    ("queue", "per_tenant_max = -1"),
    ("queue", "retry_share = 0"),
    ("queue", "retry_share = 101"),
    ("queue", "retention_events = '0'"),
    ("queue", "retention_keys = '1 hour'"),
    ("queue", "visibility_timeout = '0.4 s'"),
    ("queue", "priority_default = priority_max + 1"),
    ("queue", "priority_min = priority_default + 1"),
    ("queue", "max_run_time = '0'"),
    ("queue", "max_tenure = '0'"),
    ("queue", "progress_timeout = '0'"),
    ("queue", "max_deliveries = 0"),
    ("queue", "max_hand_backs = -1"),
    ("queue", "max_snoozes = 32767"),
    ("schedule", "name = 'a b'"),
    ("schedule", "catch_up = 'some'"),
    ("schedule", "catch_up_limit = 0"),
    ("schedule", "due_at = counted_to"),
    ("schedule", "look_at = NULL"),
    ("session", "concurrency = 0"),
    ("task", "type = 'A b'"),
    ("task", "tenant = ''"),
    ("task_key", "key = ''"),
    ("tenant_rule", "max_running = -1"),
    ("tenant_rule", "weight = 0"),
)
OF_NOTHING = (
    ("backlog", "queue_id = 0"),
    ("dead", "reason = 'bad luck'"),
    ("dead_post", "queue_id = 0"),
    ("decision", "pool_id = 0"),
    ("drain_report", "pool_id = 0"),
    ("gate", "queue_id = 0"),
    ("policy", "queue_id = 0"),
    ("provider_window", "provider_id = 0"),
    ("queue_count", "queue_id = 0"),
    ("schedule", "queue_id = 0"),
    ("session", "pool_id = 0"),
    ("tenant_rule", "queue_id = 0"),
)
ALSO = """
    INSERT INTO poolkeeper.acceptance (at, login, who, why, held_since, held_why) VALUES (now(), 'l', 'w', 'y', now(), 'h');
    INSERT INTO poolkeeper.retention_note (task_id, kind, queue_id, since) SELECT t.id, 'payload', t.queue_id, now() FROM poolkeeper.task AS t;
    INSERT INTO poolkeeper.retention_walk (kind, began_at) VALUES ('mine', now());
    INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version) SELECT t.id, t.queue_id, now(), 'woke', 2 FROM poolkeeper.task AS t LIMIT 1;
    UPDATE poolkeeper.lease SET gate = 7 WHERE task_id = (SELECT l.task_id FROM poolkeeper.lease AS l ORDER BY l.task_id LIMIT 1);
    INSERT INTO poolkeeper.expiry SELECT t.id, 1, t.queue_id, t.id, now(), false FROM poolkeeper.task AS t ON CONFLICT DO NOTHING;
    INSERT INTO poolkeeper.dead_post SELECT q.id, 1, '{}', now() FROM poolkeeper.queue AS q;
    INSERT INTO poolkeeper.lane SELECT q.id, 1 FROM poolkeeper.queue AS q;
    INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT q.id, 1 FROM poolkeeper.queue AS q;
    INSERT INTO poolkeeper.backlog_lane SELECT q.id, 1, 1 FROM poolkeeper.queue AS q;
    INSERT INTO poolkeeper.schedule (queue_id, tenant, name, cron, zone, catch_up, catch_up_limit, task, set_by, set_at, counted_to, look_at)
        SELECT q.id, 't', 'n', '* * * * *', 'UTC', 'skip', 1, '{}', 'w', now(), now(), now() FROM poolkeeper.queue AS q;
    INSERT INTO poolkeeper.provider (quota, cut, floor, recover) VALUES ('a/b', 50, 10, 5);
    INSERT INTO poolkeeper.provider_window SELECT r.id, 'tokens', 5, '1 min' FROM poolkeeper.provider AS r;
    INSERT INTO poolkeeper.provider_slice SELECT r.id, 'tokens', now(), 5 FROM poolkeeper.provider AS r;
    INSERT INTO poolkeeper.provider_spent (provider_id, at, requests, tokens) SELECT r.id, now(), 1, 5 FROM poolkeeper.provider AS r;
    INSERT INTO poolkeeper.provider_hold SELECT t.id, 1, r.id, 1, 5 FROM poolkeeper.task AS t, poolkeeper.provider AS r;
"""
"""Rows of tables that the crowd leaves empty."""
UNIQUE = """
    SELECT c.relname::text AS in_table, i.indexrelid::regclass::text AS index, string_agg(a.attname, ', ' ORDER BY u.n) AS key
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
    CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS u (attnum, n)
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = u.attnum
    WHERE c.relnamespace = 'poolkeeper'::regnamespace AND NOT c.relispartition AND i.indisunique AND u.n <= i.indnkeyatts
    GROUP BY c.relname, i.indexrelid
"""
OTHERS = """
    DO $$ DECLARE _one record; BEGIN
        FOR _one IN SELECT i.indexrelid::regclass AS index, x.conname FROM pg_index AS i LEFT JOIN pg_constraint AS x ON x.conindid = i.indexrelid AND x.contype <> 'f'
                WHERE i.indrelid = 'poolkeeper.<table>'::regclass AND i.indisunique AND i.indexrelid <> '<index>'::regclass LOOP
            IF _one.conname IS NULL THEN
                EXECUTE format('DROP INDEX %s', _one.index);
            ELSE
                EXECUTE format('ALTER TABLE poolkeeper.<table> DROP CONSTRAINT %I CASCADE', _one.conname);
            END IF;
        END LOOP;
    END $$;
"""
"""Takes the other ones of a table away, so that only this one can refuse."""
COLUMNS = """
    SELECT string_agg(quote_ident(a.attname), ', ') FROM pg_attribute AS a
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
"""
NAMES = """
    SELECT x.conname FROM pg_constraint AS x JOIN pg_class AS c ON c.oid = x.conrelid
    WHERE c.relnamespace = 'poolkeeper'::regnamespace AND NOT c.relispartition AND x.contype = %s
"""


def test_no_two_rows_are_the_same_thing(crowd: Crowd) -> None:
    """P2, Q6, Q9, O1: each key refuses a second row by itself, and these are the keys that there are."""
    owner = crowd.scene.owner
    with owner.transaction(force_rollback=True):
        owner.execute(ALSO)
        found = crowd.scene.rows(UNIQUE)
        for one in found:
            table = f"poolkeeper.{one.in_table}"
            columns = crowd.scene.value(COLUMNS, table)
            where = " WHERE gate IS NOT NULL" if one.key == "gate" else ""
            again = (
                f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {table}{where} LIMIT 1"
            )
            with owner.transaction(force_rollback=True):
                owner.execute(OTHERS.replace("<table>", one.in_table).replace("<index>", one.index))
                with pytest.raises(UniqueViolation, match=one.in_table):
                    owner.execute(again)
    assert {(one.in_table, one.key) for one in found} == {(table, key) for table, keys in ONCE.items() for key in keys}


@pytest.mark.parametrize(
    ("changes", "refusal", "kind"), [(NO_VALUE, CheckViolation, "c"), (OF_NOTHING, ForeignKeyViolation, "f")]
)
def test_what_is_no_value_and_what_is_of_nothing(
    crowd: Crowd, changes: tuple[tuple[str, str], ...], refusal: type[psycopg.Error], kind: str
) -> None:
    """Q6, Q52, O1: every constraint refuses something by itself."""
    owner, seen = crowd.scene.owner, set()
    with owner.transaction(force_rollback=True):
        owner.execute(ALSO)
        for table, change in changes:
            with owner.transaction(force_rollback=True):
                with pytest.raises(refusal) as told:
                    one = f"(SELECT ctid FROM poolkeeper.{table} LIMIT 1)"
                    owner.execute(f"UPDATE poolkeeper.{table} SET {change} WHERE ctid = {one}")
                seen.add(told.value.diag.constraint_name)
    assert seen == {row.conname for row in crowd.scene.rows(NAMES, kind)}
