-- Idempotency keys of a submit (Q6). Part of submit_many (20_submit.sql).
--
-- Guarantees: one task per key within tenant and queue, whoever comes at the same time; keys are taken in order, so that two bulk submits
-- cannot deadlock (Q5), and a racing equal key is waited for at most 5 s. Index: task_key_pkey.

-- Takes the keys of a bulk submit that are free, in order and in one statement; answers whether these were all. None of them
-- is taken where another transaction holds one for longer than a moment.
CREATE OR REPLACE FUNCTION poolkeeper.take_keys_at_once(_queue_id integer, _rows poolkeeper.candidate[], _now timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    _all boolean;
BEGIN
    PERFORM set_config('lock_timeout', '200ms', true);
    WITH wanted AS MATERIALIZED (
        SELECT r.ordinal, r.tenant, r.key, r.id, r.payload FROM unnest(_rows) AS r WHERE r.key IS NOT NULL AND r.code IS NULL AND r.existing IS NULL
    ), taken AS (
        INSERT INTO poolkeeper.task_key (tenant, queue_id, key, task_id, digest, created_at)
        SELECT r.tenant, _queue_id, r.key, r.id, poolkeeper.keyed_digest(r.payload, i.digest_inner, i.digest_outer), _now
        FROM wanted AS r CROSS JOIN poolkeeper.instance AS i
        ORDER BY r.tenant COLLATE "C", r.key COLLATE "C", r.ordinal
        ON CONFLICT DO NOTHING RETURNING 1
    )
    SELECT (SELECT count(*) FROM taken) = (SELECT count(*) FROM wanted) INTO _all;
    RETURN _all;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Takes the idempotency keys of the candidates, in order. A candidate whose key is known gets the first task (existing)
-- or key_conflict; whose key another transaction holds for longer than 5 s gets key_in_flight. One that was refused
-- takes no key, but a repeat of what had been accepted gets the first task all the same.
CREATE OR REPLACE FUNCTION poolkeeper.take_keys(_queue_id integer, _rows poolkeeper.candidate[], _now timestamptz)
RETURNS poolkeeper.candidate[]
LANGUAGE plpgsql
AS $$
DECLARE
    _one    record;
    _found  poolkeeper.task_key;
    _wait   text := current_setting('lock_timeout');
    _bulk   boolean := cardinality(_rows) > 1;
    _all    boolean := false;
    _digest bytea;
BEGIN
    FOR _one IN
        SELECT r.ordinal, k.task_id, k.digest = poolkeeper.keyed_digest(r.payload, i.digest_inner, i.digest_outer) AS same, r.code IS NULL AS fresh
        FROM unnest(_rows) AS r CROSS JOIN poolkeeper.instance AS i
        CROSS JOIN LATERAL (SELECT h.task_id, h.digest FROM poolkeeper.task_key AS h
                            WHERE h.tenant = r.tenant AND h.queue_id = _queue_id AND h.key = r.key OFFSET 0) AS k
        WHERE CASE WHEN r.code IS NULL THEN _bulk ELSE r.code <> 'role_not_allowed' END
    LOOP
        IF _one.same THEN
            _rows[_one.ordinal].code := NULL;
            _rows[_one.ordinal].existing := _one.task_id;
        ELSIF _one.fresh THEN
            _rows[_one.ordinal].code := 'key_conflict';
        END IF;
    END LOOP;
    IF _bulk THEN
        _all := poolkeeper.take_keys_at_once(_queue_id, _rows, _now);
    END IF;
    PERFORM set_config('lock_timeout', '5s', true);
    FOR _one IN
        SELECT r.ordinal, r.id, r.tenant, r.key, r.payload FROM unnest(_rows) AS r
        LEFT JOIN LATERAL (SELECT k.task_id FROM poolkeeper.task_key AS k
                           WHERE _bulk AND k.tenant = r.tenant AND k.queue_id = _queue_id AND k.key = r.key OFFSET 0) AS h ON true
        WHERE NOT _all AND r.key IS NOT NULL AND r.code IS NULL AND r.existing IS NULL AND h.task_id IS DISTINCT FROM r.id
        ORDER BY r.tenant COLLATE "C", r.key COLLATE "C", r.ordinal
    LOOP
        _digest := poolkeeper.payload_digest(_one.payload);
        BEGIN
            LOOP
                INSERT INTO poolkeeper.task_key (tenant, queue_id, key, task_id, digest, created_at)
                VALUES (_one.tenant, _queue_id, _one.key, _one.id, _digest, _now)
                ON CONFLICT DO NOTHING;
                EXIT WHEN FOUND;
                SELECT k.* INTO _found FROM poolkeeper.task_key AS k
                WHERE k.tenant = _one.tenant AND k.queue_id = _queue_id AND k.key = _one.key;
                CONTINUE WHEN NOT FOUND;  -- its holder was removed between the two: the key is free
                IF _found.digest = _digest THEN
                    _rows[_one.ordinal].existing := _found.task_id;
                ELSE
                    _rows[_one.ordinal].code := 'key_conflict';
                END IF;
                EXIT;
            END LOOP;
        EXCEPTION WHEN lock_not_available THEN
            _rows[_one.ordinal].code := 'key_in_flight';
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', _wait, true);
    RETURN _rows;
END $$;
