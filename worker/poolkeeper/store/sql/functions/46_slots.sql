-- Firing the slots of schedules (Q34, ADR 0026). SQL knows no cron: a worker or the operator asks what is due, counts the slots by
-- a cron library, and says which to fire. Whoever it is: no leader is needed.
--
-- Guarantees: of a slot there is one task, whoever fires, however many at once, whenever they are killed: the tasks of slots and
-- the place up to which slots were counted change in one transaction, under the row's lock, and only if the row is as it was when
-- the slots were counted (version). The key of a slot's task says the same once more, for when a clock steps back or a schedule
-- is made again. Locks: schedule (SKIP LOCKED, ascending ids), then as submit. Index: schedule_look.

-- The queues of these (NULL: of all that this login may see) in which slots may be fired: not those that are paused, whose slots
-- wait for the catch-up policy, and none while the installation is held (Q24).
CREATE OR REPLACE FUNCTION poolkeeper.firing_queues(_caller poolkeeper.access, _queues text[]) RETURNS integer[]
LANGUAGE sql STABLE
AS $$
    SELECT ARRAY(
        SELECT q.id FROM poolkeeper.queue AS q
        WHERE NOT q.paused AND poolkeeper.may_see(_caller, q.namespace || '/' || q.name, NULL)
          AND (_queues IS NULL OR q.namespace || '/' || q.name = ANY (ARRAY(SELECT poolkeeper.queue_path(u) FROM unnest(_queues) AS u)))
          AND NOT EXISTS (SELECT FROM poolkeeper.contact AS c WHERE c.held_since IS NOT NULL OR c.started_at <> pg_postmaster_start_time())
        ORDER BY q.id)
$$;

-- Seconds until somebody is to look at a schedule of these queues, those that are paused apart, or NULL: a probe for each queue.
CREATE OR REPLACE FUNCTION poolkeeper.slot_in(_queues integer[], _now timestamptz) RETURNS double precision
LANGUAGE sql STABLE
AS $$
    SELECT extract(epoch FROM min(x.look_at) - _now)::double precision
    FROM unnest(_queues) AS u (id)
    CROSS JOIN LATERAL (SELECT s.look_at FROM poolkeeper.schedule AS s
                        WHERE s.queue_id = u.id AND s.look_at IS NOT NULL ORDER BY s.look_at LIMIT 1) AS x
    WHERE NOT (SELECT q.paused FROM poolkeeper.queue AS q WHERE q.id = u.id)
$$;

-- The schedules of these queues that are to be looked at now, at most so many; then one row without an id, that says in how many
-- seconds the next one after them is (NULL: there is none). Reads only.
CREATE OR REPLACE FUNCTION poolkeeper.due_schedules(_queues text[], _most integer DEFAULT 100)
RETURNS TABLE (id bigint, version bigint, queue text, tenant text, name text, cron text, zone text, catch_up text, catch_up_limit integer,
               counted_to timestamptz, refused text, now timestamptz, next_in double precision)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _ids    integer[];
    _now    timestamptz := poolkeeper.clock();
BEGIN
    PERFORM poolkeeper.demand(cardinality(_queues) <= 10000 IS NOT FALSE, 'these are too many queues', 'name at most 10000, or none for all');
    _ids := poolkeeper.firing_queues(_caller, _queues);
    _most := least(greatest(_most, 1), 1000);
    RETURN QUERY
        SELECT x.id, x.version, q.namespace || '/' || q.name, x.tenant, x.name, x.cron, x.zone, x.catch_up, x.catch_up_limit, x.counted_to,
               x.refused, _now, NULL::double precision
        FROM unnest(_ids) AS u (id) JOIN poolkeeper.queue AS q ON q.id = u.id
        CROSS JOIN LATERAL (SELECT s.* FROM poolkeeper.schedule AS s
                            WHERE s.queue_id = u.id AND s.look_at <= _now AND poolkeeper.may_see(_caller, q.namespace || '/' || q.name, s.tenant)
                            ORDER BY s.look_at LIMIT _most) AS x
        ORDER BY x.look_at LIMIT _most;
    RETURN QUERY
        SELECT NULL::bigint, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer, NULL::timestamptz,
               NULL::text, _now, (
            SELECT extract(epoch FROM min(x.look_at) - _now)::double precision
            FROM unnest(_ids) AS u (id) JOIN poolkeeper.queue AS q ON q.id = u.id
            CROSS JOIN LATERAL (SELECT s.look_at FROM poolkeeper.schedule AS s
                                WHERE s.queue_id = u.id AND s.look_at > _now AND poolkeeper.may_see(_caller, q.namespace || '/' || q.name, s.tenant)
                                ORDER BY s.look_at LIMIT 1) AS x);
END $$;

-- When a schedule that could not be fired is looked at again: 5 s, doubling, at most 5 minutes.
CREATE OR REPLACE FUNCTION poolkeeper.look_again(_refusals integer) RETURNS interval
LANGUAGE sql IMMUTABLE
AS $$ SELECT interval '5 seconds' * least(60, 2 ^ least(_refusals, 10)) $$;

-- Fires slots: [{id, version, slots, upto, next, missed, problem}] as counted from what due_schedules told. slots: those to fire, in
-- order, after counted_to; upto: the moment to which was counted; next: the first slot after it; missed: the last slot that was
-- left out, if any; problem: why slots cannot be counted, then nothing else is looked at. Answers a row for each schedule that was
-- as it was looked at; of the others somebody else has fired. A task that is refused for good is one that its max_age forbids:
-- that slot is left out. For whatever else it is refused: the slots before it are done, and the rest is looked at again later.
CREATE OR REPLACE FUNCTION poolkeeper.fire_schedules(_plans jsonb) RETURNS TABLE (id bigint, fired integer, refused text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _queues integer[] := poolkeeper.firing_queues(_caller, NULL);
    _now    timestamptz := poolkeeper.clock();
    _plan   record;
    _s      poolkeeper.schedule;
    _path   text;
    _done   record;
BEGIN
    PERFORM poolkeeper.demand(poolkeeper.entries(_plans, 'plans') <= 1000, 'these are too many plans', 'give at most 1000');
    PERFORM poolkeeper.demand_durable();
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '60s', true);  -- nobody keeps a schedule from others by doing nothing (Q51)
    END IF;
    FOR _plan IN SELECT * FROM poolkeeper.slot_plans(_plans) AS p ORDER BY p.id LOOP
        PERFORM poolkeeper.demand(_plan.problem IS NOT NULL OR (
                _plan.upto <= _now AND _plan.next > _plan.upto AND _plan.next < _now + interval '100 years' AND isfinite(_plan.upto)
                AND cardinality(_plan.slots) <= 1000 AND NOT EXISTS (
                    SELECT FROM (SELECT u.slot, lag(u.slot) OVER (ORDER BY u.n) AS before FROM unnest(_plan.slots) WITH ORDINALITY AS u (slot, n)) AS x
                    WHERE (x.slot <= _plan.upto AND x.slot = date_trunc('second', x.slot) AND (x.before IS NULL OR x.before < x.slot)) IS NOT TRUE)),
            format('the plan of schedule %s cannot be', _plan.id),
            'slots rise and are whole seconds, at most 1000; none is after upto, which is the now that due_schedules told; next is after it');
        SELECT s.* INTO _s FROM poolkeeper.schedule AS s
        WHERE s.id = _plan.id AND s.version = _plan.version AND s.look_at <= _now AND s.queue_id = ANY (_queues)
          AND (_plan.problem IS NOT NULL OR (s.counted_to <= _plan.upto AND (s.counted_to < _plan.slots[1]) IS NOT FALSE))
        FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT q.namespace || '/' || q.name INTO _path FROM poolkeeper.queue AS q WHERE q.id = _s.queue_id;
        CONTINUE WHEN NOT poolkeeper.may_see(_caller, _path, _s.tenant);
        SELECT 0 AS fired, NULL::timestamptz AS last, NULL::uuid AS task, NULL::timestamptz AS aged, NULL::timestamptz AS upto,
               NULL::timestamptz AS due, left(_plan.problem, 500) AS refused INTO _done;
        IF _plan.problem IS NULL AND cardinality(_plan.slots) > 0 THEN
            SELECT * INTO _done FROM poolkeeper.submit_slots(_path, _s, _plan.slots);
        END IF;
        UPDATE poolkeeper.schedule AS s
        SET version = s.version + 1, refused = _done.refused, refusals = CASE WHEN _done.refused IS NULL THEN 0 ELSE s.refusals + 1 END,
            counted_to = CASE WHEN _done.refused IS NULL THEN _plan.upto ELSE coalesce(_done.upto, s.counted_to) END,
            due_at = CASE WHEN _done.refused IS NULL THEN _plan.next ELSE coalesce(_done.due, s.due_at) END,
            look_at = CASE WHEN _done.refused IS NULL THEN _plan.next ELSE _now + poolkeeper.look_again(s.refusals) END,
            fired_at = coalesce(_done.last, s.fired_at), fired_task = coalesce(_done.task, s.fired_task),
            missed_at = greatest(s.missed_at, _done.aged, CASE WHEN _done.refused IS NULL THEN _plan.missed END)
        WHERE s.id = _s.id;
        RETURN QUERY SELECT _s.id, _done.fired, _done.refused;
    END LOOP;
END $$;

-- The plans as rows; raises PK400 where one cannot be read.
CREATE OR REPLACE FUNCTION poolkeeper.slot_plans(_plans jsonb)
RETURNS TABLE (id bigint, version bigint, slots timestamptz[], upto timestamptz, next timestamptz, missed timestamptz, problem text)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN QUERY
        SELECT (p ->> 'id')::bigint, (p ->> 'version')::bigint,
               ARRAY(SELECT poolkeeper.moment(e.slot) FROM jsonb_array_elements_text(coalesce(nullif(p -> 'slots', 'null'), '[]')) WITH ORDINALITY AS e (slot, n) ORDER BY e.n),
               poolkeeper.moment(p ->> 'upto'), poolkeeper.moment(p ->> 'next'), poolkeeper.moment(p ->> 'missed'), p ->> 'problem'
        FROM jsonb_array_elements(coalesce(nullif(_plans, 'null'), '[]')) AS p;
EXCEPTION WHEN data_exception THEN
    RAISE EXCEPTION 'a plan cannot be read: %', left(SQLERRM, 200) USING ERRCODE = 'PK400',
        HINT = 'a plan is an object: id and version whole numbers, slots a list of moments, upto, next and missed moments, each ISO 8601 with its zone';
END $$;

-- Submits the tasks of these slots. Answers how many are there now, the last of them and its task, the last slot that is too old,
-- and where one was refused (due), why, and to which slot all is well (NULL: to none).
CREATE OR REPLACE FUNCTION poolkeeper.submit_slots(
    _path text, _s poolkeeper.schedule, _slots timestamptz[],
    OUT fired integer, OUT last timestamptz, OUT task uuid, OUT aged timestamptz, OUT upto timestamptz, OUT due timestamptz,
    OUT refused text
)
LANGUAGE plpgsql
AS $$
DECLARE
    _one record;
BEGIN
    fired := 0;
    FOR _one IN
        SELECT v.ordinal, v.task_id, v.code, v."limit" FROM poolkeeper.submit_many(_path, (
            SELECT jsonb_agg(poolkeeper.slot_task(_s.name, _s.task, u.slot) ORDER BY u.n) FROM unnest(_slots) WITH ORDINALITY AS u (slot, n))) AS v
        ORDER BY v.ordinal
    LOOP
        CASE
            WHEN _one.code IS NULL THEN
                fired := fired + 1;
                last := _slots[_one.ordinal];
                task := _one.task_id;
            WHEN _one.code = 'max_age_passed' THEN
                aged := _slots[_one.ordinal];
            WHEN _one.code = 'key_conflict' THEN NULL;  -- the slot has its task, of before the schedule was changed
            ELSE
                due := _slots[_one.ordinal];
                refused := _one.code || coalesce(format(' (%s)', _one."limit"), '');
                RETURN;
        END CASE;
        upto := _slots[_one.ordinal];
    END LOOP;
END $$;
