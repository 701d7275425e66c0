-- The floor of a bulk submit: the same rows into tables of the same shape, keys and indexes, with nothing checked (F2).

-- name: shape
CREATE TABLE bare_task (LIKE poolkeeper.task INCLUDING ALL);
CREATE TABLE bare_ready (LIKE poolkeeper.ready INCLUDING ALL);
CREATE TABLE bare_key (LIKE poolkeeper.task_key INCLUDING ALL)

-- name: empty
TRUNCATE bare_task, bare_ready, bare_key, poolkeeper.task, poolkeeper.ready, poolkeeper.task_key

-- name: rows
SELECT t.id::text, t.queue_id, t.type, t.tenant, t.priority, t.accepted_at, t.run_at, t.payload::text, t.submitted_by, t.key,
       r.lane, r.type_key, encode(k.digest, 'hex')
FROM poolkeeper.task AS t JOIN poolkeeper.ready AS r ON r.task_id = t.id LEFT JOIN poolkeeper.task_key AS k ON k.task_id = t.id

-- name: copy task
COPY bare_task (id, queue_id, type, tenant, priority, accepted_at, run_at, payload, submitted_by, key) FROM STDIN

-- name: copy ready
COPY bare_ready (task_id, queue_id, priority, lane, type_key, ready_at) FROM STDIN

-- name: copy key
COPY bare_key (tenant, queue_id, key, task_id, digest, created_at) FROM STDIN

-- name: insert
WITH given AS MATERIALIZED (
    SELECT g.*, gen_random_uuid() AS id FROM jsonb_to_recordset(%(tasks)s::jsonb) AS g (type text, tenant text, payload jsonb, key text)
), bodies AS (
    INSERT INTO bare_task (id, queue_id, type, tenant, priority, accepted_at, run_at, payload, submitted_by, key)
    SELECT g.id, 1, g.type, g.tenant, 4, now(), now(), g.payload, session_user, g.key FROM given AS g
), keys AS (
    INSERT INTO bare_key (tenant, queue_id, key, task_id, digest, created_at)
    SELECT g.tenant, 1, g.key, g.id, sha256(convert_to(g.payload::text, 'UTF8')), now() FROM given AS g WHERE g.key IS NOT NULL
), claimable AS (
    INSERT INTO bare_ready (task_id, queue_id, priority, lane, type_key, ready_at)
    SELECT g.id, 1, 4, hashtextextended(g.tenant, 1), hashtextextended(g.type, 0), now() FROM given AS g
)
SELECT id FROM given
