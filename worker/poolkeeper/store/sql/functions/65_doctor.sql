-- What `poolkeeper doctor` asks of the installation and of other sessions: figures and names of logins, never a statement, a
-- payload or a tenant. Only for a login without limits. What the schema's owner itself may not see is told as sees_all = false.
-- Waits for nobody and writes nothing.
CREATE OR REPLACE FUNCTION poolkeeper.doctor() RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
BEGIN
    PERFORM poolkeeper.demand_unlimited(poolkeeper.caller());
    RETURN jsonb_build_object(
        'owner', current_user,
        'sees_all', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
        'functions', (SELECT f.checksum FROM poolkeeper.functions AS f),
        'migrations', (SELECT jsonb_object_agg(m.version, m.checksum) FROM poolkeeper.migration AS m),
        'nobody', (SELECT count(*) FROM poolkeeper.access AS a WHERE NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = a.role)),
        'clock_ahead', extract(epoch FROM poolkeeper.clock() - clock_timestamp()),
        'upkeep_ago', (SELECT extract(epoch FROM poolkeeper.clock() - w.began_at) FROM poolkeeper.retention_walk AS w WHERE w.kind = 'maintain'),
        'months_missing', (SELECT coalesce(jsonb_agg(m.name ORDER BY m.name), '[]')
                           FROM unnest(ARRAY['delivery', 'event']) AS t (name) CROSS JOIN LATERAL poolkeeper.months(t.name, poolkeeper.clock()) AS m WHERE m.wanted),
        'rest', jsonb_build_object('delivery', (SELECT count(*) FROM (SELECT FROM poolkeeper.delivery_standard_rest AS d LIMIT 1000) AS x),
                                   'event', (SELECT count(*) FROM (SELECT FROM poolkeeper.event_standard_rest AS e LIMIT 1000) AS x)),
        'schedules', (SELECT jsonb_build_object('late', count(*) FILTER (WHERE x.late), 'refused', count(*) FILTER (WHERE x.refused), 'first', min(x.name))
                      FROM (SELECT q.namespace || '/' || q.name || ' ' || s.name AS name, s.refused IS NOT NULL AS refused,
                                   s.look_at < poolkeeper.clock() - interval '2 minutes' AS late
                            FROM poolkeeper.schedule AS s JOIN poolkeeper.queue AS q ON q.id = s.queue_id WHERE NOT s.paused AND NOT q.paused) AS x
                      WHERE x.refused OR x.late),
        'versions', (SELECT coalesce(jsonb_object_agg(v.version, v.n), '{}') FROM (
                        SELECT coalesce(s.info ->> 'version', 'unknown') AS version, count(*) AS n FROM poolkeeper.session AS s
                        WHERE s.ended_at IS NULL GROUP BY 1) AS v),
        'holders', poolkeeper.vacuum_holders(),
        'idle', poolkeeper.idle_holders(),
        'oldest', (SELECT jsonb_build_object('pid', a.pid, 'user', a.usename, 'application', a.application_name, 'database', a.datname,
                                             'seconds', extract(epoch FROM clock_timestamp() - a.xact_start))
                   FROM pg_stat_activity AS a WHERE a.backend_type = 'client backend' AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid()
                   ORDER BY a.xact_start LIMIT 1));
END $$;

-- Who keeps vacuum from removing dead rows of this database, oldest first: sessions, prepared transactions, replication slots,
-- standbys that send feedback.
CREATE OR REPLACE FUNCTION poolkeeper.vacuum_holders() RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(jsonb_agg(to_jsonb(x) ORDER BY x.xids DESC, x.seconds DESC NULLS LAST), '[]') FROM (
        SELECT * FROM (
            SELECT 'session' AS kind, a.pid::text AS name, a.usename::text AS "user", a.application_name AS application, a.state,
                   extract(epoch FROM poolkeeper.clock() - a.xact_start) AS seconds, greatest(age(a.backend_xmin), age(a.backend_xid)) AS xids
            FROM pg_stat_activity AS a
            WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
              AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
            UNION ALL
            SELECT 'prepared transaction', p.gid, p.owner::text, NULL, NULL, extract(epoch FROM poolkeeper.clock() - p.prepared), age(p.transaction)
            FROM pg_prepared_xacts AS p WHERE p.database = current_database()
            UNION ALL
            SELECT 'replication slot', s.slot_name::text, NULL, NULL, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL, age(s.xmin)
            FROM pg_replication_slots AS s WHERE s.xmin IS NOT NULL
            UNION ALL
            SELECT 'standby', r.pid::text, r.usename::text, r.application_name, r.state, NULL, age(r.backend_xmin)
            FROM pg_stat_replication AS r WHERE r.backend_xmin IS NOT NULL) AS y
        ORDER BY y.xids DESC, y.seconds DESC NULLS LAST LIMIT 20) AS x
$$;

-- Sessions that do nothing in a transaction that has locked or changed rows of the store (Q51), longest first.
CREATE OR REPLACE FUNCTION poolkeeper.idle_holders() RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(jsonb_agg(to_jsonb(x) ORDER BY x.seconds DESC), '[]') FROM (
        SELECT a.pid, a.usename::text AS "user", a.application_name AS application,
               extract(epoch FROM clock_timestamp() - a.state_change) AS seconds, array_agg(DISTINCT c.relname::text) AS tables
        FROM pg_stat_activity AS a
        JOIN pg_locks AS l ON l.pid = a.pid AND l.mode NOT IN ('AccessShareLock', 'SIReadLock')
        JOIN pg_database AS b ON b.oid = l.database AND b.datname = current_database()
        JOIN pg_class AS c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
        JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = 'poolkeeper'
        WHERE a.state LIKE 'idle in transaction%'
        GROUP BY a.pid, a.usename, a.application_name, a.state_change ORDER BY a.state_change LIMIT 20) AS x
$$;
