-- Requests and tokens per window (Q40, ADR 0035): in no interval as long as a window do the deliveries of all pools together use
-- more of a quota than its limit, on this database's clock, as far as each keeps to what its pool declares for a task.
--
-- What a delivery needs is granted whole at its claim and held. A report of use turns so much of it into spent, at that time;
-- its end turns the rest into spent, or gives it back. A grant is made while held + spent in the last window + grant <= limit: whatever
-- anybody uses within a window of that grant was held then, or was spent after the window had begun. Spent is counted by slices of a
-- twentieth of the window, to the end of the slice: a window is taken for at most five percent longer than it is.
--
-- Locks: a turn locks the windows of its pool's providers behind the pool, SKIP LOCKED, before it counts; who only spends or gives
-- back locks none: it inserts, and removes its own holds in the transaction that ends the lease, so that whoever counts sees the one or the other.
-- A hold that somebody else has locked is left to the upkeep; until then it counts as held.

-- Locks the windows of these providers. False: one is busy, pass over.
CREATE OR REPLACE FUNCTION poolkeeper.lock_windows(_ids integer[]) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    _there integer;
    _got   integer;
BEGIN
    SELECT count(*) INTO _there FROM poolkeeper.provider_window AS w WHERE w.provider_id = ANY (_ids);
    IF _there = 0 THEN
        RETURN true;
    END IF;
    SELECT count(*) INTO _got FROM (
        SELECT FROM poolkeeper.provider_window AS w WHERE w.provider_id = ANY (_ids)
        ORDER BY w.provider_id, w.measure FOR NO KEY UPDATE SKIP LOCKED) AS x;
    RETURN _got >= _there;
END $$;

-- Adds up to _most rows of what was spent to their slices, and removes slices that no window reaches any more. Its windows are locked by the caller.
CREATE OR REPLACE FUNCTION poolkeeper.fold_spent(_provider_id integer, _most integer, _now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    WITH gone AS (
        DELETE FROM poolkeeper.provider_spent AS s WHERE s.ctid = ANY (ARRAY(
            SELECT k.ctid FROM poolkeeper.provider_spent AS k WHERE k.provider_id = _provider_id ORDER BY k.no LIMIT _most FOR UPDATE SKIP LOCKED))
        RETURNING s.*
    )
    INSERT INTO poolkeeper.provider_slice AS x (provider_id, measure, ends_at, amount)
    SELECT w.provider_id, w.measure, date_bin(w.width / 20, g.at, '2000-01-01 00:00:00+00') + w.width / 20,
           sum(CASE w.measure WHEN 'requests' THEN g.requests ELSE g.tokens END)
    FROM gone AS g JOIN poolkeeper.provider_window AS w ON w.provider_id = g.provider_id
    WHERE CASE w.measure WHEN 'requests' THEN g.requests ELSE g.tokens END > 0
    GROUP BY 1, 2, 3
    ON CONFLICT (provider_id, measure, ends_at) DO UPDATE SET amount = x.amount + EXCLUDED.amount;
    DELETE FROM poolkeeper.provider_slice AS x USING poolkeeper.provider_window AS w
    WHERE w.provider_id = _provider_id AND x.provider_id = w.provider_id AND x.measure = w.measure AND x.ends_at <= _now - w.width;
END $$;

-- How much of a window is taken now: held, spent in its slices, and spent but not yet added up. One snapshot sees it all; more than 1000 rows that
-- are not added up count as everything.
CREATE OR REPLACE FUNCTION poolkeeper.window_taken(_w poolkeeper.provider_window, _now timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT (h.held + x.spent + CASE WHEN u.n > 1000 THEN (_w).most ELSE u.spent END)::bigint
    FROM (SELECT coalesce(sum(CASE (_w).measure WHEN 'requests' THEN k.requests ELSE k.tokens END), 0) AS held
          FROM poolkeeper.provider_hold AS k WHERE k.provider_id = (_w).provider_id) AS h,
         (SELECT coalesce(sum(k.amount), 0) AS spent FROM poolkeeper.provider_slice AS k
          WHERE k.provider_id = (_w).provider_id AND k.measure = (_w).measure AND k.ends_at > _now - (_w).width) AS x,
         (SELECT count(*) AS n, coalesce(sum(y.amount) FILTER (WHERE y.at > _now - (_w).width - (_w).width / 20), 0) AS spent
          FROM (SELECT k.at, CASE (_w).measure WHEN 'requests' THEN k.requests ELSE k.tokens END AS amount
                FROM poolkeeper.provider_spent AS k WHERE k.provider_id = (_w).provider_id LIMIT 1001) AS y) AS u
$$;

-- What one task of a pool needs of each window of its providers, two names of the same quota together; NULL or 0: not said.
CREATE OR REPLACE FUNCTION poolkeeper.window_needs(_p poolkeeper.pool)
RETURNS TABLE (win poolkeeper.provider_window, need bigint)
LANGUAGE sql STABLE
AS $$
    SELECT w, (SELECT CASE WHEN bool_and(u.amount > 0) THEN sum(u.amount) END
               FROM (SELECT CASE w.measure WHEN 'requests' THEN e.requests ELSE e.tokens END AS amount
                     FROM unnest((_p).provider_ids, (_p).provider_requests, (_p).provider_tokens) AS e (id, requests, tokens) WHERE e.id = w.provider_id) AS u)
    FROM poolkeeper.provider_window AS w WHERE w.provider_id = ANY ((_p).provider_ids) ORDER BY w.provider_id, w.measure
$$;

-- How many of _most tasks the providers of a pool let start: _slots at the most, since what is claimed ahead would start while they are closed,
-- and as many as its windows, locked by the caller, have room for. A need that was not said, or is more than the limit, lets none start. windowed: what is claimed is
-- to be held; frees_at: when there is room for one more, where what was spent says so.
CREATE OR REPLACE FUNCTION poolkeeper.provider_room(
    _pool_id integer, _most integer, _slots integer, _now timestamptz, OUT room integer, OUT windowed boolean, OUT frees_at timestamptz
)
LANGUAGE plpgsql
AS $$
DECLARE
    _p    poolkeeper.pool;
    _n    record;
    _left bigint;
    _at   timestamptz;
BEGIN
    room := _most;
    windowed := false;
    SELECT p.* INTO _p FROM poolkeeper.pool AS p WHERE p.id = _pool_id;
    IF _p.provider_ids IS NULL THEN
        RETURN;
    END IF;
    room := least(_most, _slots);
    PERFORM poolkeeper.fold_spent(u.id, 1000, _now) FROM (
        SELECT DISTINCT w.provider_id AS id FROM poolkeeper.provider_window AS w WHERE w.provider_id = ANY (_p.provider_ids) ORDER BY 1) AS u;
    FOR _n IN SELECT (x.win).*, x.need, x.win AS w, poolkeeper.provider_percent(r, _now) AS percent
              FROM poolkeeper.window_needs(_p) AS x JOIN poolkeeper.provider AS r ON r.id = (x.win).provider_id LOOP
        windowed := true;
        _left := floor(_n.most * _n.percent / 100)::bigint - poolkeeper.window_taken(_n.w, _now);
        room := least(room, CASE WHEN _n.need > 0 THEN greatest(0, _left) / _n.need ELSE 0 END);
        IF _left < _n.need AND _n.need <= _n.most THEN
            SELECT min(s.ends_at) + _n.width INTO _at
            FROM (SELECT k.ends_at, sum(k.amount) OVER (ORDER BY k.ends_at) AS freed FROM poolkeeper.provider_slice AS k
                  WHERE k.provider_id = _n.provider_id AND k.measure = _n.measure) AS s  -- fold_spent has left none that no window reaches
            WHERE s.freed >= _n.need - _left;
            frees_at := greatest(frees_at, _at);
        END IF;
    END LOOP;
END $$;

-- Holds what the tasks need that this turn has claimed just now. Index: lease_session.
CREATE OR REPLACE FUNCTION poolkeeper.hold_windows(_session poolkeeper.session, _turn bigint) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    _ids        uuid[];
    _deliveries integer[];
BEGIN
    WITH mine AS (
        UPDATE poolkeeper.lease AS l SET held = true
        WHERE l.session_id = (_session).id AND l.turn = _turn AND NOT l.held RETURNING l.task_id, l.delivery
    )
    SELECT array_agg(m.task_id), array_agg(m.delivery) INTO _ids, _deliveries FROM mine AS m;
    IF _ids IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO poolkeeper.provider_hold (task_id, delivery, provider_id, requests, tokens)
    SELECT m.task_id, m.delivery, n.provider_id, n.requests, n.tokens
    FROM unnest(_ids, _deliveries) AS m (task_id, delivery)
    CROSS JOIN (SELECT (x.win).provider_id, coalesce(sum(x.need) FILTER (WHERE (x.win).measure = 'requests'), 0) AS requests,
                       coalesce(sum(x.need) FILTER (WHERE (x.win).measure = 'tokens'), 0) AS tokens
                FROM poolkeeper.pool AS p CROSS JOIN LATERAL poolkeeper.window_needs(p) AS x WHERE p.id = (_session).pool_id GROUP BY 1) AS n;
END $$;

-- Ends the holds of deliveries that ended: what is left was spent now, but for what was told all along (_told: the worker says that it ended) or
-- never begun (_unused). True. Locks: holds, SKIP LOCKED.
CREATE OR REPLACE FUNCTION poolkeeper.end_holds(_ids uuid[], _deliveries integer[], _told boolean[], _unused boolean[], _now timestamptz) RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    WITH gone AS (
        DELETE FROM poolkeeper.provider_hold AS h WHERE h.ctid = ANY (ARRAY(
            SELECT x.ctid FROM unnest(_ids, _deliveries) AS d (task_id, delivery)
            CROSS JOIN LATERAL (SELECT k.ctid FROM poolkeeper.provider_hold AS k
                                WHERE k.task_id = d.task_id AND k.delivery = d.delivery ORDER BY k.provider_id FOR UPDATE SKIP LOCKED) AS x))
        RETURNING h.*
    ), spent AS (
        SELECT g.provider_id, sum(CASE WHEN d.unused OR (d.told AND g.told_requests) THEN 0 ELSE g.requests END) AS requests,
               sum(CASE WHEN d.unused OR (d.told AND g.told_tokens) THEN 0 ELSE g.tokens END) AS tokens
        FROM gone AS g JOIN unnest(_ids, _deliveries, _told, _unused) AS d (task_id, delivery, told, unused) ON d.task_id = g.task_id AND d.delivery = g.delivery
        GROUP BY g.provider_id
    )
    INSERT INTO poolkeeper.provider_spent (provider_id, at, requests, tokens)
    SELECT s.provider_id, _now, s.requests, s.tokens FROM spent AS s WHERE s.requests > 0 OR s.tokens > 0 ORDER BY s.provider_id;
    RETURN true;
END $$;

-- A report of use: so much is spent now, and held no longer. Where somebody else has the hold, the delivery is ending: it counts in full.
CREATE OR REPLACE FUNCTION poolkeeper.spend(
    _task_id uuid, _delivery integer, _provider_id integer, _requests bigint, _tokens bigint, _told_requests boolean, _told_tokens boolean, _now timestamptz
) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM poolkeeper.provider_window AS w WHERE w.provider_id = _provider_id) THEN
        RETURN;
    END IF;
    UPDATE poolkeeper.provider_hold AS h
    SET requests = greatest(0, h.requests - _requests), tokens = greatest(0, h.tokens - _tokens),
        told_requests = h.told_requests OR _told_requests, told_tokens = h.told_tokens OR _told_tokens
    WHERE h.ctid = ANY (ARRAY(SELECT k.ctid FROM poolkeeper.provider_hold AS k
                              WHERE k.task_id = _task_id AND k.delivery = _delivery AND k.provider_id = _provider_id FOR UPDATE SKIP LOCKED));
    INSERT INTO poolkeeper.provider_spent (provider_id, at, requests, tokens) VALUES (_provider_id, _now, _requests, _tokens);
END $$;

CREATE OR REPLACE FUNCTION poolkeeper.windows_can_be(_windows jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE coalesce(jsonb_typeof(_windows), 'null')
        WHEN 'null' THEN true
        WHEN 'object' THEN NOT EXISTS (
            SELECT FROM jsonb_each(_windows) AS e
            WHERE (e.key IN ('requests', 'tokens') AND jsonb_typeof(e.value) = 'object' AND e.value ->> 'limit' ~ '^[1-9][0-9]{0,11}$'
                   AND CASE WHEN e.value ->> 'window' ~ '^[0-9]{1,5}(\.[0-9]{1,6})?$' THEN (e.value ->> 'window')::double precision BETWEEN 1 AND 86400 END) IS NOT TRUE)
        ELSE false END
$$;

-- The windows of a quota as the operator tells them: {measure: {limit, window in seconds}}; one that is not there is none. True: something changed.
CREATE OR REPLACE FUNCTION poolkeeper.set_windows(_provider_id integer, _windows jsonb) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    _changed boolean;
BEGIN
    INSERT INTO poolkeeper.provider_window AS w (provider_id, measure, most, width)
    SELECT _provider_id, e.key, (e.value ->> 'limit')::bigint, make_interval(secs => (e.value ->> 'window')::double precision)
    FROM jsonb_each(_windows) AS e ORDER BY e.key
    ON CONFLICT (provider_id, measure) DO UPDATE SET most = EXCLUDED.most, width = EXCLUDED.width
        WHERE (w.most, w.width) <> (EXCLUDED.most, EXCLUDED.width);
    _changed := FOUND;
    DELETE FROM poolkeeper.provider_window AS w WHERE w.provider_id = _provider_id AND NOT _windows ? w.measure;
    IF FOUND THEN
        _changed := true;
        DELETE FROM poolkeeper.provider_slice AS x WHERE x.provider_id = _provider_id AND NOT _windows ? x.measure;
    END IF;
    RETURN _changed;
END $$;

-- Upkeep: holds that a report had locked as their delivery ended are ended now, as spent; what was spent is added up where nobody claims.
CREATE OR REPLACE FUNCTION poolkeeper.tidy_windows(_most integer, _now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    _id integer;
BEGIN
    WITH gone AS (
        DELETE FROM poolkeeper.provider_hold AS h WHERE h.ctid = ANY (ARRAY(
            SELECT k.ctid FROM poolkeeper.provider_hold AS k
            WHERE NOT EXISTS (SELECT FROM poolkeeper.lease AS l WHERE l.task_id = k.task_id AND l.delivery = k.delivery) LIMIT _most FOR UPDATE SKIP LOCKED))
        RETURNING h.*
    )
    INSERT INTO poolkeeper.provider_spent (provider_id, at, requests, tokens)
    SELECT g.provider_id, _now, sum(g.requests), sum(g.tokens) FROM gone AS g GROUP BY g.provider_id HAVING sum(g.requests) > 0 OR sum(g.tokens) > 0;
    FOR _id IN SELECT r.id FROM poolkeeper.provider AS r WHERE EXISTS (SELECT FROM poolkeeper.provider_spent AS s WHERE s.provider_id = r.id) ORDER BY r.id LOOP
        IF poolkeeper.lock_windows(ARRAY[_id]) THEN
            PERFORM poolkeeper.fold_spent(_id, _most, _now);
        END IF;
    END LOOP;
END $$;

-- After a restore nobody knows what was granted in the part that was lost: all of each window counts as spent when the installation was held (Q24).
CREATE OR REPLACE FUNCTION poolkeeper.spend_all(_at timestamptz) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO poolkeeper.provider_spent (provider_id, at, requests, tokens)
    SELECT w.provider_id, _at, coalesce(max(w.most) FILTER (WHERE w.measure = 'requests'), 0), coalesce(max(w.most) FILTER (WHERE w.measure = 'tokens'), 0)
    FROM poolkeeper.provider_window AS w GROUP BY w.provider_id ORDER BY w.provider_id
$$;
