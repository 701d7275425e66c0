-- Lanes of queues that bound their tenants (Q12, Q14). Such a queue, and no other, keeps a list of lanes that are open: a row
-- of poolkeeper.opening for each reason to look at one. Whatever makes a lane claimable, a task that becomes ready or a
-- delivery that ends, writes a row of its own in its own transaction, and waits for nobody. A claim walks the open lanes
-- only, and takes away the rows of a lane that it finds full, suspended or empty: thousands of those cost the others nothing.
--
-- Guarantee: no lane that could be served stays shut. What is taken away was visible to the same statement that looked at
-- the lane, so a reason that is committed after that look keeps its row. What runs when a policy begins to keep the list
-- is marked with it; what was being submitted or claimed at that moment is found by the sweep. A lane's limiter (poolkeeper.lane) is locked, SKIP LOCKED, before its leases are counted in a later
-- statement; a claim locks it after the limiters of queue and pool, and waits for it never. A lane without a bound is full for
-- nobody: it has no limiter, and the end of a delivery opens it only if its task is ready again.
-- Indexes: opening_pkey, lane_pkey, lease_queue, ready_claim, tenant_rule_lane.

-- What a policy says of single tenants, replaced whole. True: the queue has to keep its list.
CREATE OR REPLACE FUNCTION poolkeeper.set_tenant_rules(_queue_id integer, _spec jsonb) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM poolkeeper.tenant_rule AS t WHERE t.queue_id = _queue_id;
    INSERT INTO poolkeeper.tenant_rule (queue_id, tenant, lane, max_running, suspended, weight)
    SELECT _queue_id, coalesce(r.name, s.name), poolkeeper.lane_key(_queue_id, coalesce(r.name, s.name)), r.max_running, s.name IS NOT NULL,
           coalesce(r.weight, 1)
    FROM jsonb_to_recordset(coalesce(nullif(_spec -> 'tenants', 'null'), '[]')) AS r (name text, max_running integer, weight integer)
    FULL JOIN (SELECT DISTINCT x.name FROM jsonb_array_elements_text(coalesce(nullif(_spec -> 'suspended_tenants', 'null'), '[]')) AS x (name)) AS s
           ON s.name = r.name;
    RETURN _spec ->> 'per_tenant_max' IS NOT NULL
        OR EXISTS (SELECT FROM poolkeeper.tenant_rule AS t WHERE t.queue_id = _queue_id AND (t.max_running IS NOT NULL OR t.suspended));
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.lanes_of(_queue_id integer, _tenants text[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE
AS $$ SELECT ARRAY(SELECT poolkeeper.lane_key(_queue_id, t) FROM unnest(_tenants) AS t) $$;

-- Whether a session takes this task, by its tenant's name: tenants whose lanes collide share no right.
CREATE OR REPLACE FUNCTION poolkeeper.serves(_session poolkeeper.session, _task_id uuid) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(t.tenant = ANY ((_session).tenants), true) AND coalesce(t.tenant <> ALL ((_session).tenants_except), true)
    FROM poolkeeper.task AS t WHERE t.id = _task_id
$$;

CREATE OR REPLACE FUNCTION poolkeeper.suspends(_queue_id integer, _tenant text) RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT EXISTS (SELECT FROM poolkeeper.tenant_rule AS t WHERE t.queue_id = _queue_id AND t.tenant = _tenant AND t.suspended) $$;

-- Why no task of this type and lane may start now, as a code, or NULL (Q16).
CREATE OR REPLACE FUNCTION poolkeeper.stopped(_queue_id integer, _lane bigint, _type_key bigint) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN q.paused OR _type_key = ANY (q.paused_type_keys) THEN 'queue_paused'
                WHEN q.part_paused AND EXISTS (SELECT FROM poolkeeper.tenant_rule AS t
                                               WHERE t.queue_id = _queue_id AND t.lane = _lane AND t.suspended) THEN 'tenant_suspended' END
    FROM poolkeeper.queue AS q WHERE q.id = _queue_id
$$;

-- Whether what runs of this lane is counted against a bound. It stays so while a claim holds the queue's row.
CREATE OR REPLACE FUNCTION poolkeeper.lane_bounded(_queue poolkeeper.queue, _lane bigint) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT (_queue).per_tenant_max IS NOT NULL
        OR EXISTS (SELECT FROM poolkeeper.tenant_rule AS t WHERE t.queue_id = (_queue).id AND t.lane = _lane AND t.max_running IS NOT NULL)
$$;

-- How many more tasks of one lane may run: none of a suspended one. Counts leases up to the limit, no further.
CREATE OR REPLACE FUNCTION poolkeeper.lane_room(_queue_id integer, _lane bigint) RETURNS integer
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN r.suspended THEN 0
                WHEN m.most IS NULL THEN 2147483647
                ELSE m.most - (SELECT count(*)::integer FROM (
                    SELECT FROM poolkeeper.lease AS l WHERE l.queue_id = _queue_id AND l.lane = _lane LIMIT m.most) AS x) END
    FROM poolkeeper.queue AS q
    LEFT JOIN LATERAL (SELECT t.max_running, t.suspended FROM poolkeeper.tenant_rule AS t
                       WHERE t.queue_id = _queue_id AND t.lane = _lane ORDER BY t.tenant LIMIT 1) AS r ON true
    CROSS JOIN LATERAL (SELECT coalesce(r.max_running, q.per_tenant_max) AS most) AS m
    WHERE q.id = _queue_id
$$;

-- The next lane behind _after with ready tasks, first deliveries or retries: two probes.
CREATE OR REPLACE FUNCTION poolkeeper.next_lane(_queue_id integer, _after bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN least((SELECT r.lane FROM poolkeeper.ready AS r WHERE r.queue_id = _queue_id AND NOT r.again AND r.lane > _after ORDER BY r.lane LIMIT 1),
                 (SELECT r.lane FROM poolkeeper.ready AS r WHERE r.queue_id = _queue_id AND r.again AND r.lane > _after ORDER BY r.lane LIMIT 1));
END $$;

-- Up to _most lanes with ready tasks, behind lane _after, in their order.
CREATE OR REPLACE FUNCTION poolkeeper.lanes_with_work(_queue_id integer, _after bigint, _most integer) RETURNS TABLE (lane bigint)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    WITH RECURSIVE walk AS (
        SELECT poolkeeper.next_lane(_queue_id, _after) AS lane
        UNION ALL
        SELECT poolkeeper.next_lane(_queue_id, w.lane) FROM walk AS w WHERE w.lane IS NOT NULL
    )
    SELECT w.lane FROM walk AS w WHERE w.lane IS NOT NULL LIMIT _most;
END $$;

-- Opens lanes: the caller's own rows, to be written in the transaction that makes them claimable.
CREATE OR REPLACE FUNCTION poolkeeper.open_lanes(_queue_ids integer[], _lanes bigint[]) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO poolkeeper.opening (queue_id, lane)
    SELECT DISTINCT u.queue_id, u.lane FROM unnest(_queue_ids, _lanes) AS u (queue_id, lane)
$$;

-- Opens every lane of a queue that has work: its policy has changed.
CREATE OR REPLACE FUNCTION poolkeeper.open_all_lanes(_queue_id integer) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO poolkeeper.opening (queue_id, lane)
    SELECT _queue_id, w.lane FROM poolkeeper.lanes_with_work(_queue_id, (-9223372036854775808)::bigint, 2147483647) AS w
$$;

-- The policy begins to bound tenants: the ends of what runs already open their lanes as well. What a handler's own transaction
-- is about to end is left to the sweep. Locks: leases of the queue, SKIP LOCKED. Index: lease_queue.
CREATE OR REPLACE FUNCTION poolkeeper.count_running(_queue_id integer) RETURNS void
LANGUAGE sql
AS $$
    UPDATE poolkeeper.lease AS l SET counted = true
    WHERE l.task_id = ANY (ARRAY(
        SELECT k.task_id FROM poolkeeper.lease AS k
        WHERE k.queue_id = _queue_id AND NOT k.counted ORDER BY k.task_id FOR NO KEY UPDATE SKIP LOCKED))
$$;

-- Opens what ought to be open and is not: up to _most lanes of each queue that keeps its list, from a random one on.
CREATE OR REPLACE FUNCTION poolkeeper.sweep_lanes(_most integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _n integer := 0;
BEGIN
    IF EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.lanes_kept) THEN
        INSERT INTO poolkeeper.opening (queue_id, lane)
        SELECT q.id, w.lane
        FROM poolkeeper.queue AS q
        CROSS JOIN LATERAL (SELECT hashint8extended(q.id, (random() * 2147483647)::bigint) AS point OFFSET 0) AS p
        CROSS JOIN LATERAL (
            (SELECT x.lane FROM poolkeeper.lanes_with_work(q.id, p.point, _most) AS x)
            UNION (SELECT x.lane FROM poolkeeper.lanes_with_work(q.id, (-9223372036854775808)::bigint, _most) AS x)) AS w
        WHERE q.lanes_kept AND NOT EXISTS (SELECT FROM poolkeeper.opening AS o WHERE o.queue_id = q.id AND o.lane = w.lane)
          AND poolkeeper.lane_room(q.id, w.lane) > 0;
        GET DIAGNOSTICS _n = ROW_COUNT;
    END IF;
    RETURN _n;
END $$;

-- Up to _most open lanes, behind _after and not behind _until, in their order: a probe for each.
CREATE OR REPLACE FUNCTION poolkeeper.opened(_queue_id integer, _after bigint, _until bigint, _most integer) RETURNS TABLE (lane bigint)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    WITH RECURSIVE walk AS (
        (SELECT o.lane FROM poolkeeper.opening AS o WHERE o.queue_id = _queue_id AND o.lane > _after AND o.lane <= _until
         ORDER BY o.lane LIMIT 1)
        UNION ALL
        SELECT n.lane FROM walk AS w CROSS JOIN LATERAL (
            SELECT o.lane FROM poolkeeper.opening AS o WHERE o.queue_id = _queue_id AND o.lane > w.lane AND o.lane <= _until
            ORDER BY o.lane LIMIT 1) AS n
    )
    SELECT * FROM walk LIMIT _most;
END $$;

-- Shuts those of the lanes that are full or empty; answers the others, in the order given. One statement looks and takes
-- away. Of several rows of a lane that stays open one new one is left: an old one could be taken away by a look older than
-- the reasons of the others.
CREATE OR REPLACE FUNCTION poolkeeper.shut_lanes(_queue_id integer, _lanes bigint[]) RETURNS bigint[]
LANGUAGE plpgsql
AS $$
DECLARE
    _open bigint[];
BEGIN
    WITH looked AS MATERIALIZED (
        SELECT u.lane, u.n, x.shut, (SELECT count(*) FROM (
                   SELECT FROM poolkeeper.opening AS o WHERE o.queue_id = _queue_id AND o.lane = u.lane LIMIT 2) AS y) AS reasons
        FROM unnest(_lanes) WITH ORDINALITY AS u (lane, n)
        CROSS JOIN LATERAL (SELECT NOT EXISTS (SELECT FROM poolkeeper.ready AS r WHERE r.queue_id = _queue_id AND r.again = ANY ('{f,t}') AND r.lane = u.lane)
                                OR poolkeeper.lane_room(_queue_id, u.lane) <= 0 AS shut OFFSET 0) AS x
    ), gone AS (
        DELETE FROM poolkeeper.opening AS o WHERE o.ctid = ANY (ARRAY(
            SELECT x.ctid FROM looked AS k CROSS JOIN LATERAL (
                SELECT c.ctid FROM poolkeeper.opening AS c WHERE c.queue_id = _queue_id AND c.lane = k.lane
                LIMIT 1000 FOR UPDATE SKIP LOCKED) AS x
            WHERE k.shut OR k.reasons > 1))
        RETURNING o.lane
    ), kept AS (
        INSERT INTO poolkeeper.opening (queue_id, lane)
        SELECT DISTINCT _queue_id, g.lane FROM gone AS g JOIN looked AS k ON k.lane = g.lane WHERE NOT k.shut
    )
    SELECT array_agg(k.lane ORDER BY k.n) INTO _open FROM looked AS k WHERE NOT k.shut;
    RETURN coalesce(_open, '{}');
END $$;

-- Makes the limiters that are missing, each in its turn. One that somebody else is making is waited for 10 ms, and passed
-- over; after three of those the rest is left for the next time.
CREATE OR REPLACE FUNCTION poolkeeper.make_lanes(_queue_id integer, _lanes bigint[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    _missing bigint[] := ARRAY(SELECT u.lane FROM unnest(_lanes) AS u (lane)
                               WHERE NOT EXISTS (SELECT FROM poolkeeper.lane AS l WHERE l.queue_id = _queue_id AND l.lane = u.lane) ORDER BY u.lane);
    _wait    text := current_setting('lock_timeout');
    _one     bigint;
    _waited  integer := 0;
BEGIN
    IF cardinality(_missing) = 0 THEN
        RETURN;
    END IF;
    PERFORM set_config('lock_timeout', '10ms', true);
    BEGIN
        INSERT INTO poolkeeper.lane (queue_id, lane) SELECT _queue_id, m FROM unnest(_missing) AS m ON CONFLICT DO NOTHING;
    EXCEPTION WHEN lock_not_available THEN
        FOREACH _one IN ARRAY _missing LOOP
            BEGIN
                INSERT INTO poolkeeper.lane (queue_id, lane) VALUES (_queue_id, _one) ON CONFLICT DO NOTHING;
            EXCEPTION WHEN lock_not_available THEN
                _waited := _waited + 1;
            END;
            EXIT WHEN _waited = 3;
        END LOOP;
    END;
    PERFORM set_config('lock_timeout', _wait, true);
END $$;

-- Locks the limiters of up to _most of the lanes, in the order given, those that are busy passed over.
CREATE OR REPLACE FUNCTION poolkeeper.take_lanes(_queue_id integer, _lanes bigint[], _most integer) RETURNS bigint[]
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM poolkeeper.make_lanes(_queue_id, _lanes);
    RETURN ARRAY(
        SELECT k.lane FROM unnest(_lanes) AS u (lane)
        CROSS JOIN LATERAL (SELECT l.lane FROM poolkeeper.lane AS l WHERE l.queue_id = _queue_id AND l.lane = u.lane
                            FOR NO KEY UPDATE SKIP LOCKED) AS k
        LIMIT _most);
END $$;

-- What this session could run of one lane: its types and priorities there, a probe for each, and one for each gap between.
CREATE OR REPLACE FUNCTION poolkeeper.heads_of_lane(_queue_id integer, _again boolean, _lane bigint, _type_keys bigint[], _most integer)
RETURNS TABLE (type_key bigint, priority smallint, head_seq bigint)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    SELECT h.type_key, h.priority, h.head_seq FROM poolkeeper.own_heads(_queue_id, _again, _type_keys, '{}', _lane - 1, _lane, _most) AS h
    WHERE h.type_key = ANY (_type_keys);
END $$;

-- Candidates for a claim from a queue that keeps its list: for each lane that has no bound, or was locked here and has room, what this
-- session can run of it, with the room. _again: of its retries or its first deliveries, NULL: of both. _after: where the walk starts; it goes round once. _more: there are lanes behind.
CREATE OR REPLACE FUNCTION poolkeeper.open_shares(
    _queue poolkeeper.queue, _again boolean, _type_keys bigint[], _only bigint[], _except bigint[], _room integer, INOUT _after bigint,
    OUT _shares poolkeeper.share[], OUT _more boolean, OUT _alone boolean, OUT _busy boolean
)
LANGUAGE plpgsql
AS $$
DECLARE
    _most  integer := 2 * _room + 64 + cardinality(_except);
    _lanes bigint[];
    _last  bigint;
    _found poolkeeper.share[];
    _bound bigint[];
    _held  bigint[];
BEGIN
    IF _only IS NULL THEN
        _lanes := ARRAY(SELECT o.lane FROM poolkeeper.opened((_queue).id, _after, 9223372036854775807, _most) AS o);
        _last := _lanes[_most];
    ELSE  -- in their turn
        _lanes := ARRAY(SELECT u.lane FROM unnest(_only) AS u (lane)
                        WHERE EXISTS (SELECT FROM poolkeeper.opening AS o WHERE o.queue_id = (_queue).id AND o.lane = u.lane) ORDER BY u.lane <= _after, u.lane);
    END IF;
    _more := _last IS NOT NULL;
    IF _only IS NULL AND NOT _more AND _after > -9223372036854775808 THEN
        _lanes := _lanes || ARRAY(SELECT o.lane FROM poolkeeper.opened((_queue).id, -9223372036854775808, _after, _most - cardinality(_lanes)) AS o);
        _more := cardinality(_lanes) = _most;
        _last := _lanes[cardinality(_lanes)];
    END IF;
    _lanes := poolkeeper.shut_lanes((_queue).id, ARRAY(SELECT u.lane FROM unnest(_lanes) AS u (lane) WHERE u.lane <> ALL (_except)));
    _found := ARRAY(SELECT ROW(u.lane, h.type_key, h.priority, _room, 1, k.again, h.head_seq - 1)::poolkeeper.share
                    FROM unnest(_lanes) AS u (lane) CROSS JOIN (VALUES (false), (true)) AS k (again)
                    CROSS JOIN LATERAL poolkeeper.heads_of_lane((_queue).id, k.again, u.lane, _type_keys, _most) AS h
                    WHERE k.again = coalesce(_again, k.again));
    _lanes := ARRAY(SELECT u.lane FROM unnest(_lanes) AS u (lane) WHERE EXISTS (SELECT FROM unnest(_found) AS f WHERE f.lane = u.lane));
    _bound := ARRAY(SELECT u.lane FROM unnest(_lanes) AS u (lane) WHERE poolkeeper.lane_bounded(_queue, u.lane));
    _held := poolkeeper.take_lanes((_queue).id, _bound, _room);
    _held := ARRAY(SELECT u.lane FROM unnest(_lanes) AS u (lane) WHERE u.lane <> ALL (_bound) OR u.lane = ANY (_held) LIMIT _room);
    -- counted in a statement after the locks
    _shares := (SELECT array_agg(ROW(f.lane, f.type_key, f.priority, least(_room, r.room), 1, f.again, f.floor)::poolkeeper.share)
                FROM unnest(_held) AS u (lane)
                CROSS JOIN LATERAL (SELECT poolkeeper.lane_room((_queue).id, u.lane) AS room OFFSET 0) AS r
                JOIN unnest(_found) AS f ON f.lane = u.lane
                WHERE r.room > 0);
    _alone := coalesce(NOT _more AND cardinality(_lanes) = 1 AND cardinality(_shares) = 1, false);  -- nothing to deal out
    _busy := cardinality(_held) < least(_room, cardinality(_lanes)) OR (_shares IS NULL AND cardinality(_held) > 0);
    IF _more AND _shares IS NULL THEN
        _after := _last;
    END IF;
END $$;

-- Those of the suspects that their lanes have room for, the lanes' limiters locked here, counted after the locks.
CREATE OR REPLACE FUNCTION poolkeeper.suspects_with_room(_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql
AS $$
DECLARE
    _one  record;
    _held bigint[];
    _kept uuid[] := '{}';
BEGIN
    FOR _one IN
        SELECT c.queue_id, q.lanes_kept, array_agg(DISTINCT c.lane) AS lanes FROM poolkeeper.suspect AS c JOIN poolkeeper.queue AS q ON q.id = c.queue_id
        WHERE c.task_id = ANY (_ids) GROUP BY c.queue_id, q.lanes_kept ORDER BY c.queue_id
    LOOP
        IF _one.lanes_kept THEN
            _held := poolkeeper.take_lanes(_one.queue_id, _one.lanes, 2147483647);
        END IF;
        _kept := _kept || ARRAY(
            SELECT x.task_id FROM (
                SELECT c.task_id, c.lane, row_number() OVER (PARTITION BY c.lane ORDER BY c.misses, c.seq) AS n
                FROM poolkeeper.suspect AS c WHERE c.task_id = ANY (_ids) AND c.queue_id = _one.queue_id) AS x
            WHERE NOT _one.lanes_kept OR (x.lane = ANY (_held) AND x.n <= poolkeeper.lane_room(_one.queue_id, x.lane)));
    END LOOP;
    RETURN _kept;
END $$;

-- Takes away limiters and openings that nobody needs any more: of queues that keep no list or are gone, and up to _most
-- idle ones of each other. Part of maintain. Taking one away that is needed would cost a look, never a task or a limit.
CREATE OR REPLACE FUNCTION poolkeeper.forget_lanes(_most integer) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM poolkeeper.opening AS o WHERE o.ctid = ANY (ARRAY(
        SELECT c.ctid FROM poolkeeper.opening AS c
        WHERE NOT EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.id = c.queue_id AND q.lanes_kept) LIMIT _most FOR UPDATE SKIP LOCKED));
    DELETE FROM poolkeeper.lane AS l WHERE l.ctid = ANY (ARRAY(
        SELECT c.ctid FROM poolkeeper.lane AS c
        WHERE c.lane > hashint8extended(0, (random() * 2147483647)::bigint)
          AND NOT EXISTS (SELECT FROM poolkeeper.lease AS x WHERE x.queue_id = c.queue_id AND x.lane = c.lane)
          AND NOT EXISTS (SELECT FROM poolkeeper.opening AS x WHERE x.queue_id = c.queue_id AND x.lane = c.lane)
        LIMIT _most FOR UPDATE SKIP LOCKED));
END $$;
