-- Arrow: running -> succeeded, in a transaction of the caller's: its own rows and "done" commit together, or neither (Q18).
--
-- Guarantees: the rule is that of every success (poolkeeper.settle_succeeded): the current token settles, late is fine while
-- the lease stands (Q19). A refusal is an error, so that no transaction commits its rows by not looking: PK410 with the code
-- stale_token, lease_expired, canceled or unknown_task, PK422 with payload_too_large or payload_invalid. Until the caller's
-- transaction has ended the lease stands for everybody else, and who must end it waits for nothing (settle: in_transaction).
-- Locks: the lease row by primary key, until the end of the caller's transaction.

-- Whether a settle can be taken now: not while the handler's own transaction, which may be about to succeed, holds the lease,
-- nor once it is gone.
CREATE OR REPLACE FUNCTION poolkeeper.lease_is_free(_task_id uuid) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM FROM poolkeeper.lease AS l WHERE l.task_id = _task_id FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- code NULL: done now, or earlier in this very transaction; already_done: it had succeeded in an earlier transaction, whose
-- rows are there: roll this one back. Any login with a row in poolkeeper.access may call it: the token is what counts.
CREATE OR REPLACE FUNCTION poolkeeper.succeed(_task_id uuid, _token text, _result jsonb DEFAULT NULL) RETURNS TABLE (code text, state text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _hash    bytea := poolkeeper.token_hash(_token);
    _fault   text := CASE WHEN _result IS NOT NULL THEN poolkeeper.result_fault(_result) END;
    _session poolkeeper.session;
    _ended   record;
    _code    text;
BEGIN
    PERFORM poolkeeper.caller();
    PERFORM poolkeeper.demand_durable();
    IF _fault IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'PK422', MESSAGE = CASE _fault WHEN 'result_too_large' THEN 'payload_too_large' ELSE 'payload_invalid' END,
            HINT = 'a result has at most 1048576 bytes as JSON, fewer than 128 levels and no number beyond a double; store it elsewhere and give a reference';
    END IF;
    SELECT s.* INTO _session FROM poolkeeper.session AS s
    WHERE s.id = (SELECT l.session_id FROM poolkeeper.lease AS l WHERE l.task_id = _task_id);
    IF poolkeeper.settle_succeeded(ARRAY[ROW(_task_id, _hash, 'succeeded', NULL, NULL, NULL, _result, NULL)::poolkeeper.ending],
                                   _session, poolkeeper.clock()) IS NOT NULL THEN
        RETURN QUERY SELECT NULL::text, 'succeeded';
        RETURN;
    END IF;
    _code := poolkeeper.why_not(_task_id, _hash);
    IF _code = 'already_done' THEN
        SELECT d.outcome, d.tx = pg_current_xact_id() AS here INTO _ended FROM poolkeeper.delivery AS d
        WHERE d.retention = 0 AND d.task_id = _task_id AND d.token_hash = _hash;
        IF _ended.outcome = 'succeeded' THEN
            RETURN QUERY SELECT CASE WHEN NOT _ended.here THEN 'already_done' END, 'succeeded';
            RETURN;
        END IF;
        _code := 'stale_token';  -- it ended otherwise
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'PK410', MESSAGE = _code,
        HINT = 'this delivery is over, its work belongs to another: roll back what was done for it';
END $$;
