-- Schedules of recurring tasks, as people and programs set them (Q34, ADR 0026). A schedule belongs to a tenant of a queue, and is
-- named within it. Its slots are counted by whoever fires them (46_slots.sql): this file knows no cron, so that it can be called
-- from any language; a cron expression or zone that nobody can read is told by poolkeeper.schedules.
--
-- Locks: the schedule's row, waited for at most 5 s: then lock_not_available.

-- The task of a slot as submit takes it. Its key makes the slot unique; its age counts from the slot (Q7); the handler finds
-- schedule and slot in its labels. _slot NULL: outside of the slots.
CREATE OR REPLACE FUNCTION poolkeeper.slot_task(_name text, _task jsonb, _slot timestamptz) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT _task || jsonb_strip_nulls(jsonb_build_object('key', 'schedule:' || _name || ':' || x.slot, 'run_at', x.slot))
        || jsonb_build_object('labels', coalesce(nullif(_task -> 'labels', 'null'), '{}')
                                        || jsonb_strip_nulls(jsonb_build_object('poolkeeper.dev/schedule', _name, 'poolkeeper.dev/slot', x.slot)))
    FROM (SELECT to_char(_slot AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS slot) AS x
$$;

-- A schedule that this login may see, or NULL: a foreign tenant's does not exist for it (Q51).
CREATE OR REPLACE FUNCTION poolkeeper.visible_schedule(_queue text, _tenant text, _name text) RETURNS poolkeeper.schedule
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _row    poolkeeper.schedule;
BEGIN
    SELECT s.* INTO _row FROM poolkeeper.schedule AS s JOIN poolkeeper.queue AS q ON q.id = s.queue_id
    WHERE q.namespace = split_part(poolkeeper.queue_path(_queue), '/', 1) AND q.name = split_part(poolkeeper.queue_path(_queue), '/', 2)
      AND s.tenant = _tenant AND s.name = _name AND poolkeeper.may_see(_caller, poolkeeper.queue_path(_queue), _tenant);
    RETURN _row;
END $$;

-- What is wrong with a schedule, or NULL. What a submit of its task would be refused for is refused here, but for what passes.
CREATE OR REPLACE FUNCTION poolkeeper.schedule_fault(
    _q poolkeeper.queue, _caller poolkeeper.access, _name text, _schedule jsonb, _task jsonb, _now timestamptz
) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF NOT coalesce(_name ~ E'^[A-Za-z0-9][-A-Za-z0-9._]{0,99}$' AND poolkeeper.printable(_schedule ->> 'cron')
                    AND poolkeeper.printable(coalesce(_schedule ->> 'zone', 'UTC'))
                    AND coalesce(_schedule ->> 'catch_up', 'latest') IN ('skip', 'latest', 'all')
                    AND poolkeeper.is_number(_schedule -> 'catch_up_limit', 1, 1000)
                    AND coalesce(_schedule ->> 'catch_up_limit' ~ '^[0-9]+$', true), false) THEN
        RETURN 'schedule_invalid';
    ELSIF jsonb_typeof(_task) IS DISTINCT FROM 'object' OR _task ?| ARRAY['key', 'run_at', 'delay', 'traceparent'] THEN
        RETURN 'option_invalid';
    ELSIF coalesce(jsonb_typeof(_task -> 'labels'), 'null') NOT IN ('object', 'null') THEN
        RETURN 'labels_invalid';
    END IF;
    _q.paused := false;  -- these pass
    _q.part_paused := false;
    RETURN (poolkeeper.candidates_one_by_one(jsonb_build_array(poolkeeper.slot_task(_name, _task, _now)), _q, _caller, _now))[1].code;
END $$;

-- Sets a schedule: {cron, zone, catch_up, catch_up_limit}, and a task as submit takes it, without key, run_at, delay and
-- traceparent. The same again changes nothing, so a program can say it at each start; one that is paused stays so. Slots are
-- counted from now on: the first time, and where cron or zone have changed. Nothing that was open before is fired then, but for a
-- slot that came within the last minute: a change at the moment of a slot, as by a deploy, loses none.
CREATE OR REPLACE FUNCTION poolkeeper.set_schedule(_queue text, _name text, _schedule jsonb, _task jsonb, _who text)
RETURNS TABLE (code text, created boolean, changed boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _now    timestamptz := poolkeeper.clock();
    _tenant text := coalesce(_task ->> 'tenant', 'default');
    _cron   text := _schedule ->> 'cron';
    _zone   text := coalesce(_schedule ->> 'zone', 'UTC');
    _how    text := coalesce(_schedule ->> 'catch_up', 'latest');
    _most   integer;
    _q      poolkeeper.queue;
    _row    poolkeeper.schedule;
    _code   text;
    _anew   boolean;
    _last   record;
    _wait   text := current_setting('lock_timeout');
BEGIN
    _who := left(coalesce(_who, session_user), 200);
    SELECT q.* INTO _q FROM poolkeeper.queue AS q
    WHERE q.namespace = split_part(poolkeeper.queue_path(_queue), '/', 1) AND q.name = split_part(poolkeeper.queue_path(_queue), '/', 2)
      AND poolkeeper.may_see(_caller, poolkeeper.queue_path(_queue), NULL);
    _code := CASE WHEN NOT FOUND THEN 'unknown_queue' ELSE poolkeeper.schedule_fault(_q, _caller, _name, _schedule, _task, _now) END;
    IF _code IS NOT NULL THEN
        RETURN QUERY SELECT _code, false, false;
        RETURN;
    END IF;
    PERFORM poolkeeper.demand_durable();
    PERFORM set_config('lock_timeout', '5s', true);
    _task := _task || jsonb_build_object('tenant', _tenant);  -- said or not, it is the same
    _most := coalesce((_schedule ->> 'catch_up_limit')::integer, 100);
    INSERT INTO poolkeeper.schedule (queue_id, tenant, name, cron, zone, catch_up, catch_up_limit, task, set_by, set_at, counted_to, look_at)
    VALUES (_q.id, _tenant, _name, _cron, _zone, _how, _most, _task, _who, _now, _now, _now)
    ON CONFLICT (queue_id, tenant, name) DO NOTHING;
    IF FOUND THEN
        PERFORM set_config('lock_timeout', _wait, true);
        PERFORM poolkeeper.wake();
        RETURN QUERY SELECT NULL::text, true, true;
        RETURN;
    END IF;
    SELECT s.* INTO _row FROM poolkeeper.schedule AS s WHERE s.queue_id = _q.id AND s.tenant = _tenant AND s.name = _name FOR NO KEY UPDATE;
    PERFORM set_config('lock_timeout', _wait, true);
    IF (_row.cron, _row.zone, _row.catch_up, _row.catch_up_limit, _row.task) = (_cron, _zone, _how, _most, _task) THEN
        RETURN QUERY SELECT NULL::text, false, false;
        RETURN;
    END IF;
    _anew := (_row.cron, _row.zone) <> (_cron, _zone);
    SELECT NULL::timestamptz AS last, NULL::uuid AS task, CASE WHEN _anew AND _row.due_at <= _now THEN _row.due_at END AS missed INTO _last;
    IF _last.missed > _now - interval '1 minute' AND NOT _row.paused THEN
        SELECT f.last, f.task, CASE WHEN f.last IS NULL THEN _row.due_at END AS missed INTO _last
        FROM poolkeeper.submit_slots(_q.namespace || '/' || _q.name, ARRAY[ROW(_row.id, NULL, ARRAY[_row.due_at], NULL, NULL, NULL, NULL)::poolkeeper.slot_plan]) AS f;
    END IF;
    UPDATE poolkeeper.schedule AS s
    SET cron = _cron, zone = _zone, catch_up = _how, catch_up_limit = _most, task = _task, set_by = _who, set_at = _now, version = s.version + 1,
        counted_to = CASE WHEN _anew THEN greatest(s.counted_to, _now) ELSE s.counted_to END,
        due_at = CASE WHEN NOT _anew THEN s.due_at END,
        look_at = CASE WHEN NOT s.paused THEN coalesce(CASE WHEN NOT _anew THEN s.due_at END, greatest(s.counted_to, _now)) END,
        refused = NULL, refusals = 0, fired_at = coalesce(_last.last, s.fired_at), fired_task = coalesce(_last.task, s.fired_task),
        missed_at = greatest(s.missed_at, _last.missed)
    WHERE s.id = _row.id;
    PERFORM poolkeeper.wake();
    RETURN QUERY SELECT NULL::text, false, true;
END $$;

-- Removes a schedule; tasks of it that were submitted stay.
CREATE OR REPLACE FUNCTION poolkeeper.remove_schedule(_queue text, _tenant text, _name text) RETURNS TABLE (code text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _row  poolkeeper.schedule := poolkeeper.visible_schedule(_queue, _tenant, _name);
    _wait text := current_setting('lock_timeout');
    _n    integer;
BEGIN
    PERFORM poolkeeper.demand_durable();
    PERFORM set_config('lock_timeout', '5s', true);
    DELETE FROM poolkeeper.schedule AS s WHERE s.id = _row.id;
    GET DIAGNOSTICS _n = ROW_COUNT;
    PERFORM set_config('lock_timeout', _wait, true);
    RETURN QUERY SELECT CASE WHEN _n = 0 THEN 'unknown_schedule' END;
END $$;

-- Pauses a schedule or lets it go on. What was due while it was paused is not made up for, whatever its catch-up policy.
CREATE OR REPLACE FUNCTION poolkeeper.pause_schedule(_queue text, _tenant text, _name text, _paused boolean) RETURNS TABLE (code text, changed boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _row  poolkeeper.schedule := poolkeeper.visible_schedule(_queue, _tenant, _name);
    _now  timestamptz := poolkeeper.clock();
    _wait text := current_setting('lock_timeout');
    _n    integer;
BEGIN
    PERFORM poolkeeper.demand(_paused IS NOT NULL, 'a schedule is paused or it is not', 'give true or false');
    IF _row.id IS NULL THEN
        RETURN QUERY SELECT 'unknown_schedule', false;
        RETURN;
    END IF;
    PERFORM poolkeeper.demand_durable();
    PERFORM set_config('lock_timeout', '5s', true);
    UPDATE poolkeeper.schedule AS s
    SET paused = _paused, version = s.version + 1, look_at = CASE WHEN NOT _paused THEN greatest(s.counted_to, _now) END, refused = NULL, refusals = 0,
        counted_to = CASE WHEN _paused THEN s.counted_to ELSE greatest(s.counted_to, _now) END,
        due_at = CASE WHEN _paused THEN s.due_at END
    WHERE s.id = _row.id AND s.paused <> _paused;
    GET DIAGNOSTICS _n = ROW_COUNT;
    PERFORM set_config('lock_timeout', _wait, true);
    IF NOT _paused AND _n > 0 THEN
        PERFORM poolkeeper.wake();
    END IF;
    RETURN QUERY SELECT NULL::text, _n > 0;
END $$;

-- Submits a schedule's task now, outside of its slots, which stay as they are.
CREATE OR REPLACE FUNCTION poolkeeper.run_schedule(_queue text, _tenant text, _name text)
RETURNS TABLE (ordinal integer, task_id uuid, code text, created boolean, retry_after interval, "limit" bigint, current bigint, state text, result jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _row poolkeeper.schedule := poolkeeper.visible_schedule(_queue, _tenant, _name);
BEGIN
    IF _row.id IS NULL THEN
        RETURN QUERY SELECT 1, NULL::uuid, 'unknown_schedule', false, NULL::interval, NULL::bigint, NULL::bigint, NULL::text, NULL::jsonb;
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM poolkeeper.submit_many(_queue, jsonb_build_array(poolkeeper.slot_task(_row.name, _row.task, NULL)));
END $$;

-- The schedules of a queue (NULL: of all) that this login may see. due_at: the next slot, NULL until somebody has counted it;
-- missed_at: the last slot that was left out; refused: why nothing could be fired when somebody looked last.
CREATE OR REPLACE FUNCTION poolkeeper.schedules(_queue text DEFAULT NULL, _most integer DEFAULT 1000)
RETURNS TABLE (queue text, tenant text, name text, cron text, zone text, catch_up text, catch_up_limit integer, task jsonb, paused boolean,
               due_at timestamptz, fired_at timestamptz, fired_task uuid, missed_at timestamptz, refused text, set_by text, set_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _me poolkeeper.access := poolkeeper.caller();  -- first: a plan may begin with what has no rows, and ask nobody
BEGIN RETURN QUERY
    SELECT q.namespace || '/' || q.name, s.tenant, s.name, s.cron, s.zone, s.catch_up, s.catch_up_limit, s.task, s.paused,
           CASE WHEN NOT s.paused THEN s.due_at END, s.fired_at, s.fired_task, s.missed_at, s.refused, s.set_by, s.set_at
    FROM poolkeeper.queue AS q
    JOIN poolkeeper.schedule AS s ON s.queue_id = q.id
    WHERE (_queue IS NULL OR q.namespace || '/' || q.name = poolkeeper.queue_path(_queue))
      AND poolkeeper.may_see(_me, q.namespace || '/' || q.name, s.tenant)
    ORDER BY q.namespace, q.name, s.tenant, s.name LIMIT least(greatest(_most, 1), 100000);
END $$;
