-- What the operator needs, in one statement for all queues and pools (O10). Cost: one probe for each (lane, type,
-- priority) that has ready tasks (at most 1000 a queue), and counts that stop at 10,000; never the backlog.

-- One queue. _live, _known: what somebody can run there (poolkeeper.capable), NULL where no worker was ever seen. A task
-- that nobody can run is ready, and counted as such, but no work that could run now: it makes nothing look old (O12).
CREATE OR REPLACE FUNCTION poolkeeper.queue_stats(
    _q poolkeeper.queue, _now timestamptz, _live bigint[], _known bigint[], _narrow poolkeeper.reach[], _named text[]
) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    WITH heads AS MATERIALIZED (
        SELECT h.*, k.again, count(*) OVER () AS n FROM (VALUES (false), (true)) AS k (again)
        CROSS JOIN LATERAL poolkeeper.heads((_q).id, k.again, -9223372036854775808, 1000) AS h
    ), next_of_keys AS MATERIALIZED (  -- the key is free, but nobody let them through yet: runnable all the same (O12)
        SELECT h.lane, h.type_key, (array_agg(h.task_id))[1] AS one, min(h.ready_at) AS since, count(*) AS n
        FROM poolkeeper.key_heads((_q).id, 1000) AS h
        WHERE h.task_id IS NOT NULL AND h.free AND (h.due_at IS NULL OR h.due_at <= _now) GROUP BY h.lane, h.type_key
    ), behind_keys AS MATERIALIZED (
        SELECT count(*) FILTER (WHERE x.due_at IS NULL) AS ready, count(x.due_at) AS scheduled
        FROM (SELECT o.due_at FROM poolkeeper.ordered AS o WHERE o.queue_id = (_q).id LIMIT 10000) AS x
    ), sized AS MATERIALIZED (
        SELECT h.lane, h.type_key, h.priority, h.again, h.head_task, h.head_ready_at,
               (SELECT count(*) FROM (SELECT FROM poolkeeper.ready AS r
                     WHERE r.queue_id = (_q).id AND r.again = h.again AND r.lane = h.lane AND r.type_key = h.type_key AND r.priority = h.priority
                     LIMIT greatest(10, 10000 / h.n)) AS x) AS ready
        FROM heads AS h
        UNION ALL
        SELECT k.lane, k.type_key, (-1)::smallint, false, k.one, k.since, k.n FROM next_of_keys AS k
    ), stopped AS MATERIALIZED (  -- what its tenant's bound, a suspension or a pause holds back, head by head
        SELECT s.*, CASE WHEN NOT (_q).part_paused OR (_q).paused THEN NULL ELSE poolkeeper.stopped((_q).id, s.lane, s.type_key) END AS code,
               CASE WHEN (_q).lanes_kept THEN poolkeeper.lane_room((_q).id, s.lane) ELSE 2147483647 END AS room,
               coalesce(s.type_key = ANY (_known), true) OR poolkeeper.reaches(_narrow, s.lane, s.type_key, false) AS known,
               coalesce(s.type_key = ANY (_live), false) OR poolkeeper.reaches(_narrow, s.lane, s.type_key, true) AS live,
               (SELECT t FROM unnest(_named) AS t WHERE poolkeeper.lane_key((_q).id, t) = s.lane LIMIT 1) AS tenant
        FROM sized AS s
    ), free AS MATERIALIZED (
        SELECT s.*, CASE WHEN s.code IS NOT NULL THEN 0
                         ELSE greatest(0, least(s.ready, s.room - coalesce(sum(s.ready) FILTER (WHERE s.code IS NULL) OVER (
                             PARTITION BY s.lane ORDER BY s.head_ready_at, s.type_key, s.priority ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0))) END AS runnable
        FROM stopped AS s
    ), overdue AS MATERIALIZED (  -- due, but not yet moved by a sweep: runnable all the same (O12)
        SELECT min(d.due_at) AS since, count(*) AS n
        FROM (SELECT k.due_at FROM poolkeeper.later AS k WHERE k.queue_id = (_q).id AND k.due_at <= _now ORDER BY k.due_at LIMIT 10000) AS d
    ), apart AS MATERIALIZED (
        SELECT u.*, CASE WHEN (_q).part_paused AND NOT (_q).paused THEN poolkeeper.stopped((_q).id, u.lane, u.type_key) END AS code,
               (_q).lanes_kept AND poolkeeper.lane_room((_q).id, u.lane) <= 0 AS full,
               coalesce(u.type_key = ANY (_known), true) OR poolkeeper.reaches(_narrow, u.lane, u.type_key, false) AS known,
               coalesce(u.type_key = ANY (_live), false) OR poolkeeper.reaches(_narrow, u.lane, u.type_key, true) AS live,
               (SELECT t FROM unnest(_named) AS t WHERE poolkeeper.lane_key((_q).id, t) = u.lane LIMIT 1) AS tenant
        FROM poolkeeper.suspect AS u WHERE u.queue_id = (_q).id
    ), suspects AS MATERIALIZED (
        SELECT u.type_key, u.known, u.live, u.tenant, min(u.ready_at) AS since, count(*) AS n, (array_agg(u.task_id))[1] AS one
        FROM apart AS u WHERE u.code IS NULL AND NOT u.full GROUP BY u.type_key, u.known, u.live, u.tenant
    ), types AS MATERIALIZED (
        SELECT x.type_key, x.known, x.live, x.tenant, (array_agg(x.one))[1] AS one, sum(x.ready) AS ready, sum(x.suspects) AS suspects, min(x.since) AS since
        FROM (SELECT s.type_key, s.known, s.live, s.tenant, s.head_task AS one, s.runnable AS ready, 0 AS suspects,
                     CASE WHEN s.runnable > 0 THEN s.head_ready_at END AS since FROM free AS s
              UNION ALL SELECT u.type_key, u.known, u.live, u.tenant, u.one, 0, u.n, NULL FROM suspects AS u) AS x
        GROUP BY x.type_key, x.known, x.live, x.tenant
    ), retries AS MATERIALIZED (  -- those beyond what is theirs until the last first delivery that waits now has gone (Q13)
        SELECT x.since, CASE WHEN (_q).paused OR x.firsts = 0 OR (_q).retry_share = 100 THEN 0
                             ELSE greatest(0, x.n - poolkeeper.firsts((_q).id, x.firsts, x.n * (100 - (_q).retry_share) / (_q).retry_share + 1)
                                                    * (_q).retry_share / (100 - (_q).retry_share)) END AS held
        FROM (SELECT least(10000, coalesce(sum(f.runnable) FILTER (WHERE f.again), 0))::bigint AS n,
                     coalesce(sum(f.runnable) FILTER (WHERE NOT f.again), 0)::bigint AS firsts,
                     min(f.head_ready_at) FILTER (WHERE f.again AND f.runnable > 0) AS since
              FROM free AS f WHERE f.known) AS x
    ), leases AS MATERIALIZED (  -- running, leased, and those whose session has fallen silent although it could have renewed (Q23)
        SELECT count(*) FILTER (WHERE l.started_at IS NULL) AS leased, count(*) FILTER (WHERE l.started_at IS NOT NULL) AS running,
               count(*) FILTER (WHERE x.expired) AS expired, min(x.until) FILTER (WHERE x.expired) AS expired_since
        FROM poolkeeper.lease AS l
        JOIN poolkeeper.session AS s ON s.id = l.session_id
        CROSS JOIN LATERAL (SELECT u.until, u.until <= _now AND (SELECT c.seen_at > _now - (_q).visibility_timeout / 2 FROM poolkeeper.contact AS c) AS expired
                            FROM (SELECT poolkeeper.lease_until(s.renewed_at, (_q).visibility_timeout, l.extended_until) AS until OFFSET 0) AS u) AS x
        WHERE l.queue_id = (_q).id
    )
    SELECT jsonb_build_object(
        'queue_id', (_q).id, 'namespace', (_q).namespace, 'name', (_q).name, 'policy_version', (_q).policy_version, 'paused', (_q).paused,
        'concurrency_max', (_q).concurrency_max,
        'ready', least(10000, coalesce((SELECT sum(s.ready) FROM sized AS s), 0) + (SELECT count(*) FROM apart) + (SELECT o.n FROM overdue AS o)
                              + (SELECT l.expired FROM leases AS l)),
        'scheduled', least(10000, (SELECT b.scheduled FROM behind_keys AS b)
            + (SELECT count(*) FROM (SELECT FROM poolkeeper.later AS d WHERE d.queue_id = (_q).id AND d.due_at > _now AND d.wait_reason IS NULL LIMIT 10000) AS x)),
        'waiting', (SELECT count(*) FROM (SELECT FROM poolkeeper.later AS d WHERE d.queue_id = (_q).id AND d.due_at > _now AND d.wait_reason IS NOT NULL LIMIT 10000) AS x),
        'leased', (SELECT l.leased FROM leases AS l), 'running', (SELECT l.running - l.expired FROM leases AS l),
        'dead', (SELECT count(*) FROM (SELECT FROM poolkeeper.dead AS d WHERE d.queue_id = (_q).id LIMIT 100000) AS x),
        'dead_recent', (SELECT count(*) FROM poolkeeper.dead AS d WHERE d.queue_id = (_q).id AND d.died_at > _now - interval '1 minute'),
        'dead_lately', (SELECT count(*) FROM (SELECT FROM poolkeeper.dead AS d WHERE d.queue_id = (_q).id AND d.died_at > _now - interval '5 minutes' LIMIT 100000) AS x),
        'dead_oldest', extract(epoch FROM _now - (SELECT min(d.died_at) FROM poolkeeper.dead AS d WHERE d.queue_id = (_q).id)),
        -- called where there is something: a function costs ten times as much as the probe
        'expired', CASE WHEN EXISTS (SELECT FROM poolkeeper.expiry AS e WHERE e.queue_id = (_q).id)
                        THEN poolkeeper.expired_lately((_q).id, _now) ELSE '{"live": 0, "dead": 0}' END,
        'schedules', CASE WHEN EXISTS (SELECT FROM poolkeeper.schedule AS s WHERE s.queue_id = (_q).id AND s.look_at < _now - interval '2 minutes')
                            OR EXISTS (SELECT FROM poolkeeper.schedule AS s WHERE s.queue_id = (_q).id AND s.refused IS NOT NULL AND NOT s.paused)
                          THEN poolkeeper.schedule_trouble((_q).id, (_q).paused, _now) ELSE '{"late": 0, "refused": 0}' END,
        'posts', (SELECT count(*) FROM (SELECT FROM poolkeeper.dead_post AS p WHERE p.queue_id = (_q).id LIMIT 1000) AS x),
        'dead_unannounced', EXISTS (SELECT FROM poolkeeper.dead AS d WHERE d.queue_id = (_q).id AND (d.batch IS NULL OR d.batch < 0)),
        'suspects', coalesce((SELECT sum(u.n) FROM suspects AS u), 0),
        'ordering', greatest(0, (SELECT b.ready FROM behind_keys AS b) - coalesce((SELECT sum(k.n) FROM next_of_keys AS k), 0)),
        'no_capable_worker', least(10000, coalesce((SELECT sum(t.ready + t.suspects) FROM types AS t WHERE NOT t.known), 0)),
        'held_back', (SELECT jsonb_build_object(
            'tenant_limit', least(10000, coalesce(sum(s.n) FILTER (WHERE s.code IS NULL), 0)),
            'tenant_suspended', least(10000, coalesce(sum(s.n) FILTER (WHERE s.code = 'tenant_suspended'), 0)),
            'type_paused', least(10000, coalesce(sum(s.n) FILTER (WHERE s.code = 'queue_paused'), 0)),
            'retry_share', (SELECT x.held FROM retries AS x))
            FROM (SELECT f.code, f.ready - f.runnable AS n FROM free AS f
                  UNION ALL SELECT a.code, 1 FROM apart AS a WHERE a.code IS NOT NULL OR a.full) AS s),
        'oldest_retry', extract(epoch FROM _now - (SELECT x.since FROM retries AS x)),
        'oldest_runnable', extract(epoch FROM _now - least((SELECT min(t.since) FROM types AS t WHERE t.known), (SELECT o.since FROM overdue AS o),
                                                           (SELECT min(u.since) FROM suspects AS u WHERE u.known), (SELECT l.expired_since FROM leases AS l))),
        'next_due', extract(epoch FROM (SELECT min(d.due_at) FROM poolkeeper.later AS d WHERE d.queue_id = (_q).id AND d.due_at > _now) - _now),
        'next_slot', poolkeeper.slot_in(ARRAY[(_q).id], _now),
        'lease_expiries', (SELECT c.lease_expiries FROM poolkeeper.queue_count AS c WHERE c.queue_id = (_q).id),
        'named', to_jsonb(coalesce(_named, '{}')),
        'types', coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                'type', (SELECT k.type FROM poolkeeper.task AS k WHERE k.id = t.one), 'ready', t.ready, 'suspects', t.suspects,
                'oldest', extract(epoch FROM _now - t.since), 'live', t.live, 'known', t.known, 'tenant', t.tenant))
            FROM types AS t), '[]'))
$$;

CREATE OR REPLACE FUNCTION poolkeeper.pool_stats(_p poolkeeper.pool, _now timestamptz) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'pool', (_p).name, 'max_running', (_p).max_running, 'providers', poolkeeper.providers_of(_p), 'needs', poolkeeper.needs_of(_p),
        'builds', coalesce((
            SELECT jsonb_agg(jsonb_build_object('build', b.build, 'types', b.types))
            FROM (SELECT s.info ->> 'build' AS build, s.types FROM poolkeeper.session AS s
                  WHERE s.pool_id = (_p).id AND s.ended_at IS NULL AND s.renewed_at > _now - interval '2 minutes'
                  UNION SELECT (_p).known_build, (_p).known_types WHERE (_p).known_types IS NOT NULL) AS b), '[]'),
        'running', (SELECT count(*) FROM poolkeeper.lease AS l WHERE l.pool_id = (_p).id),
        'sessions', coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                'session_id', s.id, 'pod_name', s.info ->> 'pod_name', 'pod_uid', s.info ->> 'pod_uid', 'build', s.info ->> 'build',
                'busy', b.n, 'concurrency', s.concurrency, 'draining', s.draining,
                'renewed_ago', extract(epoch FROM _now - s.renewed_at), 'registered_ago', extract(epoch FROM _now - s.registered_at),
                'idle_for', CASE WHEN b.n = 0 THEN extract(epoch FROM _now - coalesce(s.idle_since, s.renewed_at)) END,
                'finished', s.finished, 'busy_seconds', s.busy_seconds))
            FROM poolkeeper.session AS s
            CROSS JOIN LATERAL (SELECT count(*) AS n FROM poolkeeper.lease AS l WHERE l.session_id = s.id) AS b
            WHERE s.pool_id = (_p).id AND s.ended_at IS NULL AND (s.renewed_at > _now - interval '2 minutes' OR b.n > 0)), '[]'),
        'drains', coalesce((
            SELECT jsonb_agg(jsonb_build_object('ended_ago', extract(epoch FROM _now - r.at), 'seconds', r.seconds, 'truncated', r.truncated, 'grace', r.grace))
            FROM (SELECT k.at, k.seconds, k.truncated, (k.report ->> 'grace_seconds')::double precision AS grace FROM poolkeeper.drain_report AS k
                  WHERE k.pool_id = (_p).id AND k.at > _now - interval '14 days' ORDER BY k.at DESC LIMIT 200) AS r), '[]'))
$$;

CREATE OR REPLACE FUNCTION poolkeeper.stats(_cluster text, _position jsonb DEFAULT NULL) RETURNS TABLE (kind text, data jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    _now timestamptz := poolkeeper.clock();
    _me  poolkeeper.access := poolkeeper.caller();
BEGIN
    IF _position IS NOT NULL THEN
        PERFORM poolkeeper.compare_position(_position, NULL, NULL, _now);
    END IF;
    RETURN QUERY
        WITH able AS MATERIALIZED (SELECT c.* FROM poolkeeper.capable(NULL, _now) AS c)
        SELECT 'queue', poolkeeper.queue_stats(q, _now, a.live, a.known, a.narrow, a.named) FROM poolkeeper.queue AS q LEFT JOIN able AS a ON a.queue_id = q.id
        WHERE (_cluster IS NULL OR q.cluster = _cluster) AND poolkeeper.may_tend_queue(_me, q.namespace || '/' || q.name)
        UNION ALL
        SELECT 'pool', poolkeeper.pool_stats(p, _now) FROM poolkeeper.pool AS p WHERE _me.pool IS NULL OR _me.pool = p.name
        UNION ALL
        SELECT 'provider', poolkeeper.provider_stats(r, _now) FROM poolkeeper.provider AS r WHERE _me.pool IS NULL
        UNION ALL
        SELECT 'installation', jsonb_build_object('held', (SELECT c.held_why FROM poolkeeper.contact AS c),
                                                  'vacuum', poolkeeper.vacuum_held(_me.pool IS NULL AND _me.queues IS NULL AND _me.tenants IS NULL AND _me.tenants_except IS NULL),
                                                   'position', poolkeeper.position(NULL, NULL), 'now', _now, 'instance_id', i.id, 'server_version', current_setting('server_version'),
                                                  'schema_version', (SELECT max(m.version) FROM poolkeeper.migration AS m))
        FROM poolkeeper.instance AS i;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.queues() RETURNS TABLE (data jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _me poolkeeper.access := poolkeeper.caller();  -- first: a plan may begin with what has no rows, and ask nobody
    _now timestamptz := poolkeeper.clock();
BEGIN RETURN QUERY
    WITH able AS MATERIALIZED (SELECT c.* FROM poolkeeper.capable(NULL, _now) AS c)
    SELECT poolkeeper.queue_stats(q, _now, a.live, a.known, a.narrow, a.named) FROM poolkeeper.queue AS q LEFT JOIN able AS a ON a.queue_id = q.id
    WHERE poolkeeper.may_tend_queue(_me, q.namespace || '/' || q.name) ORDER BY q.namespace, q.name;
END $$;
