-- What the operator writes: limits of pools, marks on sessions, decisions, announcements of dead letters.

CREATE OR REPLACE FUNCTION poolkeeper.pool_row(_pool text) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _id integer;
BEGIN
    SELECT p.id INTO _id FROM poolkeeper.pool AS p WHERE p.name = _pool;
    IF NOT FOUND THEN
        INSERT INTO poolkeeper.pool (name) VALUES (_pool) ON CONFLICT DO NOTHING;
        SELECT p.id INTO STRICT _id FROM poolkeeper.pool AS p WHERE p.name = _pool;
    END IF;
    RETURN _id;
END $$;

-- For every write that a pool may not make about itself, before all other locks: by no pool's login, and by the operator
-- that leads in the pool's namespace.
CREATE OR REPLACE FUNCTION poolkeeper.demand_leader_of_pool(_pool text, _term uuid, _deed text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF (poolkeeper.caller()).pool IS NOT NULL THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = format('a pool may not %s', _deed);
    END IF;
    PERFORM poolkeeper.demand_leader(NULL, split_part(_pool, '/', 1), _term);
END $$;

-- The exact cap at the claim (P7): NULL lifts it, 0 lets nothing start. Waits for claims in progress, a few ms.
CREATE OR REPLACE FUNCTION poolkeeper.set_pool(_pool text, _max_running integer, _term uuid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _id integer;
BEGIN
    PERFORM poolkeeper.demand_text(_pool, 'a pool''s name');
    PERFORM poolkeeper.demand(_max_running IS NULL OR _max_running >= 0, format('a pool cannot run at most %s tasks', _max_running),
                              'give a number from 0, or NULL for no limit');
    PERFORM poolkeeper.demand_leader_of_pool(_pool, _term, 'change its own limits');
    _id := poolkeeper.pool_row(_pool);
    UPDATE poolkeeper.pool AS p SET max_running = _max_running WHERE p.id = _id AND p.max_running IS DISTINCT FROM _max_running;
    IF FOUND THEN
        PERFORM poolkeeper.wake();
    END IF;
    RETURN FOUND;
END $$;

-- Marks the sessions of these pods (they claim nothing any more) or takes the mark back. Answers how busy each is
-- after marking; a turn that had read its session before the mark may still claim, so look again before ending a pod.
CREATE OR REPLACE FUNCTION poolkeeper.mark_sessions(_pool text, _pods text[], _draining boolean, _term uuid DEFAULT NULL) RETURNS TABLE (pod_name text, busy integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _ids uuid[];
BEGIN
    PERFORM poolkeeper.demand_leader_of_pool(_pool, _term, 'mark sessions');
    _ids := ARRAY(SELECT s.id FROM poolkeeper.session AS s JOIN poolkeeper.pool AS p ON p.id = s.pool_id
                  WHERE p.name = _pool AND s.ended_at IS NULL AND s.info ->> 'pod_name' = ANY (_pods) ORDER BY s.id);
    UPDATE poolkeeper.session AS s SET draining = _draining WHERE s.id = ANY (_ids) AND s.draining <> _draining;
    PERFORM poolkeeper.wake();
    RETURN QUERY
        SELECT s.info ->> 'pod_name', (SELECT count(*)::integer FROM poolkeeper.lease AS l WHERE l.session_id = s.id)
        FROM poolkeeper.session AS s WHERE s.id = ANY (_ids);
END $$;

-- The real grace of terminating pods, where it is less than their workers were told (O20): a person, an eviction or a node
-- gave less. The worker hears it with its next renewal, within a second where it listens, and hands back in time. Answers how many sessions were told.
CREATE OR REPLACE FUNCTION poolkeeper.tell_grace(_pool text, _pod_uids text[], _seconds double precision[], _term uuid DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _told integer;
BEGIN
    PERFORM poolkeeper.demand(NOT EXISTS (SELECT FROM unnest(_seconds) AS s WHERE (s BETWEEN 0 AND 1e9) IS NOT TRUE),
                              'a grace period cannot be that', 'give seconds from 0 to 1e9');
    PERFORM poolkeeper.demand_leader_of_pool(_pool, _term, 'tell a grace period');
    UPDATE poolkeeper.session AS s SET grace = make_interval(secs => g.seconds)
    FROM unnest(_pod_uids, _seconds) AS g (uid, seconds), poolkeeper.pool AS p
    WHERE p.name = _pool AND s.pool_id = p.id AND s.ended_at IS NULL AND s.info ->> 'pod_uid' = g.uid
          AND s.grace IS DISTINCT FROM make_interval(secs => g.seconds);
    GET DIAGNOSTICS _told = ROW_COUNT;
    IF _told > 0 THEN
        PERFORM poolkeeper.wake();
    END IF;
    RETURN _told;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.record_decision(_pool text, _decision jsonb, _term uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    PERFORM poolkeeper.demand_text(_pool, 'a pool''s name');
    PERFORM poolkeeper.demand(poolkeeper.is_object(_decision, 65536), 'a decision cannot be that', 'give an object of at most 65536 bytes as JSON');
    PERFORM poolkeeper.demand_leader_of_pool(_pool, _term, 'record decisions');
    INSERT INTO poolkeeper.decision (pool_id, at, decision) VALUES (poolkeeper.pool_row(_pool), poolkeeper.clock(), _decision);
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.decisions(_pool text, _most integer DEFAULT 20) RETURNS TABLE (at timestamptz, decision jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _me poolkeeper.access := poolkeeper.caller();  -- first: a plan may begin with what has no rows, and ask nobody
BEGIN RETURN QUERY
    SELECT d.at, d.decision FROM poolkeeper.pool AS p
    JOIN poolkeeper.decision AS d ON d.pool_id = p.id
    WHERE p.name = _pool AND (_me.pool IS NULL OR _me.pool = p.name)
      AND _me.tenants IS NULL AND _me.tenants_except IS NULL  -- the reasons tell how much others have waiting
    ORDER BY d.no DESC LIMIT least(greatest(_most, 1), 1000);
END $$;

-- Whether the caller may rule this queue; one that it may not is not there for it (Q51).
CREATE OR REPLACE FUNCTION poolkeeper.may_rule(_queue_id integer) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _me poolkeeper.access := poolkeeper.caller();
BEGIN
    RETURN EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.id = _queue_id AND poolkeeper.may_rule_queue(_me, q.namespace || '/' || q.name));
END $$;

-- The dead letters of a queue that were not announced yet, as one numbered batch (O24). The same batch is answered
-- until it is confirmed, and its number is never given to another, whatever becomes of its members: an Event named after
-- it is never made twice, and none is taken for one that was. Locks: the counter, then the letters. Index: dead_unannounced.
CREATE OR REPLACE FUNCTION poolkeeper.dead_batch(_queue_id integer, _term uuid DEFAULT NULL)
RETURNS TABLE (number integer, count bigint, first_task uuid, first_reason text, first_error_class text, first_error text,
               types jsonb, reasons jsonb, tenants bigint, at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _number integer;
    _last   integer;
BEGIN
    IF NOT poolkeeper.may_rule(_queue_id) THEN
        RETURN;
    END IF;
    PERFORM poolkeeper.demand_leader_of(_queue_id, _term);
    SELECT c.dead_batch INTO _last FROM poolkeeper.queue_count AS c WHERE c.queue_id = _queue_id FOR NO KEY UPDATE;
    SELECT -d.batch INTO _number FROM poolkeeper.dead AS d WHERE d.queue_id = _queue_id AND d.batch < 0 LIMIT 1;
    IF NOT FOUND THEN
        _number := _last + 1;
        UPDATE poolkeeper.dead AS d SET batch = -_number
        WHERE d.task_id = ANY (ARRAY(SELECT k.task_id FROM poolkeeper.dead AS k WHERE k.queue_id = _queue_id AND k.batch IS NULL
                                     ORDER BY k.task_id LIMIT 50000 FOR UPDATE SKIP LOCKED));
        IF NOT FOUND THEN
            RETURN;
        END IF;
        UPDATE poolkeeper.queue_count AS c SET dead_batch = _number WHERE c.queue_id = _queue_id;
    END IF;
    RETURN QUERY
        WITH letters AS MATERIALIZED (
            SELECT k.task_id, k.died_at, k.reason, k.error_class, k.error, t.type, t.tenant
            FROM poolkeeper.dead AS k JOIN poolkeeper.task AS t ON t.id = k.task_id
            WHERE k.queue_id = _queue_id AND k.batch < 0
        )
        SELECT _number, (SELECT count(*) FROM letters), f.task_id, f.reason, f.error_class, f.error,
               (SELECT jsonb_object_agg(x.type, x.n) FROM (SELECT l.type, count(*) AS n FROM letters AS l GROUP BY l.type) AS x),
               (SELECT jsonb_object_agg(x.reason, x.n) FROM (SELECT l.reason, count(*) AS n FROM letters AS l GROUP BY l.reason) AS x),
               (SELECT count(DISTINCT l.tenant) FROM letters AS l), (SELECT max(l.died_at) FROM letters AS l)
        FROM (SELECT l.* FROM letters AS l ORDER BY l.died_at, l.task_id LIMIT 1) AS f;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.dead_batch_announced(_queue_id integer, _number integer, _term uuid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    IF NOT poolkeeper.may_rule(_queue_id) THEN
        RETURN false;
    END IF;
    PERFORM poolkeeper.demand_leader_of(_queue_id, _term);
    UPDATE poolkeeper.dead AS d SET batch = _number WHERE d.queue_id = _queue_id AND d.batch < 0 AND d.batch = -_number::bigint;
    RETURN FOUND;
END $$;
