-- Exponential backoff with full jitter (Q28): a moment between 0 and initial * factor ^ (failures - 1), capped, in
-- seconds; never below 0, never an overflow.
CREATE OR REPLACE FUNCTION poolkeeper.backoff(_initial interval, _max interval, _factor double precision, _failures integer)
RETURNS interval
LANGUAGE sql VOLATILE
AS $$
    SELECT make_interval(secs => random() * least(
        extract(epoch FROM _max)::double precision,
        extract(epoch FROM _initial)::double precision
            * exp(least(ln(_factor) * greatest(_failures - 1, 0), 50))))
$$;
