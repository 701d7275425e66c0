-- What providers say of their quotas (Q40, O15): a worker reports a refusal, and all pools that use the quota here start fewer
-- tasks from then on, without the operator. What is left grows again with time: a function of the row and the clock, nobody
-- writes it. Each database knows its own reports.
--
-- Locks: set_providers the pool, then providers by their quotas, then their windows; report_provider one provider and, SKIP LOCKED, what the delivery
-- holds of it (39_windows.sql), not even the lease: what a provider said is true whatever becomes of the delivery meanwhile. A claim reads providers without a lock: they
-- only lower what the pool's own limit, which it holds, lets it start; one that begins as a report commits may come before it.

-- How much of a quota there is now, in percent.
CREATE OR REPLACE FUNCTION poolkeeper.provider_percent(_p poolkeeper.provider, _now timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN (_p).cut_at IS NULL THEN 100
                ELSE least(100, greatest((_p).floor, (_p).percent
                         + (_p).recover * greatest(0, extract(epoch FROM _now - greatest((_p).cut_at, (_p).retry_at))::double precision) / 60)) END
$$;

-- What is left of a pool's limit (NULL: as good as none) by the least of its providers; 0 until the last of them may be asked
-- again, else at least one task, so that somebody finds out when it gives more.
CREATE OR REPLACE FUNCTION poolkeeper.provider_limit(_max integer, _ids integer[]) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _now     timestamptz := poolkeeper.clock();
    _closed  boolean;
    _percent double precision;
BEGIN
    SELECT coalesce(bool_or(r.retry_at > _now), false), coalesce(min(poolkeeper.provider_percent(r, _now)), 100) INTO _closed, _percent
    FROM poolkeeper.provider AS r WHERE r.id = ANY (_ids);
    _max := coalesce(_max, 1000000);
    RETURN CASE WHEN _closed THEN 0 ELSE least(_max, greatest(1, floor(_max * _percent / 100)::integer)) END;
END $$;

-- Which providers a pool's tasks use, by the names that its handlers know: [{name, quota, cut, floor, recover, windows, requests, tokens}], with the
-- quota's own policy; windows as set_windows takes them, absent: none; requests and tokens: what one task needs for its whole run. True: something changed.
CREATE OR REPLACE FUNCTION poolkeeper.set_providers(_pool text, _providers jsonb, _term uuid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $$
DECLARE
    _id    integer;
    _new   boolean;
    _names text[];
    _ids   integer[];
    _requests integer[];
    _tokens   integer[];
    _each  record;
BEGIN
    PERFORM poolkeeper.demand_text(_pool, 'a pool''s name');
    PERFORM poolkeeper.demand(poolkeeper.entries(_providers, 'providers') <= 100 AND NOT EXISTS (
            SELECT FROM jsonb_array_elements(CASE jsonb_typeof(_providers) WHEN 'array' THEN _providers ELSE '[]' END) AS e
            WHERE (jsonb_typeof(e) = 'object' AND jsonb_typeof(e -> 'name') = 'string' AND jsonb_typeof(e -> 'quota') = 'string'
                   AND poolkeeper.printable(e ->> 'name') AND poolkeeper.printable(e ->> 'quota')
                   AND e ->> 'cut' ~ '^[1-9][0-9]?$' AND e ->> 'floor' ~ '^([1-9][0-9]?|100)$' AND e ->> 'recover' ~ '^([1-9][0-9]?|100)$'
                   AND coalesce(e ->> 'requests', '1') ~ '^[1-9][0-9]{0,8}$' AND coalesce(e ->> 'tokens', '1') ~ '^[1-9][0-9]{0,8}$'
                   AND poolkeeper.windows_can_be(e -> 'windows')) IS NOT TRUE),
        'a pool''s providers cannot be that',
        'give at most 100 objects: name and quota texts of 1 to 200 printable characters, cut 1 to 99, floor and recover 1 to 100, requests and tokens 1 to 999999999, '
        'windows {requests, tokens: {limit 1 to 1e12, window 1 to 86400 seconds}}');
    PERFORM poolkeeper.demand_leader_of_pool(_pool, _term, 'change its own providers');
    _id := poolkeeper.pool_row(_pool);
    PERFORM FROM poolkeeper.pool AS p WHERE p.id = _id FOR NO KEY UPDATE;
    INSERT INTO poolkeeper.provider AS r (quota, cut, floor, recover)
    SELECT DISTINCT ON (e ->> 'quota') e ->> 'quota', (e ->> 'cut')::smallint, (e ->> 'floor')::smallint, (e ->> 'recover')::smallint
    FROM jsonb_array_elements(nullif(_providers, 'null')) AS e ORDER BY e ->> 'quota'
    ON CONFLICT (quota) DO UPDATE SET cut = EXCLUDED.cut, floor = EXCLUDED.floor, recover = EXCLUDED.recover
        WHERE (r.cut, r.floor, r.recover) <> (EXCLUDED.cut, EXCLUDED.floor, EXCLUDED.recover);
    _new := FOUND;
    FOR _each IN SELECT DISTINCT ON (r.id) r.id, coalesce(nullif(e -> 'windows', 'null'), '{}') AS windows
                 FROM jsonb_array_elements(nullif(_providers, 'null')) AS e JOIN poolkeeper.provider AS r ON r.quota = e ->> 'quota' ORDER BY r.id LOOP
        _new := poolkeeper.set_windows(_each.id, _each.windows) OR _new;
    END LOOP;
    SELECT array_agg(x.name ORDER BY x.name), array_agg(x.id ORDER BY x.name), array_agg(x.requests ORDER BY x.name), array_agg(x.tokens ORDER BY x.name)
    INTO _names, _ids, _requests, _tokens
    FROM (SELECT DISTINCT ON (e ->> 'name') e ->> 'name' AS name, r.id, (e ->> 'requests')::integer AS requests, (e ->> 'tokens')::integer AS tokens
          FROM jsonb_array_elements(nullif(_providers, 'null')) AS e
          JOIN poolkeeper.provider AS r ON r.quota = e ->> 'quota' ORDER BY e ->> 'name', r.id) AS x;
    UPDATE poolkeeper.pool AS p SET provider_names = _names, provider_ids = _ids, provider_requests = _requests, provider_tokens = _tokens
    WHERE p.id = _id AND (p.provider_names, p.provider_ids, p.provider_requests, p.provider_tokens) IS DISTINCT FROM (_names, _ids, _requests, _tokens);
    RETURN FOUND OR _new;
END $$;

-- What a provider answered a running delivery: status is HTTP's, or 'ok', 'failed', 'throttled'; retry_after in seconds; used
-- {requests, tokens} of this call, one request where it does not say: so much is spent of the delivery's grant, or on top of it; who says one of the two
-- does so for each call, and is given back what is left of it at the end. Too many (429, 'throttled', 503 with a retry_after): the quota is cut, once for all that was
-- refused within 5 s or while it is closed: those calls were under way together; and nothing of its pools starts for
-- retry_after, at most an hour. Demands the current token. Answers what is left of the quota, in percent, and for how many seconds it is closed.
CREATE OR REPLACE FUNCTION poolkeeper.report_provider(
    _task_id uuid, _token text, _name text, _status text, _retry_after double precision DEFAULT NULL, _used jsonb DEFAULT NULL
) RETURNS TABLE (code text, percent double precision, closed_for double precision)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _p     poolkeeper.provider;
    _id    integer;
    _pool  integer;
    _no    integer;
    _now   timestamptz;
    _kind  text := CASE WHEN _status IN ('ok', 'failed', 'throttled') THEN _status
                        WHEN _status = '429' OR _status = '503' AND _retry_after IS NOT NULL THEN 'throttled'
                        WHEN _status ~ '^[1-3][0-9][0-9]$' THEN 'ok' WHEN _status ~ '^[45][0-9][0-9]$' THEN 'failed' END;
BEGIN
    PERFORM poolkeeper.caller();
    PERFORM poolkeeper.demand_text(_name, 'a provider''s name');
    PERFORM poolkeeper.demand(_kind IS NOT NULL, format('a provider cannot answer "%s"', left(_status, 80)),
                              'give an HTTP status from 100 to 599, or ok, failed or throttled');
    PERFORM poolkeeper.demand(_retry_after IS NULL OR _retry_after BETWEEN 0 AND 1e9, 'retry_after cannot be that', 'give seconds from 0 to 1e9, or NULL');
    PERFORM poolkeeper.demand(jsonb_typeof(coalesce(nullif(_used, 'null'), '{}')) = 'object' AND NOT EXISTS (
            SELECT FROM jsonb_each(CASE jsonb_typeof(_used) WHEN 'object' THEN _used ELSE '{}' END) AS u
            WHERE (u.key IN ('requests', 'tokens') AND jsonb_typeof(u.value) = 'number' AND u.value #>> '{}' ~ '^[0-9]{1,9}$') IS NOT TRUE),
        'what was used of the provider cannot be read', 'used is an object: requests and tokens, whole numbers from 0 to 999999999');
    PERFORM poolkeeper.demand_read_committed();
    SELECT l.pool_id, l.delivery INTO _pool, _no FROM poolkeeper.lease AS l WHERE l.task_id = _task_id AND l.token_hash = poolkeeper.token_hash(_token);
    IF NOT FOUND THEN
        code := poolkeeper.why_not(_task_id, poolkeeper.token_hash(_token));
        RETURN QUERY SELECT CASE code WHEN 'already_done' THEN 'stale_token' ELSE code END, NULL::double precision, NULL::double precision;
        RETURN;
    END IF;
    SELECT p.provider_ids[array_position(p.provider_names, _name)] INTO _id FROM poolkeeper.pool AS p WHERE p.id = _pool;
    IF _id IS NULL THEN
        RETURN QUERY SELECT 'unknown_provider', NULL::double precision, NULL::double precision;
        RETURN;
    END IF;
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '60s', true);  -- nobody keeps reports from others by doing nothing (Q51)
    END IF;
    SELECT r.* INTO STRICT _p FROM poolkeeper.provider AS r WHERE r.id = _id FOR NO KEY UPDATE;
    _now := poolkeeper.clock();
    IF _kind = 'throttled' THEN
        IF _p.cut_at IS NULL OR _now >= greatest(_p.cut_at + interval '5 seconds', _p.retry_at) THEN
            _p.percent := greatest(_p.floor, poolkeeper.provider_percent(_p, _now) * (100 - _p.cut) / 100);
            _p.cut_at := _now;
        END IF;
        IF _retry_after > 0 THEN
            _p.retry_at := greatest(_p.retry_at, _now + make_interval(secs => least(_retry_after, 3600)));
        END IF;
    END IF;
    UPDATE poolkeeper.provider AS r
    SET percent = _p.percent, cut_at = _p.cut_at, retry_at = _p.retry_at,
        ok = r.ok + (_kind = 'ok')::integer, failed = r.failed + (_kind = 'failed')::integer, throttled = r.throttled + (_kind = 'throttled')::integer,
        requests = r.requests + coalesce((_used ->> 'requests')::bigint, 1), tokens = r.tokens + coalesce((_used ->> 'tokens')::bigint, 0)
    WHERE r.id = _id;
    PERFORM poolkeeper.spend(_task_id, _no, _id, coalesce((_used ->> 'requests')::bigint, 1), coalesce((_used ->> 'tokens')::bigint, 0),
                             coalesce(_used ? 'requests', false), coalesce(_used ? 'tokens', false), _now);
    RETURN QUERY SELECT NULL::text, poolkeeper.provider_percent(_p, _now), greatest(0, extract(epoch FROM _p.retry_at - _now)::double precision);
END $$;

-- For the operator: which quota each provider of a pool is, by its name; and what is known of a quota.
CREATE OR REPLACE FUNCTION poolkeeper.providers_of(_p poolkeeper.pool) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(jsonb_object_agg(u.name, r.quota), '{}')
    FROM unnest((_p).provider_names, (_p).provider_ids) AS u (name, id) JOIN poolkeeper.provider AS r ON r.id = u.id
$$;

-- What its tasks need of each, by its name: {requests, tokens}.
CREATE OR REPLACE FUNCTION poolkeeper.needs_of(_p poolkeeper.pool) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(jsonb_object_agg(u.name, jsonb_strip_nulls(jsonb_build_object('requests', u.requests, 'tokens', u.tokens))), '{}')
    FROM unnest((_p).provider_names, (_p).provider_requests, (_p).provider_tokens) AS u (name, requests, tokens)
$$;

CREATE OR REPLACE FUNCTION poolkeeper.provider_stats(_p poolkeeper.provider, _now timestamptz) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'quota', (_p).quota, 'cut', (_p).cut, 'floor', (_p).floor, 'recover', (_p).recover, 'percent', poolkeeper.provider_percent(_p, _now),
        'cut_to', (_p).percent, 'cut_at', (_p).cut_at, 'retry_at', (_p).retry_at,
        'ok', (_p).ok, 'failed', (_p).failed, 'throttled', (_p).throttled, 'requests', (_p).requests, 'tokens', (_p).tokens,
        'windows', (SELECT coalesce(jsonb_agg(jsonb_build_object('measure', w.measure, 'limit', w.most, 'window', extract(epoch FROM w.width)::double precision,
                                                                   'taken', poolkeeper.window_taken(w, _now)) ORDER BY w.measure), '[]')
                    FROM poolkeeper.provider_window AS w WHERE w.provider_id = (_p).id))
$$;
