-- What a webhook is to hear of dead letters (O24): kept with the number of its batch before that is confirmed, until it was taken. An
-- operator killed anywhere in between keeps it again under the same number, or posts it again: at least once, by a stable id.
-- Only the operator calls these; each write carries its term. Locks: leader, then dead_post, ascending.

-- Keeps what is to be told of a batch; false where it was kept before: the first word stands, or where the caller has no such queue.
CREATE OR REPLACE FUNCTION poolkeeper.keep_post(_queue_id integer, _number integer, _news jsonb, _term uuid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    PERFORM poolkeeper.demand(_number >= 1 AND poolkeeper.is_object(_news, 65536), 'this is no news of a batch', 'give its number and an object of at most 65536 bytes as JSON');
    IF NOT poolkeeper.may_rule(_queue_id) THEN
        RETURN false;
    END IF;
    PERFORM poolkeeper.demand_leader_of(_queue_id, _term);
    INSERT INTO poolkeeper.dead_post (queue_id, number, news, made_at) VALUES (_queue_id, _number, _news, poolkeeper.clock()) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- What a queue's webhook has not taken yet, the oldest first.
CREATE OR REPLACE FUNCTION poolkeeper.posts(_queue_id integer, _most integer DEFAULT 10) RETURNS TABLE (number integer, news jsonb, made_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    IF NOT poolkeeper.may_rule(_queue_id) THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT p.number, p.news, p.made_at FROM poolkeeper.dead_post AS p WHERE p.queue_id = _queue_id ORDER BY p.number LIMIT least(greatest(_most, 1), 1000);
END $$;

-- The webhook has taken it.
CREATE OR REPLACE FUNCTION poolkeeper.post_taken(_queue_id integer, _number integer, _term uuid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    IF NOT poolkeeper.may_rule(_queue_id) THEN
        RETURN false;
    END IF;
    PERFORM poolkeeper.demand_leader_of(_queue_id, _term);
    DELETE FROM poolkeeper.dead_post AS p WHERE p.queue_id = _queue_id AND p.number = _number;
    RETURN FOUND;
END $$;

-- Removes what no webhook took within a week. Part of maintain. Index: dead_post_age.
CREATE OR REPLACE FUNCTION poolkeeper.forget_posts(_most integer, _now timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _n bigint;
BEGIN
    DELETE FROM poolkeeper.dead_post AS d WHERE d.ctid = ANY (ARRAY(
        SELECT p.ctid FROM poolkeeper.dead_post AS p WHERE p.made_at <= _now - interval '7 days' ORDER BY p.made_at LIMIT _most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;
