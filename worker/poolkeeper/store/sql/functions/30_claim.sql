-- Arrows: ready -> running (a claim for a free slot starts the task, contract 21) | leased (claimed ahead of a slot,
-- Q16). Part of poolkeeper.turn.
--
-- Guarantees: never more than asked (Q10); queue and pool limits are never passed, under any concurrency (Q12): their
-- rows were locked by turn before this counts. Order (contract 22): lanes take turns, inside a lane priority with
-- ageing, then seq. A task that this session cannot run is not looked at (Q11): one index probe for all tasks of one
-- lane and type. Locks: ready rows by SKIP LOCKED, exactly those claimed. Index: ready_claim, in its own order.

-- What has work: up to _most combinations of (lane, type, priority) with ready tasks, walking the claim index from
-- behind lane _after, each at the cost of one probe whatever lies in it. head_* is the first task of each.
CREATE OR REPLACE FUNCTION poolkeeper.heads(_queue_id integer, _after bigint, _most integer)
RETURNS TABLE (lane bigint, type_key bigint, priority smallint, head_seq bigint, head_task uuid, head_ready_at timestamptz)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    WITH RECURSIVE walk AS (
        (SELECT r.lane, r.type_key, r.priority, r.seq, r.task_id, r.ready_at
         FROM poolkeeper.ready AS r
         WHERE r.queue_id = _queue_id AND r.lane > _after
         ORDER BY r.lane, r.type_key, r.priority, r.seq LIMIT 1)
        UNION ALL
        SELECT n.* FROM walk AS w CROSS JOIN LATERAL (
            SELECT r.lane, r.type_key, r.priority, r.seq, r.task_id, r.ready_at
            FROM poolkeeper.ready AS r
            WHERE r.queue_id = _queue_id AND (r.lane, r.type_key, r.priority) > (w.lane, w.type_key, w.priority)
            ORDER BY r.lane, r.type_key, r.priority, r.seq LIMIT 1) AS n
    )
    SELECT * FROM walk LIMIT _most;
END $$;

-- The same walk for a session: from a type that it cannot run straight on to its next own one, so that foreign work
-- costs one probe for each gap between own types and lane, whatever it consists of (Q11).
CREATE OR REPLACE FUNCTION poolkeeper.own_heads(_queue_id integer, _type_keys bigint[], _after bigint, _most integer)
RETURNS TABLE (lane bigint, type_key bigint, priority smallint)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    WITH RECURSIVE walk AS (
        (SELECT r.lane, r.type_key, r.priority
         FROM poolkeeper.ready AS r
         WHERE r.queue_id = _queue_id AND r.lane > _after
         ORDER BY r.lane, r.type_key, r.priority LIMIT 1)
        UNION ALL
        SELECT n.* FROM walk AS w
        CROSS JOIN LATERAL (
            SELECT CASE WHEN w.type_key = ANY (_type_keys) THEN w.type_key
                        ELSE coalesce((SELECT min(t.key) FROM unnest(_type_keys) AS t (key) WHERE t.key > w.type_key),
                                      9223372036854775807) END AS type_key,
                   CASE WHEN w.type_key = ANY (_type_keys) THEN w.priority
                        WHEN w.type_key < ANY (_type_keys) THEN (-1)::smallint
                        ELSE 32767::smallint END AS priority OFFSET 0) AS f
        CROSS JOIN LATERAL (
            SELECT r.lane, r.type_key, r.priority
            FROM poolkeeper.ready AS r
            WHERE r.queue_id = _queue_id AND (r.lane, r.type_key, r.priority) > (w.lane, f.type_key, f.priority)
            ORDER BY r.lane, r.type_key, r.priority LIMIT 1) AS n
    )
    SELECT * FROM walk LIMIT _most;
END $$;

DO $$ BEGIN
    CREATE TYPE poolkeeper.share AS (lane bigint, type_key bigint, priority smallint, n integer);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- Who gets how many of _room, by looking only: round robin over the lanes, inside a lane by priority with ageing (a
-- task of priority p counts as p * priority_age older). Looks at most _room / lanes deep (rounded up) in each lane.
CREATE OR REPLACE FUNCTION poolkeeper.share_out(
    _queue poolkeeper.queue, _type_keys bigint[], _room integer, INOUT _after bigint, OUT _shares poolkeeper.share[]
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _lanes bigint[];
    _seen  integer;
    _first bigint;
    _last  bigint;
    _deep  integer;
BEGIN
    SELECT array_agg(ROW(h.lane, h.type_key, h.priority, _room)::poolkeeper.share ORDER BY h.lane)
               FILTER (WHERE h.type_key = ANY (_type_keys)),
           array_agg(DISTINCT h.lane) FILTER (WHERE h.type_key = ANY (_type_keys)), count(*), min(h.lane), max(h.lane)
    INTO _shares, _lanes, _seen, _first, _last
    FROM poolkeeper.own_heads((_queue).id, _type_keys, _after, 2 * _room + 64) AS h;
    -- next time: behind the last lane served, or on from the lane where the walk stopped (behind it, if it filled the
    -- whole walk, so that no lane holds up the others), or from the start
    _after := CASE WHEN cardinality(_lanes) > _room THEN _lanes[_room]
                   WHEN _seen = 2 * _room + 64 AND _first < _last THEN _last - 1
                   WHEN _seen = 2 * _room + 64 THEN _last
                   ELSE -9223372036854775808 END;
    _deep := (_room + cardinality(_lanes) - 1) / cardinality(_lanes);
    IF cardinality(_shares) > 1 THEN
        SELECT array_agg(ROW(p.lane, p.type_key, p.priority, p.n)::poolkeeper.share)
        INTO _shares
        FROM (
            SELECT f.lane, f.type_key, f.priority, count(*)::integer AS n
            FROM (
                SELECT o.*, row_number() OVER (ORDER BY o.in_lane, o.lane) AS place
                FROM (
                    SELECT s.lane, s.type_key, s.priority,
                           row_number() OVER (PARTITION BY s.lane
                                              ORDER BY x.ready_at - s.priority * (_queue).priority_age, x.seq) AS in_lane
                    FROM unnest(_shares) AS s
                    CROSS JOIN LATERAL (
                        SELECT r.ready_at, r.seq FROM poolkeeper.ready AS r
                        WHERE r.queue_id = (_queue).id AND r.lane = s.lane AND r.type_key = s.type_key AND r.priority = s.priority
                        ORDER BY r.seq LIMIT _deep) AS x
                ) AS o WHERE o.in_lane <= _deep
            ) AS f WHERE f.place <= _room
            GROUP BY f.lane, f.type_key, f.priority
        ) AS p;
    END IF;
END $$;

-- Moves the shares from ready to lease and gives back what a worker needs, token included, this once. The first
-- _slots of them start now.
CREATE OR REPLACE FUNCTION poolkeeper.grant_shares(
    _queue poolkeeper.queue, _session poolkeeper.session, _turn bigint, _shares poolkeeper.share[], _slots integer, _now timestamptz
) RETURNS SETOF poolkeeper.answer
LANGUAGE plpgsql
AS $$
BEGIN RETURN QUERY
    WITH gone AS (
        DELETE FROM poolkeeper.ready AS r
        WHERE r.ctid = ANY (ARRAY(
            SELECT x.ctid
            FROM unnest(_shares) AS s
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM poolkeeper.ready AS c
                WHERE c.queue_id = (_queue).id AND c.lane = s.lane AND c.type_key = s.type_key AND c.priority = s.priority
                  AND (c.expires_at IS NULL OR c.expires_at > _now)
                ORDER BY c.seq LIMIT s.n FOR UPDATE SKIP LOCKED) AS x))
        RETURNING r.*
    ), tokens AS MATERIALIZED (  -- evaluated once: a token has one value
        SELECT g.*, 'pkt_' || rtrim(translate(encode(uuid_send(gen_random_uuid()), 'base64'), '+/', '-_'), '=') AS token,
               CASE WHEN row_number() OVER (ORDER BY g.seq) <= _slots THEN _now END AS started_at
        FROM gone AS g
    ), leases AS (
        INSERT INTO poolkeeper.lease (task_id, queue_id, priority, lane, type_key, seq, ready_at, expires_at, delivery, state_version,
                                      spent, failures, expiries, hand_backs, snoozes, waits,
                                      session_id, pool_id, turn, token_hash, claimed_at, started_at, checkpointed)
        SELECT t.task_id, t.queue_id, t.priority, t.lane, t.type_key, t.seq, t.ready_at, t.expires_at, t.delivery + 1, t.state_version + 1,
               t.spent + 1, t.failures, t.expiries, t.hand_backs, t.snoozes, t.waits,
               (_session).id, (_session).pool_id, _turn, sha256(convert_to(t.token, 'UTF8')), _now, t.started_at,
               -- a task that was never delivered has none: no look
               t.delivery > 0 AND EXISTS (SELECT FROM poolkeeper.checkpoint AS k WHERE k.task_id = t.task_id)
        FROM tokens AS t
    )
    SELECT 'claimed', NULL::text, CASE WHEN t.started_at IS NULL THEN 'leased' ELSE 'running' END, t.task_id, t.token, t.delivery + 1, (_queue).namespace || '/' || (_queue).name, b.type, b.tenant,
           b.payload, c.value, c.version, b.labels, b.traceparent, b.accepted_at, t.failures::integer, t.spent + 1,
           coalesce(b.max_deliveries, (_queue).max_deliveries), false, NULL::jsonb
    FROM tokens AS t
    CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.task AS k WHERE k.id = t.task_id OFFSET 0) AS b
    LEFT JOIN LATERAL (SELECT k.value, k.version FROM poolkeeper.checkpoint AS k WHERE k.task_id = t.task_id AND t.delivery > 0 OFFSET 0) AS c ON true
    ORDER BY t.seq;
END $$;

-- Claims up to _want tasks of one queue whose limiter, if it has one, is held by this transaction.
CREATE OR REPLACE FUNCTION poolkeeper.claim_queue(
    _queue poolkeeper.queue, _session poolkeeper.session, _turn bigint, _want integer, _slots integer, _after bigint, _now timestamptz
) RETURNS SETOF poolkeeper.answer
LANGUAGE plpgsql
AS $$
DECLARE
    _room   integer := _want;
    _got    integer;
    _shares poolkeeper.share[];
    _began  bigint;
    _passes integer := 0;
BEGIN
    IF (_queue).concurrency_max IS NOT NULL THEN
        _room := least(_room, (_queue).concurrency_max - (
            SELECT count(*)::integer FROM (SELECT FROM poolkeeper.lease AS l WHERE l.queue_id = (_queue).id LIMIT (_queue).concurrency_max) AS x));
    END IF;
    -- more than one pass only where lanes were uneven, others were faster, or the walk has to start over
    WHILE _room > 0 AND _passes < 8 LOOP
        _began := _after;
        _got := 0;
        SELECT s._after, s._shares INTO _after, _shares FROM poolkeeper.share_out(_queue, (_session).type_keys, _room, _after) AS s;
        IF _shares IS NOT NULL THEN
            RETURN QUERY SELECT * FROM poolkeeper.grant_shares(_queue, _session, _turn, _shares, _slots, _now);
            GET DIAGNOSTICS _got = ROW_COUNT;
            _room := _room - _got;
            _slots := greatest(0, _slots - _got);
        END IF;
        -- all lanes were seen, from the first to the last, and there is no more to have
        EXIT WHEN _began = -9223372036854775808 AND _after = -9223372036854775808 AND (_got = 0 OR cardinality(_shares) = 1);
        _passes := _passes + 1;
    END LOOP;
    RETURN NEXT ROW('note', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        jsonb_build_object('cursor', jsonb_build_object((_queue).id::text, _after)))::poolkeeper.answer;
END $$;
