-- What time does by itself: due tasks become ready, expired leases return, old tasks die (Q22). Every claimer sweeps a
-- bounded page, so do the operator's tick and people; no process is needed that only sweeps. Locks: SKIP LOCKED.

-- Arrow: scheduled | waiting -> ready. Index: later_due.
CREATE OR REPLACE FUNCTION poolkeeper.sweep_due(_most integer, _now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _n integer;
BEGIN
    WITH gone AS (
        DELETE FROM poolkeeper.later AS d WHERE d.ctid = ANY (ARRAY(
            SELECT c.ctid FROM poolkeeper.later AS c WHERE c.due_at <= _now ORDER BY c.due_at LIMIT _most FOR UPDATE SKIP LOCKED))
        RETURNING d.*
    ), woke AS (
        INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, reason, state_version)
        SELECT g.task_id, g.queue_id, _now, 'woke', g.wait_reason, g.state_version + 1 FROM gone AS g
    ), opened AS (
        INSERT INTO poolkeeper.opening (queue_id, lane)
        SELECT DISTINCT g.queue_id, g.lane FROM gone AS g
        CROSS JOIN LATERAL (SELECT q.lanes_kept FROM poolkeeper.queue AS q WHERE q.id = g.queue_id OFFSET 0) AS q WHERE q.lanes_kept
    )
    INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, delivery, state_version,
                                  spent, failures, expiries, hand_backs, snoozes, waits, gate)
    SELECT g.task_id, g.queue_id, g.priority, g.lane, g.type_key, g.due_at, g.expires_at, g.delivery, g.state_version + 1,
           g.spent, g.failures, g.expiries, g.hand_backs, g.snoozes, g.waits, g.gate
    FROM gone AS g ORDER BY g.due_at;
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;

-- The sessions that hold anything, each at the cost of one probe, whatever it holds. Index: lease_session.
CREATE OR REPLACE FUNCTION poolkeeper.holders() RETURNS TABLE (id uuid, renewed_at timestamptz)
LANGUAGE sql STABLE
AS $$
    WITH RECURSIVE holder AS (
        (SELECT l.session_id AS id FROM poolkeeper.lease AS l ORDER BY l.session_id LIMIT 1)
        UNION ALL
        SELECT n.id FROM holder AS h CROSS JOIN LATERAL (
            SELECT l.session_id AS id FROM poolkeeper.lease AS l WHERE l.session_id > h.id ORDER BY l.session_id LIMIT 1) AS n
    )
    SELECT s.id, s.renewed_at FROM holder AS h
    CROSS JOIN LATERAL (SELECT k.id, k.renewed_at FROM poolkeeper.session AS k WHERE k.id = h.id OFFSET 0) AS s
$$;

-- Arrows: running -> ready (suspect) | dead | canceled; leased -> ready. Only leases of sessions that were silent for
-- longer than the queue's visibility timeout, by the database's clock, while the store could be reached (Q23): what a gap
-- gave a further one and ends all the same is no suspect. Live leases are not looked at. Index: lease_session. Then what has
-- run too long (39_limits), which waits for the same proof.
CREATE OR REPLACE FUNCTION poolkeeper.sweep_leases(_most integer, _now timestamptz, _since double precision) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _n integer;
BEGIN
    IF NOT poolkeeper.reached(_now, _since) THEN
        RETURN 0;
    END IF;
    SELECT count(*) INTO _n FROM poolkeeper.end_deliveries(poolkeeper.note_expiries(ARRAY(
        WITH silent AS MATERIALIZED (
            SELECT h.id, h.renewed_at FROM poolkeeper.holders() AS h
            WHERE poolkeeper.lease_until(h.renewed_at, (SELECT min(q.visibility_timeout) FROM poolkeeper.queue AS q), NULL) <= _now
        )
        SELECT ROW(x.task_id, x.token_hash, x.outcome, x.reason, NULL, NULL, NULL, NULL)::poolkeeper.ending
        FROM silent AS s CROSS JOIN LATERAL (
            SELECT l.task_id, l.token_hash, CASE WHEN l.started_at IS NULL THEN 'returned' ELSE 'expired' END AS outcome,
                   CASE WHEN l.suspect AND NOT l.alone THEN 'beside_others'
                        WHEN s.renewed_at = (SELECT poolkeeper.outage_end())
                             AND (SELECT k.graces > 0 FROM poolkeeper.session AS k WHERE k.id = s.id) THEN 'outage'
                        ELSE 'lease_expired' END AS reason
            FROM poolkeeper.lease AS l JOIN poolkeeper.queue AS q ON q.id = l.queue_id
            WHERE l.session_id = s.id AND poolkeeper.lease_until(s.renewed_at, q.visibility_timeout, l.extended_until) <= _now
            LIMIT _most FOR UPDATE OF l SKIP LOCKED) AS x
        LIMIT _most), _now), _now);
    UPDATE poolkeeper.session AS s SET ended_at = _now
    WHERE s.id = ANY (ARRAY(
        SELECT c.id FROM poolkeeper.session AS c
        WHERE c.ended_at IS NULL AND c.renewed_at < _now - interval '2 hours'
          AND (SELECT l.session_id FROM poolkeeper.lease AS l WHERE l.session_id = c.id LIMIT 1) IS NULL  -- a probe, never a join
        LIMIT _most FOR UPDATE SKIP LOCKED));
    RETURN _n + poolkeeper.sweep_limits(_most, _now);
END $$;

-- Arrow: ready | scheduled | waiting -> dead (max_age). Indexes: ready_expires, later_expires, ordered_expires.
CREATE OR REPLACE FUNCTION poolkeeper.sweep_aged(_most integer, _now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _n integer;
BEGIN
    WITH from_ready AS (
        DELETE FROM poolkeeper.ready AS r WHERE r.ctid = ANY (ARRAY(
            SELECT c.ctid FROM poolkeeper.ready AS c WHERE c.expires_at <= _now ORDER BY c.expires_at LIMIT _most FOR UPDATE SKIP LOCKED))
        RETURNING r.task_id, r.queue_id, r.priority, r.lane, r.type_key, r.seq, r.ready_at, r.expires_at, r.delivery, r.state_version,
                  r.spent, r.failures, r.expiries, r.hand_backs, r.snoozes, r.waits, r.gate
    ), from_suspect AS (
        DELETE FROM poolkeeper.suspect AS r WHERE r.ctid = ANY (ARRAY(
            SELECT c.ctid FROM poolkeeper.suspect AS c WHERE c.expires_at <= _now LIMIT _most FOR UPDATE SKIP LOCKED))
        RETURNING r.task_id, r.queue_id, r.priority, r.lane, r.type_key, r.seq, r.ready_at, r.expires_at, r.delivery, r.state_version,
                  r.spent, r.failures, r.expiries, r.hand_backs, r.snoozes, r.waits, r.gate
    ), from_later AS (
        DELETE FROM poolkeeper.later AS r WHERE r.ctid = ANY (ARRAY(
            SELECT c.ctid FROM poolkeeper.later AS c WHERE c.expires_at <= _now ORDER BY c.expires_at LIMIT _most FOR UPDATE SKIP LOCKED))
        RETURNING r.task_id, r.queue_id, r.priority, r.lane, r.type_key, r.seq, r.ready_at, r.expires_at, r.delivery, r.state_version,
                  r.spent, r.failures, r.expiries, r.hand_backs, r.snoozes, r.waits, r.gate
    ), from_ordered AS (
        DELETE FROM poolkeeper.ordered AS r WHERE r.ctid = ANY (ARRAY(
            SELECT c.ctid FROM poolkeeper.ordered AS c WHERE c.expires_at <= _now ORDER BY c.expires_at LIMIT _most FOR UPDATE SKIP LOCKED))
        RETURNING r.task_id, r.queue_id, r.priority, r.lane, r.type_key, r.place, r.ready_at, r.expires_at, r.delivery, r.state_version,
                  0::smallint, 0::smallint, 0::smallint, 0::smallint, 0::smallint, 0::smallint, r.gate
    ), gone AS (
        SELECT * FROM from_ready UNION ALL SELECT * FROM from_suspect UNION ALL SELECT * FROM from_later UNION ALL SELECT * FROM from_ordered
    ), freed AS (
        INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT g.queue_id, g.gate FROM gone AS g WHERE g.gate IS NOT NULL
    ), died AS (
        INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, reason, state_version)
        SELECT g.task_id, g.queue_id, _now, 'died', 'max_age', g.state_version + 1 FROM gone AS g
    )
    INSERT INTO poolkeeper.dead (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, delivery, state_version,
                                 spent, failures, expiries, hand_backs, snoozes, waits, died_at, reason, gate)
    SELECT g.task_id, g.queue_id, g.priority, g.lane, g.type_key, g.ready_at, g.expires_at, g.delivery, g.state_version + 1,
           g.spent, g.failures, g.expiries, g.hand_backs, g.snoozes, g.waits, _now, 'max_age', g.gate
    FROM gone AS g;
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.sweep_page(_most integer, _since double precision) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _now timestamptz := poolkeeper.clock();
BEGIN
    IF EXISTS (SELECT FROM poolkeeper.contact AS c WHERE c.held_since IS NOT NULL) THEN
        RETURN 0;  -- Q24
    END IF;
    RETURN poolkeeper.sweep_leases(_most, _now, _since) + poolkeeper.sweep_aged(_most, _now) + poolkeeper.sweep_due(_most, _now) + poolkeeper.sweep_lanes(_most);
END $$;

-- _since: seconds since the caller's last sweep by its monotonic clock, if nothing failed since (Q23).
CREATE OR REPLACE FUNCTION poolkeeper.sweep(_most integer DEFAULT 1000, _since double precision DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _n      integer;
BEGIN
    PERFORM poolkeeper.demand(_since IS NULL OR _since BETWEEN 0 AND 1e9, 'the time since the last sweep cannot be that', 'give seconds from 0, or NULL');
    PERFORM poolkeeper.demand_durable();
    PERFORM poolkeeper.fold_backlog(NULL);
    _most := least(greatest(_most, 1), 10000);
    _n := poolkeeper.sweep_page(_most, _since);
    -- last, so that nothing is waited for with gates in hand; those of the caller's queues, so that it can hold no other
    RETURN _n + (SELECT o.n FROM poolkeeper.open_gates(poolkeeper.due_queues(_caller), _most) AS o);
END $$;

-- How many sessions of a pool live, at most 24.
CREATE OR REPLACE FUNCTION poolkeeper.live_sessions(_pool_id integer, _now timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT count(*) FROM (
        SELECT FROM poolkeeper.session AS s
        WHERE s.pool_id = _pool_id AND s.ended_at IS NULL AND s.renewed_at > _now - interval '1 minute' LIMIT 24) AS c
$$;

-- When an idle session should come again at the latest: at the next due task of its queues, or just after the first
-- moment at which a lease of its pool can expire, which its sessions tell, or a run is too long, else after 5 s (1 s where the policy says poll instead of notify), or a
-- quarter of the shortest visibility timeout. _rests: it holds nothing, listens, and renews by its turns. Then it may come more seldom,
-- the more live sessions its pool has, for each of them looks for all: from 4 on as many times 5 / 4 s, up to half the shortest
-- visibility timeout, within which a session must be heard of (Q20, Q23), or a third of it where they are fewer. And when a provider opens (Q40).
CREATE OR REPLACE FUNCTION poolkeeper.come_again(_session poolkeeper.session, _rests boolean, _now timestamptz) RETURNS double precision
LANGUAGE sql STABLE
AS $$
    SELECT greatest(0.01, least(
        (SELECT CASE WHEN coalesce(bool_or(q.wake_up = 'poll'), false) THEN 1 WHEN _rests THEN 1.25 * greatest(4, max(p.n)) ELSE 5 END
         FROM poolkeeper.queue AS q CROSS JOIN (SELECT CASE WHEN _rests THEN poolkeeper.live_sessions((_session).pool_id, _now) END AS n) AS p
         WHERE q.id = ANY ((_session).queue_ids)),
        (SELECT extract(epoch FROM min(q.visibility_timeout))::double precision
                / CASE WHEN NOT _rests THEN 4 WHEN poolkeeper.live_sessions((_session).pool_id, _now) > 4 THEN 2 ELSE 3 END
         FROM poolkeeper.queue AS q WHERE q.id = ANY ((_session).queue_ids)),
        (SELECT extract(epoch FROM min(d.due_at) - _now)::double precision
         FROM unnest((_session).queue_ids) AS u (id)
         CROSS JOIN LATERAL (SELECT k.due_at FROM poolkeeper.later AS k WHERE k.queue_id = u.id ORDER BY k.due_at LIMIT 1) AS d),
        (SELECT min(CASE WHEN poolkeeper.lease_until(u.renewed_at, t.least, NULL) > _now
                         THEN extract(epoch FROM poolkeeper.lease_until(u.renewed_at, t.least, NULL) - _now)::double precision + 0.05
                         ELSE 0.25 END)  -- just now: the turn that looked may not have swept
         FROM (SELECT s.queue_ids, array_agg(s.renewed_at) AS renewed
               FROM (SELECT k.queue_ids, k.renewed_at FROM poolkeeper.session AS k
                     WHERE k.pool_id = (_session).pool_id AND k.ended_at IS NULL AND k.id <> (_session).id LIMIT 100) AS s
               GROUP BY s.queue_ids) AS g
         CROSS JOIN LATERAL (SELECT min(q.visibility_timeout) AS least FROM poolkeeper.queue AS q WHERE q.id = ANY (g.queue_ids) OFFSET 0) AS t
         CROSS JOIN unnest(g.renewed) AS u (renewed_at)
         WHERE poolkeeper.lease_until(u.renewed_at, t.least, NULL) > _now - interval '1.1 seconds'),
        (SELECT extract(epoch FROM least(l.run_by, l.progress_by) - _now)::double precision FROM poolkeeper.lease AS l
         WHERE l.run_by IS NOT NULL OR l.progress_by IS NOT NULL ORDER BY least(l.run_by, l.progress_by) LIMIT 1),
        (SELECT extract(epoch FROM max(r.retry_at) - _now)::double precision FROM poolkeeper.pool AS p, poolkeeper.provider AS r
         WHERE p.id = (_session).pool_id AND r.id = ANY (p.provider_ids) AND r.retry_at > _now)
    ))
$$;
