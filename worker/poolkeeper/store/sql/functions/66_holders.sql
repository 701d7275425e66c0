-- Who keeps a limit from others (Q51): claims of a limited queue or pool lock its row until their transaction ends, and nobody
-- waits for that, but nobody else of it claims either. Our workers' transactions are one statement long. What is left open by
-- others is ended: by its own session's time-out, which every claim under a limit sets (33_turn.sql), and where the login takes
-- that back, or keeps busy, by the upkeep. The latter needs an owner of the schema that may do so (pg_signal_backend, and
-- pg_read_all_stats to see it); without it `poolkeeper doctor` names who holds, and the statement that ends it.

-- Ends sessions whose transaction has held the row of a queue, pool, tenant or gate for longer than that. Their work comes back as
-- after any lost connection. Those that it may not end it leaves. Answers how many.
CREATE OR REPLACE FUNCTION poolkeeper.end_holders(_longer interval) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _one record;
    _n   integer := 0;
BEGIN
    FOR _one IN
        SELECT a.pid, a.usename, a.application_name FROM pg_stat_activity AS a
        WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.usename <> current_user
          AND clock_timestamp() - a.xact_start > _longer
          AND EXISTS (
              SELECT FROM pg_locks AS l
              WHERE l.pid = a.pid AND l.granted AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
                AND l.relation IN ('poolkeeper.queue'::regclass, 'poolkeeper.pool'::regclass, 'poolkeeper.lane'::regclass, 'poolkeeper.gate'::regclass))
    LOOP
        BEGIN
            IF pg_terminate_backend(_one.pid) THEN
                RAISE LOG 'poolkeeper: ended process % of "%" (%), which kept a limit from others', _one.pid, _one.usename, _one.application_name;
                _n := _n + 1;
            END IF;
        EXCEPTION WHEN insufficient_privilege THEN NULL;
        END;
    END LOOP;
    RETURN _n;
END $$;
