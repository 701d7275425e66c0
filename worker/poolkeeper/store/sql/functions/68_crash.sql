-- Crash evidence (O26): how a worker's process ended, as the cluster tells it, is kept with its session and written to the deliveries
-- that it ended: into their rows, where it is known before their leases expire, which is the rule; else as an event behind them,
-- since what has ended is not written again (contract 3).

-- The first word of it, for filters: OOMKilled, Evicted, Error.
CREATE OR REPLACE FUNCTION poolkeeper.crash_class(_crash text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT left(split_part(split_part(_crash, ' (', 1), ':', 1), 200) $$;

-- What ended before its cause was known: an event of each, and the error of those that are dead letters now.
CREATE OR REPLACE FUNCTION poolkeeper.explain_expiries(_session_ids uuid[], _now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _n integer;
BEGIN
    WITH found AS MATERIALIZED (
        UPDATE poolkeeper.expiry AS x SET explained = true
        WHERE x.ctid = ANY (ARRAY(SELECT k.ctid FROM poolkeeper.expiry AS k WHERE k.session_id = ANY (_session_ids) AND NOT k.explained
                                  ORDER BY k.task_id FOR UPDATE SKIP LOCKED))
        RETURNING x.task_id, x.delivery, x.queue_id, x.session_id
    ), known AS MATERIALIZED (
        SELECT f.task_id, f.queue_id, s.crash, d.state_version, d.no
        FROM found AS f
        CROSS JOIN LATERAL (SELECT k.crash FROM poolkeeper.session AS k WHERE k.id = f.session_id OFFSET 0) AS s
        CROSS JOIN LATERAL (SELECT k.state_version, k.no FROM poolkeeper.delivery AS k
                            WHERE k.retention = 0 AND k.task_id = f.task_id AND k.delivery = f.delivery OFFSET 0) AS d
    ), letters AS (
        UPDATE poolkeeper.dead AS d SET error_class = poolkeeper.crash_class(k.crash), error = k.crash
        FROM known AS k WHERE d.task_id = k.task_id AND d.state_version = k.state_version AND d.error IS NULL
    )
    INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, actor, reason, state_version)
    SELECT k.task_id, k.queue_id, _now, 'explained', 'operator', k.crash, k.state_version FROM known AS k ORDER BY k.task_id;
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;

-- How containers of pods of this pool ended, and when by the node's clock: of each the session that was registered last before
-- it (the clocks of nodes and database agree within seconds), unless that was heard of afterwards or ended well. Told again,
-- it changes nothing, but for what has expired meanwhile. Answers how many sessions are known to have ended so.
-- Locks: leader, then sessions, ascending; then expiries, dead. Index: session_live.
CREATE OR REPLACE FUNCTION poolkeeper.report_crashes(_pool text, _pod_uids text[], _ended timestamptz[], _crashes text[], _term uuid DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _now timestamptz := poolkeeper.clock();
    _ids uuid[];
BEGIN
    PERFORM poolkeeper.demand(cardinality(_pod_uids) = cardinality(_ended) AND cardinality(_ended) = cardinality(_crashes) AND cardinality(_crashes) <= 1000
                              AND NOT EXISTS (SELECT FROM unnest(_crashes) AS c WHERE (length(c) BETWEEN 1 AND 500) IS NOT TRUE),
                              'these crashes cannot be', 'give for each, at most 1000, the pod''s uid, when it ended, and how, in at most 500 characters');
    PERFORM poolkeeper.demand_leader_of_pool(_pool, _term, 'tell how a worker ended');
    _ids := ARRAY(
        SELECT s.id FROM poolkeeper.session AS s JOIN poolkeeper.pool AS p ON p.id = s.pool_id
        WHERE p.name = _pool AND s.info ->> 'pod_uid' = ANY (_pod_uids) AND s.ended_at IS NULL ORDER BY s.id FOR NO KEY UPDATE OF s);
    UPDATE poolkeeper.session AS s SET crash = x.crash
    FROM unnest(_pod_uids, _ended, _crashes) AS x (uid, ended, crash)
    WHERE s.crash IS NULL AND s.id = (
        SELECT k.id FROM poolkeeper.session AS k
        WHERE k.id = ANY (_ids) AND k.info ->> 'pod_uid' = x.uid AND k.registered_at <= x.ended + interval '2 seconds'
        ORDER BY k.registered_at DESC LIMIT 1)
      AND s.renewed_at <= x.ended + interval '5 seconds';
    _ids := ARRAY(SELECT s.id FROM poolkeeper.session AS s WHERE s.id = ANY (_ids) AND s.crash IS NOT NULL ORDER BY s.id);
    PERFORM poolkeeper.explain_expiries(_ids, _now);
    RETURN cardinality(_ids);
END $$;
