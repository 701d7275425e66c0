-- The floor: bare SQL doing the least that could be called a queue, in batches of 500 (F1).

-- name: table
CREATE TABLE floor (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, claimed boolean NOT NULL DEFAULT false, payload jsonb NOT NULL)

-- name: index
CREATE INDEX floor_claim ON floor (id) WHERE NOT claimed

-- name: fill
INSERT INTO floor (payload) SELECT jsonb_build_object('n', n) FROM generate_series(1, %s) AS n

-- name: claim
UPDATE floor SET claimed = true
WHERE id = ANY (ARRAY(SELECT id FROM floor WHERE NOT claimed ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED))
RETURNING id, payload

-- name: settle
DELETE FROM floor WHERE id = ANY (%s)

-- name: one
INSERT INTO floor (payload) VALUES (%s::jsonb) RETURNING id
