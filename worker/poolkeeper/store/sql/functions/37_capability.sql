-- Who can run what (Q11). Reads pools and sessions, a row each for a worker or a pool; never a task.

-- The types, by their keys, that somebody can run in each queue (NULL: in all of them): live, of a session that may claim
-- now; known, of these and of each pool's last session, which is remembered after it has gone. No row for a queue that
-- no session ever served: nothing is known there, and everything counts as able, so that a first worker is started. narrow:
-- the same of sessions and pools that take some tenants' tasks only, which are not in live and known; named: those tenants.
CREATE OR REPLACE FUNCTION poolkeeper.capable(_queue_id integer, _now timestamptz)
RETURNS TABLE (queue_id integer, live bigint[], known bigint[], narrow poolkeeper.reach[], named text[])
LANGUAGE sql STABLE
AS $$
    WITH said AS MATERIALIZED (
        SELECT DISTINCT q.id, s.type_keys AS keys, true AS live, s.tenants AS whom, s.tenants_except AS but
        FROM poolkeeper.pool AS p
        JOIN poolkeeper.session AS s ON s.pool_id = p.id AND s.ended_at IS NULL AND NOT s.draining
        CROSS JOIN LATERAL unnest(s.queue_ids) AS u (id)
        CROSS JOIN LATERAL (SELECT k.id, k.visibility_timeout FROM poolkeeper.queue AS k WHERE k.id = u.id OFFSET 0) AS q
        WHERE (_queue_id IS NULL OR u.id = _queue_id) AND poolkeeper.lease_until(s.renewed_at, q.visibility_timeout, NULL) > _now
        UNION ALL
        SELECT q.id, p.known_keys, false, p.known_tenants, p.known_except
        FROM poolkeeper.pool AS p
        CROSS JOIN LATERAL unnest(p.known_queues) AS u (path)
        CROSS JOIN LATERAL (SELECT k.id FROM poolkeeper.queue AS k
                            WHERE k.namespace = split_part(u.path, '/', 1) AND k.name = split_part(u.path, '/', 2) OFFSET 0) AS q
        WHERE _queue_id IS NULL OR q.id = _queue_id
    ), each AS (
        SELECT s.*, s.whom IS NULL AND s.but IS NULL AS whole FROM said AS s
    )
    SELECT x.id, coalesce(array_agg(DISTINCT k.key) FILTER (WHERE x.live AND x.whole), '{}'), coalesce(array_agg(DISTINCT k.key) FILTER (WHERE x.whole), '{}'),
           (SELECT array_agg(ROW(n.keys, CASE WHEN n.whom IS NOT NULL THEN poolkeeper.lanes_of(n.id, n.whom) END,
                                 poolkeeper.lanes_of(n.id, coalesce(n.but, '{}')), n.live)::poolkeeper.reach)
            FROM each AS n WHERE n.id = x.id AND NOT n.whole),
           (SELECT array_agg(DISTINCT t) FROM each AS n CROSS JOIN LATERAL unnest(n.whom || n.but) AS t WHERE n.id = x.id)
    FROM each AS x CROSS JOIN LATERAL unnest(x.keys) AS k (key)
    GROUP BY x.id
$$;

-- Whether one of these can run this type of this lane; _live: now.
CREATE OR REPLACE FUNCTION poolkeeper.reaches(_narrow poolkeeper.reach[], _lane bigint, _type_key bigint, _live boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT _narrow IS NOT NULL AND EXISTS (
        SELECT FROM unnest(_narrow) AS n
        WHERE (n.live OR NOT _live) AND _type_key = ANY (n.keys) AND (n.lanes IS NULL OR _lane = ANY (n.lanes)) AND _lane <> ALL (n.not_of))
$$;

-- Whether anybody is known who can run tasks of this type and tenant in this queue.
CREATE OR REPLACE FUNCTION poolkeeper.somebody_can(_queue_id integer, _type text, _tenant text) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT coalesce((SELECT poolkeeper.type_key(_type) = ANY (c.known)
                         OR poolkeeper.reaches(c.narrow, poolkeeper.lane_key(_queue_id, _tenant), poolkeeper.type_key(_type), false)
                     FROM poolkeeper.capable(_queue_id, poolkeeper.clock()) AS c), true)
$$;
