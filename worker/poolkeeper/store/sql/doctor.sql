-- The statements of poolkeeper.store.looking: what any login may see of the server, one value each.

-- name: moment
SELECT clock_timestamp() AS value

-- name: server
SELECT jsonb_build_object(
    'version', current_setting('server_version'), 'number', current_setting('server_version_num')::integer,
    'standby', pg_is_in_recovery(), 'encoding', getdatabaseencoding(), 'backend', pg_backend_pid(),
    'settings', (SELECT jsonb_object_agg(s.name, s.setting) FROM pg_settings AS s)) AS value

-- name: role_settings
SELECT coalesce(jsonb_agg(jsonb_build_object('role', r.rolname, 'settings', d.setconfig)), '[]') AS value
FROM pg_db_role_setting AS d
LEFT JOIN pg_roles AS r ON r.oid = d.setrole
WHERE (d.setdatabase = 0 OR d.setdatabase = (SELECT b.oid FROM pg_database AS b WHERE b.datname = current_database()))
  AND (d.setrole = 0 OR EXISTS (
      SELECT FROM pg_roles AS g WHERE g.rolname IN ('poolkeeper_submitter', 'poolkeeper_worker', 'poolkeeper_operator', 'poolkeeper_reader', 'poolkeeper_person')
        AND pg_has_role(d.setrole, g.oid, 'MEMBER')))

-- name: login
SELECT jsonb_build_object(
    'login', session_user, 'superuser', r.rolsuper, 'limit', r.rolconnlimit,
    'used', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usename = session_user AND coalesce(a.backend_type, 'client backend') = 'client backend'),
    'groups', (SELECT coalesce(jsonb_agg(g.rolname ORDER BY g.rolname), '[]') FROM pg_roles AS g
               WHERE pg_has_role(r.oid, g.oid, 'USAGE')
                 AND g.rolname IN ('poolkeeper_submitter', 'poolkeeper_worker', 'poolkeeper_operator', 'poolkeeper_reader', 'poolkeeper_person')),
    'owner', (SELECT pg_has_role(r.oid, n.nspowner, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = 'poolkeeper')) AS value
FROM pg_roles AS r WHERE r.rolname = session_user

-- name: access
SELECT count(*) AS value FROM poolkeeper.task_view('00000000-0000-0000-0000-000000000000')

-- name: connections
-- backend_type of others is hidden from ordinary logins; user and database are not, and background processes lack one of them
SELECT jsonb_build_object(
    'used', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usesysid IS NOT NULL AND a.datid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend'),
    'max', current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
           - coalesce(nullif(current_setting('reserved_connections', true), '')::integer, 0),
    'database_used', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend'),
    'database_max', (SELECT b.datconnlimit FROM pg_database AS b WHERE b.datname = current_database()),
    'notifications', pg_notification_queue_usage()) AS value

-- name: rights
SELECT jsonb_build_object(
    'groups_missing', (SELECT coalesce(jsonb_agg(g.name ORDER BY g.name), '[]') FROM unnest(ARRAY[
        'poolkeeper_submitter', 'poolkeeper_worker', 'poolkeeper_operator', 'poolkeeper_reader', 'poolkeeper_person']) AS g (name)
        WHERE NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = g.name)),
    'execute_missing', (SELECT coalesce(jsonb_agg(m.role || ': ' || m.function ORDER BY m.role, m.function), '[]') FROM (VALUES
        ('poolkeeper_submitter', 'submit'), ('poolkeeper_submitter', 'submit_many'), ('poolkeeper_submitter', 'cancel'), ('poolkeeper_submitter', 'task_view'),
        ('poolkeeper_worker', 'register_session'), ('poolkeeper_worker', 'turn'), ('poolkeeper_worker', 'renew'), ('poolkeeper_worker', 'checkpoint'),
        ('poolkeeper_worker', 'succeed'), ('poolkeeper_worker', 'sweep'), ('poolkeeper_worker', 'end_session'), ('poolkeeper_worker', 'report_drain'),
        ('poolkeeper_operator', 'stats'), ('poolkeeper_operator', 'apply_policy'), ('poolkeeper_operator', 'lead'), ('poolkeeper_operator', 'set_pool'),
        ('poolkeeper_operator', 'maintain'), ('poolkeeper_operator', 'sweep'), ('poolkeeper_operator', 'dead_batch'),
        ('poolkeeper_reader', 'task_view'), ('poolkeeper_reader', 'queues'), ('poolkeeper_reader', 'dead_letters'),
        ('poolkeeper_person', 'requeue'), ('poolkeeper_person', 'discard'), ('poolkeeper_person', 'cancel'), ('poolkeeper_person', 'pause_queue')
        ) AS m (role, function)
        JOIN pg_roles AS r ON r.rolname = m.role
        WHERE NOT EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
                          WHERE n.nspname = 'poolkeeper' AND p.proname = m.function AND has_function_privilege(r.oid, p.oid, 'EXECUTE'))),
    'public', (SELECT coalesce(jsonb_agg(DISTINCT x.name), '[]') FROM (
        SELECT p.proname::text AS name FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a WHERE n.nspname = 'poolkeeper' AND a.grantee = 0
        UNION ALL
        SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL aclexplode(c.relacl) AS a WHERE n.nspname = 'poolkeeper' AND a.grantee <> c.relowner) AS x),
    'owner', (SELECT jsonb_build_object('name', r.rolname, 'superuser', r.rolsuper) FROM pg_namespace AS n JOIN pg_roles AS r ON r.oid = n.nspowner
              WHERE n.nspname = 'poolkeeper'),
    'foreign', (SELECT coalesce(jsonb_agg(DISTINCT x.name), '[]') FROM (
        SELECT p.proname::text AS name FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'poolkeeper' AND p.proowner <> n.nspowner
        UNION ALL
        SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'poolkeeper' AND c.relowner <> n.nspowner) AS x),
    'indexes_invalid', (SELECT coalesce(jsonb_agg(c.relname::text ORDER BY c.relname), '[]') FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
                        JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = 'poolkeeper' AND NOT (i.indisvalid AND i.indisready))) AS value

-- name: tables
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'name', s.relname, 'live', s.n_live_tup, 'dead', s.n_dead_tup, 'bytes', pg_relation_size(s.relid),
    'vacuumed_ago', extract(epoch FROM clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum)),
    'off', 'autovacuum_enabled=false' = ANY (c.reloptions)) ORDER BY s.relname), '[]') AS value
FROM pg_stat_all_tables AS s JOIN pg_class AS c ON c.oid = s.relid WHERE s.schemaname = 'poolkeeper'

-- name: replication
SELECT jsonb_build_object(
    'sees_all', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
    'states', (SELECT coalesce(jsonb_object_agg(x.state, x.n), '{}') FROM (
        SELECT coalesce(r.sync_state, 'unknown') AS state, count(*) AS n FROM pg_stat_replication AS r GROUP BY 1) AS x)) AS value
