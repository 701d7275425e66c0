-- One round trip of a worker: settle these, claim more (contract 20). Composes the arrows, adds no rule.
--
-- Lock order: limiters (queue, pool, windows of its providers) first, each SKIP LOCKED, so that a busy one is passed over and nothing waits;
-- then leases of the settles; then what the sweep finds, after the settles, so that it takes nothing away from them
-- (Q19) and nothing is waited for with the sweep's rows in hand; then gates, SKIP LOCKED; then ready rows of the claim. Settings: the small tables are empty at one moment and full the
-- next, so no plan may depend on their statistics; sequential scans are switched off for the function and below.

-- Lets this session make room for suspects, if no other session of the pool that is alive does (Q27). Only one that holds
-- other tasks needs it; one that holds nothing takes suspects at once. True: it is ours, until there is no suspect left.
CREATE OR REPLACE FUNCTION poolkeeper.take_isolation(_session poolkeeper.session, _now timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    _holder uuid;
BEGIN
    SELECT p.isolating_session INTO _holder FROM poolkeeper.pool AS p WHERE p.id = (_session).pool_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF _holder = (_session).id THEN
        RETURN true;
    END IF;
    IF _holder IS NOT NULL AND EXISTS (
        SELECT FROM poolkeeper.session AS s
        WHERE s.id = _holder AND s.ended_at IS NULL AND NOT s.draining
          AND s.renewed_at > _now - (SELECT min(q.visibility_timeout) FROM poolkeeper.queue AS q WHERE q.id = ANY (s.queue_ids))
    ) THEN
        RETURN false;
    END IF;
    UPDATE poolkeeper.pool AS p SET isolating_session = (_session).id WHERE p.id = (_session).pool_id;
    RETURN true;
END $$;

-- The first suspects of these queues that this session could run now, up to _most, those with the fewest misses first;
-- _misses: with so many only. The limits of queues as far as looking tells. Index: suspect_claim.
CREATE OR REPLACE FUNCTION poolkeeper.next_suspects(_session poolkeeper.session, _queues integer[], _most integer, _misses smallint, _now timestamptz)
RETURNS TABLE (task_id uuid, misses smallint)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    SELECT x.task_id, x.misses FROM poolkeeper.queue AS q
    CROSS JOIN LATERAL (
        SELECT CASE WHEN NOT EXISTS (SELECT FROM poolkeeper.suspect AS c WHERE c.queue_id = q.id) THEN 0
                    WHEN q.concurrency_max IS NULL THEN _most
                    ELSE greatest(0, least(_most, q.concurrency_max - (
                        SELECT count(*) FROM (SELECT FROM poolkeeper.lease AS l WHERE l.queue_id = q.id LIMIT q.concurrency_max) AS y)))
               END AS room OFFSET 0) AS r
    CROSS JOIN LATERAL (
        SELECT c.task_id, c.misses, c.seq FROM poolkeeper.suspect AS c
        WHERE c.queue_id = q.id AND c.misses = coalesce(_misses, c.misses) AND c.type_key = ANY ((_session).type_keys)
          AND (c.expires_at IS NULL OR c.expires_at > _now)
          AND c.type_key <> ALL (q.paused_type_keys)
          AND ((_session).tenants IS NULL AND (_session).tenants_except IS NULL OR poolkeeper.serves(_session, c.task_id)) AND (NOT q.lanes_kept OR poolkeeper.lane_room(q.id, c.lane) > 0)
        ORDER BY c.misses, c.seq LIMIT r.room FOR UPDATE OF c SKIP LOCKED) AS x
    WHERE q.id = ANY (_queues)
    ORDER BY x.misses, x.seq LIMIT _most;
END $$;

-- Arrow: ready (suspect) -> running, apart: in processes of their own, in a session that runs nothing but suspects, with
-- as many misses as each other. _want: what it has room for beside those that it holds. Each miss divides the number
-- that may run side by side by four; where that leaves one, it is alone, and nothing comes beside it. Up to _room, from
-- queues whose limiters, if they have any, are held by this transaction (Q12). Answers with extra {beside}: how many may
-- be there.
CREATE OR REPLACE FUNCTION poolkeeper.claim_suspects(
    _session poolkeeper.session, _queues integer[], _turn bigint, _want integer, _room integer, _now timestamptz
) RETURNS SETOF poolkeeper.answer
LANGUAGE plpgsql
AS $$
DECLARE
    _ids    uuid[];
    _held   integer;
    _closed boolean;
    _misses smallint;
    _beside integer;
BEGIN
    SELECT count(*), coalesce(bool_or(l.alone OR NOT l.suspect), false), max(l.misses) INTO _held, _closed, _misses
    FROM poolkeeper.lease AS l WHERE l.session_id = (_session).id;
    IF _closed THEN
        RETURN;
    END IF;
    IF _held = 0 THEN
        SELECT s.misses INTO _misses FROM poolkeeper.next_suspects(_session, _queues, 1, NULL, _now) AS s;
    END IF;
    _beside := greatest(1, (_held + _want) >> 2 * _misses);
    _ids := ARRAY(SELECT s.task_id FROM poolkeeper.next_suspects(_session, _queues, greatest(0, least(_room, _beside - _held)), _misses, _now) AS s);
    IF EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.id = ANY (_queues) AND q.lanes_kept) THEN
        _ids := poolkeeper.suspects_with_room(_ids);
    END IF;
    RETURN QUERY
    WITH gone AS (
        DELETE FROM poolkeeper.suspect AS r WHERE r.task_id = ANY (_ids) RETURNING r.*
    ), tokens AS MATERIALIZED (
        SELECT g.*, poolkeeper.token_text(uuid_send(gen_random_uuid())) AS token FROM gone AS g
    ), leases AS (
        INSERT INTO poolkeeper.lease (task_id, queue_id, priority, lane, type_key, seq, ready_at, expires_at, delivery, state_version,
                                      spent, failures, expiries, hand_backs, snoozes, waits,
                                      session_id, pool_id, turn, token_hash, claimed_at, started_at, gate, suspect, misses, alone, checkpointed, counted)
        SELECT t.task_id, t.queue_id, t.priority, t.lane, t.type_key, t.seq, t.ready_at, t.expires_at, t.delivery + 1, t.state_version + 1,
               t.spent + 1, t.failures, t.expiries, t.hand_backs, t.snoozes, t.waits,
               (_session).id, (_session).pool_id, _turn, poolkeeper.token_hash(t.token), _now, _now, t.gate, true, t.misses, _beside = 1, true,
               (SELECT q.lanes_kept FROM poolkeeper.queue AS q WHERE q.id = t.queue_id)
        FROM tokens AS t
    )
    SELECT 'claimed', NULL::text, 'running', t.task_id, t.token, t.delivery + 1, q.namespace || '/' || q.name, b.type, b.tenant,
           b.payload, c.value, c.version, b.labels, b.traceparent, b.accepted_at, t.failures::integer, t.spent + 1,
           coalesce(b.max_deliveries, q.max_deliveries), true, jsonb_build_object('beside', _beside)
    FROM tokens AS t
    JOIN poolkeeper.task AS b ON b.id = t.task_id
    JOIN poolkeeper.queue AS q ON q.id = t.queue_id
    LEFT JOIN poolkeeper.checkpoint AS c ON c.task_id = t.task_id
    ORDER BY t.seq;
END $$;

-- How many tasks the session's pool may run, as its providers let it (Q40), its row and the windows of its providers locked here when it has a limit. NULL: no limit; -1: busy, pass over.
CREATE OR REPLACE FUNCTION poolkeeper.pool_limit(_session poolkeeper.session) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _max       integer;
    _providers integer[];
BEGIN
    SELECT p.max_running, p.provider_ids INTO _max, _providers FROM poolkeeper.pool AS p WHERE p.id = (_session).pool_id;
    IF _max IS NULL AND _providers IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT p.max_running, p.provider_ids INTO _max, _providers FROM poolkeeper.pool AS p WHERE p.id = (_session).pool_id FOR NO KEY UPDATE SKIP LOCKED;
    RETURN CASE WHEN NOT FOUND THEN -1 WHEN _providers IS NULL THEN _max
                WHEN NOT poolkeeper.lock_windows(_providers) THEN -1 ELSE poolkeeper.provider_limit(_max, _providers) END;
END $$;

-- Arrow: leased -> running, for deliveries whose slot has come, durable before user code runs (contract 21). Demands
-- the token. Refused where the task was canceled, its queue or type paused, its tenant suspended, its age passed or its
-- session out of time (_queues: where all is well, but for _wary, where some of it is stopped): the delivery is then given back and costs nothing (Q16). [{t task, k token}]; answers a row
-- 'refused' for each that may not start. One that has started already is left as it is.
CREATE OR REPLACE FUNCTION poolkeeper.start(_starts jsonb, _queues integer[], _wary integer[], _now timestamptz) RETURNS SETOF poolkeeper.answer
LANGUAGE plpgsql
AS $$
DECLARE
    _ids     uuid[];
    _hashes  bytea[];
    _started uuid[];
    _running uuid[];
BEGIN
    BEGIN
        SELECT array_agg(x.t ORDER BY x.t), array_agg(sha256(convert_to(x.k, 'UTF8'))) INTO _ids, _hashes
        FROM jsonb_to_recordset(_starts) AS x (t uuid, k text);
    EXCEPTION WHEN data_exception THEN
        PERFORM poolkeeper.unreadable_entry('starts', SQLERRM);
    END;
    WITH begun AS (
        UPDATE poolkeeper.lease AS l SET started_at = greatest(_now, l.claimed_at + interval '1 microsecond'), state_version = l.state_version + 1
        WHERE l.task_id = ANY (_ids) AND l.token_hash = ANY (_hashes) AND l.started_at IS NULL AND l.cancel_by IS NULL
          AND (l.expires_at IS NULL OR l.expires_at > _now)
          AND l.queue_id = ANY (_queues)
          AND (l.queue_id <> ALL (_wary) OR poolkeeper.stopped(l.queue_id, l.lane, l.type_key) IS NULL)
        RETURNING l.task_id
    )
    SELECT array_agg(b.task_id) INTO _started FROM begun AS b;
    IF cardinality(_started) = cardinality(_ids) THEN
        RETURN;
    END IF;
    _running := ARRAY(SELECT l.task_id FROM poolkeeper.lease AS l
                      WHERE l.task_id = ANY (_ids) AND l.token_hash = ANY (_hashes) AND l.started_at IS NOT NULL);
    RETURN QUERY
    WITH kept AS MATERIALIZED (
        SELECT x.t AS task_id, sha256(convert_to(x.k, 'UTF8')) AS token_hash,
               CASE WHEN l.canceled THEN 'canceled' WHEN l.aged THEN 'max_age_passed' ELSE coalesce((
                   SELECT poolkeeper.stopped(t.queue_id, poolkeeper.lane_key(t.queue_id, t.tenant), poolkeeper.type_key(t.type))
                   FROM poolkeeper.task AS t WHERE t.id = x.t), 'lease_expired') END AS code
        FROM jsonb_to_recordset(_starts) AS x (t uuid, k text)
        LEFT JOIN LATERAL (SELECT k.cancel_by IS NOT NULL AS canceled, k.expires_at <= _now AS aged
                           FROM poolkeeper.lease AS k WHERE k.task_id = x.t OFFSET 0) AS l ON true
        WHERE x.t <> ALL (_running)
    ), back AS MATERIALIZED (  -- a refusal costs nothing, however often; who came too late has lost a lease, within the bound of hand-backs
        SELECT e.task_id, e.state FROM poolkeeper.end_deliveries(
            ARRAY(SELECT ROW(k.task_id, k.token_hash, 'returned', CASE k.code WHEN 'lease_expired' THEN k.code ELSE 'start_refused' END,
                             NULL, NULL, NULL, NULL)::poolkeeper.ending FROM kept AS k), _now) AS e
    )
    SELECT 'refused', CASE WHEN b.task_id IS NOT NULL THEN k.code ELSE poolkeeper.why_not(k.task_id, k.token_hash) END, b.state, k.task_id,
           NULL::text, NULL::integer, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::jsonb, NULL::integer, NULL::jsonb, NULL::text,
           NULL::timestamptz, NULL::integer, NULL::integer, NULL::integer, NULL::boolean, NULL::jsonb
    FROM kept AS k LEFT JOIN back AS b ON b.task_id = k.task_id;
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.turn(
    _session uuid, _secret text, _turn bigint, _received bigint, _settles jsonb, _want integer,
    _sweep boolean DEFAULT false, _isolated boolean DEFAULT false, _cursor jsonb DEFAULT '{}',
    _slots integer DEFAULT NULL, _starts jsonb DEFAULT '[]', _since double precision DEFAULT NULL,
    _idle boolean DEFAULT false
) RETURNS SETOF poolkeeper.answer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    _s       poolkeeper.session := poolkeeper.session_of(_session, _secret);
    _now     timestamptz;
    _queues  integer[];
    _served  integer[];
    _wary    integer[];
    _q       poolkeeper.queue;
    _room    integer := 0;
    _limit   integer := -1;
    _got     integer;
    _waits   boolean := false;
    _isolate boolean := false;
    _apart   boolean := false;
    _busy    boolean := false;
    _moved   integer := 0;
    _began   timestamptz;
    _row     poolkeeper.answer;
    _opened  record;
    _told    jsonb;
    _rests   boolean := _idle;
    _marks   poolkeeper.marks;
    _filled  boolean;
    _holds   boolean := false;
    _swept   timestamptz;
    _sweep_in double precision;
    _again   timestamptz;  -- when a walk is due that was put off, or a window of a provider's has room
BEGIN
    PERFORM poolkeeper.demand_turn(_turn, _received);
    PERFORM poolkeeper.demand_durable();
    PERFORM poolkeeper.demand_read_committed();
    _idle := _idle AND NOT EXISTS (SELECT FROM poolkeeper.lease AS l WHERE l.session_id = _s.id);
    _want := least(_want, 10000);  -- as many as a session may have slots
    IF _sweep THEN
        _s := poolkeeper.follow_queues(_s);
    END IF;
    _s := poolkeeper.as_limited(_s);
    -- 1. where this session may start anything: not where a queue is paused, nor where a lease of it would be born
    -- expired, because it has ended or did not renew in time (Q20)
    SELECT coalesce(array_agg(q.id), '{}'), coalesce(array_agg(q.id) FILTER (WHERE q.part_paused), '{}') INTO _served, _wary
    FROM poolkeeper.queue AS q
    WHERE q.id = ANY (_s.queue_ids) AND NOT q.paused AND _s.ended_at IS NULL
      AND poolkeeper.lease_until(_s.renewed_at, q.visibility_timeout, NULL) > poolkeeper.clock();
    -- nor anywhere while the installation is held, or after a start of the server until somebody has looked (Q24)
    IF EXISTS (SELECT FROM poolkeeper.contact AS c WHERE c.held_since IS NOT NULL OR c.started_at <> pg_postmaster_start_time()) THEN
        _served := '{}';
        _wary := '{}';
    END IF;
    -- 2. limiters, in their order; queues rotate with the turn so that none comes first for ever
    IF _want > 0 AND NOT _s.draining THEN
        _queues := ARRAY(
            SELECT q.id FROM poolkeeper.queue AS q
            WHERE q.id = ANY (_served) AND q.concurrency_max IS NULL AND NOT q.lanes_kept
            UNION ALL
            SELECT l.id FROM (SELECT q.id FROM poolkeeper.queue AS q  -- claimers side by side, a change of the policy apart
                              WHERE q.id = ANY (_served) AND q.concurrency_max IS NULL AND q.lanes_kept
                              ORDER BY q.id FOR SHARE SKIP LOCKED) AS l
            UNION ALL
            SELECT l.id FROM (SELECT q.id FROM poolkeeper.queue AS q
                              WHERE q.id = ANY (_served) AND q.concurrency_max IS NOT NULL
                              ORDER BY q.id FOR NO KEY UPDATE SKIP LOCKED) AS l);
        _limit := poolkeeper.pool_limit(_s);
        _busy := cardinality(_queues) < cardinality(_served) OR coalesce(_limit = -1, false);
        IF (_limit IS NOT NULL OR EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.id = ANY (_queues) AND (q.concurrency_max IS NOT NULL OR q.lanes_kept)))
            AND current_setting('idle_in_transaction_session_timeout') = '0' THEN
            PERFORM set_config('idle_in_transaction_session_timeout', '60s', true);  -- nobody keeps a limit from others by doing nothing (Q51)
        END IF;
        -- suspects that could run are for a session that holds no other task; of those that do, one makes room (Q27)
        _waits := EXISTS (SELECT FROM poolkeeper.suspect AS c WHERE c.queue_id = ANY (_served));
        IF _waits THEN
            _waits := EXISTS (SELECT FROM poolkeeper.next_suspects(_s, _served, 1, NULL, poolkeeper.clock()));
        END IF;
        IF _waits THEN
            _isolate := _isolated OR NOT EXISTS (SELECT FROM poolkeeper.lease AS l WHERE l.session_id = _s.id AND NOT l.suspect)
                OR poolkeeper.take_isolation(_s, poolkeeper.clock());
        ELSIF EXISTS (SELECT FROM poolkeeper.pool AS p WHERE p.id = _s.pool_id AND p.isolating_session = _s.id)
            AND NOT EXISTS (SELECT FROM poolkeeper.lease AS l WHERE l.session_id = _s.id AND l.suspect) THEN
            UPDATE poolkeeper.pool AS p SET isolating_session = NULL WHERE p.id = (
                SELECT k.id FROM poolkeeper.pool AS k WHERE k.id = _s.pool_id AND k.isolating_session = _s.id FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
    END IF;

    _began := poolkeeper.clock();
    _now := _began;
    _slots := coalesce(_slots, _want);
    -- 3. deliveries of an answer that never arrived go back unstarted (Q10)
    IF _turn > _received + 1 THEN
        PERFORM poolkeeper.end_deliveries(ARRAY(
            SELECT ROW(l.task_id, l.token_hash, 'returned', 'answer_lost', NULL, NULL, NULL, NULL)::poolkeeper.ending
            FROM poolkeeper.lease AS l WHERE l.session_id = _s.id AND l.turn > _received AND l.turn < _turn
            ORDER BY l.task_id FOR UPDATE SKIP LOCKED), _now);
    END IF;
    -- 4. settles
    IF poolkeeper.entries(_settles, 'settles') > 0 THEN
        RETURN QUERY SELECT * FROM poolkeeper.settle(_settles, _s, _now);
    END IF;
    -- 5. starts of what was claimed ahead (Q16)
    IF poolkeeper.entries(_starts, 'starts') > 0 THEN
        RETURN QUERY SELECT * FROM poolkeeper.start(_starts, _served, _wary, _now);
    END IF;
    -- 6. what time has moved (Q22); then the time again, that nothing is claimed before it was ready
    IF _sweep THEN
        _swept := clock_timestamp();
        _moved := poolkeeper.sweep_page(100, _since);
        _sweep_in := least(5, 20 * extract(epoch FROM clock_timestamp() - _swept));  -- a twentieth of the time, whatever lies in its way
        PERFORM poolkeeper.fold_backlog(_s.queue_ids);
        _now := poolkeeper.clock();
    ELSIF _want > 0 AND EXISTS (SELECT FROM poolkeeper.later AS d WHERE d.due_at <= _now) THEN
        PERFORM poolkeeper.sweep_due(100, _now);
    END IF;
    -- the next of ordering keys, those whose task was settled above included (Q9); then the time again, as above
    SELECT * INTO _opened FROM poolkeeper.open_gates(_s.queue_ids, greatest(_want, 100));
    IF _opened.n > 0 THEN
        _now := poolkeeper.clock();
        IF _opened.n > _want THEN
            PERFORM poolkeeper.wake();
        END IF;
    END IF;
    _busy := _busy OR _opened.busy;
    _moved := _moved + _opened.more::integer;
    -- 7. claims; the pool's leases are counted in a statement after its lock (Q12)
    IF _want > 0 AND NOT _s.draining THEN
        _room := CASE WHEN _limit IS NULL THEN _want ELSE least(_want, _limit - (
            SELECT count(*)::integer FROM (SELECT FROM poolkeeper.lease AS l WHERE l.pool_id = _s.pool_id LIMIT greatest(_limit, 0)) AS x)) END;
        IF _limit IS NOT NULL THEN
            SELECT r.room, r.windowed, CASE WHEN _waits OR EXISTS (SELECT FROM poolkeeper.ready AS k WHERE k.queue_id = ANY (_queues)) THEN r.frees_at END
            INTO _room, _holds, _again FROM poolkeeper.provider_room(_s.pool_id, _room, _slots, _now) AS r;
        END IF;
    END IF;
    _filled := _room = _want AND _want > 0;
    -- nothing else runs beside suspects
    _apart := _want > 0 AND NOT _isolated AND EXISTS (SELECT FROM poolkeeper.lease AS l WHERE l.session_id = _s.id AND l.suspect);
    IF _isolated THEN
        IF _isolate AND _room > 0 THEN
            RETURN QUERY SELECT * FROM poolkeeper.claim_suspects(_s, _queues, _turn, _want, _room, _now);
        END IF;
    ELSIF _room > 0 AND NOT _isolate AND NOT _apart THEN
        FOR _i IN 0 .. cardinality(_queues) - 1 LOOP
            EXIT WHEN _room <= 0;
            SELECT q.* INTO _q FROM poolkeeper.queue AS q WHERE q.id = _queues[1 + (_turn + _i) % cardinality(_queues)];
            _marks := poolkeeper.marks_of(_cursor, _q.id, _now);
            _again := least(_again, CASE WHEN _marks.until > _now THEN _marks.until END);
            IF _q.lanes_kept THEN
                _got := 0;
                FOR _row IN SELECT * FROM poolkeeper.claim_queue(_q, _s, _turn, _room, _slots, poolkeeper.cursor_of(_cursor, _q.id), _marks, _now) LOOP
                    RETURN NEXT _row;
                    _got := _got + 1;
                    _busy := _busy OR coalesce((_row.extra ->> 'busy')::boolean, false);
                END LOOP;
            ELSE
                RETURN QUERY SELECT * FROM poolkeeper.claim_queue(_q, _s, _turn, _room, _slots, poolkeeper.cursor_of(_cursor, _q.id), _marks, _now);
                GET DIAGNOSTICS _got = ROW_COUNT;
            END IF;
            _room := _room - (_got - 1);  -- one row is the note of where its walk stopped
            _slots := greatest(0, _slots - (_got - 1));
        END LOOP;
    END IF;

    IF _holds THEN  -- and what they were granted of providers is held (Q40)
        PERFORM poolkeeper.hold_windows(_s, _turn);
    END IF;

    -- 8. ends of what has started, where a queue limits how long it may run (Q21)
    IF EXISTS (SELECT FROM poolkeeper.queue AS q WHERE q.id = ANY (_s.queue_ids)
               AND (q.max_run_time IS NOT NULL OR q.max_tenure IS NOT NULL OR q.progress_timeout IS NOT NULL)) THEN
        PERFORM poolkeeper.limit_runs(_s.id, _began);
    END IF;

    -- 9. a session that held nothing lives on by this turn, and so does what it has claimed just now
    IF _idle THEN
        _told := poolkeeper.renew_idle(_s.id, _began);
    END IF;

    RETURN NEXT ROW('note', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        jsonb_build_object('draining', _s.draining, 'position', _told, 'sweep_in', _sweep_in, 'isolate', _isolate OR _apart, 'slot_in', CASE WHEN _sweep THEN poolkeeper.slot_in(_served, _now) END,
                           'come_again', CASE WHEN _busy THEN 0.05 WHEN _moved > 0 THEN 0.01 WHEN _filled AND _room <= 0 THEN 0.1  -- it has all that it wanted
                                              ELSE least(poolkeeper.come_again(_s, _rests, _now), CASE WHEN _again IS NOT NULL THEN greatest(0.01, extract(epoch FROM _again - _now)) END) END))::poolkeeper.answer;
END $$;
