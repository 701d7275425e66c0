-- The upkeep: what has ended goes by its age (Q52), and the history has a partition for each month, bounded by the time in
-- the task ids (contract 8). The default partition takes what comes when nobody made one; a month that it already holds rows
-- of is left to it. A month that has passed, and of which no task is left, goes. Also removes what late transactions left in
-- queues that were purged. Of several at once one works, the others answer with nothing. One page of each kind; more says
-- that there is more to do now. Ends who keeps a limit from others for a minute (66_holders.sql). Waits 0.2 s at most, and leaves partitions that somebody holds for the next time.

CREATE OR REPLACE FUNCTION poolkeeper.maintain(_most integer DEFAULT 1000)
RETURNS TABLE (tasks bigint, payloads bigint, results bigint, checkpoints bigint, dead_letters bigint, keys bigint, sessions bigint,
               decisions bigint, drains bigint, made integer, dropped integer, holders integer, more boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    _now   timestamptz := poolkeeper.clock();
    _due   record;
    _part  record;
    _table text;
    _left  boolean;
BEGIN
    PERFORM poolkeeper.caller();
    PERFORM poolkeeper.demand_durable();
    PERFORM set_config('lock_timeout', '200ms', true);  -- rather later than in the way
    _most := least(greatest(_most, 1), 10000);
    tasks := 0; payloads := 0; results := 0; checkpoints := 0; dead_letters := 0; keys := 0; sessions := 0; decisions := 0; drains := 0;
    made := 0; dropped := 0; holders := 0; more := false;
    PERFORM FROM poolkeeper.instance AS i FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NEXT;
        RETURN;
    END IF;
    holders := poolkeeper.end_holders(interval '1 minute');
    INSERT INTO poolkeeper.retention_walk AS w (kind, began_at) VALUES ('maintain', _now) ON CONFLICT (kind) DO UPDATE SET began_at = EXCLUDED.began_at;

    dead_letters := poolkeeper.discard_old(_most, _now);
    SELECT * INTO _due FROM poolkeeper.erase_checkpoints(_most, _now);
    checkpoints := _due.erased;
    more := dead_letters = _most OR _due.looked = _most;
    SELECT * INTO _due FROM poolkeeper.take_due('events', _most, _now);
    tasks := poolkeeper.forget_ended(_due.ids, _now);
    more := more OR _due.more;
    SELECT * INTO _due FROM poolkeeper.take_due('payload', _most, _now);
    payloads := poolkeeper.erase_payloads(_due.ids, _now);
    more := more OR _due.more;
    SELECT * INTO _due FROM poolkeeper.take_due('result', _most, _now);
    results := poolkeeper.erase_results(_due.ids, _now);
    more := more OR _due.more;
    keys := poolkeeper.forget_old_keys(_most, _now);
    sessions := poolkeeper.forget_sessions(_most, _now);
    SELECT * INTO _due FROM poolkeeper.forget_reports(_most, _now);
    decisions := _due.decisions;
    drains := _due.drains;
    more := more OR keys = _most OR sessions = _most OR _due.more;
    PERFORM poolkeeper.forget_strays(_most);
    PERFORM poolkeeper.forget_lanes(_most);
    PERFORM poolkeeper.tidy_windows(_most, _now);
    more := more OR poolkeeper.forget_expiries(_most, _now) = _most;
    more := more OR poolkeeper.forget_posts(_most, _now) = _most;

    -- last, since these locks keep everybody out until the commit
    FOREACH _table IN ARRAY ARRAY['delivery', 'event'] LOOP
        FOR _part IN SELECT * FROM poolkeeper.months(_table, _now) LOOP
            BEGIN
                IF _part.wanted THEN
                    EXECUTE format('SELECT EXISTS (SELECT FROM poolkeeper.%I WHERE task_id >= $1 AND task_id < $2)', _table || '_standard_rest')
                        INTO _left USING _part.first, _part.until;
                    CONTINUE WHEN _left;
                    EXECUTE format('CREATE TABLE poolkeeper.%I PARTITION OF poolkeeper.%I FOR VALUES FROM (%L) TO (%L)',
                                   _part.name, _table || '_standard', _part.first, _part.until);
                    made := made + 1;
                    CONTINUE;
                END IF;
                CONTINUE WHEN EXISTS (SELECT FROM poolkeeper.task AS t WHERE t.id >= _part.first AND t.id < _part.until);
                EXECUTE format('SELECT EXISTS (SELECT FROM poolkeeper.%I WHERE retention = 0)', _part.name) INTO _left;
                CONTINUE WHEN _left;
                EXECUTE format('LOCK TABLE ONLY poolkeeper.%I, ONLY poolkeeper.%I IN ACCESS EXCLUSIVE MODE', _table || '_standard', _part.name);
                EXECUTE format('SELECT EXISTS (SELECT FROM poolkeeper.%I WHERE retention = 0)', _part.name) INTO _left;
                CONTINUE WHEN _left;
                EXECUTE format('DROP TABLE poolkeeper.%I', _part.name);
                dropped := dropped + 1;
            EXCEPTION WHEN lock_not_available OR deadlock_detected THEN NULL;  -- somebody holds it: the next time
            END;
        END LOOP;
    END LOOP;
    RETURN NEXT;
END $$;

-- The partitions that want to be made, this month's and the next two's, and those of months that have passed. By UTC: a
-- month added in the session's own zone may end on another day.
CREATE OR REPLACE FUNCTION poolkeeper.months(_table text, _now timestamptz)
RETURNS TABLE (name text, first uuid, until uuid, wanted boolean)
LANGUAGE sql STABLE
AS $$
    WITH this AS (
        SELECT date_trunc('month', _now AT TIME ZONE 'UTC') AS month
    ), there AS (
        SELECT c.relname AS name, to_date(right(c.relname, 6), 'YYYYMM')::timestamp AS month
        FROM pg_class AS c JOIN pg_inherits AS i ON i.inhrelid = c.oid
        WHERE i.inhparent = to_regclass('poolkeeper.' || _table || '_standard') AND c.relname ~ '^[a-z]+_standard_[0-9]{6}$'
    ), named AS (
        SELECT format('%s_standard_%s', _table, to_char(m.month, 'YYYYMM')) AS name, m.month, true AS wanted
        FROM this AS t CROSS JOIN LATERAL generate_series(t.month, t.month + interval '2 months', interval '1 month') AS m (month)
        WHERE to_regclass('poolkeeper.' || format('%s_standard_%s', _table, to_char(m.month, 'YYYYMM'))) IS NULL
        UNION ALL
        SELECT r.name::text, r.month, false FROM there AS r CROSS JOIN this AS t WHERE r.month < t.month
    )
    SELECT n.name, poolkeeper.id_floor(n.month AT TIME ZONE 'UTC'), poolkeeper.id_floor((n.month + interval '1 month') AT TIME ZONE 'UTC'), n.wanted
    FROM named AS n ORDER BY n.month
$$;
