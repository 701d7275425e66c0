-- The share of the retries (Q13). Part of the claim (30_claim.sql).
--
-- Guarantee: while a session finds first deliveries that it could run, of any n claims of its in a row at most
-- ceil(n * share) are retries, also where it claims one at a time; the share is theirs whenever they are there, and without
-- first deliveries they take everything. Each session counts for itself, in the cursor that it carries from turn to turn: no row is
-- shared. One that begins does so at a point of its own, so that many that claim once each keep to the share as well.
-- First deliveries and retries are walked apart, each in the order of contract 22; a share of 100 makes no difference
-- between them. Index: ready_claim.

CREATE OR REPLACE FUNCTION poolkeeper.has_retries(_queue_id integer) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$ BEGIN RETURN EXISTS (SELECT FROM poolkeeper.ready AS r WHERE r.queue_id = _queue_id AND r.again); END $$;

-- What a session has saved up, in hundredths of a claim: at 100 the next claim is a retry's.
CREATE OR REPLACE FUNCTION poolkeeper.retry_credit(_cursor jsonb, _session_id uuid) RETURNS integer
LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce((_cursor ->> 2)::integer, abs(uuid_hash(_session_id) % 100)) $$;

-- Candidates of both kinds, as all_shares finds them, for a queue that makes no difference: where one of the two walks did not come
-- to its end, nothing of the other one from behind there, so that no lane is passed over.
CREATE OR REPLACE FUNCTION poolkeeper.mixed_shares(
    _queue_id integer, _type_keys bigint[], _only bigint[], _except bigint[], _room integer, INOUT _after bigint,
    OUT _shares poolkeeper.share[], OUT _more boolean, OUT _alone boolean
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    _from   bigint := _after;
    _last   bigint;
    _kind   record;
BEGIN
    _more := false;
    FOR _kind IN SELECT s.* FROM (VALUES (false), (true)) AS k (again)
                 CROSS JOIN LATERAL poolkeeper.all_shares(_queue_id, k.again, _type_keys, _only, _except, _room, _from) AS s LOOP
        _shares := _shares || _kind._shares;
        IF _kind._more THEN
            _more := true;
            _last := coalesce(_kind._shares[cardinality(_kind._shares)].lane, _kind._after);
            _after := CASE WHEN _after = _from OR (_last <= _from, _last) < (_after <= _from, _after) THEN _last ELSE _after END;
        END IF;
    END LOOP;
    IF _more THEN
        _shares := (SELECT array_agg(s) FROM unnest(_shares) AS s WHERE (s.lane <= _from, s.lane) <= (_after <= _from, _after));
        IF _shares IS NOT NULL THEN
            _after := _from;
        END IF;
    END IF;
    _alone := NOT _more AND cardinality(_shares) = 1;
END $$;

-- How many first deliveries wait, counted up to _most where that is more than _seen, which stops at 10,000: a share of them is
-- what the retries of a queue are measured by.
CREATE OR REPLACE FUNCTION poolkeeper.firsts(_queue_id integer, _seen bigint, _most bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF _seen < 5000 OR _seen >= _most THEN  -- heads are counted to 10,000 in all, each less if there are many
        RETURN _seen;
    END IF;
    RETURN (SELECT count(*) FROM (SELECT FROM poolkeeper.ready AS r WHERE r.queue_id = _queue_id AND NOT r.again LIMIT least(_most, 100000)) AS x);
END $$;
