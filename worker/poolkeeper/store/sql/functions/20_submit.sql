-- Arrow: (nothing) -> ready | scheduled.
--
-- Guarantees: after commit the task exists, once per idempotency key (P1, Q6); in the caller's transaction exactly if
-- that commits (Q4). A refusal is a row, never an error (Q7). Locks: none that another submitter needs, a racing equal
-- key aside, which is waited for at most 5 s; keys are taken in order, so that two bulk submits cannot deadlock (Q5).
-- Indexes: task_key_pkey for keys, queue_namespace_name_key for the queue.

DO $$ BEGIN
    CREATE TYPE poolkeeper.candidate AS (
        ordinal integer, id uuid, type text, tenant text, priority smallint, run_at timestamptz, expires_at timestamptz,
        max_deliveries integer, payload jsonb, labels jsonb, traceparent text, key text, code text, existing uuid, ordering_key text);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- Whether a reader could choke on a value that Postgres takes: nested 128 levels deep or with a number beyond a double.
-- One such payload would take its worker's whole turn with it (Q8). The cheap looks at the text come first.
CREATE OR REPLACE FUNCTION poolkeeper.unreadable(_value jsonb, _text text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(_text) < 256 THEN false ELSE
        (octet_length(_text) - octet_length(replace(replace(_text, '[', ''), '{', '')) >= 128 AND jsonb_path_exists(_value, 'strict $.**{128}'))
        OR (_text ~ '[0-9]{255}' AND jsonb_path_exists(_value,
            'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308))'))
    END
$$;

-- Tenants and keys (contract 10): 1 to 200 characters, compared as bytes, none of which breaks a line, hides itself or turns
-- the direction of the text around it: no log, table or metric can be forged by a name. Patterns are E'' literals throughout:
-- others would be read anew by a session that switches standard_conforming_strings off.
CREATE OR REPLACE FUNCTION poolkeeper.printable(_text text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT length(_text) BETWEEN 1 AND 200
       AND _text !~ E'[\\u0001-\\u001F\\u007F-\\u009F\\u00AD\\u061C\\u180E\\u200B-\\u200F\\u2028-\\u202E\\u2060-\\u206F\\uFEFF\\uFFF9-\\uFFFF\\U000E0000-\\U000E007F]'
$$;

-- What is wrong with how a task is named and what is wished for it, or NULL. Labels go to the worker with each claim, so
-- they are bounded apart from the policy, and what no reader can choke on.
CREATE OR REPLACE FUNCTION poolkeeper.misnamed(
    _type text, _tenant text, _key text, _labels jsonb, _traceparent text, _max_deliveries numeric, _run_at timestamptz, _now timestamptz
) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN NOT coalesce(_type ~ E'^[a-z][a-z0-9_]*(\\.[a-z0-9_]+)*$' AND length(_type) <= 100, false) THEN 'type_invalid'
        WHEN _tenant <> 'default' AND NOT poolkeeper.printable(_tenant) THEN 'tenant_invalid'
        WHEN _key IS NOT NULL AND NOT poolkeeper.printable(_key) THEN 'key_invalid'
        WHEN _labels IS NOT NULL AND (jsonb_typeof(_labels) <> 'object' OR octet_length(_labels::text) > 4096
                                      OR jsonb_path_exists(_labels, 'strict $.* ? (@.type() != "string")')) THEN 'labels_invalid'
        WHEN length(_traceparent) > 256 OR _max_deliveries < 1 OR NOT isfinite(_run_at) OR _run_at > _now + interval '100 years' THEN 'option_invalid'
    END
$$;

-- One refusal of admission, or NULL: the rule of Q7 in one place. _text: the payload's.
CREATE OR REPLACE FUNCTION poolkeeper.refusal(
    _queue poolkeeper.queue, _caller poolkeeper.access, _type text, _tenant text, _payload jsonb, _text text,
    _run_at timestamptz, _expires_at timestamptz, _now timestamptz
) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN NOT poolkeeper.may_see(_caller, (_queue).namespace || '/' || (_queue).name, _tenant) THEN 'role_not_allowed'
        WHEN (_queue).paused THEN 'queue_paused'
        WHEN (_queue).part_paused AND poolkeeper.suspends((_queue).id, _tenant) THEN 'tenant_suspended'
        WHEN cardinality((_queue).task_types) > 0 AND _type <> ALL ((_queue).task_types) THEN 'unknown_type'
        WHEN octet_length(_text) > (_queue).max_payload_bytes THEN 'payload_too_large'
        WHEN poolkeeper.unreadable(_payload, _text) THEN 'payload_invalid'
        WHEN _expires_at <= greatest(_run_at, _now) THEN 'max_age_passed'
    END
$$;

-- A moment as ISO 8601 with its zone; raises data_exception for any other form. Without a zone it would be another moment in
-- each session's own, and other forms follow the session's DateStyle.
CREATE OR REPLACE FUNCTION poolkeeper.moment(_text text) RETURNS timestamptz
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
AS $$
BEGIN
    IF _text !~* E'^\\d{4}-\\d{2}-\\d{2}[t ]\\d{2}:\\d{2}(:\\d{2}([.,]\\d+)?)? ?(z|[+-]\\d{2}(:?\\d{2}(:?\\d{2})?)?)$' THEN
        RAISE invalid_datetime_format USING MESSAGE = 'no moment with its time zone: ' || left(_text, 80),
            HINT = 'write it as 2030-01-31T08:00:00+01:00 or 2030-01-31T07:00:00Z';
    END IF;
    RETURN _text::timestamptz;
END $$;

-- The tasks as rows, each with its refusal, their ids counted on from _count. Raises data_exception where a wish is no number or no time at all.
CREATE OR REPLACE FUNCTION poolkeeper.candidate_rows(_tasks jsonb, _q poolkeeper.queue, _caller poolkeeper.access, _now timestamptz, _stem text, _count bigint)
RETURNS SETOF poolkeeper.candidate
LANGUAGE sql STABLE  -- as part of the statement that asks
AS $$
        SELECT c.ordinal, poolkeeper.id_at(_stem, _count + c.ordinal), c.type, c.tenant, c.priority, c.run_at, c.expires_at, least(c.max_deliveries, _q.max_deliveries)::integer,
               c.payload, c.labels, c.traceparent, c.key,
               coalesce(poolkeeper.misnamed(c.type, c.tenant, c.key, c.labels, c.traceparent, c.max_deliveries, c.run_at, _now),
                        CASE WHEN NOT poolkeeper.printable(c.ordering_key) THEN 'key_invalid' END,
                        poolkeeper.refusal(_q, _caller, c.type, c.tenant, c.payload, c.text, c.run_at, c.expires_at, _now)), NULL::uuid, c.ordering_key
        FROM (
            SELECT e.ordinality::integer AS ordinal, e.t ->> 'type' AS type, coalesce(e.t ->> 'tenant', 'default') AS tenant,
                   least(greatest(coalesce((e.t ->> 'priority')::numeric, _q.priority_default), _q.priority_min), _q.priority_max)::smallint AS priority,
                   d.run_at,
                   d.run_at + least(make_interval(secs => (e.t ->> 'max_age')::double precision), _q.max_age) AS expires_at,
                   (e.t ->> 'max_deliveries')::numeric AS max_deliveries,
                   coalesce(e.t -> 'payload', 'null') AS payload, coalesce((e.t -> 'payload')::text, 'null') AS text, nullif(e.t -> 'labels', 'null') AS labels,
                   e.t ->> 'traceparent' AS traceparent, e.t ->> 'key' AS key, e.t ->> 'ordering_key' AS ordering_key
            FROM jsonb_array_elements(_tasks) WITH ORDINALITY AS e (t, ordinality)
            CROSS JOIN LATERAL (SELECT coalesce(poolkeeper.moment(e.t ->> 'run_at'), _now)
                                     + make_interval(secs => coalesce((e.t ->> 'delay')::double precision, 0)) AS run_at) AS d
            OFFSET 0  -- each wish is read once, however often it is looked at
        ) AS c ORDER BY c.ordinal
$$;

-- The same in one array.
CREATE OR REPLACE FUNCTION poolkeeper.candidates(_tasks jsonb, _q poolkeeper.queue, _caller poolkeeper.access, _now timestamptz)
RETURNS poolkeeper.candidate[]
LANGUAGE plpgsql
AS $$
DECLARE
    _first uuid := poolkeeper.new_id();
    _stem  text := poolkeeper.id_stem(_first);
    _count bigint := poolkeeper.id_count(_first);
BEGIN
    RETURN ARRAY(SELECT c FROM poolkeeper.candidate_rows(_tasks, _q, _caller, _now, _stem, _count) AS c);
END $$;

-- The same where one of them cannot be read: that one is refused with option_invalid.
CREATE OR REPLACE FUNCTION poolkeeper.candidates_one_by_one(_tasks jsonb, _q poolkeeper.queue, _caller poolkeeper.access, _now timestamptz)
RETURNS poolkeeper.candidate[]
LANGUAGE plpgsql
AS $$
DECLARE
    _rows poolkeeper.candidate[] := '{}';
    _row  poolkeeper.candidate;
BEGIN
    FOR _i IN 0 .. jsonb_array_length(_tasks) - 1 LOOP
        BEGIN
            _row := (poolkeeper.candidates(jsonb_build_array(_tasks -> _i), _q, _caller, _now))[1];
        EXCEPTION WHEN data_exception THEN
            _row := NULL;
            _row.code := CASE WHEN poolkeeper.may_see(_caller, _q.namespace || '/' || _q.name, _tasks -> _i ->> 'tenant') THEN 'option_invalid' ELSE 'role_not_allowed' END;
        END;
        _row.ordinal := _i + 1;
        _rows := _rows || _row;
    END LOOP;
    RETURN _rows;
END $$;

-- One task that has no key, comes at once and meets no bound, as most do: the same by two plain inserts. NULL where it would be
-- refused: the longer way tells why.
CREATE OR REPLACE FUNCTION poolkeeper.submit_plain(_t jsonb, _q poolkeeper.queue, _caller poolkeeper.access, _now timestamptz) RETURNS uuid
LANGUAGE plpgsql
AS $$
DECLARE
    _id       uuid := poolkeeper.new_id();
    _type     text := _t ->> 'type';
    _tenant   text := coalesce(_t ->> 'tenant', 'default');
    _payload  jsonb := coalesce(_t -> 'payload', 'null');
    _labels   jsonb := nullif(_t -> 'labels', 'null');
    _priority smallint := least(greatest(_q.priority_default, _q.priority_min), _q.priority_max);
    _expires  timestamptz := _now + _q.max_age;
BEGIN
    IF poolkeeper.misnamed(_type, _tenant, NULL, _labels, _t ->> 'traceparent', NULL, _now, _now) IS NOT NULL
        OR poolkeeper.refusal(_q, _caller, _type, _tenant, _payload, _payload::text, _now, _expires, _now) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO poolkeeper.task (id, queue_id, type, tenant, priority, max_deliveries, accepted_at, run_at, expires_at, payload, labels, traceparent, submitted_by)
    VALUES (_id, _q.id, _type, _tenant, _priority, _q.max_deliveries, _now, _now, _expires, _payload, _labels, _t ->> 'traceparent', session_user);
    INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at, expires_at)
    VALUES (_id, _q.id, _priority, poolkeeper.lane_key(_q.id, _tenant), poolkeeper.type_key(_type), _now, _expires);
    RETURN _id;
END $$;

-- Says at once whether a submit of many can be written without an array between.
CREATE OR REPLACE FUNCTION poolkeeper.demand_each(_taken bigint, _wanted bigint) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    IF _taken <> _wanted THEN
        RAISE data_exception USING MESSAGE = 'not each key is free';
    END IF;
    RETURN true;
END $$;

-- Many tasks without an ordering key, where no bound is met: written without an array between. What is refused is so by its row.
-- Raises data_exception before the first row where a key is taken, or stands with a task that is refused; and lock_not_available
-- where another transaction holds one for longer than the caller waits: the longer way tells what became of them (22_keys.sql).
CREATE OR REPLACE FUNCTION poolkeeper.submit_at_once(_tasks jsonb, _q poolkeeper.queue, _caller poolkeeper.access, _notify boolean, _now timestamptz)
RETURNS TABLE (ordinal integer, task_id uuid, code text, size bigint, later boolean)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    _first uuid := poolkeeper.new_id();
    _stem  text := poolkeeper.id_stem(_first);
    _count bigint := poolkeeper.id_count(_first);
BEGIN RETURN QUERY
    WITH c AS MATERIALIZED (
        SELECT * FROM poolkeeper.candidate_rows(_tasks, _q, _caller, _now, _stem, _count)
    ), taken AS (
        INSERT INTO poolkeeper.task_key (tenant, queue_id, key, task_id, digest, created_at)
        SELECT c.tenant, _q.id, c.key, c.id, poolkeeper.keyed_digest(c.payload, i.digest_inner, i.digest_outer), _now
        FROM c CROSS JOIN poolkeeper.instance AS i WHERE c.key IS NOT NULL AND c.code IS NULL
        ORDER BY c.tenant COLLATE "C", c.key COLLATE "C", c.ordinal
        ON CONFLICT DO NOTHING RETURNING 1
    ), bodies AS (
        INSERT INTO poolkeeper.task (id, queue_id, type, tenant, priority, max_deliveries, accepted_at, run_at, expires_at, payload, labels, traceparent, submitted_by, key)
        SELECT c.id, _q.id, c.type, c.tenant, c.priority, c.max_deliveries, _now, greatest(c.run_at, _now), c.expires_at,
               c.payload, c.labels, c.traceparent, session_user, c.key
        FROM c WHERE c.code IS NULL
    ), due_later AS (
        INSERT INTO poolkeeper.later (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, due_at)
        SELECT c.id, _q.id, c.priority, poolkeeper.lane_key(_q.id, c.tenant), poolkeeper.type_key(c.type), c.run_at, c.expires_at, c.run_at
        FROM c WHERE c.code IS NULL AND c.run_at > _now
    ), claimable AS (
        INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at, expires_at)
        SELECT c.id, _q.id, c.priority, poolkeeper.lane_key(_q.id, c.tenant), poolkeeper.type_key(c.type), _now, c.expires_at
        FROM c WHERE c.code IS NULL AND c.run_at <= _now
    ), woken AS MATERIALIZED (
        SELECT poolkeeper.wake() WHERE _notify AND EXISTS (SELECT FROM c WHERE c.code IS NULL AND c.run_at <= _now)
    )
    SELECT c.ordinal, CASE WHEN c.code IS NULL THEN c.id END, c.code, CASE c.code WHEN 'payload_too_large' THEN octet_length(c.payload::text)::bigint END, c.run_at > _now
    FROM c CROSS JOIN (SELECT count(*) FROM woken) AS w
    WHERE (SELECT poolkeeper.demand_each((SELECT count(*) FROM taken), (SELECT count(*) FROM c WHERE c.key IS NOT NULL)));
END $$;

-- _tasks: array of {type, payload, tenant, key, priority, run_at (ISO 8601 with its zone), delay (s), max_age (s),
-- max_deliveries, labels, traceparent, ordering_key}; a verdict for each, in its order.
CREATE OR REPLACE FUNCTION poolkeeper.submit_many(_queue text, _tasks jsonb, _notify boolean DEFAULT true)
RETURNS TABLE (ordinal integer, task_id uuid, code text, created boolean, retry_after interval, "limit" bigint, current bigint,
               state text, result jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan  -- planned once for a connection: planning was more than half of a single submit
AS $$
#variable_conflict use_column
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _q      poolkeeper.queue;
    _now    timestamptz := poolkeeper.clock();
    _rows   poolkeeper.candidate[];
    _full   poolkeeper.overrun[];
    _ready  bigint;
    _path   text := poolkeeper.queue_path(_queue);
    _wait   text := current_setting('lock_timeout');
BEGIN
    IF jsonb_typeof(_tasks) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'tasks must be a JSON array' USING ERRCODE = 'PK400', HINT = 'give an empty array for none';
    END IF;
    PERFORM poolkeeper.demand_durable();
    SELECT q.* INTO _q FROM poolkeeper.queue AS q
    WHERE q.namespace = split_part(_path, '/', 1) AND q.name = split_part(_path, '/', 2) AND poolkeeper.may_see(_caller, _path, NULL);
    IF NOT FOUND THEN  -- a foreign queue answers the same
        RETURN QUERY SELECT i, NULL::uuid, 'unknown_queue', false, NULL::interval, NULL::bigint, NULL::bigint, NULL::text, NULL::jsonb
                     FROM generate_series(1, jsonb_array_length(_tasks)) AS i;
        RETURN;
    END IF;

    IF jsonb_array_length(_tasks) = 1 AND NOT _q.lanes_kept AND NOT poolkeeper.bounds_waiting(_q)
        AND num_nonnulls(_tasks -> 0 ->> 'key', _tasks -> 0 ->> 'ordering_key', _tasks -> 0 ->> 'run_at', _tasks -> 0 ->> 'delay',
                         _tasks -> 0 ->> 'max_age', _tasks -> 0 ->> 'max_deliveries', _tasks -> 0 ->> 'priority') = 0 THEN
        task_id := poolkeeper.submit_plain(_tasks -> 0, _q, _caller, _now);
        IF task_id IS NOT NULL THEN
            IF _notify AND _q.wake_up = 'notify' THEN
                PERFORM poolkeeper.wake();
            END IF;
            ordinal := 1;
            created := true;
            state := 'ready';
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    -- a call that is repeated, whose first key is taken, goes the longer way at once
    IF NOT _q.lanes_kept AND NOT poolkeeper.bounds_waiting(_q) AND NOT jsonb_path_exists(_tasks, 'lax $[*] ? (@.ordering_key != null)')
        AND NOT EXISTS (SELECT FROM poolkeeper.task_key AS k
                        WHERE k.tenant = coalesce(_tasks -> 0 ->> 'tenant', 'default') AND k.queue_id = _q.id AND k.key = _tasks -> 0 ->> 'key') THEN
      BEGIN
        PERFORM set_config('lock_timeout', '200ms', true);
        RETURN QUERY
            SELECT s.ordinal, s.task_id, s.code, s.code IS NULL,
                   CASE WHEN s.code IN ('queue_paused', 'tenant_suspended') THEN interval '5 seconds' END,
                   CASE s.code WHEN 'payload_too_large' THEN _q.max_payload_bytes::bigint END, s.size,
                   CASE WHEN s.code IS NOT NULL THEN NULL WHEN s.later THEN 'scheduled' ELSE 'ready' END, NULL::jsonb
            FROM poolkeeper.submit_at_once(_tasks, _q, _caller, _notify AND _q.wake_up = 'notify', _now) AS s;
        PERFORM set_config('lock_timeout', _wait, true);
        RETURN;
      EXCEPTION WHEN data_exception OR lock_not_available THEN  -- before the first row: told by the longer way
      END;
    END IF;
    BEGIN
        _rows := poolkeeper.candidates(_tasks, _q, _caller, _now);
    EXCEPTION WHEN data_exception THEN  -- one of them at least: each for itself, so that the others stand
        _rows := poolkeeper.candidates_one_by_one(_tasks, _q, _caller, _now);
    END;

    IF poolkeeper.bounds_waiting(_q) THEN
        _full := poolkeeper.overruns(_q, _rows, _now);
        FOR _i IN 1 .. cardinality(_full) LOOP
            _rows[(_full[_i]).ordinal].code := (_full[_i]).code;
        END LOOP;
    END IF;

    IF EXISTS (SELECT FROM unnest(_rows) AS r WHERE r.key IS NOT NULL) THEN
        _rows := poolkeeper.take_keys(_q.id, _rows, _now);
    END IF;

    WITH accepted AS (
        SELECT r.*, CASE WHEN r.ordering_key IS NOT NULL THEN nextval('poolkeeper.ordering_no') END AS ordering_no
        FROM unnest(_rows) AS r WHERE r.code IS NULL AND r.existing IS NULL
    ), bodies AS (
        INSERT INTO poolkeeper.task (id, queue_id, type, tenant, priority, max_deliveries, accepted_at, run_at, expires_at,
                                     payload, labels, traceparent, submitted_by, key, ordering_key, ordering_no)
        SELECT a.id, _q.id, a.type, a.tenant, a.priority, a.max_deliveries, _now, greatest(a.run_at, _now), a.expires_at,
               a.payload, a.labels, a.traceparent, session_user, a.key, a.ordering_key, a.ordering_no
        FROM accepted AS a
    ), due_later AS (
        INSERT INTO poolkeeper.later (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, due_at)
        SELECT a.id, _q.id, a.priority, poolkeeper.lane_key(_q.id, a.tenant), poolkeeper.type_key(a.type), a.run_at, a.expires_at, a.run_at
        FROM accepted AS a WHERE a.run_at > _now AND a.ordering_key IS NULL
    ), claimable AS (
        INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at, expires_at)
        SELECT a.id, _q.id, a.priority, poolkeeper.lane_key(_q.id, a.tenant), poolkeeper.type_key(a.type), _now, a.expires_at
        FROM accepted AS a WHERE a.run_at <= _now AND a.ordering_key IS NULL
        RETURNING 1
    ), behind_keys AS (
        INSERT INTO poolkeeper.ordered (task_id, queue_id, gate, place, priority, lane, type_key, ready_at, expires_at, due_at)
        SELECT a.id, _q.id, poolkeeper.gate_key(_q.id, a.tenant, a.ordering_key), a.ordering_no, a.priority, poolkeeper.lane_key(_q.id, a.tenant),
               poolkeeper.type_key(a.type), greatest(a.run_at, _now), a.expires_at, CASE WHEN a.run_at > _now THEN a.run_at END
        FROM accepted AS a WHERE a.ordering_key IS NOT NULL
        RETURNING gate
    ), due AS (
        INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT DISTINCT _q.id, b.gate FROM behind_keys AS b
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM claimable) + (SELECT count(*) FROM due) INTO _ready;
    IF _ready > 0 AND _q.lanes_kept THEN
        PERFORM poolkeeper.open_lanes(array_agg(_q.id), array_agg(poolkeeper.lane_key(_q.id, r.tenant)))
        FROM unnest(_rows) AS r WHERE r.code IS NULL AND r.existing IS NULL AND r.run_at <= _now;
    END IF;
    IF _ready > 0 AND _notify AND _q.wake_up = 'notify' THEN
        PERFORM poolkeeper.wake();
    END IF;

    RETURN QUERY
        SELECT r.ordinal, CASE WHEN r.code IS NULL THEN coalesce(r.existing, r.id) END, r.code, r.code IS NULL AND r.existing IS NULL,
               CASE WHEN r.code IN ('queue_paused', 'tenant_suspended', 'key_in_flight', 'queue_limit', 'tenant_queue_limit') THEN interval '5 seconds' END,
               CASE r.code WHEN 'payload_too_large' THEN _q.max_payload_bytes::bigint WHEN f.code THEN f.bound END,
               CASE r.code WHEN 'payload_too_large' THEN octet_length(r.payload::text)::bigint WHEN f.code THEN f.waiting END,
               CASE WHEN r.code IS NOT NULL THEN NULL WHEN r.existing IS NOT NULL THEN coalesce(e.state, g.last_state)
                    WHEN r.run_at > _now THEN 'scheduled' ELSE 'ready' END,
               e.result
        FROM unnest(_rows) AS r
        LEFT JOIN unnest(_full) AS f ON f.ordinal = r.ordinal
        LEFT JOIN LATERAL (SELECT p.state, p.result FROM poolkeeper.present_state(r.existing) AS p WHERE r.existing IS NOT NULL) AS e ON true
        LEFT JOIN LATERAL (  -- the first task has gone by its age: the key still knows how it ended
            SELECT k.last_state FROM poolkeeper.task_key AS k
            WHERE r.existing IS NOT NULL AND e.state IS NULL AND k.tenant = r.tenant AND k.queue_id = _q.id AND k.key = r.key
            OFFSET 0) AS g ON true
        ORDER BY r.ordinal;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.submit(_queue text, _type text, _payload jsonb, _options jsonb DEFAULT '{}', _notify boolean DEFAULT true)
RETURNS TABLE (ordinal integer, task_id uuid, code text, created boolean, retry_after interval, "limit" bigint, current bigint,
               state text, result jsonb)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
    SELECT * FROM poolkeeper.submit_many(_queue, jsonb_build_array(_options || jsonb_build_object('type', _type, 'payload', _payload)), _notify)
$$;

-- A hint that work has come (Q15): says nothing, is sent by Postgres once per transaction, and is left out rather than
-- let a full notification queue fail the caller's commit. Polling is the truth.
CREATE OR REPLACE FUNCTION poolkeeper.wake() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('poolkeeper', '');
    END IF;
END $$;
