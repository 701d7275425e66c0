-- The audit (Q61): what must hold in the store at any moment, looked at page by page on a live installation. The tests look by
-- the same functions. Each call is one statement, so that it sees one moment, writes nothing and takes no lock that anybody
-- waits for. It answers with ids, never with content. A new table that holds tasks belongs into audit_page and into
-- broken_invariants; a new invariant is one RETURN QUERY more there.

-- Who may look at everything: nobody who is limited to queues or tenants.
CREATE OR REPLACE FUNCTION poolkeeper.demand_unlimited(_caller poolkeeper.access) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF _caller.queues IS NOT NULL OR _caller.tenants IS NOT NULL OR _caller.tenants_except IS NOT NULL THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403',
            HINT = 'this concerns all queues and tenants; use a login whose row in poolkeeper.access has no limits';
    END IF;
END $$;

-- The next tasks by their id, wherever a row of them is. Relies on every table's index that begins with the task's id.
CREATE OR REPLACE FUNCTION poolkeeper.audit_page(_after uuid, _most integer) RETURNS uuid[]
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(array_agg(y.id ORDER BY y.id), '{}') FROM (
        SELECT x.id FROM (
            (SELECT r.id FROM poolkeeper.task AS r WHERE r.id > _after ORDER BY r.id LIMIT _most) UNION
            (SELECT r.task_id FROM poolkeeper.ready AS r WHERE r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT r.task_id FROM poolkeeper.later AS r WHERE r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT r.task_id FROM poolkeeper.suspect AS r WHERE r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT r.task_id FROM poolkeeper.ordered AS r WHERE r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT r.task_id FROM poolkeeper.lease AS r WHERE r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT r.task_id FROM poolkeeper.dead AS r WHERE r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT r.task_id FROM poolkeeper.checkpoint AS r WHERE r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT DISTINCT r.task_id FROM poolkeeper.retention_note AS r WHERE r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT DISTINCT r.task_id FROM poolkeeper.delivery AS r WHERE r.retention = 0 AND r.task_id > _after ORDER BY r.task_id LIMIT _most) UNION
            (SELECT DISTINCT r.task_id FROM poolkeeper.event AS r WHERE r.retention = 0 AND r.task_id > _after ORDER BY r.task_id LIMIT _most)
        ) AS x (id) ORDER BY x.id LIMIT _most) AS y
$$;

-- The invariants of tasks, of these tasks: each that does not hold, with the task that breaks it. History is entered task by
-- task: by the list of ids as a whole, Postgres 15 without statistics reads all of it.
CREATE OR REPLACE FUNCTION poolkeeper.broken_invariants(_ids uuid[]) RETURNS TABLE (invariant text, task_id uuid)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT 'every task is in exactly one place', t.id FROM poolkeeper.task AS t
    CROSS JOIN LATERAL (
        SELECT (SELECT count(*) FROM poolkeeper.ready AS r WHERE r.task_id = t.id)
             + (SELECT count(*) FROM poolkeeper.later AS r WHERE r.task_id = t.id)
             + (SELECT count(*) FROM poolkeeper.suspect AS r WHERE r.task_id = t.id)
             + (SELECT count(*) FROM poolkeeper.ordered AS r WHERE r.task_id = t.id)
             + (SELECT count(*) FROM poolkeeper.lease AS r WHERE r.task_id = t.id)
             + (SELECT count(*) FROM poolkeeper.dead AS r WHERE r.task_id = t.id)
             + (SELECT count(*) FROM poolkeeper.delivery AS r
                WHERE r.retention = 0 AND r.task_id = t.id AND r.next_state IN ('succeeded', 'failed', 'canceled'))
             + (SELECT count(*) FROM poolkeeper.event AS r
                WHERE r.retention = 0 AND r.task_id = t.id AND r.kind IN ('canceled', 'discarded')) AS n) AS p
    WHERE t.id = ANY (_ids) AND p.n <> 1;

    -- the page holds every id that any table has
    RETURN QUERY SELECT 'nothing is placed without its body', x.id FROM unnest(_ids) AS x (id)
    WHERE NOT EXISTS (SELECT FROM poolkeeper.task AS t WHERE t.id = x.id);

    RETURN QUERY SELECT 'nothing was erased of a task that has not ended', t.id
    FROM poolkeeper.task AS t CROSS JOIN LATERAL poolkeeper.present_state(t.id) AS p
    WHERE t.id = ANY (_ids) AND (t.payload_erased_at IS NOT NULL OR t.result_erased_at IS NOT NULL)
      AND p.state NOT IN ('succeeded', 'failed', 'canceled');

    -- within the page: no index leads from a token to others that are the same
    RETURN QUERY SELECT 'no token repeats', (array_agg(x.task_id ORDER BY x.task_id))[1] FROM (
        SELECT d.task_id, d.token_hash FROM unnest(_ids) AS u (id) CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.delivery AS k WHERE k.retention = 0 AND k.task_id = u.id OFFSET 0) AS d
        UNION ALL SELECT l.task_id, l.token_hash FROM poolkeeper.lease AS l WHERE l.task_id = ANY (_ids)) AS x
    GROUP BY x.token_hash HAVING count(*) > 1;

    RETURN QUERY SELECT 'deliveries of a task are numbered without gaps', x.task_id FROM (
        SELECT d.task_id, d.delivery FROM unnest(_ids) AS u (id) CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.delivery AS k WHERE k.retention = 0 AND k.task_id = u.id OFFSET 0) AS d
        UNION ALL SELECT l.task_id, l.delivery FROM poolkeeper.lease AS l WHERE l.task_id = ANY (_ids)) AS x
    GROUP BY x.task_id HAVING (min(x.delivery), max(x.delivery), count(DISTINCT x.delivery)) <> (1, count(*), count(*));

    RETURN QUERY SELECT 'each ended delivery has an outcome, a next state and times in order', d.task_id
    FROM unnest(_ids) AS u (id) CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.delivery AS k WHERE k.retention = 0 AND k.task_id = u.id OFFSET 0) AS d
    WHERE (d.outcome IS NULL OR d.ended_at < d.claimed_at OR d.started_at < d.claimed_at
           OR d.next_state NOT IN ('ready', 'scheduled', 'waiting', 'succeeded', 'failed', 'canceled', 'dead'));

    RETURN QUERY SELECT 'state versions are gapless', h.task_id
    FROM unnest(_ids) AS u (id) CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.history AS k WHERE k.task_id = u.id OFFSET 0) AS h
    WHERE h.state IS NOT NULL
    GROUP BY h.task_id HAVING (min(h.state_version), max(h.state_version), count(DISTINCT h.state_version)) <> (1, count(*), count(*));

    RETURN QUERY SELECT 'history replays to the present state', t.id FROM poolkeeper.task AS t
    CROSS JOIN LATERAL (SELECT h.state, h.state_version FROM poolkeeper.history AS h WHERE h.task_id = t.id AND h.state IS NOT NULL
                        ORDER BY h.state_version DESC LIMIT 1) AS last
    LEFT JOIN LATERAL poolkeeper.present_state(t.id) AS p ON true
    WHERE t.id = ANY (_ids) AND (last.state, last.state_version) IS DISTINCT FROM (p.state, p.state_version);

    RETURN QUERY SELECT 'only the arrows of the state machine were taken', x.task_id FROM (
        SELECT h.task_id, lag(h.state) OVER (PARTITION BY h.task_id ORDER BY h.state_version) AS before, h.state AS after
        FROM unnest(_ids) AS u (id) CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.history AS k WHERE k.task_id = u.id OFFSET 0) AS h
        WHERE h.state IS NOT NULL) AS x
    WHERE NOT CASE coalesce(x.before, 'nothing')
        WHEN 'nothing' THEN x.after IN ('ready', 'scheduled')
        WHEN 'scheduled' THEN x.after IN ('ready', 'canceled', 'dead')
        WHEN 'waiting' THEN x.after IN ('ready', 'canceled', 'dead')
        WHEN 'ready' THEN x.after IN ('leased', 'running', 'canceled', 'dead')
        WHEN 'leased' THEN x.after IN ('running', 'ready', 'canceled', 'dead')
        WHEN 'running' THEN x.after IN ('ready', 'scheduled', 'waiting', 'succeeded', 'failed', 'canceled', 'dead')
        WHEN 'dead' THEN x.after IN ('ready', 'canceled')
        ELSE false END;

    -- what a hand-back costs depends on the policy of its moment: exact where that is still the task's first, a bound otherwise
    RETURN QUERY
    WITH held AS (
        SELECT r.task_id, r.queue_id, r.delivery, r.spent, r.failures, r.expiries, r.hand_backs, r.snoozes, 0 AS open FROM poolkeeper.ready AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.queue_id, r.delivery, r.spent, r.failures, r.expiries, r.hand_backs, r.snoozes, 0 FROM poolkeeper.later AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.queue_id, r.delivery, 0, 0, 0, 0, 0, 0 FROM poolkeeper.ordered AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.queue_id, r.delivery, r.spent, r.failures, r.expiries, r.hand_backs, r.snoozes, 0 FROM poolkeeper.suspect AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.queue_id, r.delivery, r.spent, r.failures, r.expiries, r.hand_backs, r.snoozes, 1 FROM poolkeeper.lease AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.queue_id, r.delivery, r.spent, r.failures, r.expiries, r.hand_backs, r.snoozes, 0 FROM poolkeeper.dead AS r WHERE r.task_id = ANY (_ids)
    )
    SELECT 'counters add up to the history since the last requeue', h.task_id FROM held AS h
    JOIN poolkeeper.queue AS q ON q.id = h.queue_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS deliveries, count(*) FILTER (WHERE d.outcome IN ('failed', 'dead')) AS failures,
               count(*) FILTER (WHERE d.outcome = 'expired') AS expiries,
               count(*) FILTER (WHERE d.outcome = 'expired' AND d.reason = 'beside_others') AS unproven,
               count(*) FILTER (WHERE d.outcome IN ('handed_back', 'returned') OR d.reason = 'outage') AS hand_backs,
               count(*) FILTER (WHERE d.outcome = 'snoozed') AS snoozes,
               count(*) FILTER (WHERE d.reason = 'start_refused') AS refused  -- free beyond the bound of hand-backs too (Q16)
        FROM poolkeeper.delivery AS d
        WHERE d.retention = 0 AND d.task_id = h.task_id
          AND d.state_version > coalesce((SELECT max(e.state_version) FROM poolkeeper.event AS e
                                          WHERE e.retention = 0 AND e.task_id = h.task_id AND e.kind = 'requeued'), 0)) AS c
    CROSS JOIN LATERAL (SELECT h.spent - (c.deliveries + h.open - c.snoozes - c.unproven) AS by_hand_backs) AS s
    WHERE h.delivery <> (SELECT count(*) FROM poolkeeper.delivery AS d WHERE d.retention = 0 AND d.task_id = h.task_id) + h.open
       OR (h.failures, h.expiries, h.hand_backs, h.snoozes) IS DISTINCT FROM (c.failures, c.expiries, c.hand_backs, c.snoozes)
       OR s.by_hand_backs NOT BETWEEN -c.hand_backs AND 0
       OR (s.by_hand_backs <> -least(c.hand_backs, q.max_hand_backs) AND c.refused = 0
           AND NOT EXISTS (SELECT FROM poolkeeper.policy AS p
                           WHERE p.queue_id = h.queue_id AND p.applied_at > (SELECT t.accepted_at FROM poolkeeper.task AS t WHERE t.id = h.task_id)));

    RETURN QUERY SELECT 'a dead letter has a reason that the list explains', d.task_id FROM poolkeeper.dead AS d
    LEFT JOIN poolkeeper.reason AS r ON r.reason = d.reason WHERE d.task_id = ANY (_ids) AND r.reason IS NULL;

    RETURN QUERY SELECT 'an ended task keeps no cursor', c.task_id FROM poolkeeper.checkpoint AS c
    CROSS JOIN LATERAL poolkeeper.present_state(c.task_id) AS p
    WHERE c.task_id = ANY (_ids) AND p.state IN ('succeeded', 'failed', 'canceled');

    RETURN QUERY SELECT 'a task carries the gate of its ordering key wherever it is', x.task_id FROM (
        SELECT r.task_id, r.gate FROM poolkeeper.ready AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.gate FROM poolkeeper.later AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.gate FROM poolkeeper.suspect AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.gate FROM poolkeeper.ordered AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.gate FROM poolkeeper.lease AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.gate FROM poolkeeper.dead AS r WHERE r.task_id = ANY (_ids)) AS x
    JOIN poolkeeper.task AS t ON t.id = x.task_id
    WHERE x.gate IS DISTINCT FROM CASE WHEN t.ordering_key IS NOT NULL THEN poolkeeper.gate_key(t.queue_id, t.tenant, t.ordering_key) END;

    RETURN QUERY SELECT 'of an ordering key at most one task is under way', x.task_id FROM (
        SELECT r.task_id, r.gate FROM poolkeeper.ready AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.gate FROM poolkeeper.later AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.gate FROM poolkeeper.suspect AS r WHERE r.task_id = ANY (_ids)
        UNION ALL SELECT r.task_id, r.gate FROM poolkeeper.lease AS r WHERE r.task_id = ANY (_ids)) AS x
    WHERE x.gate IS NOT NULL
      AND (SELECT count(*) FROM poolkeeper.ready AS r WHERE r.gate = x.gate) + (SELECT count(*) FROM poolkeeper.later AS r WHERE r.gate = x.gate)
        + (SELECT count(*) FROM poolkeeper.suspect AS r WHERE r.gate = x.gate) + (SELECT count(*) FROM poolkeeper.lease AS r WHERE r.gate = x.gate) > 1;

    RETURN QUERY SELECT 'where an ordering key is free and a task waits for it, somebody will look', o.task_id FROM poolkeeper.ordered AS o
    CROSS JOIN LATERAL (SELECT k.ordering FROM poolkeeper.queue AS k WHERE k.id = o.queue_id OFFSET 0) AS q
    WHERE o.task_id = ANY (_ids)
      AND (SELECT e.place FROM poolkeeper.ordered AS e WHERE e.queue_id = o.queue_id AND e.gate = o.gate ORDER BY e.place LIMIT 1) = o.place
      AND (SELECT r.task_id FROM poolkeeper.ready AS r WHERE r.gate = o.gate LIMIT 1) IS NULL
      AND (SELECT r.task_id FROM poolkeeper.later AS r WHERE r.gate = o.gate LIMIT 1) IS NULL
      AND (SELECT r.task_id FROM poolkeeper.suspect AS r WHERE r.gate = o.gate LIMIT 1) IS NULL
      AND (SELECT r.task_id FROM poolkeeper.lease AS r WHERE r.gate = o.gate LIMIT 1) IS NULL
      AND (q.ordering = 'skip' OR (
          SELECT r.task_id FROM poolkeeper.dead AS r
          WHERE r.gate = o.gate AND (SELECT t.ordering_no FROM poolkeeper.task AS t WHERE t.id = r.task_id) < o.place LIMIT 1) IS NULL)
      AND (SELECT d.no FROM poolkeeper.gate_due AS d WHERE d.queue_id = o.queue_id AND d.gate = o.gate LIMIT 1) IS NULL;

    -- the one that may break for a moment: what was submitted under a policy that kept no list is found by the next sweep
    RETURN QUERY SELECT 'a lane that could be served is open where tenants are bounded', x.first FROM (
        SELECT r.queue_id, r.lane, (array_agg(r.task_id ORDER BY r.task_id))[1] AS first FROM poolkeeper.ready AS r
        JOIN poolkeeper.queue AS q ON q.id = r.queue_id AND q.lanes_kept WHERE r.task_id = ANY (_ids) GROUP BY r.queue_id, r.lane) AS x
    WHERE poolkeeper.lane_room(x.queue_id, x.lane) > 0
      AND NOT EXISTS (SELECT FROM poolkeeper.opening AS o WHERE o.queue_id = x.queue_id AND o.lane = x.lane);
END $$;

-- One page of tasks after an id: first a row without an invariant, then one for each that does not hold, with how many break
-- it and the first of them. next_id NULL: that was the last page. expired: deliveries of the page that ended by expiry, by queue.
CREATE OR REPLACE FUNCTION poolkeeper.audit_tasks(_after uuid DEFAULT NULL, _most integer DEFAULT 500)
RETURNS TABLE (next_id uuid, looked integer, expired jsonb, invariant text, violations bigint, first text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _ids  uuid[];
    _next uuid;
BEGIN
    PERFORM poolkeeper.demand_unlimited(poolkeeper.caller());
    _most := least(greatest(_most, 1), 10000);
    _ids := poolkeeper.audit_page(coalesce(_after, '00000000-0000-0000-0000-000000000000'), _most);
    _next := CASE WHEN cardinality(_ids) = _most THEN _ids[_most] END;
    RETURN QUERY SELECT _next, cardinality(_ids), (
            SELECT coalesce(jsonb_object_agg(x.queue_id, x.n), '{}') FROM (
                SELECT d.queue_id, count(*) AS n
                FROM unnest(_ids) AS u (id) CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.delivery AS k WHERE k.retention = 0 AND k.task_id = u.id OFFSET 0) AS d
                WHERE d.outcome = 'expired' GROUP BY d.queue_id) AS x),
        NULL::text, NULL::bigint, NULL::text[];
    RETURN QUERY SELECT NULL::uuid, NULL::integer, NULL::jsonb, b.invariant, count(*), (array_agg(b.task_id::text ORDER BY b.task_id))[1:20]
    FROM poolkeeper.broken_invariants(_ids) AS b GROUP BY b.invariant ORDER BY b.invariant;
END $$;

-- The same of idempotency keys: of a range of blocks of their table, since their own order would tell the keys. Answers with
-- tasks, never with keys. A row that moves meanwhile may be seen twice or in the next audit.
CREATE OR REPLACE FUNCTION poolkeeper.audit_keys(_block bigint DEFAULT 0, _most integer DEFAULT 50)
RETURNS TABLE (next_block bigint, looked integer, invariant text, violations bigint, first text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _until bigint;
    _end   bigint := pg_relation_size('poolkeeper.task_key') / current_setting('block_size')::bigint;
BEGIN
    PERFORM poolkeeper.demand_unlimited(poolkeeper.caller());
    _block := least(greatest(_block, 0), 4294967295);
    _until := least(_block + least(greatest(_most, 1), 1000), 4294967295);
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT k.task_id, k.ended_at, k.last_state, t.id IS NOT NULL AS there FROM poolkeeper.task_key AS k
        LEFT JOIN poolkeeper.task AS t ON t.id = k.task_id
        WHERE k.ctid >= format('(%s,0)', _block)::tid AND k.ctid < format('(%s,0)', _until)::tid
    ), broken AS (
        SELECT 'nothing is placed without its body' AS invariant, p.task_id FROM page AS p WHERE p.ended_at IS NULL AND NOT p.there
        UNION ALL
        SELECT 'a key that knows an end has outlived its task', p.task_id FROM page AS p
        WHERE (p.ended_at IS NULL) <> (p.last_state IS NULL) OR p.last_state NOT IN ('succeeded', 'failed', 'canceled')
           OR (p.ended_at IS NOT NULL AND p.there)
    )
    SELECT CASE WHEN _until < _end THEN _until END, (SELECT count(*)::integer FROM page), NULL::text, NULL::bigint, NULL::text[]
    UNION ALL
    (SELECT NULL, NULL, b.invariant, count(*), (array_agg(b.task_id::text ORDER BY b.task_id))[1:20] FROM broken AS b GROUP BY b.invariant ORDER BY b.invariant);
END $$;

-- The end of an audit: whether each queue's counter of expiries counts those that all the pages saw. The counter only rises, so
-- what expired meanwhile does no harm.
CREATE OR REPLACE FUNCTION poolkeeper.audit_counts(_expired jsonb)
RETURNS TABLE (invariant text, violations bigint, first text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM poolkeeper.demand_unlimited(poolkeeper.caller());
    RETURN QUERY SELECT 'the counter of lease expiries counts each expired delivery', count(*), (array_agg('queue ' || c.queue_id ORDER BY c.queue_id))[1:20]
    FROM poolkeeper.queue_count AS c
    WHERE c.lease_expiries < (_expired ->> c.queue_id::text)::bigint
    HAVING count(*) > 0;
END $$;
