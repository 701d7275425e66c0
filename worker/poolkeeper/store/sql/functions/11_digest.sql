-- The digest by which two payloads are called the same (Q6): of the JSON value, keyed, so that it betrays nothing.

-- As jsonb writes it, which has sorted the keys already, with numbers without trailing zeros, so that 1 and 1.0 are one value.
CREATE OR REPLACE FUNCTION poolkeeper.rewritten(_value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE jsonb_typeof(_value)
        WHEN 'number' THEN trim_scale((_value #>> '{}')::numeric)::text
        WHEN 'array' THEN '[' || coalesce((SELECT string_agg(poolkeeper.rewritten(e.value), ', ' ORDER BY e.ordinality)
                                           FROM jsonb_array_elements(_value) WITH ORDINALITY AS e), '') || ']'
        WHEN 'object' THEN '{' || coalesce((SELECT string_agg(to_jsonb(e.key)::text || ': ' || poolkeeper.rewritten(e.value), ', ' ORDER BY e.ordinality)
                                            FROM jsonb_each(_value) WITH ORDINALITY AS e), '') || '}'
        ELSE _value::text
    END;
END $$;

-- The same text, rewritten only where something looks like a zero at the end of a fraction: that is what costs.
CREATE OR REPLACE FUNCTION poolkeeper.canonical(_value jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN _value::text ~ E'\\.[0-9]*0([^0-9]|$)' THEN poolkeeper.rewritten(_value) ELSE _value::text END $$;

-- HMAC-SHA256 with the installation's own key.
CREATE OR REPLACE FUNCTION poolkeeper.keyed_digest(_value jsonb, _inner bytea, _outer bytea) RETURNS bytea
LANGUAGE sql STABLE
AS $$ SELECT sha256(_outer || sha256(_inner || convert_to(poolkeeper.canonical(_value), 'UTF8'))) $$;

CREATE OR REPLACE FUNCTION poolkeeper.payload_digest(_value jsonb) RETURNS bytea
LANGUAGE sql STABLE
AS $$ SELECT poolkeeper.keyed_digest(_value, i.digest_inner, i.digest_outer) FROM poolkeeper.instance AS i $$;
