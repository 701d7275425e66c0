-- Partitions of the history: made ahead, one a month, bounded by the time in the task ids (contract 8). The default
-- partition takes what comes when nobody made one; a month that it already holds rows of is left to it. Also removes what
-- late transactions left in queues that were purged. Answers how many partitions were made.

CREATE OR REPLACE FUNCTION poolkeeper.maintain() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _made  integer := 0;
    _month timestamp;  -- by UTC: a month added in the session's own zone may end on another day
    _from  uuid;
    _to    uuid;
    _table text;
    _name  text;
    _taken boolean;
BEGIN
    PERFORM poolkeeper.caller();
    PERFORM set_config('lock_timeout', '2s', true);  -- rather later than in the way
    FOREACH _table IN ARRAY ARRAY['delivery', 'event'] LOOP
        FOR _i IN 0 .. 2 LOOP
            _month := date_trunc('month', poolkeeper.clock() AT TIME ZONE 'UTC') + make_interval(months => _i);
            _from := poolkeeper.id_floor(_month AT TIME ZONE 'UTC');
            _to := poolkeeper.id_floor((_month + interval '1 month') AT TIME ZONE 'UTC');
            _name := format('%s_standard_%s', _table, to_char(_month, 'YYYYMM'));
            CONTINUE WHEN to_regclass('poolkeeper.' || _name) IS NOT NULL;
            EXECUTE format('SELECT EXISTS (SELECT FROM poolkeeper.%I WHERE task_id >= $1 AND task_id < $2)', _table || '_standard_rest')
                INTO _taken USING _from, _to;
            CONTINUE WHEN _taken;
            EXECUTE format('CREATE TABLE poolkeeper.%I PARTITION OF poolkeeper.%I FOR VALUES FROM (%L) TO (%L)', _name, _table || '_standard', _from, _to);
            _made := _made + 1;
        END LOOP;
    END LOOP;
    PERFORM poolkeeper.forget_strays(1000);
    RETURN _made;
END $$;
