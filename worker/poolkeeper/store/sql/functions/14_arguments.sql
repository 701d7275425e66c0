-- What a program may give where a function takes JSON, a name or a number: anything else is misuse, PK400 with a sentence
-- (contract 9). Nothing that was given wrongly is stored, and nothing of the call has happened. Wishes about a task are
-- refused by rows instead (20_submit), since people write them.

CREATE OR REPLACE FUNCTION poolkeeper.demand(_holds boolean, _what text, _remedy text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF _holds IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = 'PK400', MESSAGE = _what, HINT = _remedy;
    END IF;
END $$;

-- An object of at most so many bytes as JSON, which every reader can read back.
CREATE OR REPLACE FUNCTION poolkeeper.is_object(_value jsonb, _bytes integer) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(jsonb_typeof(_value) = 'object' AND octet_length(v.text) <= _bytes AND NOT poolkeeper.unreadable(_value, v.text), false)
    FROM (SELECT _value::text AS text OFFSET 0) AS v
$$;

-- A number between these that a double holds, or absent.
CREATE OR REPLACE FUNCTION poolkeeper.is_number(_value jsonb, _least numeric, _most numeric) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE coalesce(jsonb_typeof(_value), 'null') WHEN 'null' THEN true WHEN 'number' THEN _value::numeric BETWEEN _least AND _most AND scale(_value::numeric) <= 300 ELSE false END
$$;

-- How many entries a list has; none is NULL or JSON's null.
CREATE OR REPLACE FUNCTION poolkeeper.entries(_list jsonb, _what text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    CASE coalesce(jsonb_typeof(_list), 'null')
        WHEN 'array' THEN RETURN jsonb_array_length(_list);
        WHEN 'null' THEN RETURN 0;
        ELSE RAISE EXCEPTION '% must be a JSON array', _what USING ERRCODE = 'PK400', HINT = 'give an empty array for none';
    END CASE;
END $$;

-- For what is read out of such a list as rows: what the database said of an entry that cannot be read.
CREATE OR REPLACE FUNCTION poolkeeper.unreadable_entry(_what text, _said text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'an entry of % cannot be read: %', _what, left(_said, 200) USING ERRCODE = 'PK400',
        HINT = 'an entry is an object: t a task''s id, k its token; of settles o an outcome, a a number of seconds, u and m booleans';
END $$;

-- A turn: its number and that of the last one whose answer came.
CREATE OR REPLACE FUNCTION poolkeeper.demand_turn(_turn bigint, _received bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF (_turn BETWEEN 0 AND 1000000000000000 AND _received BETWEEN 0 AND 1000000000000000) IS NOT TRUE THEN
        RAISE EXCEPTION 'no turn % after an answer to %', _turn, _received USING ERRCODE = 'PK400',
            HINT = 'turns are numbered from 1; received is the number of the last turn whose answer arrived, 0 for none';
    END IF;
END $$;

-- Whether this is a lane, and what that one got of its round. One expression, so that it costs no call.
CREATE OR REPLACE FUNCTION poolkeeper.is_place(_lane jsonb, _used jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT (_lane #>> '{}' ~ '^-?[0-9]{1,18}$' OR _lane BETWEEN '-9223372036854775808' AND '9223372036854775807' AND _lane #>> '{}' ~ '^-?[0-9]{19}$')
           AND _used #>> '{}' ~ '^[0-9]{1,9}$'
$$;

-- Where a session's walk over the lanes of a queue stopped, or NULL where that is nothing which claim_queue has answered.
CREATE OR REPLACE FUNCTION poolkeeper.cursor_of(_cursor jsonb, _queue_id integer) RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN poolkeeper.is_place(c.at -> 0, c.at -> 1) THEN
               CASE WHEN c.at -> 2 IS NULL OR (poolkeeper.is_place(c.at -> 3, c.at -> 4) AND c.at ->> 2 ~ '^[0-9]{1,2}$') THEN c.at END END
    FROM (SELECT _cursor -> _queue_id::text AS at OFFSET 0) AS c
$$;

-- What a worker says about itself at registration, and what it can run.
CREATE OR REPLACE FUNCTION poolkeeper.demand_registration(_pool text, _queues text[], _types text[], _concurrency integer, _info jsonb) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM poolkeeper.demand(poolkeeper.printable(_pool) AND _concurrency BETWEEN 1 AND 10000,
        format('no session for pool "%s" with %s slots', left(_pool, 200), _concurrency),
        'a pool is named by 1 to 200 printable characters and a session has 1 to 10000 slots');
    PERFORM poolkeeper.demand(coalesce(array_ndims(_queues), 1) = 1 AND cardinality(_queues) <= 1000
            AND NOT EXISTS (SELECT FROM unnest(_queues) AS q WHERE q IS NULL OR length(q) > 127),
        'no session for these queues', 'name at most 1000 queues, each as namespace/name');
    PERFORM poolkeeper.demand(coalesce(array_ndims(_types), 1) = 1 AND cardinality(_types) <= 1000
            AND NOT EXISTS (SELECT FROM unnest(_types) AS t WHERE t IS NULL OR length(t) > 100),
        'no session for these types of tasks', 'name at most 1000 types, each of at most 100 characters');
    PERFORM poolkeeper.demand(poolkeeper.is_object(_info, 8192) AND coalesce(length(_info ->> 'build'), 0) <= 200,
        'no session with this info', 'info is an object of at most 8192 bytes as JSON, its build at most 200 characters');
END $$;

-- What a process has done so far; what a drain took. Both are read by the operator's one statement: one value that it could
-- not read would keep it from reading all the others.
CREATE OR REPLACE FUNCTION poolkeeper.demand_stats(_stats jsonb) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM poolkeeper.demand(jsonb_typeof(coalesce(nullif(_stats, 'null'), '{}')) = 'object'
            AND poolkeeper.is_number(_stats -> 'finished', 0, 9007199254740992) AND coalesce(_stats ->> 'finished' ~ '^[0-9]+$', true)
            AND poolkeeper.is_number(_stats -> 'busy_seconds', 0, 1e15)
            AND CASE jsonb_typeof(_stats -> 'progress') WHEN 'array' THEN NOT EXISTS (
                    SELECT FROM jsonb_array_elements_text(_stats -> 'progress') AS p WHERE p !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
                ELSE NOT coalesce(_stats ? 'progress', false) END,
        'stats cannot be read', 'stats is an object: finished a whole number, busy_seconds a number, neither below 0, progress a list of tasks'' ids');
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.demand_report(_report jsonb) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM poolkeeper.demand(poolkeeper.is_object(_report, 8192) AND jsonb_typeof(_report -> 'duration_seconds') = 'number'
            AND poolkeeper.is_number(_report -> 'duration_seconds', 0, 1e9) AND poolkeeper.is_number(_report -> 'grace_seconds', 0, 1e9)
            AND coalesce(jsonb_typeof(_report -> 'truncated'), 'null') IN ('boolean', 'null'),
        'the drain report cannot be read',
        'a report is an object of at most 8192 bytes as JSON: duration_seconds and grace_seconds numbers from 0 to 1e9, truncated a boolean');
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.demand_checkpoint(_value jsonb, _sequence integer, _version integer) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM poolkeeper.demand(_value IS NOT NULL AND _sequence IS NOT NULL AND _version IS NOT NULL,
        'a checkpoint has a value, a sequence and a version', 'give JSON''s null where the value is nothing');
END $$;

-- Of the operator and of people: names of what they speak about, and texts that are kept with it.
CREATE OR REPLACE FUNCTION poolkeeper.demand_text(_text text, _what text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM poolkeeper.demand(poolkeeper.printable(_text), format('%s "%s" cannot be', _what, left(_text, 80)),
        format('%s is a text of 1 to 200 printable characters', _what));
END $$;
