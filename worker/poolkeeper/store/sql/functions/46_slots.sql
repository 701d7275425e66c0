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

DO $$ BEGIN
    -- what who fires has counted of a schedule (fire_schedules)
    CREATE TYPE poolkeeper.slot_plan AS (
        id bigint, version bigint, slots timestamptz[], upto timestamptz, next timestamptz, missed timestamptz, problem text);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- The plans as rows; raises PK400 where one cannot be, or cannot be read.
CREATE OR REPLACE FUNCTION poolkeeper.slot_plans(_plans jsonb, _now timestamptz) RETURNS poolkeeper.slot_plan[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _all poolkeeper.slot_plan[];
    _bad bigint;
BEGIN
    BEGIN
        _all := ARRAY(
            SELECT ROW((p ->> 'id')::bigint, (p ->> 'version')::bigint,
                       ARRAY(SELECT poolkeeper.moment(e.slot) FROM jsonb_array_elements_text(coalesce(nullif(p -> 'slots', 'null'), '[]')) WITH ORDINALITY AS e (slot, n) ORDER BY e.n),
                       poolkeeper.moment(p ->> 'upto'), poolkeeper.moment(p ->> 'next'), poolkeeper.moment(p ->> 'missed'), p ->> 'problem')::poolkeeper.slot_plan
            FROM jsonb_array_elements(coalesce(nullif(_plans, 'null'), '[]')) AS p);
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'a plan cannot be read: %', left(SQLERRM, 200) USING ERRCODE = 'PK400',
            HINT = 'a plan is an object: id and version whole numbers, slots a list of moments, upto, next and missed moments, each ISO 8601 with its zone';
    END;
    SELECT coalesce(p.id, 0) INTO _bad FROM unnest(_all) AS p
    WHERE p.problem IS NULL AND (
        (p.upto <= _now AND p.next > p.upto AND p.next < _now + interval '100 years' AND cardinality(p.slots) <= 1000) IS NOT TRUE
        OR EXISTS (
            SELECT FROM (SELECT u.slot, lag(u.slot) OVER (ORDER BY u.n) AS before FROM unnest(p.slots) WITH ORDINALITY AS u (slot, n)) AS x
            WHERE (x.slot <= p.upto AND x.slot = date_trunc('second', x.slot) AND (x.before IS NULL OR x.before < x.slot)) IS NOT TRUE))
    LIMIT 1;
    PERFORM poolkeeper.demand(_bad IS NULL, format('the plan of schedule %s cannot be', _bad),
        'slots rise and are whole seconds, at most 1000; none is after upto, which is the now that due_schedules told; next is after it');
    PERFORM poolkeeper.demand((SELECT count(p.id) = count(DISTINCT p.id) FROM unnest(_all) AS p), 'two plans of one schedule', 'give one for each');
    RETURN _all;
END $$;

-- Submits the tasks of these slots, all in one call. Answers for each schedule how many are there now, the last of them and its
-- task, the last slot that is too old; and where one was refused (due), why, and to which slot all is well (NULL: to none).
CREATE OR REPLACE FUNCTION poolkeeper.submit_slots(_path text, _plans poolkeeper.slot_plan[])
RETURNS TABLE (id bigint, fired integer, last timestamptz, task uuid, aged timestamptz, done_to timestamptz, due timestamptz, refused text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH slot AS MATERIALIZED (
        SELECT p.id, u.slot, u.n, row_number() OVER (ORDER BY p.id, u.n)::integer AS ordinal
        FROM unnest(_plans) AS p CROSS JOIN LATERAL unnest(p.slots) WITH ORDINALITY AS u (slot, n)
    ), verdict AS MATERIALIZED (
        SELECT v.ordinal, v.task_id, v.code, v."limit" FROM poolkeeper.submit_many(_path, (
            SELECT coalesce(jsonb_agg(poolkeeper.slot_task(s.name, s.task, x.slot) ORDER BY x.ordinal), '[]')
            FROM slot AS x JOIN poolkeeper.schedule AS s ON s.id = x.id)) AS v
    ), told AS (  -- a key that has another task: the slot has its own, of before the schedule was changed
        SELECT x.id, x.n, x.slot, v.task_id, v.code, v."limit",
               min(x.n) FILTER (WHERE v.code NOT IN ('max_age_passed', 'key_conflict')) OVER (PARTITION BY x.id) AS stop
        FROM slot AS x JOIN verdict AS v ON v.ordinal = x.ordinal
    )
    SELECT t.id, (count(*) FILTER (WHERE t.code IS NULL AND t.n < coalesce(t.stop, 1001)))::integer,
           max(t.slot) FILTER (WHERE t.code IS NULL AND t.n < coalesce(t.stop, 1001)),
           (array_agg(t.task_id ORDER BY t.n DESC) FILTER (WHERE t.code IS NULL AND t.n < coalesce(t.stop, 1001)))[1],
           max(t.slot) FILTER (WHERE t.code = 'max_age_passed' AND t.n < coalesce(t.stop, 1001)),
           max(t.slot) FILTER (WHERE t.n < t.stop), min(t.slot) FILTER (WHERE t.n = t.stop),
           min(t.code || coalesce(format(' (%s)', t."limit"), '')) FILTER (WHERE t.n = t.stop)
    FROM told AS t GROUP BY t.id;
END $$;

-- Fires slots: [{id, version, slots, upto, next, missed, problem}] as counted from what due_schedules told. slots: those to fire, in
-- order, after counted_to; upto: the moment to which was counted; next: the first slot after it; missed: the last slot that was
-- left out, if any; problem: why slots cannot be counted, then nothing else is looked at. Answers a row for each schedule that was
-- as it was looked at; of the others somebody else has fired. A slot whose task its max_age forbids is left out. For whatever else
-- one is refused: the slots before it are done, and the rest is looked at again later.
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
    _all    poolkeeper.slot_plan[];
    _mine   bigint[];
    _queue  record;
BEGIN
    PERFORM poolkeeper.demand(poolkeeper.entries(_plans, 'plans') <= 1000, 'these are too many plans', 'give at most 1000');
    PERFORM poolkeeper.demand_durable();
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '60s', true);  -- nobody keeps a schedule from others by doing nothing (Q51)
    END IF;
    _all := poolkeeper.slot_plans(_plans, _now);
    _mine := ARRAY(
        SELECT s.id FROM unnest(_all) AS p JOIN poolkeeper.schedule AS s ON s.id = p.id JOIN poolkeeper.queue AS q ON q.id = s.queue_id
        WHERE s.version = p.version AND s.look_at <= _now AND s.queue_id = ANY (_queues)
          AND poolkeeper.may_see(_caller, q.namespace || '/' || q.name, s.tenant)
          AND (p.problem IS NOT NULL OR (s.counted_to <= p.upto AND (s.counted_to < p.slots[1]) IS NOT FALSE))
        ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED);
    FOR _queue IN
        SELECT q.id, q.namespace || '/' || q.name AS path, array_agg(s.id) AS ids
        FROM poolkeeper.schedule AS s JOIN poolkeeper.queue AS q ON q.id = s.queue_id WHERE s.id = ANY (_mine) GROUP BY q.id ORDER BY q.id
    LOOP
        RETURN QUERY
        WITH plan AS MATERIALIZED (
            SELECT p.* FROM unnest(_all) AS p WHERE p.id = ANY (_queue.ids)
        ), done AS MATERIALIZED (
            SELECT * FROM poolkeeper.submit_slots(_queue.path, ARRAY(SELECT p::poolkeeper.slot_plan FROM plan AS p WHERE p.problem IS NULL))
        ), judged AS MATERIALIZED (
            SELECT p.*, coalesce(d.fired, 0) AS fired, d.last, d.task, d.aged, d.done_to, d.due, coalesce(left(p.problem, 500), d.refused) AS refused
            FROM plan AS p LEFT JOIN done AS d ON d.id = p.id
        )
        UPDATE poolkeeper.schedule AS s
        SET version = s.version + 1, refused = j.refused, refusals = CASE WHEN j.refused IS NULL THEN 0 ELSE s.refusals + 1 END,
            counted_to = CASE WHEN j.refused IS NULL THEN j.upto ELSE coalesce(j.done_to, s.counted_to) END,
            due_at = CASE WHEN j.refused IS NULL THEN j.next ELSE coalesce(j.due, s.due_at) END,
            look_at = CASE WHEN j.refused IS NULL THEN j.next ELSE _now + poolkeeper.look_again(s.refusals) END,
            fired_at = coalesce(j.last, s.fired_at), fired_task = coalesce(j.task, s.fired_task),
            missed_at = greatest(s.missed_at, j.aged, CASE WHEN j.refused IS NULL THEN j.missed END)
        FROM judged AS j WHERE s.id = j.id
        RETURNING s.id, j.fired, j.refused;
    END LOOP;
END $$;
