-- Expiry needs proof that the store could have been reached (Q23, ADR 0021). Each registration, renewal and sweep is a contact; the
-- last one is noted, at most eight times in the shortest visibility timeout. Where none came for half of that, after a
-- restart or promotion, and where the clock was moved, whoever comes first gives every lease that was alive before one
-- further visibility timeout: it counts as a renewal of its session. Locks: contact, then sessions, all SKIP LOCKED.

-- One further visibility timeout for the sessions that held a lease in time when the store was last reached. At most
-- three in a row without a renewal of their own, so that a sweeper that comes seldom does not keep the dead for ever.
CREATE OR REPLACE FUNCTION poolkeeper.give_grace(_seen_at timestamptz, _now timestamptz, _restarted boolean) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    _n integer;
BEGIN
    UPDATE poolkeeper.session AS s SET renewed_at = _now, graces = least(s.graces + 1, 100)
    WHERE s.id = ANY (ARRAY(
        SELECT k.id FROM poolkeeper.session AS k
        CROSS JOIN LATERAL (SELECT min(q.visibility_timeout) AS least, max(q.visibility_timeout) AS most
                            FROM poolkeeper.queue AS q WHERE q.id = ANY (k.queue_ids)) AS t
        WHERE k.id = ANY (ARRAY(SELECT h.id FROM poolkeeper.holders() AS h))
          AND (k.renewed_at > _now   -- the clock went back: what it said before would keep the dead
               OR ((_restarted OR (k.graces < 3 AND _now - _seen_at > t.least / 2))
                   AND (k.renewed_at + t.most > _seen_at
                        OR EXISTS (SELECT FROM poolkeeper.lease AS l WHERE l.session_id = k.id AND l.extended_until > _seen_at))))
        FOR NO KEY UPDATE OF k SKIP LOCKED));
    GET DIAGNOSTICS _n = ROW_COUNT;
    UPDATE poolkeeper.lease AS l  -- what nobody could tell of does not count as run time (Q21); what was past its end stays so
    SET run_by = l.run_by + (_now - _seen_at), progress_by = l.progress_by + (_now - _seen_at)
    WHERE l.task_id = ANY (ARRAY(
        SELECT k.task_id FROM poolkeeper.lease AS k WHERE k.run_by IS NOT NULL OR k.progress_by IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED));
    IF _now < _seen_at THEN
        UPDATE poolkeeper.lease AS l SET extended_until = l.extended_until - (_seen_at - _now)
        WHERE l.task_id = ANY (ARRAY(SELECT k.task_id FROM poolkeeper.lease AS k WHERE k.extended_until IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED));
    END IF;
    RETURN _n;
END $$;

-- Notes this contact, and says whether what is past its deadline may expire now: not in the transaction that finds a gap,
-- nor while another does. _since: seconds since the caller's last contact by its own monotonic clock, without a failure
-- in between; up to ten of them prove that the store could be reached meanwhile, and time of the database in excess of
-- them is a clock that was moved.
CREATE OR REPLACE FUNCTION poolkeeper.reached(_now timestamptz, _since double precision DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    _short   interval := coalesce((SELECT min(q.visibility_timeout) FROM poolkeeper.queue AS q), interval '15 seconds');
    _was     poolkeeper.contact;
    _away    interval;
    _known   interval := make_interval(secs => _since) + _short / 8 + interval '500 milliseconds';
    _again   boolean;
    _chained boolean;
BEGIN
    SELECT c.* INTO _was FROM poolkeeper.contact AS c;
    _away := _now - _was.seen_at;
    _again := _was.started_at <> pg_postmaster_start_time();
    IF _again THEN
        PERFORM poolkeeper.examine(_now);
        SELECT c.* INTO _was FROM poolkeeper.contact AS c;
    END IF;
    IF _was.held_since IS NOT NULL THEN  -- nothing expires until somebody accepts (Q24)
        RETURN false;
    END IF;
    IF NOT _again AND _away > interval '-1 second' AND _away <= greatest(_short / 2, CASE WHEN _since <= 10 THEN _known END) THEN
        IF _away > _short / 8 THEN
            UPDATE poolkeeper.contact AS c SET seen_at = _now
            WHERE c.singleton = (SELECT k.singleton FROM poolkeeper.contact AS k WHERE k.seen_at = _was.seen_at FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
        RETURN true;
    END IF;
    -- a second gap that begins before leases had their time counts as one with the first
    _chained := coalesce(_was.gap_to + _short > _was.seen_at, false);
    UPDATE poolkeeper.contact AS c
    SET seen_at = _now, started_at = pg_postmaster_start_time(), gap_to = _now,
        gap_from = CASE WHEN _chained THEN _was.gap_from ELSE _was.seen_at END,
        whole = _away >= _short OR (_chained AND _was.whole),
        proven = _again OR _away < interval '0' OR coalesce(_away - _known > _short / 2, false) OR (_chained AND _was.proven)
    WHERE c.singleton = (SELECT k.singleton FROM poolkeeper.contact AS k WHERE k.seen_at = _was.seen_at FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM poolkeeper.give_grace(_was.seen_at, _now, _again);
    END IF;
    RETURN false;
END $$;

-- The end of the last gap, if it proves an outage: a restart, a moved clock, or a whole visibility timeout after which a
-- session of before came back by itself. What was kept over that end and expires all the same counts for nothing. NULL:
-- none, or nobody can tell whether there was an outage or merely nobody: then a task that ends its only worker is not spared.
CREATE OR REPLACE FUNCTION poolkeeper.outage_end() RETURNS timestamptz
LANGUAGE sql STABLE
AS $$
    SELECT c.gap_to FROM poolkeeper.contact AS c
    WHERE c.proven OR (c.whole AND EXISTS (
        SELECT FROM poolkeeper.session AS s
        WHERE (s.ended_at IS NULL OR s.ended_at >= c.gap_to) AND s.registered_at < c.gap_to AND s.graces = 0 AND s.renewed_at >= c.gap_to))
$$;
