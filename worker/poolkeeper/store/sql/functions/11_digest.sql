-- The digest by which two payloads are called the same (Q6): of the JSON value, keyed, so that it betrays nothing.

-- Numbers without trailing zeros, so that 1 and 1.0 are one value; jsonb has sorted the keys already.
CREATE OR REPLACE FUNCTION poolkeeper.canonical(_value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN CASE jsonb_typeof(_value)
        WHEN 'number' THEN trim_scale((_value #>> '{}')::numeric)::text
        WHEN 'array' THEN '[' || coalesce((SELECT string_agg(poolkeeper.canonical(e.value), ',' ORDER BY e.ordinality)
                                           FROM jsonb_array_elements(_value) WITH ORDINALITY AS e), '') || ']'
        WHEN 'object' THEN '{' || coalesce((SELECT string_agg(to_jsonb(e.key)::text || ':' || poolkeeper.canonical(e.value), ',' ORDER BY e.ordinality)
                                            FROM jsonb_each(_value) WITH ORDINALITY AS e), '') || '}'
        ELSE _value::text
    END;
END $$;

-- HMAC-SHA256 with the installation's own key.
CREATE OR REPLACE FUNCTION poolkeeper.payload_digest(_value jsonb) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT sha256(i.digest_outer || sha256(i.digest_inner || convert_to(poolkeeper.canonical(_value), 'UTF8')))
    FROM poolkeeper.instance AS i
$$;
