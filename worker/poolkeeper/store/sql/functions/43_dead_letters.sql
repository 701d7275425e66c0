-- Many dead letters at once, by a filter, page by page; never automatic (Q29). Each page is a transaction of its own, so that
-- nothing waits long and what is done stays done. Oldest first; a page looks at so many letters, whatever matches, and the
-- next call takes its cursor. Only what was dead when the first page was asked for: a task that dies again meanwhile is left
-- alone. Of two at once each letter is done by one. A login that is limited to tenants sees and changes only theirs (Q51).
-- Locks: dead, SKIP LOCKED. Index: dead_queue.

-- _filter: {type, tenant, reason, error_class, before, after}, each optional; before and after: when it died, ISO 8601 with its
-- zone. The letters of one page that match, up to _want of them, and where to go on; cursor NULL: that was the last page.
CREATE OR REPLACE FUNCTION poolkeeper.matching_page(
    _queue text, _filter jsonb, _cursor jsonb, _want integer, _most integer, OUT code text, OUT ids uuid[], OUT cursor jsonb
)
LANGUAGE plpgsql
AS $$
DECLARE
    _caller poolkeeper.access := poolkeeper.caller();
    _path   text := poolkeeper.queue_path(_queue);
    _id     integer := (SELECT q.id FROM poolkeeper.queue AS q
                        WHERE q.namespace = split_part(_path, '/', 1) AND q.name = split_part(_path, '/', 2) AND poolkeeper.may_see(_caller, _path, NULL));
    _until  timestamptz;
    _before timestamptz;
    _after  timestamptz;
    _at     timestamptz;
    _last   uuid;
BEGIN
    ids := '{}';
    IF _id IS NULL THEN  -- a foreign queue answers the same
        code := 'unknown_queue';
        RETURN;
    END IF;
    _filter := jsonb_strip_nulls(coalesce(_filter, '{}'));
    IF jsonb_typeof(_filter) <> 'object' OR _filter - ARRAY['type', 'tenant', 'reason', 'error_class', 'before', 'after'] <> '{}' THEN
        RAISE EXCEPTION 'no filter of dead letters: %', left(_filter::text, 200) USING ERRCODE = 'PK400',
            HINT = 'an object of type, tenant, reason, error_class, before and after';
    END IF;
    _most := least(greatest(_most, 1), 10000);
    _want := least(greatest(_want, 1), _most);
    BEGIN
        _before := coalesce(poolkeeper.moment(_filter ->> 'before'), 'infinity');
        _after := coalesce(poolkeeper.moment(_filter ->> 'after'), '-infinity');
        _until := coalesce((_cursor ->> 'until')::timestamptz, poolkeeper.clock());
        _at := coalesce((_cursor ->> 'at')::timestamptz, '-infinity');
        _last := coalesce((_cursor ->> 'id')::uuid, '00000000-0000-0000-0000-000000000000');
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'no filter of dead letters: %', SQLERRM USING ERRCODE = 'PK400', HINT = 'write moments as 2030-01-31T07:00:00Z; a cursor is what the last page answered';
    END;
    WITH page AS MATERIALIZED (
        SELECT d.task_id, d.died_at, row_number() OVER (ORDER BY d.died_at, d.task_id) AS n,
               (d.reason = _filter ->> 'reason' OR NOT _filter ? 'reason')
               AND (coalesce(d.error_class = _filter ->> 'error_class', false) OR NOT _filter ? 'error_class')
               AND (t.type = _filter ->> 'type' OR NOT _filter ? 'type')
               AND (t.tenant = _filter ->> 'tenant' OR NOT _filter ? 'tenant')
               AND poolkeeper.may_see(_caller, _path, t.tenant) AS fits
        FROM (SELECT k.task_id, k.died_at, k.reason, k.error_class FROM poolkeeper.dead AS k
              WHERE k.queue_id = _id AND k.died_at >= _after AND k.died_at < _before AND k.died_at <= _until
                AND (k.died_at, k.task_id) > (_at, _last)
              ORDER BY k.died_at, k.task_id LIMIT _most) AS d
        CROSS JOIN LATERAL (SELECT b.type, b.tenant FROM poolkeeper.task AS b WHERE b.id = d.task_id OFFSET 0) AS t
    ), chosen AS MATERIALIZED (
        SELECT p.* FROM page AS p WHERE p.fits ORDER BY p.n LIMIT _want
    )
    SELECT coalesce((SELECT array_agg(c.task_id ORDER BY c.n) FROM chosen AS c), '{}'),
           (SELECT jsonb_build_object('at', p.died_at, 'id', p.task_id, 'until', _until) FROM page AS p
            WHERE p.n = x.last AND (x.looked = _most OR x.last < x.looked))
    INTO ids, cursor
    FROM (SELECT (SELECT count(*) FROM page) AS looked,  -- where as many match as are wanted, the next page begins behind the last of them
                 CASE WHEN (SELECT count(*) FROM chosen) = _want THEN (SELECT max(c.n) FROM chosen AS c) ELSE (SELECT max(p.n) FROM page AS p) END AS last) AS x;
END $$;

-- What a bulk requeue or discard would do: the letters of one page, and nothing changes. The last row has no task but the
-- cursor of the next page.
CREATE OR REPLACE FUNCTION poolkeeper.dead_matching(_queue text, _filter jsonb, _cursor jsonb DEFAULT NULL, _want integer DEFAULT 1000, _most integer DEFAULT 1000)
RETURNS TABLE (code text, cursor jsonb, task_id uuid, type text, tenant text, died_at timestamptz, reason text, error_class text, error text, state_version integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _page record;
BEGIN
    SELECT * INTO _page FROM poolkeeper.matching_page(_queue, _filter, _cursor, _want, _most);
    RETURN QUERY
        SELECT NULL::text, NULL::jsonb, d.task_id, t.type, t.tenant, d.died_at, d.reason, d.error_class, d.error, d.state_version
        FROM unnest(_page.ids) WITH ORDINALITY AS u (id, n)
        CROSS JOIN LATERAL (SELECT k.* FROM poolkeeper.dead AS k WHERE k.task_id = u.id OFFSET 0) AS d
        CROSS JOIN LATERAL (SELECT k.type, k.tenant FROM poolkeeper.task AS k WHERE k.id = u.id OFFSET 0) AS t
        ORDER BY u.n;
    RETURN QUERY SELECT _page.code, _page.cursor, NULL::uuid, NULL::text, NULL::text, NULL::timestamptz, NULL::text, NULL::text, NULL::text, NULL::integer;
END $$;

-- Takes the letters of one page away from their table, each recorded with who and why; passes by those that somebody else has
-- in hand.
CREATE OR REPLACE FUNCTION poolkeeper.take_matching(
    _queue text, _filter jsonb, _cursor jsonb, _want integer, _most integer, _kind text, _who text, _why text,
    OUT code text, OUT cursor jsonb, OUT letters poolkeeper.dead[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    _ids uuid[];
BEGIN
    SELECT p.code, p.cursor, p.ids INTO code, cursor, _ids FROM poolkeeper.matching_page(_queue, _filter, _cursor, _want, _most) AS p;
    PERFORM poolkeeper.demand_durable();
    WITH gone AS (
        DELETE FROM poolkeeper.dead AS d WHERE d.task_id = ANY (ARRAY(
            SELECT k.task_id FROM poolkeeper.dead AS k WHERE k.task_id = ANY (_ids) ORDER BY k.task_id FOR UPDATE SKIP LOCKED))
        RETURNING d
    ), told AS (
        INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, actor, reason, state_version)
        SELECT (g.d).task_id, (g.d).queue_id, poolkeeper.clock(), _kind, left(_who, 200), left(_why, 2000), (g.d).state_version + 1 FROM gone AS g
    )
    SELECT coalesce(array_agg(g.d ORDER BY (g.d).task_id), '{}') INTO letters FROM gone AS g;
END $$;

-- Arrow: dead -> ready, as requeue, for one page of what matches. Answers the tasks that it did.
CREATE OR REPLACE FUNCTION poolkeeper.requeue_matching(
    _queue text, _filter jsonb, _who text, _why text, _cursor jsonb DEFAULT NULL, _want integer DEFAULT 1000, _most integer DEFAULT 1000
) RETURNS TABLE (code text, cursor jsonb, task_ids uuid[])
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _taken record;
BEGIN
    SELECT * INTO _taken FROM poolkeeper.take_matching(_queue, _filter, _cursor, _want, _most, 'requeued', _who, _why);
    IF cardinality(_taken.letters) > 0 THEN
        PERFORM poolkeeper.put_back(_taken.letters, poolkeeper.clock());
        PERFORM poolkeeper.wake();
    END IF;
    RETURN QUERY SELECT _taken.code, _taken.cursor, ARRAY(SELECT d.task_id FROM unnest(_taken.letters) AS d);
END $$;

-- Arrow: dead -> canceled, as discard, for one page of what matches. Answers the tasks that it did.
CREATE OR REPLACE FUNCTION poolkeeper.discard_matching(
    _queue text, _filter jsonb, _who text, _why text, _cursor jsonb DEFAULT NULL, _want integer DEFAULT 1000, _most integer DEFAULT 1000
) RETURNS TABLE (code text, cursor jsonb, task_ids uuid[])
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    _taken record;
BEGIN
    SELECT * INTO _taken FROM poolkeeper.take_matching(_queue, _filter, _cursor, _want, _most, 'discarded', _who, _why);
    PERFORM poolkeeper.put_away(_taken.letters);
    RETURN QUERY SELECT _taken.code, _taken.cursor, ARRAY(SELECT d.task_id FROM unnest(_taken.letters) AS d);
END $$;
