-- Policies of queues: one versioned row each (O1). Identity: (cluster, namespace UID, name); an equal name of another
-- cluster or of a re-created namespace is refused (queue_owned) until adoption is asked for (contract 11), by naming the
-- owner that it is taken from, as the refusal tells it: who asks twice, or asks where somebody else was faster, takes nothing.

-- Namespaces and queues are named as Kubernetes names them, also where there is none (contract 10).
CREATE OR REPLACE FUNCTION poolkeeper.dns_label(_name text) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$ SELECT _name ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$' $$;

CREATE OR REPLACE FUNCTION poolkeeper.apply_policy(
    _cluster text, _namespace_uid text, _namespace text, _name text, _spec jsonb, _who text, _adopt text DEFAULT NULL, _term uuid DEFAULT NULL
) RETURNS TABLE (code text, queue_id integer, policy_version integer, changed boolean, owner text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _q      poolkeeper.queue;
    _owner  text;
    _old    jsonb;
    _was    poolkeeper.queue;
    _secs   jsonb := _spec;
    _kept   boolean;
BEGIN
    IF NOT poolkeeper.may_rule_queue(_caller, _namespace || '/' || _name) THEN
        RAISE EXCEPTION 'role_not_allowed' USING ERRCODE = 'PK403', HINT = 'this login may not apply policies to that queue';
    END IF;
    IF NOT coalesce(poolkeeper.dns_label(_namespace) AND poolkeeper.dns_label(_name), false) THEN
        RETURN QUERY SELECT 'name_invalid', NULL::integer, NULL::integer, false, NULL::text;
        RETURN;
    END IF;
    PERFORM poolkeeper.demand_text(_cluster, 'a cluster');
    PERFORM poolkeeper.demand_text(_namespace_uid, 'a namespace''s UID');
    PERFORM poolkeeper.demand_text(_who, 'who applies');
    PERFORM poolkeeper.demand(poolkeeper.is_object(_spec, 1048576), format('the policy of queue "%s/%s" cannot be that', _namespace, _name),
                              'give an object of at most 1 MiB as JSON; see poolkeeper.policy for its fields');
    PERFORM poolkeeper.demand_durable();
    PERFORM poolkeeper.demand_leader(_cluster, _namespace, _term);
    INSERT INTO poolkeeper.queue (cluster, namespace_uid, namespace, name, visibility_timeout, max_deliveries, max_hand_backs, max_snoozes,
                                  backoff_initial, backoff_max, backoff_factor, priority_min, priority_max, priority_default, priority_age,
                                  max_payload_bytes, checkpoint_max_bytes, checkpoint_max_per_second)
    VALUES (_cluster, _namespace_uid, _namespace, _name, '15 s', 5, 20, 100, '1 s', '10 min', 2, 0, 9, 4, '5 min', 65536, 65536, 10)
    ON CONFLICT (namespace, name) DO NOTHING;
    SELECT q.* INTO STRICT _q FROM poolkeeper.queue AS q WHERE q.namespace = _namespace AND q.name = _name FOR NO KEY UPDATE;
    _owner := _q.cluster || '/' || _q.namespace_uid;
    _was := _q;
    IF (_q.cluster, _q.namespace_uid) <> (_cluster, _namespace_uid) AND _adopt IS DISTINCT FROM _owner THEN
        RETURN QUERY SELECT 'queue_owned', _q.id, _q.policy_version, false, _owner;
        RETURN;
    END IF;
    SELECT p.spec INTO _old FROM poolkeeper.policy AS p WHERE p.queue_id = _q.id AND p.version = _q.policy_version;
    IF _old = _spec AND (_q.cluster, _q.namespace_uid) = (_cluster, _namespace_uid) THEN
        RETURN QUERY SELECT NULL::text, _q.id, _q.policy_version, false, _owner;
        RETURN;
    END IF;
    BEGIN
        _kept := poolkeeper.set_tenant_rules(_q.id, _spec);
        UPDATE poolkeeper.queue AS q SET
            cluster = _cluster, namespace_uid = _namespace_uid, policy_version = q.policy_version + 1,
            paused = coalesce((_spec ->> 'paused')::boolean, false),
            visibility_timeout = poolkeeper.seconds(_spec, 'visibility_timeout_seconds', 15),
            max_age = poolkeeper.seconds(_spec, 'max_age_seconds', NULL),
            max_run_time = poolkeeper.seconds(_spec, 'max_run_time_seconds', NULL),
            max_tenure = poolkeeper.seconds(_spec, 'max_tenure_seconds', NULL),
            progress_timeout = poolkeeper.seconds(_spec, 'progress_timeout_seconds', NULL),
            max_deliveries = coalesce((_spec ->> 'max_deliveries')::integer, 5),
            max_hand_backs = coalesce((_spec ->> 'max_hand_backs')::integer, 20),
            max_snoozes = coalesce((_spec ->> 'max_snoozes')::integer, 100),
            task_types = ARRAY(SELECT jsonb_array_elements_text(coalesce(nullif(_spec -> 'task_types', 'null'), '[]'))),
            wake_up = coalesce(_spec ->> 'wake_up', 'notify'),
            ordering = coalesce(_spec ->> 'ordering', 'block'),
            backoff_initial = poolkeeper.seconds(_spec, 'backoff_initial_seconds', 1),
            backoff_max = poolkeeper.seconds(_spec, 'backoff_max_seconds', 600),
            backoff_factor = coalesce((_spec ->> 'backoff_factor_percent')::double precision, 200) / 100,
            backoff_max_elapsed = poolkeeper.seconds(_spec, 'backoff_max_elapsed_seconds', NULL),
            priority_min = coalesce((_spec ->> 'priority_min')::smallint, 0::smallint),
            priority_max = coalesce((_spec ->> 'priority_max')::smallint, 9::smallint),
            priority_default = coalesce((_spec ->> 'priority_default')::smallint, 4::smallint),
            priority_age = poolkeeper.seconds(_spec, 'priority_age_seconds', 300),
            max_payload_bytes = coalesce((_spec ->> 'max_payload_bytes')::integer, 65536),
            max_waiting = (_spec ->> 'max_waiting')::bigint,
            max_waiting_per_tenant = (_spec ->> 'max_waiting_per_tenant')::bigint,
            tenant_max_waiting = coalesce((
                SELECT jsonb_object_agg(poolkeeper.lane_key(_q.id, t ->> 'name'), t -> 'max_waiting')
                FROM jsonb_array_elements(coalesce(nullif(_spec -> 'tenants', 'null'), '[]')) AS t WHERE (t ->> 'max_waiting') IS NOT NULL), '{}'),
            concurrency_max = (_spec ->> 'concurrency_max')::integer,
            retry_share = coalesce((_spec ->> 'retry_share_percent')::integer, 20),
            per_tenant_max = (_spec ->> 'per_tenant_max')::integer,
            lanes_kept = _kept,
            weighted = EXISTS (SELECT FROM poolkeeper.tenant_rule AS t WHERE t.queue_id = _q.id AND t.weight > 1),
            paused_type_keys = ARRAY(SELECT poolkeeper.type_key(t) FROM jsonb_array_elements_text(coalesce(nullif(_spec -> 'paused_task_types', 'null'), '[]')) AS t),
            part_paused = jsonb_array_length(coalesce(nullif(_spec -> 'paused_task_types', 'null'), '[]')) > 0
                       OR jsonb_array_length(coalesce(nullif(_spec -> 'suspended_tenants', 'null'), '[]')) > 0,
            checkpoint_max_bytes = coalesce((_spec ->> 'checkpoint_max_bytes')::integer, 65536),
            checkpoint_max_per_second = coalesce((_spec ->> 'checkpoint_max_per_second')::double precision, 10),
            retention_payload = poolkeeper.seconds(_spec, 'retention_payload_seconds', 604800),
            retention_result = poolkeeper.seconds(_spec, 'retention_result_seconds', 604800),
            retention_events = poolkeeper.seconds(_spec, 'retention_events_seconds', 2592000),
            retention_checkpoint = poolkeeper.seconds(_spec, 'retention_checkpoint_seconds', 86400),
            retention_dead_letters = poolkeeper.seconds(_spec, 'retention_dead_letters_seconds', 7776000),
            retention_keys = poolkeeper.seconds(_spec, 'retention_keys_seconds', 7776000),
            dead_letter_owner = _spec ->> 'dead_letter_owner',
            dead_letter_runbook = _spec ->> 'dead_letter_runbook'
        WHERE q.id = _q.id
        RETURNING q.* INTO _q;
    EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN  -- misuse: the models of a policy are stricter
        RAISE EXCEPTION 'the policy of queue "%/%" cannot be: %', _namespace, _name, SQLERRM USING ERRCODE = 'PK400',
            HINT = 'see poolkeeper.policy for the fields and their bounds; nothing of it was applied';
    END;
    INSERT INTO poolkeeper.policy (queue_id, version, spec, applied_by, applied_at)
    VALUES (_q.id, _q.policy_version, _spec, _who, poolkeeper.clock());
    INSERT INTO poolkeeper.queue_count (queue_id) VALUES (_q.id) ON CONFLICT DO NOTHING;
    IF _kept THEN
        PERFORM poolkeeper.open_all_lanes(_q.id);
        PERFORM poolkeeper.count_running(_q.id);
    END IF;
    IF poolkeeper.bounds_waiting(_q) THEN  -- what was counted for other limits counts no more
        INSERT INTO poolkeeper.backlog AS b (queue_id, waiting, counted_at, took) VALUES (_q.id, 0, '-infinity', '0')
        ON CONFLICT (queue_id) DO UPDATE SET counted_at = EXCLUDED.counted_at, took = EXCLUDED.took;
    END IF;
    IF (_q.max_run_time, _q.max_tenure, _q.progress_timeout) IS DISTINCT FROM (_was.max_run_time, _was.max_tenure, _was.progress_timeout) THEN
        PERFORM poolkeeper.limit_running(_q);
    END IF;
    INSERT INTO poolkeeper.gate (queue_id) VALUES (_q.id) ON CONFLICT DO NOTHING;
    IF _q.ordering <> _was.ordering THEN
        PERFORM poolkeeper.reorder(_q.id);
    END IF;
    PERFORM poolkeeper.wake();  -- a pause ended, a limit raised
    RETURN QUERY SELECT NULL::text, _q.id, _q.policy_version, true, _cluster || '/' || _namespace_uid;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.seconds(_spec jsonb, _key text, _default double precision) RETURNS interval
LANGUAGE sql IMMUTABLE
AS $$ SELECT make_interval(secs => coalesce((_spec ->> _key)::double precision, _default)) $$;

-- Pause and resume by people outside Kubernetes: a new version of the same policy. A TaskQueue's is refused
-- (queue_owned): its operator would apply the resource again and undo it.
CREATE OR REPLACE FUNCTION poolkeeper.pause_queue(_queue text, _paused boolean, _who text) RETURNS TABLE (code text, policy_version integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _found record;
BEGIN
    SELECT q.cluster, q.namespace_uid, q.namespace, q.name, p.spec INTO _found
    FROM poolkeeper.queue AS q JOIN poolkeeper.policy AS p ON p.queue_id = q.id AND p.version = q.policy_version
    WHERE q.namespace || '/' || q.name = poolkeeper.queue_path(_queue);
    IF NOT FOUND OR NOT poolkeeper.may_rule_queue(poolkeeper.caller(), poolkeeper.queue_path(_queue)) THEN
        RETURN QUERY SELECT 'unknown_queue', NULL::integer;
        RETURN;
    END IF;
    IF _found.cluster <> 'local' THEN
        RETURN QUERY SELECT 'queue_owned', NULL::integer;
        RETURN;
    END IF;
    RETURN QUERY SELECT a.code, a.policy_version FROM poolkeeper.apply_policy(
        _found.cluster, _found.namespace_uid, _found.namespace, _found.name, _found.spec || jsonb_build_object('paused', _paused), _who) AS a;
END $$;
