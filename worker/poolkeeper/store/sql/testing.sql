-- Of the testing kit (Q50), in databases that it made for one test and drops: never in one that holds anything.

-- name: movable_clock
-- The machine's time plus what was moved; while kits are open it stands still, and only they move it.
CREATE TABLE poolkeeper.kit_clock (by interval NOT NULL, still_at timestamptz, kits integer NOT NULL);
INSERT INTO poolkeeper.kit_clock VALUES ('0', NULL, 0);
CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT coalesce(k.still_at, clock_timestamp() + k.by) FROM poolkeeper.kit_clock AS k';

-- name: is_movable
SELECT to_regclass('poolkeeper.kit_clock') IS NOT NULL AS value

-- name: stand_still
UPDATE poolkeeper.kit_clock AS k SET kits = k.kits + 1, still_at = coalesce(k.still_at, clock_timestamp() + k.by)

-- name: go_on
UPDATE poolkeeper.kit_clock AS k
SET kits = k.kits - 1, still_at = CASE WHEN k.kits > 1 THEN k.still_at END, by = k.still_at - clock_timestamp()

-- name: now
SELECT poolkeeper.clock() AS value

-- name: a_clone
-- A copy of a database is held until somebody accepts it (Q24); this one was meant to be one.
UPDATE poolkeeper.contact SET database_oid = (SELECT oid FROM pg_database WHERE datname = current_database())

-- name: queues
SELECT count(*) AS value FROM poolkeeper.queue

-- name: move
UPDATE poolkeeper.kit_clock AS k SET still_at = k.still_at + make_interval(secs => %(seconds)s)

-- name: renew
-- Those who renew do so, and whoever is late is late: the store could be reached.
WITH renewed AS (
    UPDATE poolkeeper.session SET renewed_at = poolkeeper.clock() WHERE id = ANY (%(sessions)s)
)
UPDATE poolkeeper.contact SET seen_at = poolkeeper.clock()

-- name: due
SELECT coalesce(
    (SELECT d.due_at FROM poolkeeper.later AS d WHERE d.task_id = %(task_id)s),
    (SELECT poolkeeper.lease_until(s.renewed_at, q.visibility_timeout, l.extended_until) FROM poolkeeper.lease AS l
     JOIN poolkeeper.session AS s ON s.id = l.session_id JOIN poolkeeper.queue AS q ON q.id = l.queue_id
     WHERE l.task_id = %(task_id)s),
    poolkeeper.clock()) AS value
