-- Which operator keeps a namespace here (O29). An operator that leads by its Lease registers with that Lease and its epoch, and is
-- given a term; each of its writes carries the term. A later epoch ends it, so a frozen ex-leader changes nothing. Leases are
-- not compared with each other: of two operators that do not share one, the second is refused while the first is heard of.

CREATE OR REPLACE FUNCTION poolkeeper.leader_silence() RETURNS interval
LANGUAGE sql IMMUTABLE
AS $$ SELECT interval '3 minutes' $$;  -- three times what an operator takes to be heard of again

-- Registers, or says that the operator is still there. Answers its term; else not_leading, with who keeps the namespace.
-- Waits for writes of the former term in progress.
CREATE OR REPLACE FUNCTION poolkeeper.lead(_cluster text, _namespace text, _lease text, _epoch bigint, _holder text)
RETURNS TABLE (code text, term uuid, lease text, holder text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _me  poolkeeper.access := poolkeeper.caller();
    _row poolkeeper.leader;
    _now timestamptz;
BEGIN
    IF _me.pool IS NOT NULL OR (_me.queues IS NOT NULL AND NOT EXISTS (SELECT FROM unnest(_me.queues) AS q WHERE starts_with(q, _namespace || '/'))) THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = 'this login keeps no queue of that namespace';
    END IF;
    PERFORM poolkeeper.demand_text(_cluster, 'a cluster');
    PERFORM poolkeeper.demand_text(_namespace, 'a namespace');
    PERFORM poolkeeper.demand(_epoch >= 0 AND length(_lease) BETWEEN 1 AND 500 AND length(_holder) BETWEEN 1 AND 500,
                              'nobody leads by that Lease', 'give the Lease as namespace/name, its epoch from 0, and who holds it, at most 500 characters each');
    PERFORM poolkeeper.demand_durable();
    INSERT INTO poolkeeper.leader (cluster, namespace, lease, epoch, holder, term, seen_at)
    VALUES (_cluster, _namespace, _lease, _epoch, _holder, gen_random_uuid(), poolkeeper.clock())
    ON CONFLICT DO NOTHING;
    SELECT l.* INTO STRICT _row FROM poolkeeper.leader AS l WHERE l.cluster = _cluster AND l.namespace = _namespace FOR UPDATE;
    _now := poolkeeper.clock();
    IF (_row.lease, _row.epoch, _row.holder) = (_lease, _epoch, _holder) THEN
        UPDATE poolkeeper.leader AS l SET seen_at = _now WHERE l.cluster = _cluster AND l.namespace = _namespace;
    ELSIF (_row.lease = _lease AND _row.epoch < _epoch) OR _row.seen_at < _now - poolkeeper.leader_silence() THEN
        UPDATE poolkeeper.leader AS l
        SET lease = _lease, epoch = _epoch, holder = _holder, term = gen_random_uuid(), seen_at = _now
        WHERE l.cluster = _cluster AND l.namespace = _namespace
        RETURNING l.* INTO _row;
    ELSE
        RETURN QUERY SELECT 'not_leading', NULL::uuid, _row.lease, _row.holder;
        RETURN;
    END IF;
    RETURN QUERY SELECT NULL::text, _row.term, _row.lease, _row.holder;
END $$;

-- The operator goes: another one, with a Lease of its own, need not wait for its silence. A term of the past changes nothing.
CREATE OR REPLACE FUNCTION poolkeeper.resign(_term uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    PERFORM poolkeeper.caller();
    UPDATE poolkeeper.leader AS l SET seen_at = '-infinity' WHERE l.term = _term;
    RETURN FOUND;
END $$;

-- For every write of an operator's, before all other locks: whose term this is keeps the namespace, until the write is
-- committed. Without a term: nobody keeps it, as outside of Kubernetes. _cluster NULL: in whatever cluster.
CREATE OR REPLACE FUNCTION poolkeeper.demand_leader(_cluster text, _namespace text, _term uuid) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF _term IS NULL THEN
        IF NOT EXISTS (SELECT FROM poolkeeper.leader AS l WHERE l.namespace = _namespace AND (_cluster IS NULL OR l.cluster = _cluster)
                       AND l.seen_at >= poolkeeper.clock() - poolkeeper.leader_silence()) THEN
            RETURN;
        END IF;
        RAISE EXCEPTION 'not_leading' USING ERRCODE = 'PK409', HINT = format('an operator keeps namespace "%s"; change its resources instead', _namespace);
    END IF;
    PERFORM FROM poolkeeper.leader AS l WHERE l.namespace = _namespace AND l.term = _term FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'not_leading' USING ERRCODE = 'PK409',
            HINT = format('the term of this operator in namespace "%s" is over: another one leads, and this one must end', _namespace);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.demand_leader_of(_queue_id integer, _term uuid) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM poolkeeper.demand_leader(q.cluster, q.namespace, _term) FROM poolkeeper.queue AS q WHERE q.id = _queue_id;
END $$;
