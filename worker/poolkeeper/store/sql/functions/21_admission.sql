-- Admission by how much waits (Q7): admission.maxWaiting, maxWaitingPerTenant, and a tenant's own maxWaiting. Waiting is what has
-- not begun: ready, scheduled, waiting, suspects, tasks behind their ordering keys.
--
-- Guarantees: submit writes nothing and locks nothing for it. It reads what was last counted (backlog), by claimers and sweeps,
-- about every second; where a count takes long, twenty times as long apart. So a limit is passed by what is submitted in that
-- time, and by what transactions hold that have not committed: about a second of submits. Limits up to 1000, and all of them
-- while nobody counts (no worker, no operator), are counted by each submit itself, no further than the limit. A queue without
-- such limits pays nothing. Of a tenant's tasks that are not ready a submit looks among the first 2000 of the queue only, beyond
-- which the last count is the least, for a minute (among the first 20000 while nobody counts). Locks: the fold the row of
-- backlog, SKIP LOCKED. Indexes: ready_claim, later_queue, suspect_claim, ordered_next, which hold all that is counted.

-- Whether a queue bounds what waits.
CREATE OR REPLACE FUNCTION poolkeeper.bounds_waiting(_q poolkeeper.queue) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$ SELECT (_q).max_waiting IS NOT NULL OR (_q).max_waiting_per_tenant IS NOT NULL OR (_q).tenant_max_waiting <> '{}' $$;

-- What a lane may have waiting, NULL: no bound. A collision of lanes shares a bound (contract 3).
CREATE OR REPLACE FUNCTION poolkeeper.lane_bound(_q poolkeeper.queue, _lane bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(((_q).tenant_max_waiting ->> _lane::text)::bigint, (_q).max_waiting_per_tenant) $$;

-- How long a count of a queue stands before the next one: a second, or longer where counting is dear.
CREATE OR REPLACE FUNCTION poolkeeper.count_every(_took interval) RETURNS interval
LANGUAGE sql IMMUTABLE
AS $$ SELECT greatest(interval '1 second', 20 * _took) $$;

-- What waits in a queue, no further than _most.
CREATE OR REPLACE FUNCTION poolkeeper.count_waiting(_queue_id integer, _most bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _n bigint;
BEGIN
    SELECT count(*) INTO _n FROM (SELECT FROM poolkeeper.ready AS r WHERE r.queue_id = _queue_id LIMIT _most) AS x;
    IF _n < _most THEN
        SELECT _n + count(*) INTO _n FROM (SELECT FROM poolkeeper.later AS r WHERE r.queue_id = _queue_id LIMIT _most - _n) AS x;
    END IF;
    IF _n < _most THEN
        SELECT _n + count(*) INTO _n FROM (SELECT FROM poolkeeper.suspect AS r WHERE r.queue_id = _queue_id LIMIT _most - _n) AS x;
    END IF;
    IF _n < _most THEN
        SELECT _n + count(*) INTO _n FROM (SELECT FROM poolkeeper.ordered AS r WHERE r.queue_id = _queue_id LIMIT _most - _n) AS x;
    END IF;
    RETURN _n;
END $$;

-- The same of one lane; what is not ready, as far as it is among the first _far of the queue. Where there is more than that,
-- what was last counted of the lane (_folded) is the least.
CREATE OR REPLACE FUNCTION poolkeeper.count_waiting_of(_queue_id integer, _lane bigint, _most bigint, _far bigint, _folded bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _n   bigint;
    _cut boolean;
BEGIN
    SELECT count(*) INTO _n FROM (SELECT FROM poolkeeper.ready AS r WHERE r.queue_id = _queue_id AND r.again = ANY ('{f,t}') AND r.lane = _lane LIMIT _most) AS x;
    IF _n < _most THEN
        SELECT _n + sum(x.n), bool_or(x.seen = _far) INTO _n, _cut FROM (
            SELECT count(*) AS seen, count(*) FILTER (WHERE l.lane = _lane) AS n
            FROM (SELECT r.lane FROM poolkeeper.later AS r WHERE r.queue_id = _queue_id ORDER BY r.due_at LIMIT _far) AS l
            UNION ALL
            SELECT count(*), count(*) FILTER (WHERE s.lane = _lane)
            FROM (SELECT r.lane FROM poolkeeper.suspect AS r WHERE r.queue_id = _queue_id LIMIT _far) AS s
            UNION ALL
            SELECT count(*), count(*) FILTER (WHERE o.lane = _lane)
            FROM (SELECT r.lane FROM poolkeeper.ordered AS r WHERE r.queue_id = _queue_id LIMIT _far) AS o) AS x;
        IF _cut THEN
            _n := greatest(_n, _folded);
        END IF;
    END IF;
    RETURN least(_n, _most);
END $$;

-- Counts what waits in these queues (NULL: all) where a limit asks for it and the last count is old enough. Of tenants, those
-- are noted that have at least half of what they may.
CREATE OR REPLACE FUNCTION poolkeeper.fold_backlog(_queues integer[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    _q    poolkeeper.queue;
    _from timestamptz;
    _cap  bigint;
BEGIN
    FOR _q IN SELECT q.* FROM poolkeeper.queue AS q
              WHERE (_queues IS NULL OR q.id = ANY (_queues)) AND poolkeeper.bounds_waiting(q) ORDER BY q.id LOOP
        _from := poolkeeper.clock();
        PERFORM FROM poolkeeper.backlog AS b
        WHERE b.queue_id = _q.id AND b.counted_at + poolkeeper.count_every(b.took) <= _from FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        _cap := greatest(_q.max_waiting_per_tenant, (SELECT max(e.value::bigint) FROM jsonb_each_text(_q.tenant_max_waiting) AS e));
        IF _cap IS NOT NULL THEN
            WITH lane AS (
                SELECT w.lane FROM poolkeeper.lanes_with_work(_q.id, (-9223372036854775808)::bigint, 2147483647) AS w
            ), counted AS MATERIALIZED (
                SELECT x.lane, sum(x.n)::bigint AS n FROM (
                    SELECT l.lane, c.n FROM lane AS l CROSS JOIN LATERAL (
                        SELECT count(*) AS n FROM (SELECT FROM poolkeeper.ready AS r WHERE r.queue_id = _q.id AND r.again = ANY ('{f,t}') AND r.lane = l.lane LIMIT _cap) AS y) AS c
                    UNION ALL
                    SELECT d.lane, count(*) FROM (
                        SELECT r.lane FROM poolkeeper.later AS r WHERE r.queue_id = _q.id ORDER BY r.due_at LIMIT 200000) AS d GROUP BY d.lane
                    UNION ALL
                    SELECT s.lane, count(*) FROM poolkeeper.suspect AS s WHERE s.queue_id = _q.id GROUP BY s.lane
                    UNION ALL
                    SELECT o.lane, count(*) FROM (
                        SELECT r.lane FROM poolkeeper.ordered AS r WHERE r.queue_id = _q.id LIMIT 200000) AS o GROUP BY o.lane) AS x
                GROUP BY x.lane
            ), full_ones AS MATERIALIZED (
                SELECT c.lane, c.n FROM counted AS c WHERE 2 * c.n >= poolkeeper.lane_bound(_q, c.lane)
            ), gone AS (
                DELETE FROM poolkeeper.backlog_lane AS b WHERE b.queue_id = _q.id AND b.lane NOT IN (SELECT f.lane FROM full_ones AS f)
            )
            INSERT INTO poolkeeper.backlog_lane AS b (queue_id, lane, waiting) SELECT _q.id, f.lane, f.n FROM full_ones AS f
            ON CONFLICT (queue_id, lane) DO UPDATE SET waiting = EXCLUDED.waiting WHERE b.waiting <> EXCLUDED.waiting;
        END IF;
        UPDATE poolkeeper.backlog AS b
        SET waiting = CASE WHEN _q.max_waiting IS NULL THEN 0 ELSE poolkeeper.count_waiting(_q.id, _q.max_waiting) END, counted_at = _from,
            took = poolkeeper.clock() - _from
        WHERE b.queue_id = _q.id;
    END LOOP;
END $$;

DO $$ BEGIN
    -- a task that does not fit any more: the limit that it meets, and what was counted
    CREATE TYPE poolkeeper.overrun AS (ordinal integer, code text, bound bigint, waiting bigint);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- What waits in a queue, or in one of its lanes, as far as a submit of _wanted tasks has to know.
CREATE OR REPLACE FUNCTION poolkeeper.known_waiting(_queue_id integer, _lane bigint, _bound bigint, _wanted bigint, _fresh boolean, _folded bigint)
RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE
        WHEN _bound IS NULL THEN 0
        WHEN NOT _fresh OR _bound <= 1000 OR (_folded IS NULL AND 2 * _wanted > _bound) THEN CASE
            WHEN _lane IS NULL THEN poolkeeper.count_waiting(_queue_id, _bound)
            ELSE poolkeeper.count_waiting_of(_queue_id, _lane, _bound, CASE WHEN _fresh THEN 2000 ELSE 20000 END, _folded) END
        ELSE coalesce(_folded, 0)
    END
$$;

-- The candidates that do not fit: as many are accepted as do, in the order of the call. A key that is known is no new task.
CREATE OR REPLACE FUNCTION poolkeeper.overruns(_q poolkeeper.queue, _rows poolkeeper.candidate[], _now timestamptz) RETURNS poolkeeper.overrun[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _folded bigint;
    _fresh  boolean;
    _recent boolean;
BEGIN
    SELECT b.waiting, b.counted_at + 3 * poolkeeper.count_every(b.took) > _now, b.counted_at + interval '1 minute' > _now INTO _folded, _fresh, _recent
    FROM poolkeeper.backlog AS b WHERE b.queue_id = _q.id;
    _fresh := coalesce(_fresh, false);
    IF NOT _fresh THEN
        _folded := NULL;
    END IF;
    RETURN ARRAY(
        WITH asked AS MATERIALIZED (
            SELECT a.ordinal, poolkeeper.lane_key(_q.id, a.tenant) AS lane FROM (
                SELECT r.ordinal, r.tenant, r.key, CASE WHEN r.key IS NULL THEN 1 ELSE row_number() OVER (PARTITION BY r.tenant, r.key ORDER BY r.ordinal) END AS nth
                FROM unnest(_rows) AS r WHERE r.code IS NULL) AS a
            LEFT JOIN LATERAL (SELECT h.task_id FROM poolkeeper.task_key AS h
                               WHERE h.tenant = a.tenant AND h.queue_id = _q.id AND h.key = a.key OFFSET 0) AS k ON true
            WHERE a.nth = 1 AND k.task_id IS NULL
        ), lanes AS MATERIALIZED (
            SELECT l.lane, l.bound, poolkeeper.known_waiting(_q.id, l.lane, l.bound, l.wanted, _fresh,
                CASE WHEN _fresh OR _recent THEN (SELECT b.waiting FROM poolkeeper.backlog_lane AS b WHERE b.queue_id = _q.id AND b.lane = l.lane) END) AS waiting
            FROM (SELECT a.lane, count(*) AS wanted, poolkeeper.lane_bound(_q, a.lane) AS bound FROM asked AS a GROUP BY a.lane) AS l
        ), within AS (
            SELECT a.ordinal, l.bound, l.waiting, coalesce(l.waiting + row_number() OVER (PARTITION BY a.lane ORDER BY a.ordinal) <= l.bound, true) AS fits
            FROM asked AS a JOIN lanes AS l ON l.lane = a.lane
        ), total AS MATERIALIZED (
            SELECT poolkeeper.known_waiting(_q.id, NULL, _q.max_waiting, count(*), _fresh, _folded) AS waiting FROM asked
        ), judged AS (
            SELECT w.ordinal, w.bound, w.waiting, w.fits, t.waiting AS in_all,
                   coalesce(t.waiting + count(*) FILTER (WHERE w.fits) OVER (ORDER BY w.ordinal) <= _q.max_waiting, true) AS fits_in_all
            FROM within AS w CROSS JOIN total AS t
        )
        SELECT ROW(j.ordinal, CASE WHEN j.fits THEN 'queue_limit' ELSE 'tenant_queue_limit' END, CASE WHEN j.fits THEN _q.max_waiting ELSE j.bound END,
                   CASE WHEN j.fits THEN j.in_all ELSE j.waiting END)::poolkeeper.overrun
        FROM judged AS j WHERE NOT (j.fits AND j.fits_in_all));
END $$;
