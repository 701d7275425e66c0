-- What people do: cancel, requeue, discard. Each is recorded with who and why; the caller may name the state_version
-- that was seen, and a stale one is refused with the present state (Q1). Locks: the task's one row, wherever it is.

-- Where a task is: its present state and version, by the table that holds it, else by its last delivery or event.
CREATE OR REPLACE FUNCTION poolkeeper.present_state(_task_id uuid)
RETURNS TABLE (state text, state_version integer, result jsonb, reason text)
LANGUAGE sql STABLE
AS $$
    SELECT x.state, x.state_version, x.result, x.reason FROM (
        SELECT 'ready' AS state, r.state_version, NULL::jsonb AS result, NULL::text AS reason FROM poolkeeper.ready AS r WHERE r.task_id = _task_id
        UNION ALL
        SELECT 'ready', r.state_version, NULL, 'isolation' FROM poolkeeper.suspect AS r WHERE r.task_id = _task_id
        UNION ALL
        SELECT CASE WHEN r.due_at IS NULL THEN 'ready' ELSE 'scheduled' END, r.state_version, NULL, 'ordering'
        FROM poolkeeper.ordered AS r WHERE r.task_id = _task_id
        UNION ALL
        SELECT CASE WHEN r.wait_reason IS NULL THEN 'scheduled' ELSE 'waiting' END, r.state_version, NULL, r.wait_reason
        FROM poolkeeper.later AS r WHERE r.task_id = _task_id
        UNION ALL
        SELECT CASE WHEN r.started_at IS NULL THEN 'leased' ELSE 'running' END, r.state_version, NULL, NULL FROM poolkeeper.lease AS r WHERE r.task_id = _task_id
        UNION ALL
        SELECT 'dead', r.state_version, NULL, r.reason FROM poolkeeper.dead AS r WHERE r.task_id = _task_id
        UNION ALL
        (SELECT d.next_state, d.state_version, d.result, d.reason FROM poolkeeper.delivery AS d
         WHERE d.retention = 0 AND d.task_id = _task_id AND d.next_state IN ('succeeded', 'failed', 'canceled'))
        UNION ALL
        (SELECT 'canceled', e.state_version, NULL, e.reason FROM poolkeeper.event AS e
         WHERE e.retention = 0 AND e.task_id = _task_id AND e.kind IN ('canceled', 'discarded'))
    ) AS x ORDER BY x.state_version DESC LIMIT 1
$$;

-- A task that this login may see: its row, or NULL (a foreign tenant's task does not exist for it, Q51).
CREATE OR REPLACE FUNCTION poolkeeper.visible_task(_task_id uuid) RETURNS poolkeeper.task
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _task   poolkeeper.task;
BEGIN
    SELECT t.* INTO _task FROM poolkeeper.task AS t JOIN poolkeeper.queue AS q ON q.id = t.queue_id
    WHERE t.id = _task_id AND poolkeeper.may_see(_caller, q.namespace || '/' || q.name, t.tenant);
    RETURN _task;
END $$;

-- Arrows: scheduled | ready | waiting -> canceled at once; leased | running: stored, then told at the next renewal (Q39).
-- Waits at most 5 s for whoever holds the task, such as a handler's own transaction that is about to end it: then lock_not_available.
CREATE OR REPLACE FUNCTION poolkeeper.cancel(_task_id uuid, _who text, _why text, _seen_version integer DEFAULT NULL)
RETURNS TABLE (code text, state text, state_version integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _task    poolkeeper.task := poolkeeper.visible_task(_task_id);
    _now     timestamptz;
    _version integer;
    _gate    bigint;
    _lease   poolkeeper.lease;
    _is      record;
    _wait    text := current_setting('lock_timeout');
BEGIN
    _who := left(_who, 200);
    _why := left(_why, 2000);
    IF _task.id IS NULL THEN
        RETURN QUERY SELECT 'unknown_task', NULL::text, NULL::integer;
        RETURN;
    END IF;
    PERFORM poolkeeper.demand_durable();
    PERFORM set_config('lock_timeout', '5s', true);  -- what a handler's own transaction ends is its for as long as that is open
    FOR _i IN 1 .. 10 LOOP  -- the task may move from table to table between our looks
        _now := poolkeeper.clock();
        _version := NULL;
        _gate := NULL;
        DELETE FROM poolkeeper.ordered AS r WHERE r.task_id = _task_id AND r.state_version = coalesce(_seen_version, r.state_version)
            RETURNING r.state_version INTO _version;
        IF _version IS NULL THEN
            DELETE FROM poolkeeper.ready AS r WHERE r.task_id = _task_id AND r.state_version = coalesce(_seen_version, r.state_version)
                RETURNING r.state_version, r.gate INTO _version, _gate;
        END IF;
        IF _version IS NULL THEN
            DELETE FROM poolkeeper.later AS r WHERE r.task_id = _task_id AND r.state_version = coalesce(_seen_version, r.state_version)
                RETURNING r.state_version, r.gate INTO _version, _gate;
        END IF;
        IF _version IS NULL THEN
            DELETE FROM poolkeeper.suspect AS r WHERE r.task_id = _task_id AND r.state_version = coalesce(_seen_version, r.state_version)
                RETURNING r.state_version, r.gate INTO _version, _gate;
        END IF;
        IF _version IS NOT NULL THEN
            INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, actor, reason, state_version)
            VALUES (_task_id, _task.queue_id, _now, 'canceled', _who, _why, _version + 1);
            DELETE FROM poolkeeper.checkpoint AS c WHERE c.task_id = _task_id;
            PERFORM poolkeeper.free_key(_task.queue_id, _gate);
            PERFORM set_config('lock_timeout', _wait, true);
            RETURN QUERY SELECT NULL::text, 'canceled', _version + 1;
            RETURN;
        END IF;
        SELECT l.* INTO _lease FROM poolkeeper.lease AS l
        WHERE l.task_id = _task_id AND l.state_version = coalesce(_seen_version, l.state_version) FOR NO KEY UPDATE;
        IF FOUND THEN
            IF _lease.cancel_by IS NULL THEN
                UPDATE poolkeeper.lease AS l SET cancel_by = _who, cancel_why = _why WHERE l.task_id = _task_id;
                INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, actor, reason, state_version)
                VALUES (_task_id, _task.queue_id, _now, 'cancel_requested', _who, _why, _lease.state_version);
                PERFORM poolkeeper.wake();
            END IF;
            PERFORM set_config('lock_timeout', _wait, true);
            RETURN QUERY SELECT NULL::text, CASE WHEN _lease.started_at IS NULL THEN 'leased' ELSE 'running' END, _lease.state_version;
            RETURN;
        END IF;
        SELECT p.* INTO _is FROM poolkeeper.present_state(_task_id) AS p;
        EXIT WHEN _is.state IN ('succeeded', 'failed', 'canceled', 'dead') OR _is.state_version IS DISTINCT FROM coalesce(_seen_version, _is.state_version);
    END LOOP;
    PERFORM set_config('lock_timeout', _wait, true);
    RETURN QUERY SELECT CASE WHEN _is.state IN ('succeeded', 'failed', 'canceled', 'dead') THEN 'already_ended' ELSE 'stale_version' END,
                        _is.state, _is.state_version;
END $$;

-- Takes a dead letter away from its table and records who did it and why, or answers why not, with the present state.
-- One of two at once gets it (Q29).
CREATE OR REPLACE FUNCTION poolkeeper.take_dead(_task_id uuid, _seen_version integer, _kind text, _who text, _why text,
                                                OUT code text, OUT state text, OUT state_version integer, OUT letter poolkeeper.dead)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    IF (poolkeeper.visible_task(_task_id)).id IS NULL THEN
        code := 'unknown_task';
        RETURN;
    END IF;
    PERFORM poolkeeper.demand_durable();
    DELETE FROM poolkeeper.dead AS d WHERE d.task_id = _task_id AND d.state_version = coalesce(_seen_version, d.state_version)
        RETURNING d.* INTO letter;
    IF letter.task_id IS NULL THEN
        code := CASE WHEN EXISTS (SELECT FROM poolkeeper.dead AS d WHERE d.task_id = _task_id) THEN 'stale_version' ELSE 'not_dead' END;
        SELECT p.state, p.state_version INTO state, state_version FROM poolkeeper.present_state(_task_id) AS p;
        RETURN;
    END IF;
    state_version := letter.state_version + 1;
    INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, actor, reason, state_version)
    VALUES (_task_id, letter.queue_id, poolkeeper.clock(), _kind, left(_who, 200), left(_why, 2000), letter.state_version + 1);
END $$;

-- Arrow: dead -> ready, with a fresh budget; delivery numbers go on, the checkpoint stays.
CREATE OR REPLACE FUNCTION poolkeeper.requeue(_task_id uuid, _who text, _why text, _seen_version integer DEFAULT NULL)
RETURNS TABLE (code text, state text, state_version integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _taken record;
BEGIN
    SELECT * INTO _taken FROM poolkeeper.take_dead(_task_id, _seen_version, 'requeued', _who, _why);
    IF _taken.code IS NULL THEN
        _taken.state := 'ready';
        PERFORM poolkeeper.put_back(ARRAY[_taken.letter], poolkeeper.clock());
        PERFORM poolkeeper.wake();
    END IF;
    RETURN QUERY SELECT _taken.code, _taken.state, _taken.state_version;
END $$;

-- What goes with discarded dead letters: their checkpoints, and the hold that they had on their ordering keys (Q9).
CREATE OR REPLACE FUNCTION poolkeeper.put_away(_letters poolkeeper.dead[]) RETURNS void
LANGUAGE sql
AS $$
    DELETE FROM poolkeeper.checkpoint AS c WHERE c.task_id = ANY (ARRAY(SELECT d.task_id FROM unnest(_letters) AS d));
    INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT DISTINCT d.queue_id, d.gate FROM unnest(_letters) AS d WHERE d.gate IS NOT NULL;
$$;

-- Arrow: dead -> canceled (reason discarded).
CREATE OR REPLACE FUNCTION poolkeeper.discard(_task_id uuid, _who text, _why text, _seen_version integer DEFAULT NULL)
RETURNS TABLE (code text, state text, state_version integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _taken record;
BEGIN
    SELECT * INTO _taken FROM poolkeeper.take_dead(_task_id, _seen_version, 'discarded', _who, _why);
    IF _taken.code IS NULL THEN
        _taken.state := 'canceled';
        PERFORM poolkeeper.put_away(ARRAY[_taken.letter]);
    END IF;
    RETURN QUERY SELECT _taken.code, _taken.state, _taken.state_version;
END $$;
