-- Time and ids. Every function reads the clock once, after its locks, and only through poolkeeper.clock() (Q23).

CREATE OR REPLACE FUNCTION poolkeeper.clock() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT clock_timestamp() $$;
COMMENT ON FUNCTION poolkeeper.clock() IS
    'The one source of time. The testing kit replaces it by one with an offset; it is never a session setting, which a worker could move.';

-- The smallest UUID version 7 of a moment: bounds of partitions.
CREATE OR REPLACE FUNCTION poolkeeper.id_floor(_at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (lpad(to_hex((extract(epoch FROM _at) * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid $$;

-- The first half of a UUID version 7, up to and with the version: 48 bits of milliseconds.
CREATE OR REPLACE FUNCTION poolkeeper.id_prefix(_at timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT overlay(lpad(to_hex((extract(epoch FROM _at) * 1000)::bigint), 12, '0') PLACING '-' FROM 9 FOR 0) || '-7' $$;

-- UUID version 7: that, then 74 random bits, in the places where a version 4 has them.
CREATE OR REPLACE FUNCTION poolkeeper.new_id() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT (poolkeeper.id_prefix(clock_timestamp()) || substr(gen_random_uuid()::text, 16))::uuid $$;

-- Many ids of one call: the last 48 bits of the first one count on (RFC 9562, 6.2, method 2). One look at the system's chance is
-- enough for all of them, which may be a call of the kernel each, and they are neighbours in every index.
CREATE OR REPLACE FUNCTION poolkeeper.id_stem(_first uuid) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT left(_first::text, 24) $$;

CREATE OR REPLACE FUNCTION poolkeeper.id_count(_first uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ('x' || right(_first::text, 12))::bit(48)::bigint $$;

CREATE OR REPLACE FUNCTION poolkeeper.id_at(_stem text, _count bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (_stem || lpad(to_hex(_count & 281474976710655), 12, '0'))::uuid $$;

-- Keys of lane and type, computed from their text: a collision shares a lane, never a right (contract 3).
CREATE OR REPLACE FUNCTION poolkeeper.lane_key(_queue_id integer, _tenant text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hashtextextended(_tenant, _queue_id) $$;

CREATE OR REPLACE FUNCTION poolkeeper.type_key(_type text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hashtextextended(_type, 0) $$;

-- Tokens and secrets: 16 bytes, shown once as pkt_<base64url>, kept as sha256 (Q17).
CREATE OR REPLACE FUNCTION poolkeeper.token_text(_bytes bytea) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 'pkt_' || rtrim(translate(encode(_bytes, 'base64'), '+/', '-_'), '=') $$;

-- What the tokens of one call are made of: 244 bits of chance, kept nowhere, which no token tells of.
CREATE OR REPLACE FUNCTION poolkeeper.token_seed() RETURNS bytea
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) $$;

CREATE OR REPLACE FUNCTION poolkeeper.token_hash(_token text) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT sha256(convert_to(_token, 'UTF8')) $$;
