-- How long a task may run: maxRunTime and progressTimeout of a delivery, maxTenure of all of them together, on database time
-- (Q21). The ends stand in the lease from its start, where its queue has limits; whoever comes ends what is past them, also
-- while its worker renews. Live leases are not looked at: the index holds only those with a limit, the earliest end first.

-- Notes the ends for what this session has started since _since. Locks: its own leases. Index: lease_session.
CREATE OR REPLACE FUNCTION poolkeeper.limit_runs(_session uuid, _since timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE poolkeeper.lease AS l
    SET run_by = least(l.started_at + q.max_run_time, poolkeeper.tenure_end(l, q)),
        run_why = CASE WHEN poolkeeper.tenure_end(l, q) <= coalesce(l.started_at + q.max_run_time, 'infinity') THEN 'max_tenure' ELSE 'max_run_time' END,
        progress_by = l.started_at + q.progress_timeout + q.visibility_timeout / 2
    FROM poolkeeper.queue AS q
    WHERE l.session_id = _session AND l.started_at >= _since AND q.id = l.queue_id
      AND (q.max_run_time IS NOT NULL OR q.max_tenure IS NOT NULL OR q.progress_timeout IS NOT NULL);
END $$;

-- The policy of a queue has other limits now: they hold for what runs already, from its start (progress: from now). What a
-- handler's own transaction is about to end keeps the old ones. Locks: leases of the queue, SKIP LOCKED. Index: lease_queue.
CREATE OR REPLACE FUNCTION poolkeeper.limit_running(_queue poolkeeper.queue) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE poolkeeper.lease AS l
    SET run_by = least(l.started_at + (_queue).max_run_time, poolkeeper.tenure_end(l, _queue)),
        run_why = CASE WHEN poolkeeper.tenure_end(l, _queue) <= coalesce(l.started_at + (_queue).max_run_time, 'infinity') THEN 'max_tenure' ELSE 'max_run_time' END,
        progress_by = poolkeeper.clock() + (_queue).progress_timeout + (_queue).visibility_timeout / 2
    WHERE l.task_id = ANY (ARRAY(
        SELECT k.task_id FROM poolkeeper.lease AS k
        WHERE k.queue_id = (_queue).id AND k.started_at IS NOT NULL ORDER BY k.task_id FOR NO KEY UPDATE SKIP LOCKED));
END $$;

-- When the time of all deliveries is used up: what earlier ones ran since the last requeue counts, not the time between.
CREATE OR REPLACE FUNCTION poolkeeper.tenure_end(_lease poolkeeper.lease, _queue poolkeeper.queue) RETURNS timestamptz
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF (_queue).max_tenure IS NULL OR (_lease).delivery = 1 THEN
        RETURN (_lease).started_at + (_queue).max_tenure;
    END IF;
    RETURN (_lease).started_at + (_queue).max_tenure - coalesce((
        SELECT sum(d.ended_at - d.started_at) FROM poolkeeper.delivery AS d
        WHERE d.retention = 0 AND d.task_id = (_lease).task_id  -- what never started adds nothing
          AND d.state_version > coalesce((SELECT max(e.state_version) FROM poolkeeper.event AS e
                                          WHERE e.retention = 0 AND e.task_id = (_lease).task_id AND e.kind = 'requeued'), 0)), interval '0');
END $$;

-- A sign of progress: a renewal names the tasks that gave one (a mark comes up to half a visibility timeout late, which
-- the ends allow for), a checkpoint is one. Locks: lease rows, SKIP LOCKED.
CREATE OR REPLACE FUNCTION poolkeeper.progressed(_tasks uuid[], _session uuid, _now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE poolkeeper.lease AS l SET progress_by = _now + q.progress_timeout + q.visibility_timeout / 2
    FROM poolkeeper.queue AS q
    WHERE q.id = l.queue_id AND q.progress_timeout IS NOT NULL AND l.task_id = ANY (ARRAY(
        SELECT k.task_id FROM poolkeeper.lease AS k
        WHERE k.task_id = ANY (_tasks) AND k.session_id = _session AND k.progress_by IS NOT NULL ORDER BY k.task_id FOR NO KEY UPDATE SKIP LOCKED));
END $$;

-- Arrow: running -> scheduled | dead | canceled, for what has run too long: maxRunTime and progressTimeout are a failure of
-- the delivery, maxTenure is final. Not right after a gap: who could not reach the store may have ended long ago (Q23). The
-- next delivery waits until this one's worker has heard of it. Index: lease_limit.
CREATE OR REPLACE FUNCTION poolkeeper.sweep_limits(_most integer, _now timestamptz) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _endings poolkeeper.ending[] := ARRAY(
        SELECT ROW(l.task_id, l.token_hash, CASE x.why WHEN 'max_tenure' THEN 'dead' ELSE 'failed' END, x.why, x.why,
                   (SELECT r.sentence FROM poolkeeper.code AS r WHERE r.code = x.why), NULL,
                   extract(epoch FROM greatest(poolkeeper.backoff(q.backoff_initial, q.backoff_max, q.backoff_factor, l.failures + 1),
                                               q.visibility_timeout / 2)))::poolkeeper.ending
        FROM poolkeeper.lease AS l
        JOIN poolkeeper.queue AS q ON q.id = l.queue_id
        CROSS JOIN LATERAL (SELECT CASE WHEN l.progress_by < coalesce(l.run_by, 'infinity') THEN 'progress_timeout' ELSE l.run_why END AS why) AS x
        WHERE least(l.run_by, l.progress_by) <= _now AND (l.run_by IS NOT NULL OR l.progress_by IS NOT NULL)
          AND NOT EXISTS (SELECT FROM poolkeeper.contact AS c WHERE c.gap_to > _now - q.visibility_timeout AND c.gap_to <= _now)
        ORDER BY least(l.run_by, l.progress_by) LIMIT _most FOR UPDATE OF l SKIP LOCKED);
BEGIN
    IF cardinality(_endings) = 0 THEN
        RETURN 0;
    END IF;
    PERFORM poolkeeper.demand_durable();
    RETURN (SELECT count(*) FROM poolkeeper.end_deliveries(_endings, _now));
END $$;

-- Whether a reason is one of these, which a worker hears as the code of the lease that it lost.
CREATE OR REPLACE FUNCTION poolkeeper.is_limit(_reason text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(_reason IN ('max_run_time', 'max_tenure', 'progress_timeout'), false) $$;

-- The code of a lease that a session holds in vain.
CREATE OR REPLACE FUNCTION poolkeeper.lost_by(_task_id uuid, _session uuid) RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT coalesce((SELECT CASE WHEN poolkeeper.is_limit(x.reason) THEN x.reason END
                     FROM (SELECT d.reason FROM poolkeeper.delivery AS d
                           WHERE d.retention = 0 AND d.task_id = _task_id AND d.session_id = _session ORDER BY d.delivery DESC LIMIT 1) AS x),
                    'lease_expired')
$$;
