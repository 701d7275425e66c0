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

-- The exact cap at the claim (P7): NULL lifts it, 0 lets nothing start. Waits for claims in progress, a few ms.
CREATE OR REPLACE FUNCTION poolkeeper.set_pool(_pool text, _max_running integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _id integer;
    _me poolkeeper.access := poolkeeper.caller();
BEGIN
    IF _me.pool IS NOT NULL THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = 'a pool may not change its own limits';
    END IF;
    _id := poolkeeper.pool_row(_pool);
    UPDATE poolkeeper.pool AS p SET max_running = _max_running WHERE p.id = _id AND p.max_running IS DISTINCT FROM _max_running;
    IF FOUND THEN
        PERFORM poolkeeper.wake();
    END IF;
    RETURN FOUND;
END $$;

-- Marks the sessions of these pods (they claim nothing any more) or takes the mark back. Answers how busy each is
-- after marking; a turn that had read its session before the mark may still claim, so look again before ending a pod.
CREATE OR REPLACE FUNCTION poolkeeper.mark_sessions(_pool text, _pods text[], _draining boolean) RETURNS TABLE (pod_name text, busy integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _ids uuid[];
    _me  poolkeeper.access := poolkeeper.caller();
BEGIN
    IF _me.pool IS NOT NULL THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = 'a pool may not mark sessions';
    END IF;
    _ids := ARRAY(SELECT s.id FROM poolkeeper.session AS s JOIN poolkeeper.pool AS p ON p.id = s.pool_id
                  WHERE p.name = _pool AND s.ended_at IS NULL AND s.info ->> 'pod_name' = ANY (_pods) ORDER BY s.id);
    UPDATE poolkeeper.session AS s SET draining = _draining WHERE s.id = ANY (_ids) AND s.draining <> _draining;
    PERFORM poolkeeper.wake();
    RETURN QUERY
        SELECT s.info ->> 'pod_name', (SELECT count(*)::integer FROM poolkeeper.lease AS l WHERE l.session_id = s.id)
        FROM poolkeeper.session AS s WHERE s.id = ANY (_ids);
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.record_decision(_pool text, _decision jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    PERFORM poolkeeper.caller();
    INSERT INTO poolkeeper.decision (pool_id, at, decision) VALUES (poolkeeper.pool_row(_pool), poolkeeper.clock(), _decision);
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.decisions(_pool text, _most integer DEFAULT 20) RETURNS TABLE (at timestamptz, decision jsonb)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    SELECT d.at, d.decision FROM (SELECT poolkeeper.caller() AS who OFFSET 0) AS me
    JOIN poolkeeper.pool AS p ON p.name = _pool AND ((me.who).pool IS NULL OR (me.who).pool = p.name)
    JOIN poolkeeper.decision AS d ON d.pool_id = p.id
    ORDER BY d.no DESC LIMIT least(greatest(_most, 1), 1000)
$$;

-- Whether the caller may see this queue; one that it may not see is not there for it (Q51).
CREATE OR REPLACE FUNCTION poolkeeper.may_tend(_queue_id integer) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _me poolkeeper.access := poolkeeper.caller();
BEGIN
    RETURN EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.id = _queue_id AND poolkeeper.may_see(_me, q.namespace || '/' || q.name, NULL));
END $$;

-- The dead letters of a queue that were not announced yet, as one numbered batch (O24). The same batch is answered
-- until it is confirmed, so an Event named after its number is never made twice.
CREATE OR REPLACE FUNCTION poolkeeper.dead_batch(_queue_id integer)
RETURNS TABLE (number integer, count bigint, first_task uuid, first_error text, types jsonb, reasons jsonb, at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _number integer;
BEGIN
    IF NOT poolkeeper.may_tend(_queue_id) THEN
        RETURN;
    END IF;
    SELECT c.dead_batch INTO _number FROM poolkeeper.queue_count AS c WHERE c.queue_id = _queue_id FOR NO KEY UPDATE;
    IF NOT EXISTS (SELECT FROM poolkeeper.dead AS d WHERE d.queue_id = _queue_id AND d.batch = -(_number + 1)) THEN
        UPDATE poolkeeper.dead AS d SET batch = -(_number + 1)  -- negative: in a batch that is not confirmed
        WHERE d.task_id = ANY (ARRAY(SELECT k.task_id FROM poolkeeper.dead AS k WHERE k.queue_id = _queue_id AND k.batch IS NULL
                                     ORDER BY k.task_id LIMIT 10000 FOR UPDATE SKIP LOCKED));
    END IF;
    RETURN QUERY
        SELECT _number + 1, sum(x.n)::bigint, (SELECT k.task_id FROM poolkeeper.dead AS k WHERE k.queue_id = _queue_id AND k.batch = -(_number + 1) ORDER BY k.died_at LIMIT 1),
               (SELECT k.error FROM poolkeeper.dead AS k WHERE k.queue_id = _queue_id AND k.batch = -(_number + 1) ORDER BY k.died_at LIMIT 1),
               (SELECT jsonb_object_agg(y.type, y.n) FROM (SELECT t.type, count(*) AS n FROM poolkeeper.dead AS k JOIN poolkeeper.task AS t ON t.id = k.task_id
                                                           WHERE k.queue_id = _queue_id AND k.batch = -(_number + 1) GROUP BY t.type) AS y),
               jsonb_object_agg(x.reason, x.n), max(x.at)
        FROM (SELECT k.reason, count(*) AS n, max(k.died_at) AS at FROM poolkeeper.dead AS k
              WHERE k.queue_id = _queue_id AND k.batch = -(_number + 1) GROUP BY k.reason) AS x
        HAVING sum(x.n) > 0;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.dead_batch_announced(_queue_id integer, _number integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    IF NOT poolkeeper.may_tend(_queue_id) THEN
        RETURN false;
    END IF;
    UPDATE poolkeeper.queue_count AS c SET dead_batch = _number WHERE c.queue_id = _queue_id AND c.dead_batch = _number - 1;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE poolkeeper.dead AS d SET batch = _number WHERE d.queue_id = _queue_id AND d.batch = -_number;
    RETURN true;
END $$;
