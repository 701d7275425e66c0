-- Tables of the store. Nothing here is granted to anybody: callers get EXECUTE on functions only (Q51).
--
-- A task's state follows from the tables that hold a row of it (view poolkeeper.tasks):
--   later    scheduled, or waiting with a reason      ready    claimable now
--   suspect  claimable now, but only apart (Q27)      lease    leased or running
--   ordered  ready or scheduled behind its ordering key (Q9)
--   dead     dead letter                              none     ended: its last delivery or event says how
-- A task has a row in at most one of them. Its body (task) never changes; the numbers that do change (deliveries,
-- failures, ...) travel with the row from table to table.
--
-- LOCK ORDER, for every function: installation -> leader -> queue -> schedule -> pool -> provider -> provider_window -> lane -> ordering key (gate) -> task,
-- ordered, ready (later, suspect, dead) -> lease -> delivery -> key -> ledger. A session row is locked alone, those of others and the
-- contact only with SKIP LOCKED (38_contact).
-- Within a set: ascending ids. Rows shared between callers are only ever locked with SKIP LOCKED. A turn locks lanes and gates
-- when it claims, after the leases of its settles: with SKIP LOCKED, so that it waits for none.
--
-- This file: the installation itself, its codes, and who may call. Then queues and who works on them (0002), tasks by state (0003),
-- what is kept of them (0004), and the rows of codes and reasons (0005).

CREATE TABLE poolkeeper.instance (
    singleton      boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    id             uuid NOT NULL DEFAULT gen_random_uuid(),
    digest_inner   bytea NOT NULL,  -- HMAC-SHA256 key blocks for the digest of payloads (Q6)
    digest_outer   bytea NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE poolkeeper.code (   -- contract 2; the same list is the StrEnum poolkeeper.codes.Code
    code       text PRIMARY KEY,
    class      text NOT NULL,
    sentence   text NOT NULL
);

CREATE TABLE poolkeeper.reason (  -- Q3; the same list is poolkeeper.codes.Reason
    reason     text PRIMARY KEY,
    sentence   text NOT NULL,
    action     text NOT NULL
);

CREATE TABLE poolkeeper.access (  -- who a login is; no row: no rights (the schema's owner may everything)
    role           name PRIMARY KEY,
    pool           text,              -- a worker's pool; NULL: any
    queues         text[],            -- 'namespace/name'; NULL: all
    tenants        text[],            -- NULL: all
    tenants_except text[]             -- taken out of the above
);

CREATE TABLE poolkeeper.contact (      -- when the store was reached at last, by whomever: expiry needs this proof (Q23)
    singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    seen_at    timestamptz NOT NULL,   -- by a renewal or a sweep; to an eighth of the shortest visibility timeout
    started_at timestamptz NOT NULL,   -- the start of the server then: another one is a restart or a promotion
    gap_from   timestamptz,            -- the last time that it could not be reached for long
    gap_to     timestamptz,
    whole      boolean NOT NULL DEFAULT false,  -- for longer than the shortest visibility timeout
    proven     boolean NOT NULL DEFAULT false,  -- a restart, or a clock that was moved: not merely that nobody was there
    system_id  bigint,                 -- where this is installed (Q24, 73_fence): of the server's cluster; NULL: it may not be read
    database_oid oid,
    timeline   text,
    timeline_lsn pg_lsn,               -- where the timeline was seen first
    held_since timestamptz,            -- until somebody accepts, nothing is claimed and nothing expires
    held_why   text,
    accepts    integer NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO poolkeeper.contact (seen_at, started_at) VALUES (clock_timestamp(), pg_postmaster_start_time());

CREATE TABLE poolkeeper.acceptance (   -- who let a held installation go on, and why (Q24)
    no     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL,
    login  name NOT NULL,
    who    text NOT NULL,
    why    text NOT NULL,
    held_since timestamptz NOT NULL,
    held_why   text NOT NULL
);
