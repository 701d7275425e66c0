-- Sessions: one running worker process each (contract 4). A lease lives until its session's last renewal plus the
-- queue's visibility timeout, so one renewal keeps all. A session row is locked alone and only by its own process.

-- Tenants (Q11): those that the login may see, narrowed by what the process asks for; of others it is offered nothing.
CREATE OR REPLACE FUNCTION poolkeeper.register_session(
    _pool text, _queues text[], _types text[], _concurrency integer, _info jsonb, _tenants text[] DEFAULT NULL, _tenants_except text[] DEFAULT NULL
)
RETURNS TABLE (session uuid, secret text, renew_every interval, visibility_timeout interval, unknown_queues text[], instance_id uuid)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _now    timestamptz := poolkeeper.clock();
    _paths  text[] := ARRAY(SELECT poolkeeper.queue_path(q) FROM unnest(_queues) AS q);
    _id     uuid := poolkeeper.new_id();
    _secret text := poolkeeper.token_text(uuid_send(gen_random_uuid()));
    _pool_id integer;
    _ids    integer[];
    _keys   bigint[] := ARRAY(SELECT poolkeeper.type_key(t) FROM unnest(_types) AS t);
BEGIN
    PERFORM poolkeeper.demand_registration(_pool, _queues, _types, _concurrency, _info);
    IF _caller.pool IS NOT NULL AND _caller.pool <> _pool OR EXISTS (SELECT FROM unnest(_paths) AS p WHERE NOT poolkeeper.may_see(_caller, p, NULL)) THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = 'this login serves another pool or other queues';
    END IF;
    _tenants := CASE WHEN _caller.tenants IS NULL THEN _tenants WHEN _tenants IS NULL THEN _caller.tenants
                     ELSE ARRAY(SELECT t FROM unnest(_tenants) AS t WHERE t = ANY (_caller.tenants)) END;
    _tenants_except := nullif(coalesce(_caller.tenants_except, '{}') || coalesce(_tenants_except, '{}'), '{}');
    PERFORM poolkeeper.reached(_now);  -- who comes after a gap was not there before it (Q23)
    PERFORM poolkeeper.examine(_now);
    IF _info ? 'position' THEN  -- of a session that is not here any more
        PERFORM poolkeeper.compare_position(_info -> 'position', NULL, NULL, _now);
    END IF;
    INSERT INTO poolkeeper.pool (name, known_build, known_types, known_keys, known_queues, known_tenants, known_except)
    SELECT _pool, _info ->> 'build', _types, _keys, _paths, _tenants, _tenants_except
    WHERE NOT EXISTS (  -- one like the last writes nothing, and waits for no turn that holds the pool's row
        SELECT FROM poolkeeper.pool AS p
        WHERE p.name = _pool AND (p.known_build, p.known_types, p.known_queues, p.known_tenants, p.known_except)
                                 IS NOT DISTINCT FROM (_info ->> 'build', _types, _paths, _tenants, _tenants_except))
    ON CONFLICT (name) DO UPDATE SET (known_build, known_types, known_keys, known_queues, known_tenants, known_except)
        = (EXCLUDED.known_build, EXCLUDED.known_types, EXCLUDED.known_keys, EXCLUDED.known_queues, EXCLUDED.known_tenants, EXCLUDED.known_except);
    SELECT p.id INTO _pool_id FROM poolkeeper.pool AS p WHERE p.name = _pool;
    _ids := ARRAY(SELECT q.id FROM poolkeeper.queue AS q WHERE q.namespace || '/' || q.name = ANY (_paths) ORDER BY q.id);
    INSERT INTO poolkeeper.session (id, secret_hash, pool_id, role, queues, queue_ids, types, type_keys, tenants, tenants_except, concurrency, info,
                                    registered_at, renewed_at, idle_since)
    VALUES (_id, poolkeeper.token_hash(_secret), _pool_id, session_user, _paths, _ids, _types,
            _keys, _tenants, _tenants_except, _concurrency, _info, _now, _now, _now);
    RETURN QUERY
        SELECT _id, _secret, t.timeout / 4, t.timeout,
               ARRAY(SELECT p FROM unnest(_paths) AS p WHERE NOT EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.namespace || '/' || q.name = p)),
               (SELECT i.id FROM poolkeeper.instance AS i)
        FROM (SELECT coalesce(min(q.visibility_timeout), interval '15 seconds') AS timeout
              FROM poolkeeper.queue AS q WHERE q.id = ANY (_ids)) AS t;
END $$;

-- Queues that did not exist at registration are picked up once they do.
CREATE OR REPLACE FUNCTION poolkeeper.follow_queues(_s poolkeeper.session) RETURNS poolkeeper.session
LANGUAGE plpgsql
AS $$
DECLARE
    _ids integer[];
BEGIN
    IF cardinality(_s.queue_ids) < cardinality(_s.queues) THEN
        _ids := ARRAY(SELECT q.id FROM poolkeeper.queue AS q WHERE q.namespace || '/' || q.name = ANY (_s.queues) ORDER BY q.id);
        IF _ids <> _s.queue_ids THEN
            UPDATE poolkeeper.session AS s SET queue_ids = _ids WHERE s.id = _s.id;
            _s.queue_ids := _ids;
        END IF;
    END IF;
    RETURN _s;
END $$;

-- Whether a session has ended a task well; no task does that twice.
CREATE OR REPLACE FUNCTION poolkeeper.succeeded_in(_task_id uuid, _session uuid) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (SELECT FROM poolkeeper.delivery AS d
                   WHERE d.retention = 0 AND d.task_id = _task_id AND d.session_id = _session AND d.next_state = 'succeeded')
$$;

-- Renews for all leases of the session at once (Q20). Waits for nothing: its own row is written by nobody else for
-- long. Answers, per task, what the process holds in vain: 'lease_expired' (no longer ours; or which limit of its
-- run time ended it), 'canceled' (asked for) or
-- 'already_done' (succeeded in a transaction of its handler's own, which goes on); then one note: {draining, grace (s), visibility_timeout (s)}. _complete: _held is everything that answers up to
-- _received brought; a lease of those turns that is not in it was granted by a turn that committed after its connection
-- was given up, and after its successor: nobody would ever run it, so it goes back unstarted (Q10).
CREATE OR REPLACE FUNCTION poolkeeper.renew(
    _session uuid, _secret text, _received bigint, _held uuid[], _stats jsonb DEFAULT '{}', _complete boolean DEFAULT false
)
RETURNS TABLE (kind text, task_id uuid, code text, extra jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _s       poolkeeper.session := poolkeeper.session_of(_session, _secret);
    _now     timestamptz := poolkeeper.clock();
    _reached boolean;
BEGIN
    PERFORM poolkeeper.demand_stats(_stats);
    _reached := poolkeeper.reached(_now);  -- before its own renewal hides the gap that it ends (Q23)
    IF _stats ? 'position' THEN
        PERFORM poolkeeper.compare_position(_stats -> 'position', _s.id, _s.renewals, _now);
    END IF;
    UPDATE poolkeeper.session AS s
    SET renewed_at = _now, renewals = s.renewals + 1, graces = 0, ended_at = NULL,
        finished = coalesce((_stats ->> 'finished')::bigint, s.finished),
        busy_seconds = coalesce((_stats ->> 'busy_seconds')::double precision, s.busy_seconds),
        idle_since = CASE WHEN cardinality(_held) > 0 THEN NULL ELSE coalesce(s.idle_since, _now) END
    WHERE s.id = _s.id;
    IF _stats ? 'progress' THEN
        PERFORM poolkeeper.progressed(ARRAY(SELECT jsonb_array_elements_text(_stats -> 'progress'))::uuid[], _s.id, _now);
    END IF;
    IF _reached THEN
        PERFORM poolkeeper.sweep_limits(100, _now);  -- a worker whose slots all hang takes no turns
    END IF;
    IF _complete THEN
        PERFORM poolkeeper.end_deliveries(ARRAY(
            SELECT ROW(l.task_id, l.token_hash, 'returned', 'answer_lost', NULL, NULL, NULL, NULL)::poolkeeper.ending
            FROM poolkeeper.lease AS l WHERE l.session_id = _s.id AND l.turn <= _received AND l.task_id <> ALL (_held)
            ORDER BY l.task_id FOR UPDATE SKIP LOCKED), _now);
    END IF;
    RETURN QUERY
        SELECT 'task', h.id, CASE WHEN l.task_id IS NOT NULL THEN 'canceled' WHEN poolkeeper.succeeded_in(h.id, _s.id) THEN 'already_done'
                                  ELSE poolkeeper.lost_by(h.id, _s.id) END, NULL::jsonb
        FROM unnest(_held) AS h (id)
        -- by the task first: by the session, each of n tasks would cost a look at n leases
        LEFT JOIN LATERAL (SELECT k.task_id, k.cancel_by, k.session_id FROM poolkeeper.lease AS k WHERE k.task_id = h.id OFFSET 0) AS l
               ON l.session_id = _s.id
        WHERE l.task_id IS NULL OR l.cancel_by IS NOT NULL;
    RETURN QUERY
        SELECT 'note', NULL::uuid, NULL::text, jsonb_build_object(
            'position', poolkeeper.position(_s.id, _s.renewals + 1), 'held', (SELECT c.held_why FROM poolkeeper.contact AS c),
            'draining', _s.draining, 'grace', extract(epoch FROM _s.grace), 'slot_in', poolkeeper.slot_in(_s.queue_ids, _now),
            'visibility_timeout', extract(epoch FROM (SELECT min(q.visibility_timeout) FROM poolkeeper.queue AS q WHERE q.id = ANY (_s.queue_ids))));
END $$;

-- Renews a session that holds nothing by the turn that it takes anyway (Q20): no lease hangs on it, so it may come more seldom. Last in
-- its transaction and waiting for nobody, so that no renewal waits for a turn. NULL where the session holds something, has ended, or
-- renews by itself this moment; else what the process remembers (Q24).
CREATE OR REPLACE FUNCTION poolkeeper.renew_idle(_session uuid, _began timestamptz) RETURNS jsonb
LANGUAGE plpgsql
AS $$
DECLARE
    _renewals bigint;
BEGIN
    UPDATE poolkeeper.session AS s
    SET renewed_at = greatest(s.renewed_at, _began), renewals = s.renewals + 1, graces = 0, idle_since = coalesce(s.idle_since, _began)
    WHERE s.id = (SELECT k.id FROM poolkeeper.session AS k WHERE k.id = _session AND k.ended_at IS NULL FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING s.renewals INTO _renewals;
    RETURN CASE WHEN FOUND THEN poolkeeper.position(_session, _renewals) END;
END $$;

-- The process ends. What it still holds is given back: it says that it runs nothing any more.
CREATE OR REPLACE FUNCTION poolkeeper.end_session(_session uuid, _secret text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _s    poolkeeper.session := poolkeeper.session_of(_session, _secret);
    _now  timestamptz := poolkeeper.clock();
    _left integer;
BEGIN
    PERFORM poolkeeper.demand_durable();
    UPDATE poolkeeper.pool AS p SET isolating_session = NULL WHERE p.id = _s.pool_id AND p.isolating_session = _s.id;
    SELECT count(*) INTO _left FROM poolkeeper.end_deliveries(ARRAY(
        SELECT ROW(l.task_id, l.token_hash, 'handed_back', 'drain', NULL, NULL, NULL, NULL)::poolkeeper.ending
        FROM poolkeeper.lease AS l WHERE l.session_id = _s.id ORDER BY l.task_id FOR UPDATE SKIP LOCKED), _now);
    UPDATE poolkeeper.session AS s SET ended_at = _now WHERE s.id = _s.id;
    IF _left > 0 THEN
        PERFORM poolkeeper.wake();
    END IF;
    RETURN _left;
END $$;

-- Q48: what a drain took; the grace period is computed from these (O20).
CREATE OR REPLACE FUNCTION poolkeeper.report_drain(_session uuid, _secret text, _report jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _s poolkeeper.session := poolkeeper.session_of(_session, _secret);
BEGIN
    PERFORM poolkeeper.demand_report(_report);
    INSERT INTO poolkeeper.drain_report (pool_id, session_id, at, seconds, truncated, report)
    VALUES (_s.pool_id, _s.id, poolkeeper.clock(), (_report ->> 'duration_seconds')::double precision,
            coalesce((_report ->> 'truncated')::boolean, false), _report);
END $$;
