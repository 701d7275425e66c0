-- Group roles, which a login joins, and what each may call. Nothing else is granted to anybody (Q51).
DO $$
DECLARE
    _role text;
BEGIN
    FOREACH _role IN ARRAY ARRAY['poolkeeper_submitter', 'poolkeeper_worker', 'poolkeeper_operator', 'poolkeeper_reader', 'poolkeeper_person'] LOOP
        -- roles belong to the server, not to the database; an owner who may not create roles can be given them
        CONTINUE WHEN EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = _role);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', _role);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
        END;
    END LOOP;
END $$;

REVOKE ALL ON SCHEMA poolkeeper FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA poolkeeper FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA poolkeeper FROM PUBLIC;
GRANT USAGE ON SCHEMA poolkeeper TO poolkeeper_submitter, poolkeeper_worker, poolkeeper_operator, poolkeeper_reader, poolkeeper_person;

GRANT EXECUTE ON FUNCTION poolkeeper.submit(text, text, jsonb, jsonb, boolean), poolkeeper.submit_many(text, jsonb, boolean)
    TO poolkeeper_submitter, poolkeeper_worker, poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.set_schedule(text, text, jsonb, jsonb, text) TO poolkeeper_submitter, poolkeeper_worker, poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.remove_schedule(text, text, text), poolkeeper.pause_schedule(text, text, text, boolean), poolkeeper.run_schedule(text, text, text)
    TO poolkeeper_submitter, poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.schedules(text, integer)
    TO poolkeeper_submitter, poolkeeper_worker, poolkeeper_operator, poolkeeper_reader, poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.due_schedules(text[], integer), poolkeeper.fire_schedules(jsonb) TO poolkeeper_worker, poolkeeper_operator;
GRANT EXECUTE ON FUNCTION
    poolkeeper.register_session(text, text[], text[], integer, jsonb, text[], text[]),
    poolkeeper.turn(uuid, text, bigint, bigint, jsonb, integer, boolean, boolean, jsonb, integer, jsonb, double precision, boolean),
    poolkeeper.renew(uuid, text, bigint, uuid[], jsonb, boolean), poolkeeper.end_session(uuid, text), poolkeeper.report_drain(uuid, text, jsonb),
    poolkeeper.checkpoint(uuid, text, jsonb, integer, integer), poolkeeper.extend(uuid, text, interval),
    poolkeeper.report_provider(uuid, text, text, text, double precision, jsonb)
    TO poolkeeper_worker;
GRANT EXECUTE ON FUNCTION poolkeeper.succeed(uuid, text, jsonb) TO poolkeeper_worker, poolkeeper_submitter;
GRANT EXECUTE ON FUNCTION poolkeeper.sweep(integer, double precision), poolkeeper.maintain(integer) TO poolkeeper_worker, poolkeeper_operator, poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.task_view(uuid), poolkeeper.timeline(uuid), poolkeeper.dead_letters(text, integer), poolkeeper.dead_matching(text, jsonb, jsonb, integer, integer), poolkeeper.queues(),
    poolkeeper.decisions(text, integer), poolkeeper.installation()
    TO poolkeeper_submitter, poolkeeper_worker, poolkeeper_operator, poolkeeper_reader, poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.cancel(uuid, text, text, integer) TO poolkeeper_submitter, poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.requeue(uuid, text, text, integer), poolkeeper.discard(uuid, text, text, integer),
    poolkeeper.requeue_matching(text, jsonb, text, text, jsonb, integer, integer), poolkeeper.discard_matching(text, jsonb, text, text, jsonb, integer, integer),
    poolkeeper.pause_queue(text, boolean, text) TO poolkeeper_person;
GRANT EXECUTE ON FUNCTION
    poolkeeper.apply_policy(text, text, text, text, jsonb, text, text, uuid), poolkeeper.stats(text, jsonb), poolkeeper.set_pool(text, integer, uuid), poolkeeper.set_providers(text, jsonb, uuid),
    poolkeeper.mark_sessions(text, text[], boolean, uuid), poolkeeper.tell_grace(text, text[], double precision[], uuid),
    poolkeeper.record_decision(text, jsonb, uuid), poolkeeper.dead_batch(integer, uuid), poolkeeper.dead_batch_announced(integer, integer, uuid), poolkeeper.lead(text, text, text, bigint, text),
    poolkeeper.keep_post(integer, integer, jsonb, uuid), poolkeeper.posts(integer, integer), poolkeeper.post_taken(integer, integer, uuid),
    poolkeeper.set_pool_login(text, text, text, text[], text[], text[], uuid), poolkeeper.pool_logins(text, text), poolkeeper.retire_pool_login(text, text, uuid),
    poolkeeper.resign(uuid), poolkeeper.report_crashes(text, text[], timestamptz[], text[], uuid),
    poolkeeper.purge(text, text, text, text, text, jsonb, integer, uuid)
    TO poolkeeper_operator;
GRANT EXECUTE ON FUNCTION poolkeeper.apply_policy(text, text, text, text, jsonb, text, text, uuid) TO poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.audit_tasks(uuid, integer), poolkeeper.audit_keys(bigint, integer), poolkeeper.audit_counts(jsonb), poolkeeper.doctor()
    TO poolkeeper_operator, poolkeeper_reader, poolkeeper_person;
GRANT EXECUTE ON FUNCTION poolkeeper.accept_installation(text, text) TO poolkeeper_person;
