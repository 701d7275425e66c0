-- What a delivery may do while it runs: save its checkpoint, extend its lease. Both demand the current token and a
-- lease in time (Q18, Q19). Locks: the lease row by primary key.

-- The lease of a token, locked, or the code of the refusal. In time: until the session's renewal plus the queue's
-- visibility timeout, or until what extend said. Waits for others a moment only: the handler's own transaction, which may be
-- about to succeed, holds the lease for as long as it likes, and may itself be waiting for this answer: in_transaction.
CREATE OR REPLACE FUNCTION poolkeeper.lease_of(_task_id uuid, _token text, OUT code text, OUT lease poolkeeper.lease)
LANGUAGE plpgsql
AS $$
DECLARE
    _until timestamptz;
    _now   timestamptz;
    _wait  text := current_setting('lock_timeout');
BEGIN
    SELECT l.* INTO lease FROM poolkeeper.lease AS l
    WHERE l.task_id = _task_id AND l.token_hash = poolkeeper.token_hash(_token) FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        BEGIN
            PERFORM set_config('lock_timeout', '200ms', true);
            SELECT l.* INTO lease FROM poolkeeper.lease AS l
            WHERE l.task_id = _task_id AND l.token_hash = poolkeeper.token_hash(_token) FOR NO KEY UPDATE;
            PERFORM set_config('lock_timeout', _wait, true);
        EXCEPTION WHEN lock_not_available THEN
            code := 'in_transaction';
            RETURN;
        END;
    END IF;
    IF lease.task_id IS NULL THEN
        code := poolkeeper.why_not(_task_id, poolkeeper.token_hash(_token));
        code := CASE code WHEN 'already_done' THEN 'stale_token' ELSE code END;
        RETURN;
    END IF;
    _now := poolkeeper.clock();
    FOR _look IN 1 .. 2 LOOP  -- late: perhaps nobody could be in time (Q23)
        SELECT poolkeeper.lease_until(s.renewed_at, q.visibility_timeout, lease.extended_until) INTO _until
        FROM poolkeeper.session AS s, poolkeeper.queue AS q WHERE s.id = lease.session_id AND q.id = lease.queue_id;
        EXIT WHEN _until > _now OR poolkeeper.reached(_now);
    END LOOP;
    code := CASE WHEN lease.cancel_by IS NOT NULL THEN 'canceled' WHEN _until <= _now THEN 'lease_expired' END;
END $$;

-- Q30: newest by (delivery, sequence) wins; too large: refused, the previous one stays and the task lives. The answer
-- tells the policy's rate; keeping to it is the worker's part.
CREATE OR REPLACE FUNCTION poolkeeper.checkpoint(_task_id uuid, _token text, _value jsonb, _sequence integer, _version integer DEFAULT 1)
RETURNS TABLE (code text, "limit" bigint, current bigint, per_second double precision)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _found record;
    _max   integer;
    _rate  double precision;
    _size  integer := octet_length(_value::text);
BEGIN
    PERFORM poolkeeper.caller();
    PERFORM poolkeeper.demand_checkpoint(_value, _sequence, _version);
    SELECT * INTO _found FROM poolkeeper.lease_of(_task_id, _token);
    IF _found.code IS NOT NULL THEN
        RETURN QUERY SELECT _found.code, NULL::bigint, NULL::bigint, NULL::double precision;
        RETURN;
    END IF;
    SELECT q.checkpoint_max_bytes, q.checkpoint_max_per_second INTO _max, _rate FROM poolkeeper.queue AS q WHERE q.id = (_found.lease).queue_id;
    IF _size > _max THEN
        RETURN QUERY SELECT 'checkpoint_too_large', _max::bigint, _size::bigint, _rate;
        RETURN;
    END IF;
    IF poolkeeper.unreadable(_value, _value::text) THEN  -- the next delivery's worker would choke on it (Q8)
        RETURN QUERY SELECT 'payload_invalid', NULL::bigint, NULL::bigint, _rate;
        RETURN;
    END IF;
    INSERT INTO poolkeeper.checkpoint AS c (task_id, delivery, sequence, version, value, saved_at)
    VALUES (_task_id, (_found.lease).delivery, _sequence, _version, _value, poolkeeper.clock())
    ON CONFLICT (task_id) DO UPDATE
        SET delivery = EXCLUDED.delivery, sequence = EXCLUDED.sequence, version = EXCLUDED.version, value = EXCLUDED.value, saved_at = EXCLUDED.saved_at
        WHERE (c.delivery, c.sequence) < (EXCLUDED.delivery, EXCLUDED.sequence);
    IF (_found.lease).progress_by IS NOT NULL THEN
        PERFORM poolkeeper.progressed(ARRAY[_task_id], (_found.lease).session_id, poolkeeper.clock());
    END IF;
    IF NOT (_found.lease).checkpointed THEN
        UPDATE poolkeeper.lease AS l SET checkpointed = true WHERE l.task_id = _task_id;
    END IF;
    RETURN QUERY SELECT NULL::text, NULL::bigint, NULL::bigint, _rate;
END $$;

-- For workers in other languages that hold single tasks without renewing (Q20): at most an hour at a time.
CREATE OR REPLACE FUNCTION poolkeeper.extend(_task_id uuid, _token text, _by interval) RETURNS TABLE (code text, until timestamptz)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _found record;
    _until timestamptz := poolkeeper.clock() + least(greatest(_by, interval '0'), interval '1 hour');
BEGIN
    PERFORM poolkeeper.caller();
    SELECT * INTO _found FROM poolkeeper.lease_of(_task_id, _token);
    IF _found.code IS NULL THEN
        UPDATE poolkeeper.lease AS l SET extended_until = _until WHERE l.task_id = _task_id;
        UPDATE poolkeeper.session AS s SET graces = 0 WHERE s.id = (_found.lease).session_id AND s.graces > 0;
    END IF;
    RETURN QUERY SELECT _found.code, CASE WHEN _found.code IS NULL THEN _until END;
END $$;
