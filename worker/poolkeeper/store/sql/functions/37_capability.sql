-- Who can run what (Q11). Reads pools and sessions, a row each for a worker or a pool; never a task.

-- The types, by their keys, that somebody can run in each queue (NULL: in all of them): live, of a session that may claim
-- now; known, of these and of each pool's last session, which is remembered after it has gone. No row for a queue that
-- no session ever served: nothing is known there, and everything counts as able, so that a first worker is started.
CREATE OR REPLACE FUNCTION poolkeeper.capable(_queue_id integer, _now timestamptz)
RETURNS TABLE (queue_id integer, live bigint[], known bigint[])
LANGUAGE sql STABLE
AS $$
    WITH said AS (
        SELECT DISTINCT q.id, s.type_keys AS keys, true AS live
        FROM poolkeeper.pool AS p
        JOIN poolkeeper.session AS s ON s.pool_id = p.id AND s.ended_at IS NULL AND NOT s.draining
        CROSS JOIN LATERAL unnest(s.queue_ids) AS u (id)
        CROSS JOIN LATERAL (SELECT k.id, k.visibility_timeout FROM poolkeeper.queue AS k WHERE k.id = u.id OFFSET 0) AS q
        WHERE (_queue_id IS NULL OR u.id = _queue_id) AND poolkeeper.lease_until(s.renewed_at, q.visibility_timeout, NULL) > _now
        UNION ALL
        SELECT q.id, p.known_keys, false
        FROM poolkeeper.pool AS p
        CROSS JOIN LATERAL unnest(p.known_queues) AS u (path)
        CROSS JOIN LATERAL (SELECT k.id FROM poolkeeper.queue AS k
                            WHERE k.namespace = split_part(u.path, '/', 1) AND k.name = split_part(u.path, '/', 2) OFFSET 0) AS q
        WHERE _queue_id IS NULL OR q.id = _queue_id
    )
    SELECT s.id, coalesce(array_agg(DISTINCT k.key) FILTER (WHERE s.live), '{}'), array_agg(DISTINCT k.key)
    FROM said AS s CROSS JOIN LATERAL unnest(s.keys) AS k (key)
    GROUP BY s.id
$$;

-- Whether anybody is known who can run tasks of this type in this queue.
CREATE OR REPLACE FUNCTION poolkeeper.somebody_can(_queue_id integer, _type text) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT coalesce((SELECT poolkeeper.type_key(_type) = ANY (c.known) FROM poolkeeper.capable(_queue_id, poolkeeper.clock()) AS c), true)
$$;
