-- Low-water marks of a claim (Q14, ADR 0028). Where a snapshot that somebody holds keeps vacuum away, each walk over what is ready
-- passes all that was claimed since. A walk that passed much of it therefore leaves marks with its session: above which seq the ready
-- tasks of each kind begin. For a while, the longer the more it passed, the session claims from there on, and walks again only then.
--
-- Guarantee: walks take some fortieth of the time, however much lies dead. What a session does not see meanwhile - work of
-- another kind, or below a mark, because it came back or was committed late - is seen by its next walk, or by another session's.
-- Whoever gives a session marks that are wrong keeps work from that session, for a moment. Index: ready_claim.

-- How many entries of the index for claims this backend has read; those of the dead are read as well. Said by the statistics of
-- Postgres, not by a clock: a busy machine leaves no marks.
CREATE OR REPLACE FUNCTION poolkeeper.entries_read() RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT pg_stat_get_xact_tuples_returned('poolkeeper.ready_claim'::regclass) $$;

-- The marks in a session's cursor, over or not, or NULL in every field where there are none that can be.
CREATE OR REPLACE FUNCTION poolkeeper.marks_of(_cursor jsonb, _queue_id integer, _now timestamptz) RETURNS poolkeeper.marks
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _told  jsonb := _cursor -> (_queue_id || 'm');
    _marks poolkeeper.marks;
BEGIN
    IF jsonb_typeof(_told) = 'object' THEN
        BEGIN
            _marks.until := to_timestamp((_told ->> 'until')::double precision);
            _marks.retries := (_told ->> 'retries')::boolean;
            _marks.floors := ARRAY(
                SELECT ROW((f ->> 0)::bigint, (f ->> 1)::bigint, (f ->> 2)::smallint, 0, 1, (f ->> 3)::boolean, (f ->> 4)::bigint)::poolkeeper.share
                FROM jsonb_array_elements(_told -> 'floors') AS f);
        EXCEPTION WHEN data_exception THEN
            RETURN NULL;
        END;
        IF _marks.until < _now + interval '1 minute' AND _marks.retries IS NOT NULL THEN
            RETURN _marks;
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- The same for the session to bring along, or to forget.
CREATE OR REPLACE FUNCTION poolkeeper.told_marks(_queue_id integer, _marks poolkeeper.marks) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(_queue_id || 'm', CASE WHEN (_marks).until IS NOT NULL THEN jsonb_build_object(
        'until', extract(epoch FROM (_marks).until), 'retries', (_marks).retries,
        'floors', (SELECT jsonb_agg(jsonb_build_array(f.lane, f.type_key, f.priority, f.again, f.floor)) FROM unnest((_marks).floors) AS f)) END)
$$;

-- What all_shares would have found, by the marks.
CREATE OR REPLACE FUNCTION poolkeeper.marked_shares(
    _floors poolkeeper.share[], _again boolean, _type_keys bigint[], _room integer, INOUT _after bigint,
    OUT _shares poolkeeper.share[], OUT _more boolean, OUT _alone boolean
)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    SELECT array_agg(ROW(f.lane, f.type_key, f.priority, _room, 1, f.again, f.floor)::poolkeeper.share) INTO _shares
    FROM unnest(_floors) AS f WHERE f.again = coalesce(_again, f.again) AND f.type_key = ANY (_type_keys);
    _more := false;
    _alone := coalesce(cardinality(_shares) = 1, false);
END $$;

-- The marks after a claim: each just below the next ready task above it; where there is none, where it was.
CREATE OR REPLACE FUNCTION poolkeeper.raised(_queue_id integer, _marks poolkeeper.marks) RETURNS poolkeeper.marks
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    _marks.floors := ARRAY(
        SELECT ROW(f.lane, f.type_key, f.priority, 0, 1, f.again, coalesce(n.seq - 1, f.floor))::poolkeeper.share
        FROM unnest(_marks.floors) AS f
        LEFT JOIN LATERAL (
            SELECT r.seq FROM poolkeeper.ready AS r
            WHERE r.queue_id = _queue_id AND r.again = f.again AND r.lane = f.lane AND r.type_key = f.type_key AND r.priority = f.priority AND r.seq > f.floor
            ORDER BY r.seq LIMIT 1) AS n ON true);
    RETURN _marks;
END $$;

-- Marks after a walk that saw everything, if it passed much more than it found, and if they are not too much to carry: for 10 microseconds per entry,
-- or for ten times as long as the walk took, where the machine is slow.
CREATE OR REPLACE FUNCTION poolkeeper.first_marks(_queue_id integer, _seen poolkeeper.share[], _retries boolean, _passed bigint, _spent interval, _want integer, _now timestamptz)
RETURNS poolkeeper.marks
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF coalesce(cardinality(_seen), 0) NOT BETWEEN 1 AND 200 OR _passed < 1000 + 8 * _want THEN  -- a walk over living lanes reads up to 2 * _want + 64 of a kind
        RETURN NULL;
    END IF;
    RETURN poolkeeper.raised(_queue_id, ROW(_now + least(greatest(_passed * interval '10 microseconds', 10 * _spent), interval '10 seconds'), _retries, _seen)::poolkeeper.marks);
END $$;
