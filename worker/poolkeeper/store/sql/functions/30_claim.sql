-- Arrows: ready -> running (a claim for a free slot starts the task, contract 21) | leased (claimed ahead of a slot,
-- Q16). Part of poolkeeper.turn.
--
-- Guarantees: never more than asked (Q10); limits of queue, pool and tenant are never passed, under any concurrency (Q12):
-- their rows were locked, by turn or by 29_lanes.sql, before this counts. Order (contract 22): lanes take turns, by weight, inside a lane priority with
-- ageing, then seq. A task that this session cannot run is not looked at (Q11): one index probe for all tasks of one
-- lane and type. Locks: ready rows by SKIP LOCKED, exactly those claimed. Index: ready_claim, in its own order.

-- What has work, of first deliveries or of retries (_again): up to _most combinations of (lane, type, priority) with ready
-- tasks, walking the claim index from behind lane _after, each at the cost of one probe whatever lies in it. head_* is the first task of each.
CREATE OR REPLACE FUNCTION poolkeeper.heads(_queue_id integer, _again boolean, _after bigint, _most integer)
RETURNS TABLE (lane bigint, type_key bigint, priority smallint, head_seq bigint, head_task uuid, head_ready_at timestamptz)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    WITH RECURSIVE walk AS (
        (SELECT r.lane, r.type_key, r.priority, r.seq, r.task_id, r.ready_at
         FROM poolkeeper.ready AS r
         WHERE r.queue_id = _queue_id AND r.again = _again AND r.lane > _after
         ORDER BY r.lane, r.type_key, r.priority, r.seq LIMIT 1)
        UNION ALL
        SELECT n.* FROM walk AS w CROSS JOIN LATERAL (
            SELECT r.lane, r.type_key, r.priority, r.seq, r.task_id, r.ready_at
            FROM poolkeeper.ready AS r
            WHERE r.queue_id = _queue_id AND r.again = _again AND (r.lane, r.type_key, r.priority) > (w.lane, w.type_key, w.priority)
            ORDER BY r.lane, r.type_key, r.priority, r.seq LIMIT 1) AS n
    )
    SELECT * FROM walk LIMIT _most;
END $$;

-- The same walk for a session: from a type that it cannot run straight on to its next own one, so that foreign work
-- costs one probe for each gap between own types and lane, whatever it consists of (Q11). Ends with lane _until. From the
-- lanes of _except straight on to the next lane; what is seen of these is in the answer, for the caller to leave out.
CREATE OR REPLACE FUNCTION poolkeeper.own_heads(
    _queue_id integer, _again boolean, _type_keys bigint[], _except bigint[], _after bigint, _until bigint, _most integer
)
RETURNS TABLE (lane bigint, type_key bigint, priority smallint, head_seq bigint)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    WITH RECURSIVE walk AS (
        (SELECT r.lane, r.type_key, r.priority, r.seq
         FROM poolkeeper.ready AS r
         WHERE r.queue_id = _queue_id AND r.again = _again AND r.lane > _after AND r.lane <= _until
         ORDER BY r.lane, r.type_key, r.priority, r.seq LIMIT 1)
        UNION ALL
        SELECT n.* FROM walk AS w
        CROSS JOIN LATERAL (
            SELECT CASE WHEN w.lane = ANY (_except) THEN 9223372036854775807
                        WHEN w.type_key = ANY (_type_keys) THEN w.type_key
                        ELSE coalesce((SELECT min(t.key) FROM unnest(_type_keys) AS t (key) WHERE t.key > w.type_key),
                                      9223372036854775807) END AS type_key,
                   CASE WHEN w.lane = ANY (_except) THEN 32767::smallint
                        WHEN w.type_key = ANY (_type_keys) THEN w.priority
                        WHEN w.type_key < ANY (_type_keys) THEN (-1)::smallint
                        ELSE 32767::smallint END AS priority OFFSET 0) AS f
        CROSS JOIN LATERAL (
            SELECT r.lane, r.type_key, r.priority, r.seq
            FROM poolkeeper.ready AS r
            WHERE r.queue_id = _queue_id AND r.again = _again AND (r.lane, r.type_key, r.priority) > (w.lane, f.type_key, f.priority) AND r.lane <= _until
            ORDER BY r.lane, r.type_key, r.priority, r.seq LIMIT 1) AS n
    )
    SELECT * FROM walk LIMIT _most;
END $$;

-- Candidates for a claim from a queue without bounds for tenants: what this session can run, walking the lanes from behind
-- _after and once round. _more: there are lanes behind what was looked at; if nothing was found, the next look starts there.
CREATE OR REPLACE FUNCTION poolkeeper.all_shares(
    _queue_id integer, _again boolean, _type_keys bigint[], _only bigint[], _except bigint[], _room integer, INOUT _after bigint,
    OUT _shares poolkeeper.share[], OUT _more boolean, OUT _alone boolean
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _most   integer := 2 * _room + 64 + cardinality(_except);
    _seen   integer;
    _first  bigint;
    _last   bigint;
    _others poolkeeper.share[];
BEGIN
    IF _only IS NOT NULL THEN  -- a look at each of these lanes, and at no other
        SELECT array_agg(ROW(u.lane, h.type_key, h.priority, _room, 1, _again, h.head_seq - 1)::poolkeeper.share) INTO _shares
        FROM unnest(_only) AS u (lane) CROSS JOIN LATERAL poolkeeper.heads_of_lane(_queue_id, _again, u.lane, _type_keys, _most) AS h;
        _more := false;
        _alone := cardinality(_shares) = 1;
        RETURN;
    END IF;
    SELECT array_agg(ROW(h.lane, h.type_key, h.priority, _room, 1, _again, h.head_seq - 1)::poolkeeper.share) FILTER (WHERE h.type_key = ANY (_type_keys) AND h.lane <> ALL (_except)),
           count(*), min(h.lane), max(h.lane)
    INTO _shares, _seen, _first, _last
    FROM poolkeeper.own_heads(_queue_id, _again, _type_keys, _except, _after, 9223372036854775807, _most) AS h;
    _more := _seen = _most;
    IF NOT _more AND _after > -9223372036854775808 THEN
        _most := _most - _seen;
        SELECT array_agg(ROW(h.lane, h.type_key, h.priority, _room, 1, _again, h.head_seq - 1)::poolkeeper.share) FILTER (WHERE h.type_key = ANY (_type_keys) AND h.lane <> ALL (_except)),
               count(*), min(h.lane), max(h.lane)
        INTO _others, _seen, _first, _last
        FROM poolkeeper.own_heads(_queue_id, _again, _type_keys, _except, -9223372036854775808, _after, _most) AS h;
        _shares := _shares || _others;
        _more := _seen = _most;
    END IF;
    _alone := NOT _more AND cardinality(_shares) = 1;
    IF _more AND _shares IS NULL THEN  -- behind the last lane, if it filled the whole walk: no lane holds up the others
        _after := CASE WHEN _first < _last THEN _last - 1 ELSE _last END;
    END IF;
END $$;

-- The same shares with the weights of their lanes. Index: tenant_rule_lane.
CREATE OR REPLACE FUNCTION poolkeeper.weigh(_queue_id integer, _shares poolkeeper.share[]) RETURNS poolkeeper.share[]
LANGUAGE sql STABLE
AS $$
    SELECT ARRAY(
        SELECT ROW(s.lane, s.type_key, s.priority, s.n, coalesce(
            (SELECT t.weight FROM poolkeeper.tenant_rule AS t WHERE t.queue_id = _queue_id AND t.lane = s.lane ORDER BY t.tenant LIMIT 1), 1), s.again, s.floor)::poolkeeper.share
        FROM unnest(_shares) AS s)
$$;

-- Who gets how many of _room, by looking only: in each round each lane gets its weight, the first one what it has left of
-- its last round (_used of it are gone); inside a lane by priority with ageing (a task of priority p counts as
-- p * priority_age older). The next time begins where this one ends. Looks as deep into each lane as even shares need.
CREATE OR REPLACE FUNCTION poolkeeper.deal(
    _queue poolkeeper.queue, _room integer, _now timestamptz, INOUT _shares poolkeeper.share[], INOUT _after bigint, INOUT _used integer
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _rounds integer;
BEGIN
    SELECT (_room + sum(d.weight) - 1) / sum(d.weight) + (_used > 0)::integer INTO _rounds
    FROM (SELECT DISTINCT s.lane, s.weight FROM unnest(_shares) AS s) AS d;
    WITH found AS (
        SELECT s.lane, s.type_key, s.priority, s.again, s.floor, s.weight, s.n, CASE WHEN s.lane - 1 = _after THEN _used ELSE 0 END AS used,
               row_number() OVER (PARTITION BY s.lane ORDER BY x.ready_at - s.priority * (_queue).priority_age, x.seq) AS in_lane
        FROM unnest(_shares) AS s
        CROSS JOIN LATERAL (
            SELECT r.ready_at, r.seq FROM poolkeeper.ready AS r
            WHERE r.queue_id = (_queue).id AND r.again = s.again AND r.lane = s.lane AND r.type_key = s.type_key AND r.priority = s.priority AND r.seq > s.floor
              AND (r.expires_at IS NULL OR r.expires_at > _now)  -- nobody's place is taken by what may not start any more
            ORDER BY r.seq LIMIT least(s.n, _rounds * s.weight)) AS x
    ), placed AS (
        SELECT f.*, row_number() OVER (ORDER BY (f.in_lane - 1 + f.used) / f.weight, f.lane <= _after, f.lane, f.in_lane) AS place
        FROM found AS f WHERE f.in_lane <= least(f.n, _rounds * f.weight)
    ), chosen AS MATERIALIZED (
        SELECT p.* FROM placed AS p WHERE p.place <= _room
    ), last AS (
        SELECT c.lane, (c.in_lane - 1 + c.used) % c.weight + 1 AS used, c.weight FROM chosen AS c ORDER BY c.place DESC LIMIT 1
    )
    SELECT (SELECT array_agg(ROW(g.lane, g.type_key, g.priority, g.n, g.weight, g.again, g.floor)::poolkeeper.share)
            FROM (SELECT c.lane, c.type_key, c.priority, c.again, c.floor, c.weight, count(*)::integer AS n
                  FROM chosen AS c GROUP BY c.lane, c.type_key, c.priority, c.again, c.floor, c.weight) AS g),
           CASE WHEN l.lane IS NULL THEN _after WHEN l.used = l.weight THEN l.lane ELSE l.lane - 1 END,
           CASE WHEN l.lane IS NULL THEN _used WHEN l.used = l.weight THEN 0 ELSE l.used END
    INTO _shares, _after, _used
    FROM (SELECT) AS one LEFT JOIN last AS l ON true;
END $$;

-- Moves the shares from ready to lease and gives back what a worker needs, token included, this once. The first
-- _slots of them start now.
CREATE OR REPLACE FUNCTION poolkeeper.grant_shares(
    _queue poolkeeper.queue, _session poolkeeper.session, _turn bigint, _shares poolkeeper.share[], _slots integer, _now timestamptz
) RETURNS SETOF poolkeeper.answer
LANGUAGE plpgsql
AS $$
DECLARE
    _seed bytea := poolkeeper.token_seed();
BEGIN RETURN QUERY
    WITH gone AS (
        DELETE FROM poolkeeper.ready AS r
        WHERE r.ctid = ANY (ARRAY(
            SELECT x.ctid
            FROM unnest(_shares) AS s
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM poolkeeper.ready AS c
                WHERE c.queue_id = (_queue).id AND c.again = s.again AND c.lane = s.lane AND c.type_key = s.type_key AND c.priority = s.priority AND c.seq > s.floor
                  AND (c.expires_at IS NULL OR c.expires_at > _now)
                  AND ((_session).tenants IS NULL AND (_session).tenants_except IS NULL OR poolkeeper.serves(_session, c.task_id))
                ORDER BY c.seq LIMIT s.n FOR UPDATE SKIP LOCKED) AS x))
        RETURNING r.*
    ), tokens AS MATERIALIZED (
        SELECT g.*, 'pkt_' || rtrim(translate(encode(substr(sha256(_seed || uuid_send(g.task_id)), 1, 16), 'base64'), '+/', '-_'), '=') AS token,
               CASE WHEN row_number() OVER (ORDER BY g.seq) <= _slots THEN _now END AS started_at
        FROM gone AS g
    ), leases AS (
        INSERT INTO poolkeeper.lease (task_id, queue_id, priority, lane, type_key, seq, ready_at, expires_at, delivery, state_version,
                                      spent, failures, expiries, hand_backs, snoozes, waits,
                                      session_id, pool_id, turn, token_hash, claimed_at, started_at, gate, counted, checkpointed)
        SELECT t.task_id, t.queue_id, t.priority, t.lane, t.type_key, t.seq, t.ready_at, t.expires_at, t.delivery + 1, t.state_version + 1,
               t.spent + 1, t.failures, t.expiries, t.hand_backs, t.snoozes, t.waits,
               (_session).id, (_session).pool_id, _turn, sha256(convert_to(t.token, 'UTF8')), _now, t.started_at, t.gate, (_queue).lanes_kept AND poolkeeper.lane_bounded(_queue, t.lane),
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

-- Claims up to _want tasks of one queue whose limiter, if it has one, is held by this transaction. _cursor: where this
-- session's walk over the lanes stopped, [lane, what that one got of its round]; behind these, once it met retries, what they
-- have saved up and the same two of the walk over theirs (28_retries.sql). _marks: instead of walking, take what lies above these
-- (31_marks.sql). The last row says where all that stands now.
CREATE OR REPLACE FUNCTION poolkeeper.claim_queue(
    _queue poolkeeper.queue, _session poolkeeper.session, _turn bigint, _want integer, _slots integer, _cursor jsonb, _marks poolkeeper.marks, _now timestamptz
) RETURNS SETOF poolkeeper.answer
LANGUAGE plpgsql
AS $$
DECLARE
    _left   integer := _want;
    _room   integer;
    _ends   bigint[] := ARRAY[coalesce((_cursor ->> 0)::bigint, -9223372036854775808), coalesce((_cursor ->> 1)::bigint, 0),
                              coalesce((_cursor ->> 3)::bigint, -9223372036854775808), coalesce((_cursor ->> 4)::bigint, 0)];
    _kinds  boolean[] := '{f}';  -- first deliveries
    _credit integer;
    _took   integer[] := '{0,0,0}';
    _behind boolean := false;
    _after  bigint;
    _used   integer;
    _got    integer;
    _shares poolkeeper.share[];
    _more   boolean;
    _alone  boolean;
    _missed boolean := false;
    _busy   boolean := false;
    _passes integer;
    _walk   integer;
    _types  bigint[] := (_session).type_keys;
    _only   bigint[];
    _except bigint[] := '{}';
    _marked boolean := coalesce((_marks).until > _now, false);
    _told   jsonb := '{}';
    _had    boolean := (_marks).until IS NOT NULL;
    _before bigint := poolkeeper.entries_read();
    _since  timestamptz := clock_timestamp();
    _passed bigint := 0;  -- entries of the index that its walks have read
    _spent  interval := '0';  -- how long that took
    _seen   poolkeeper.share[];
    _whole  boolean;
    _kept   integer := 0;  -- walks that _seen is of
BEGIN
    IF (_session).tenants IS NOT NULL OR (_session).tenants_except IS NOT NULL THEN
        _except := poolkeeper.lanes_of((_queue).id, coalesce((_session).tenants_except, '{}'));
        _only := CASE WHEN (_session).tenants IS NOT NULL THEN ARRAY(
            SELECT u.lane FROM unnest(poolkeeper.lanes_of((_queue).id, (_session).tenants)) AS u (lane) WHERE u.lane <> ALL (_except)) END;
    END IF;
    IF cardinality((_queue).paused_type_keys) > 0 THEN
        _types := ARRAY(SELECT t.key FROM unnest(_types) AS t (key) WHERE t.key <> ALL ((_queue).paused_type_keys));
    END IF;
    IF (_queue).concurrency_max IS NOT NULL THEN
        _left := least(_left, (_queue).concurrency_max - (
            SELECT count(*)::integer FROM (SELECT FROM poolkeeper.lease AS l WHERE l.queue_id = (_queue).id LIMIT (_queue).concurrency_max) AS x));
    END IF;
    _whole := NOT (_queue).lanes_kept AND _only IS NULL;
    _marked := _marked AND _whole;
    IF (CASE WHEN _marked THEN (_marks).retries ELSE poolkeeper.has_retries((_queue).id) END) THEN  -- of these their share, then what comes first, then they again; or all as one
        _kinds := CASE WHEN (_queue).retry_share < 100 THEN '{t,f,t}' ELSE '{NULL}' END;
        _credit := poolkeeper.retry_credit(_cursor, (_session).id);
    END IF;
    FOR _step IN 1 .. cardinality(_kinds) LOOP
        -- where first deliveries were there and others were about to take them, retries wait until the next look
        _room := CASE WHEN _step < cardinality(_kinds) AND _kinds[_step] THEN least(_left, (_credit + _left * (_queue).retry_share) / 100)
                      WHEN _step = 3 AND (_behind OR _missed) THEN 0 ELSE _left END;
        CONTINUE WHEN _room <= 0;
        _left := _left - _room;
        _walk := 1 + 2 * coalesce(_kinds[_step], false)::integer;
        _after := _ends[_walk];
        _used := _ends[_walk + 1];
        _passes := 0;
        _missed := false;
        -- more than one pass only where lanes were uneven, others were faster, or there are more lanes than one looks at
        WHILE _room > 0 AND _passes < CASE WHEN (_queue).lanes_kept THEN 64 ELSE 8 END LOOP
            _got := 0;
            IF _marked THEN
                SELECT s._after, s._shares, s._more, s._alone INTO _after, _shares, _more, _alone
                FROM poolkeeper.marked_shares((_marks).floors, _kinds[_step], _types, _room, _after) AS s;
            ELSIF (_queue).lanes_kept THEN
                SELECT s._after, s._shares, s._more, s._alone, _missed OR s._busy INTO _after, _shares, _more, _alone, _missed
                FROM poolkeeper.open_shares(_queue, _kinds[_step], _types, _only, _except, _room, _after) AS s;
            ELSIF _kinds[_step] IS NULL THEN
                SELECT s._after, s._shares, s._more, s._alone INTO _after, _shares, _more, _alone
                FROM poolkeeper.mixed_shares((_queue).id, _types, _only, _except, _room, _after) AS s;
            ELSE
                SELECT s._after, s._shares, s._more, s._alone INTO _after, _shares, _more, _alone
                FROM poolkeeper.all_shares((_queue).id, _kinds[_step], _types, _only, _except, _room, _after) AS s;
            END IF;
            IF NOT _marked AND _passes = 0 AND _step <= 2 THEN
                _passed := _passed + poolkeeper.entries_read() - _before;
                _spent := _spent + (clock_timestamp() - _since);
                _seen := _seen || _shares;
                _kept := _kept + 1;
                _whole := _whole AND NOT _more;
            END IF;
            IF _shares IS NOT NULL THEN
                IF _alone THEN
                    _after := -9223372036854775808;
                    _used := 0;
                ELSE
                    IF (_queue).weighted THEN
                        _shares := poolkeeper.weigh((_queue).id, _shares);
                    END IF;
                    SELECT d._shares, d._after, d._used INTO _shares, _after, _used FROM poolkeeper.deal(_queue, _room, _now, _shares, _after, _used) AS d;
                END IF;
                RETURN QUERY SELECT * FROM poolkeeper.grant_shares(_queue, _session, _turn, _shares, _slots, _now);
                GET DIAGNOSTICS _got = ROW_COUNT;
                _room := _room - _got;
                _took[_step] := _took[_step] + _got;
                _slots := greatest(0, _slots - _got);
            END IF;
            EXIT WHEN NOT _more AND (_got = 0 OR _alone);  -- there is no more to have
            _passes := _passes + 1;
        END LOOP;
        _before := poolkeeper.entries_read();
        _since := clock_timestamp();
        _left := _left + _room;
        _busy := _busy OR _missed;
        _behind := _more AND _room > 0 AND (_queue).lanes_kept;
        _ends[_walk] := _after;
        _ends[_walk + 1] := _used;
    END LOOP;
    IF cardinality(_kinds) = 3 THEN
        _credit := greatest(0, least(99, _credit + (_took[1] + _took[2]) * (_queue).retry_share - 100 * _took[1]));
    END IF;
    IF _marked THEN
        _marks := poolkeeper.raised((_queue).id, _marks);
    ELSE
        _marks := CASE WHEN _whole AND _kept = least(2, cardinality(_kinds)) THEN poolkeeper.first_marks((_queue).id, _seen, _credit IS NOT NULL, _passed, _spent, _want, _now) END;
    END IF;
    IF _had OR (_marks).until IS NOT NULL THEN
        _told := poolkeeper.told_marks((_queue).id, _marks);
    END IF;
    RETURN NEXT ROW('note', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        jsonb_build_object('cursor', _told || jsonb_build_object((_queue).id::text, CASE
                               WHEN _credit IS NULL AND _cursor -> 2 IS NULL THEN jsonb_build_array(_ends[1], _ends[2])
                               ELSE jsonb_build_array(_ends[1], _ends[2], coalesce(to_jsonb(_credit), _cursor -> 2), _ends[3], _ends[4]) END),
                           'busy', _busy OR _behind))::poolkeeper.answer;
END $$;
