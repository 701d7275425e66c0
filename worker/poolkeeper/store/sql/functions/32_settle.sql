-- Arrows: leased | running -> succeeded | failed | canceled | dead | scheduled | waiting | ready. Part of
-- poolkeeper.turn; the sweep uses the same ending.
--
-- Guarantees: only the current token of the current delivery settles (P2, Q18); late is fine while the lease stands
-- (Q19); a settle repeated after a lost answer hears 'already_done'. The lease row is removed and the delivery row is
-- written by one statement. Locks: lease rows by primary key. Index: lease_pkey by id = ANY(argument), which stays
-- flat whatever the statistics say.

DO $$ BEGIN
    -- what a delivery ended with; ending: see poolkeeper.end_deliveries
    CREATE TYPE poolkeeper.ending AS (
        task_id uuid, token_hash bytea, outcome text, reason text, error_class text, error text, result jsonb,
        retry_after double precision);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- The endings as rows, said to be many, so that they are joined by hashing: by loops a big batch would cost its square.
CREATE OR REPLACE FUNCTION poolkeeper.each_ending(_endings poolkeeper.ending[]) RETURNS SETOF poolkeeper.ending
LANGUAGE plpgsql IMMUTABLE ROWS 1000
AS $$ BEGIN RETURN QUERY SELECT * FROM unnest(_endings); END $$;

-- The rule of what follows, in one place. Bounds: deliveries, elapsed time, age, snoozes, hand-backs (Q26-Q28).
-- An exhausted task is never claimable again. give_back: this delivery does not count against the budget.
CREATE OR REPLACE FUNCTION poolkeeper.what_follows(
    _outcome text, _lease poolkeeper.lease, _queue poolkeeper.queue, _max_deliveries integer, _run_at timestamptz, _now timestamptz,
    OUT state text, OUT reason text, OUT give_back boolean
)
LANGUAGE sql IMMUTABLE
AS $$
    WITH back AS (
        SELECT _outcome IN ('snoozed', 'refused')  -- refused: a start was (Q16)
            OR (_outcome = 'expired' AND (_lease).suspect AND NOT (_lease).alone)  -- any of those beside it may have done it (Q27)
            OR (_outcome IN ('returned', 'handed_back') AND (_lease).hand_backs < (_queue).max_hand_backs) AS give
    ), bound AS (
        SELECT b.give, CASE
            WHEN _outcome = 'snoozed' AND (_lease).snoozes >= least((_queue).max_snoozes, 32766) THEN 'snoozes_exhausted'
            WHEN _outcome IN ('failed', 'expired', 'returned', 'handed_back') AND NOT b.give AND (_lease).spent >= _max_deliveries THEN 'deliveries_exhausted'
            WHEN _outcome = 'failed' AND _now - _run_at > (_queue).backoff_max_elapsed THEN 'failures_exhausted'
            WHEN _outcome IN ('failed', 'expired', 'handed_back', 'snoozed', 'returned', 'refused') AND (_lease).expires_at <= _now THEN 'max_age'
            WHEN _outcome = 'dead' THEN 'permanent_error'
        END AS dead
        FROM back AS b
    )
    SELECT CASE
            WHEN _outcome = 'succeeded' THEN 'succeeded'
            WHEN _outcome = 'canceled' OR ((_lease).cancel_by IS NOT NULL AND _outcome <> 'dead' AND _outcome <> 'rejected') THEN 'canceled'
            WHEN _outcome = 'rejected' THEN 'failed'
            WHEN b.dead IS NOT NULL THEN 'dead'
            WHEN _outcome = 'failed' THEN 'scheduled'
            WHEN _outcome = 'snoozed' THEN 'waiting'
            ELSE 'ready'
        END, b.dead, b.give
    FROM bound AS b
$$;

-- Ends deliveries: removes leases whose token fits, writes each one's delivery row, and puts the task where the rule
-- says. Returns what it did; an ending without its row here did not fit. What never started cannot have failed. A token
-- beside the id of another's task finds no ending, and NULL is an outcome that the history refuses.
CREATE OR REPLACE FUNCTION poolkeeper.end_deliveries(_endings poolkeeper.ending[], _now timestamptz)
RETURNS TABLE (task_id uuid, token_hash bytea, state text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    _ids    uuid[] := ARRAY(SELECT e.task_id FROM unnest(_endings) AS e ORDER BY e.task_id);
    _hashes bytea[] := ARRAY(SELECT e.token_hash FROM unnest(_endings) AS e);
    _gentle bytea[] := ARRAY(SELECT e.token_hash FROM unnest(_endings) AS e WHERE e.outcome IN ('returned', 'handed_back', 'canceled', 'expired'));
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM poolkeeper.lease AS l
        WHERE l.task_id = ANY (_ids) AND l.token_hash = ANY (_hashes) AND (l.started_at IS NOT NULL OR l.token_hash = ANY (_gentle))
        RETURNING l
    ), ended AS MATERIALIZED (
        SELECT (g.l).*, e.outcome, e.reason, e.error_class, e.error, e.result, e.retry_after, CASE WHEN f.state = 'dead' AND poolkeeper.is_limit(e.reason) THEN e.reason ELSE f.reason END AS dead_reason, f.give_back,
               CASE WHEN f.state = 'scheduled' AND e.reason = 'process_died' THEN 'ready' ELSE f.state END AS state,
               q.backoff_initial, q.backoff_max, q.backoff_factor, q.lanes_kept, s.info ->> 'build' AS build,
               (e.outcome = 'expired' AND (g.l).started_at IS NOT NULL AND e.reason IS DISTINCT FROM 'outage') OR e.reason = 'process_died' AS blamed
        FROM gone AS g
        LEFT JOIN poolkeeper.each_ending(_endings) AS e ON e.task_id = (g.l).task_id AND e.token_hash = (g.l).token_hash
        CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.queue AS k WHERE k.id = (g.l).queue_id OFFSET 0) AS q
        CROSS JOIN LATERAL (SELECT k.max_deliveries, k.run_at FROM poolkeeper.task AS k WHERE k.id = (g.l).task_id OFFSET 0) AS t
        LEFT JOIN LATERAL (SELECT k.info FROM poolkeeper.session AS k WHERE k.id = (g.l).session_id OFFSET 0) AS s ON true
        -- a requeue begins a new budget of elapsed time as well (Q29)
        CROSS JOIN LATERAL (SELECT greatest(t.run_at, CASE WHEN e.outcome = 'failed' AND q.backoff_max_elapsed IS NOT NULL THEN (
                                SELECT max(v.at) FROM poolkeeper.event AS v
                                WHERE v.retention = 0 AND v.task_id = (g.l).task_id AND v.kind = 'requeued') END) AS since OFFSET 0) AS b
        CROSS JOIN LATERAL poolkeeper.what_follows(
            CASE e.reason WHEN 'outage' THEN 'returned' WHEN 'start_refused' THEN 'refused' ELSE e.outcome END, g.l, q, coalesce(t.max_deliveries, q.max_deliveries), b.since, _now) AS f
    ), history AS (
        INSERT INTO poolkeeper.delivery (task_id, delivery, queue_id, pool_id, session_id, ready_at, claimed_at, started_at, ended_at,
                                         outcome, next_state, reason, error_class, error, build, suspect, token_hash, state_version, result)
        SELECT d.task_id, d.delivery, d.queue_id, d.pool_id, d.session_id, d.ready_at, d.claimed_at, d.started_at, greatest(_now, d.claimed_at, d.started_at),
               CASE WHEN d.state = 'canceled' THEN 'canceled' ELSE d.outcome END, d.state,
               CASE WHEN d.state = 'canceled' THEN 'canceled_by' ELSE d.reason END,
               d.error_class, d.error, d.build, d.suspect, d.token_hash, d.state_version + 1, d.result
        FROM ended AS d
    ), to_dead AS (
        INSERT INTO poolkeeper.dead (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, delivery, state_version,
                                     spent, failures, expiries, hand_backs, snoozes, waits, died_at, reason, error_class, error, build, gate)
        SELECT d.task_id, d.queue_id, d.priority, d.lane, d.type_key, d.ready_at, d.expires_at, d.delivery, d.state_version + 1,
               d.spent - d.give_back::integer, d.failures + (d.outcome IN ('failed', 'dead'))::integer, d.expiries + (d.outcome = 'expired')::integer,
               d.hand_backs + (d.outcome IN ('returned', 'handed_back') OR d.reason IS NOT DISTINCT FROM 'outage')::integer, d.snoozes + (d.outcome = 'snoozed')::integer, d.waits,
               _now, d.dead_reason, coalesce(d.error_class, d.reason), d.error, d.build, d.gate
        FROM ended AS d WHERE d.state = 'dead'
    ), to_later AS (
        INSERT INTO poolkeeper.later (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, delivery, state_version,
                                      spent, failures, expiries, hand_backs, snoozes, waits, due_at, wait_reason, gate)
        SELECT d.task_id, d.queue_id, d.priority, d.lane, d.type_key, w.due_at, d.expires_at, d.delivery, d.state_version + 1,
               d.spent - d.give_back::integer, d.failures + (d.outcome = 'failed')::integer, d.expiries, d.hand_backs,
               d.snoozes + (d.outcome = 'snoozed')::integer, d.waits, w.due_at, CASE WHEN d.state = 'waiting' THEN 'timer' END, d.gate
        FROM ended AS d
        -- (greatest and least skip NULL, so the absence of a wish is asked for itself)
        CROSS JOIN LATERAL (SELECT _now + CASE WHEN d.retry_after IS NULL
                                THEN poolkeeper.backoff(d.backoff_initial, d.backoff_max, d.backoff_factor, d.failures + 1)
                                ELSE make_interval(secs => least(greatest(d.retry_after, 0), 31536000)) END AS due_at) AS w
        WHERE d.state IN ('scheduled', 'waiting')
    ), to_ready AS (
        INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, delivery, state_version,
                                      spent, failures, expiries, hand_backs, snoozes, waits, gate)
        SELECT d.task_id, d.queue_id, d.priority, d.lane, d.type_key, d.ready_at, d.expires_at, d.delivery, d.state_version + 1,
               d.spent - d.give_back::integer, d.failures, d.expiries + (d.outcome = 'expired')::integer,
               d.hand_backs + (d.outcome IN ('returned', 'handed_back') OR d.reason IS NOT DISTINCT FROM 'outage')::integer, d.snoozes, d.waits, d.gate
        FROM ended AS d WHERE d.state = 'ready' AND NOT d.blamed AND NOT d.suspect
    ), to_suspect AS (  -- after a death the next delivery runs apart (Q27), with fewer beside it after one that proved nothing;
                        -- what was alone stays alone (9 misses); a suspect that ends otherwise is one no more
        INSERT INTO poolkeeper.suspect (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, delivery, state_version,
                                        spent, failures, expiries, hand_backs, snoozes, waits, gate, misses)
        SELECT d.task_id, d.queue_id, d.priority, d.lane, d.type_key, _now, d.expires_at, d.delivery, d.state_version + 1,
               d.spent - d.give_back::integer, d.failures + (d.outcome = 'failed')::integer, d.expiries + (d.outcome = 'expired')::integer,
               d.hand_backs + (d.outcome IN ('returned', 'handed_back') OR d.reason IS NOT DISTINCT FROM 'outage')::integer, d.snoozes, d.waits, d.gate,
               CASE WHEN d.alone THEN 9 WHEN d.reason = 'beside_others' THEN least(d.misses + 1, 9) ELSE d.misses END
        FROM ended AS d WHERE d.state = 'ready' AND (d.blamed OR d.suspect)
    ), counted AS (
        UPDATE poolkeeper.queue_count AS c SET lease_expiries = c.lease_expiries + x.n
        FROM (SELECT d.queue_id, count(*) AS n FROM ended AS d WHERE d.outcome = 'expired' GROUP BY d.queue_id) AS x
        WHERE c.queue_id = x.queue_id
    ), opened AS (  -- a slot of its tenant is free, or it is ready itself
        INSERT INTO poolkeeper.opening (queue_id, lane) SELECT DISTINCT d.queue_id, d.lane FROM ended AS d WHERE d.counted OR (d.lanes_kept AND d.state = 'ready')
    ), freed AS (  -- what an ordering key does next is for who holds the gate (Q9)
        INSERT INTO poolkeeper.gate_due (queue_id, gate)
        SELECT d.queue_id, d.gate FROM ended AS d WHERE d.gate IS NOT NULL AND d.state IN ('succeeded', 'failed', 'canceled', 'dead')
    ), swept AS (  -- the cursor of a task that ended for good is of no use to anybody
        DELETE FROM poolkeeper.checkpoint AS c
        WHERE c.task_id = ANY (ARRAY(SELECT d.task_id FROM ended AS d WHERE d.checkpointed AND d.state IN ('succeeded', 'failed', 'canceled')))
    )
    SELECT d.task_id, d.token_hash, d.state FROM ended AS d
    -- who holds something of a provider gives it back or has spent it (Q40); whoever was lost may have used all of it
    WHERE CASE WHEN d.held THEN poolkeeper.end_holds(
        ARRAY[d.task_id], ARRAY[d.delivery],
        ARRAY[d.outcome <> 'expired' AND coalesce(d.reason, '') NOT IN ('process_died', 'beside_others', 'outage') AND NOT poolkeeper.is_limit(d.reason)],
        ARRAY[d.outcome = 'returned' OR d.started_at IS NULL], _now) ELSE true END;
END $$;

-- Why an ending did not fit: the token of an ended delivery is found in its history row (contract 3), by the task's id
-- alone: the id names the partition. To whom the task is foreign, it is not there (Q51).
CREATE OR REPLACE FUNCTION poolkeeper.why_not(_task_id uuid, _hash bytea) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    _outcome text;
    _reason  text;
BEGIN
    SELECT d.outcome, d.reason INTO _outcome, _reason FROM poolkeeper.delivery AS d
    WHERE d.retention = 0 AND d.task_id = _task_id AND d.token_hash = _hash;
    IF FOUND THEN
        RETURN CASE WHEN poolkeeper.is_limit(_reason) THEN _reason ELSE CASE _outcome WHEN 'expired' THEN 'lease_expired' WHEN 'returned' THEN 'lease_expired' WHEN 'canceled' THEN 'canceled' ELSE 'already_done' END END;
    END IF;
    IF EXISTS (SELECT FROM poolkeeper.lease AS l WHERE l.task_id = _task_id AND l.token_hash = _hash AND l.started_at IS NOT NULL) THEN
        RETURN 'in_transaction';  -- the handler's own holds it: ask again
    END IF;
    RETURN CASE WHEN (poolkeeper.visible_task(_task_id)).id IS NOT NULL THEN 'stale_token' ELSE 'unknown_task' END;
END $$;

-- The commonest arrow, running -> succeeded, without the lookups that the others need: success needs no policy, and
-- wins over a cancel that was only requested (Q39). Answers which fitted: the hash of each token with its task's id behind it.
CREATE OR REPLACE FUNCTION poolkeeper.settle_succeeded(_endings poolkeeper.ending[], _session poolkeeper.session, _now timestamptz) RETURNS bytea[]
LANGUAGE plpgsql
AS $$
DECLARE
    _ids    uuid[] := ARRAY(SELECT e.task_id FROM unnest(_endings) AS e ORDER BY e.task_id);
    _hashes bytea[] := ARRAY(SELECT e.token_hash FROM unnest(_endings) AS e);
    _build  text := (_session).info ->> 'build';
    _done   bytea[];
    _marked uuid[];
    _queues integer[];
    _lanes  bigint[];
    _gates  bigint[];
    _homes  integer[];
    _holds  uuid[];
    _nos    integer[];
BEGIN
    WITH gone AS (
        DELETE FROM poolkeeper.lease AS l
        WHERE l.task_id = ANY (_ids) AND l.started_at IS NOT NULL
          AND (l.token_hash IN (SELECT unnest(_hashes))) IS TRUE  -- looked up in a hash of them; ANY would compare each with each
        RETURNING l.task_id, l.delivery, l.queue_id, l.pool_id, l.session_id, l.ready_at, l.claimed_at, l.started_at, l.suspect,
                  l.token_hash, l.state_version, l.checkpointed, l.counted, l.lane, l.gate, l.held
    ), history AS (
        INSERT INTO poolkeeper.delivery (task_id, delivery, queue_id, pool_id, session_id, ready_at, claimed_at, started_at, ended_at,
                                         outcome, next_state, build, suspect, token_hash, state_version, result)
        SELECT g.task_id, g.delivery, g.queue_id, g.pool_id, g.session_id, g.ready_at, g.claimed_at, g.started_at, greatest(_now, g.started_at),
               e.outcome, 'succeeded', _build, g.suspect, g.token_hash, g.state_version + 1, e.result
        FROM gone AS g LEFT JOIN poolkeeper.each_ending(_endings) AS e ON e.task_id = g.task_id AND e.token_hash = g.token_hash
    )
    SELECT array_agg(g.token_hash || uuid_send(g.task_id)), array_agg(g.task_id) FILTER (WHERE g.checkpointed),
           array_agg(g.queue_id) FILTER (WHERE g.counted), array_agg(g.lane) FILTER (WHERE g.counted),
           array_agg(g.queue_id) FILTER (WHERE g.gate IS NOT NULL), array_agg(g.gate) FILTER (WHERE g.gate IS NOT NULL),
           array_agg(g.task_id) FILTER (WHERE g.held), array_agg(g.delivery) FILTER (WHERE g.held)
    INTO _done, _marked, _queues, _lanes, _homes, _gates, _holds, _nos FROM gone AS g;
    IF _holds IS NOT NULL THEN  -- what they held of providers is spent, or given back (Q40)
        PERFORM poolkeeper.end_holds(_holds, _nos, array_fill(true, ARRAY[cardinality(_holds)]), array_fill(false, ARRAY[cardinality(_holds)]), _now);
    END IF;
    IF _lanes IS NOT NULL THEN  -- a slot of its tenant is free
        PERFORM poolkeeper.open_lanes(_queues, _lanes);
    END IF;
    IF _gates IS NOT NULL THEN  -- their ordering keys may be free (Q9)
        INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT u.queue_id, u.gate FROM unnest(_homes, _gates) AS u (queue_id, gate);
    END IF;
    IF _marked IS NOT NULL THEN  -- the cursor of a task that ended for good is of no use to anybody
        DELETE FROM poolkeeper.checkpoint AS c WHERE c.task_id = ANY (_marked);
    END IF;
    RETURN _done;
END $$;

-- Whether a result is more than the store keeps (1 MiB as JSON text), or nothing that every reader can read back (Q8).
CREATE OR REPLACE FUNCTION poolkeeper.result_fault(_result jsonb) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(r.text) > 1048576 THEN 'result_too_large' WHEN poolkeeper.unreadable(_result, r.text) THEN 'result_invalid' END
    FROM (SELECT _result::text AS text OFFSET 0) AS r
$$;

-- Settles what a worker wants settled: [{t task, k token, o outcome, r result, c error class, e error, a seconds to wait,
-- u true: user code never started, m true: the handler called succeed in a transaction of its own, which is not waited for:
-- while that holds the lease the answer is in_transaction}]. Answers a row for each that did not simply succeed, with its place in the array as
-- the number of the delivery: no row means succeeded. The same settle twice is one. A success whose result the store does
-- not take is a dead letter that says so: running it again would bring the same, and a success without it would be a lie.
CREATE OR REPLACE FUNCTION poolkeeper.settle(_settles jsonb, _session poolkeeper.session, _now timestamptz) RETURNS SETOF poolkeeper.answer
LANGUAGE plpgsql
AS $$
DECLARE
    _endings poolkeeper.ending[];
    _good    poolkeeper.ending[];
    _other   poolkeeper.ending[];
    _done    bytea[];
BEGIN
    BEGIN
        _endings := ARRAY(
        SELECT DISTINCT ON (x.t, x.k)
               ROW(x.t, sha256(convert_to(x.k, 'UTF8')),
                   CASE WHEN f.fault IS NOT NULL THEN 'dead'
                        WHEN x.u AND x.o = 'handed_back' THEN 'returned'
                        WHEN x.o IN ('succeeded', 'failed', 'rejected', 'dead', 'snoozed', 'handed_back', 'canceled') THEN x.o END,
                   CASE x.o WHEN 'succeeded' THEN CASE WHEN f.fault IS NOT NULL THEN 'permanent_error' END WHEN 'rejected' THEN 'rejected' WHEN 'dead' THEN 'permanent_error'
                            WHEN 'snoozed' THEN 'snoozed' WHEN 'handed_back' THEN CASE WHEN x.c = 'memory_share' THEN 'beside_others' ELSE 'drain' END WHEN 'canceled' THEN 'canceled_by'
                            ELSE CASE WHEN x.c = 'process_died' THEN 'process_died' WHEN x.a IS NOT NULL THEN 'retry_after' ELSE 'handler_error' END
                   END, left(coalesce(f.fault, x.c), 200),
                   CASE f.fault WHEN 'result_too_large' THEN format('the result has %s bytes as JSON, 1048576 are kept; store it elsewhere and return a reference', octet_length(x.r::text))
                                WHEN 'result_invalid' THEN 'the result is nested 128 levels deep or holds a number beyond a double; return less'
                                ELSE left(x.e, 4000) END,
                   CASE WHEN f.fault IS NULL AND x.o = 'succeeded' THEN x.r END, x.a)::poolkeeper.ending
        FROM jsonb_to_recordset(_settles) AS x (t uuid, k text, o text, r jsonb, c text, e text, a double precision, u boolean, m boolean)
        CROSS JOIN LATERAL (SELECT CASE WHEN x.r IS NOT NULL AND x.o = 'succeeded' THEN poolkeeper.result_fault(x.r) END AS fault OFFSET 0) AS f
        WHERE CASE WHEN x.m THEN poolkeeper.lease_is_free(x.t) ELSE true END);
    EXCEPTION WHEN data_exception THEN
        PERFORM poolkeeper.unreadable_entry('settles', SQLERRM);
    END;
    _good := ARRAY(SELECT e FROM unnest(_endings) AS e WHERE e.outcome = 'succeeded');
    IF cardinality(_good) > 0 THEN
        _done := poolkeeper.settle_succeeded(_good, _session, _now);
    END IF;
    IF cardinality(_good) = cardinality(_endings) AND cardinality(_done) = cardinality(_good) AND NOT _settles @> '[{"m": true}]' THEN
        RETURN;
    END IF;
    _other := ARRAY(SELECT e FROM unnest(_endings) AS e WHERE e.outcome IS DISTINCT FROM 'succeeded');
    IF EXISTS (SELECT FROM unnest(_other) AS e WHERE e.outcome IS NULL) THEN
        PERFORM poolkeeper.unreadable_entry('settles', 'no outcome, or one that is none');
    END IF;
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT x.ordinality::integer AS place, x.t, sha256(convert_to(x.k, 'UTF8')) AS hash
        FROM ROWS FROM (jsonb_to_recordset(_settles) AS (t uuid, k text)) WITH ORDINALITY AS x
    ), ended AS MATERIALIZED (
        SELECT d.task_id, d.token_hash, d.state FROM poolkeeper.end_deliveries(_other, _now) AS d
    )
    SELECT 'settled', CASE WHEN d.task_id IS NULL THEN poolkeeper.why_not(a.t, a.hash) END, d.state, a.t,
           NULL::text, a.place, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::jsonb, NULL::integer, NULL::jsonb, NULL::text,
           NULL::timestamptz, NULL::integer, NULL::integer, NULL::integer, NULL::boolean, NULL::jsonb
    FROM asked AS a LEFT JOIN ended AS d ON d.task_id = a.t AND d.token_hash = a.hash
    WHERE NOT coalesce(a.hash || uuid_send(a.t) = ANY (_done), false);
END $$;
