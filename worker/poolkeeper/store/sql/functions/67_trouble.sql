-- Signs of trouble that no count of tasks shows (O25): leases that expire although their worker lives, slots that are late or
-- refused, and who keeps vacuum back. All of them are part of poolkeeper.stats, and cost some probes of an index for each queue.

-- Notes what a sweep is about to end because its session was silent: the sessions' later renewals tell who was alive after all.
-- Answers the endings, each with the way in which its process ended, where that is known by now (O26). The leases are locked by
-- the caller.
CREATE OR REPLACE FUNCTION poolkeeper.note_expiries(_endings poolkeeper.ending[], _now timestamptz) RETURNS poolkeeper.ending[]
LANGUAGE plpgsql
AS $$
BEGIN
    IF cardinality(_endings) = 0 THEN
        RETURN _endings;
    END IF;
    INSERT INTO poolkeeper.expiry (task_id, delivery, queue_id, session_id, at, explained)
    SELECT l.task_id, l.delivery, l.queue_id, l.session_id, _now, s.crash IS NOT NULL
    FROM unnest(_endings) AS e
    CROSS JOIN LATERAL (SELECT k.task_id, k.delivery, k.queue_id, k.session_id FROM poolkeeper.lease AS k WHERE k.task_id = e.task_id OFFSET 0) AS l
    CROSS JOIN LATERAL (SELECT k.crash FROM poolkeeper.session AS k WHERE k.id = l.session_id OFFSET 0) AS s
    WHERE e.outcome = 'expired' AND e.reason <> 'outage'
    ON CONFLICT DO NOTHING;
    RETURN ARRAY(
        SELECT ROW(e.task_id, e.token_hash, e.outcome, e.reason, coalesce(e.error_class, poolkeeper.crash_class(s.crash)), coalesce(e.error, s.crash),
                   e.result, e.retry_after)::poolkeeper.ending
        FROM unnest(_endings) WITH ORDINALITY AS e
        LEFT JOIN LATERAL (SELECT k.session_id FROM poolkeeper.lease AS k WHERE k.task_id = e.task_id OFFSET 0) AS l ON true
        LEFT JOIN LATERAL (SELECT k.crash FROM poolkeeper.session AS k WHERE k.id = l.session_id OFFSET 0) AS s ON true
        ORDER BY e.ordinality);
END $$;

-- Deliveries of a queue that expired within ten minutes (at most 1000 are looked at): live, of sessions that have renewed since by
-- themselves, so that their lease was too short for them; dead, of those that have not, with the commonest way in which their
-- processes ended. Index: expiry_queue.
CREATE OR REPLACE FUNCTION poolkeeper.expired_lately(_queue_id integer, _now timestamptz) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('live', count(*) FILTER (WHERE s.live), 'dead', count(*) FILTER (WHERE s.live IS NOT TRUE),
                              'cause', mode() WITHIN GROUP (ORDER BY s.crash) FILTER (WHERE s.live IS NOT TRUE))
    FROM (SELECT e.session_id, e.at FROM poolkeeper.expiry AS e
          WHERE e.queue_id = _queue_id AND e.at > _now - interval '10 minutes' ORDER BY e.at DESC LIMIT 1000) AS x
    LEFT JOIN LATERAL (SELECT k.graces = 0 AND k.renewed_at > x.at AS live, k.crash FROM poolkeeper.session AS k WHERE k.id = x.session_id OFFSET 0) AS s ON true
$$;

-- Schedules of a queue whose slots nobody fires although they are due for two minutes, and those that are refused: how many (at
-- most 1000 are counted), the first one's name, and why it is refused. None of a paused queue's are late. Indexes: schedule_look,
-- schedule_refused.
CREATE OR REPLACE FUNCTION poolkeeper.schedule_trouble(_queue_id integer, _paused boolean, _now timestamptz) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    WITH late AS MATERIALIZED (
        SELECT s.name, s.look_at FROM poolkeeper.schedule AS s
        WHERE NOT _paused AND s.queue_id = _queue_id AND s.look_at < _now - interval '2 minutes' ORDER BY s.look_at LIMIT 1000
    ), refused AS MATERIALIZED (
        SELECT s.name, s.refused FROM poolkeeper.schedule AS s
        WHERE s.queue_id = _queue_id AND s.refused IS NOT NULL AND NOT s.paused ORDER BY s.name LIMIT 1000
    )
    SELECT jsonb_build_object(
        'late', (SELECT count(*) FROM late), 'first_late', (SELECT l.name FROM late AS l ORDER BY l.look_at, l.name LIMIT 1),
        'refused', (SELECT count(*) FROM refused), 'first_refused', r.name, 'why', left(r.refused, 300))
    FROM (SELECT) AS one LEFT JOIN LATERAL (SELECT f.name, f.refused FROM refused AS f ORDER BY f.name LIMIT 1) AS r ON true
$$;

-- Who keeps vacuum from removing dead rows for the longest time, if for a minute or ten million transactions; NULL: nobody, as far
-- as the schema's owner sees (without pg_read_all_stats it does not see the transactions of others). _named: whether the caller
-- may know whose it is.
CREATE OR REPLACE FUNCTION poolkeeper.vacuum_held(_named boolean) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN _named THEN h.one ELSE h.one || '{"name": null, "user": null, "application": null}' END
    FROM jsonb_array_elements(poolkeeper.vacuum_holders()) AS h (one)
    WHERE coalesce((h.one ->> 'seconds')::double precision, 0) >= 60 OR (h.one ->> 'xids')::bigint >= 10000000
    ORDER BY (h.one ->> 'seconds')::double precision DESC NULLS LAST, (h.one ->> 'xids')::bigint DESC LIMIT 1
$$;

-- Removes what was noted an hour ago. Index: expiry_age.
CREATE OR REPLACE FUNCTION poolkeeper.forget_expiries(_most integer, _now timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    _n bigint;
BEGIN
    DELETE FROM poolkeeper.expiry AS d WHERE d.ctid = ANY (ARRAY(
        SELECT e.ctid FROM poolkeeper.expiry AS e WHERE e.at <= _now - interval '1 hour' ORDER BY e.at LIMIT _most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS _n = ROW_COUNT;
    RETURN _n;
END $$;
