-- Tasks: the body, and one table for each state that it may be in (see 0001).

CREATE TABLE poolkeeper.task (
    id             uuid PRIMARY KEY,
    queue_id       integer NOT NULL,
    type           text NOT NULL CHECK (type ~ '^[a-z][a-z0-9_]*(\.[a-z0-9_]+)*$' AND length(type) <= 100),
    tenant         text NOT NULL CHECK (length(tenant) BETWEEN 1 AND 200),
    priority       smallint NOT NULL,
    max_deliveries integer,
    accepted_at    timestamptz NOT NULL,
    run_at         timestamptz NOT NULL,   -- age counts from here (Q23)
    expires_at     timestamptz,
    payload        jsonb NOT NULL,
    labels         jsonb,
    traceparent    text,
    submitted_by   name NOT NULL,
    key            text,                   -- its row in task_key, told of its end when this one goes
    ordering_key   text,                   -- of (tenant, queue); one after the other (Q9)
    ordering_no    bigint,                 -- its place among those of the key
    payload_erased_at timestamptz,         -- by retention, after the task has ended; payload is then null
    result_erased_at  timestamptz
);

-- The numbers that travel: delivery (number of the last one, never reset), spent (deliveries of the present budget),
-- failures, expiries, hand_backs, snoozes, waits; state_version rises by one with each transition (Q1).
CREATE SEQUENCE poolkeeper.ready_seq CACHE 1;
CREATE TABLE poolkeeper.ready (
    task_id       uuid PRIMARY KEY,
    queue_id      integer NOT NULL,
    priority      smallint NOT NULL,
    lane          bigint NOT NULL,         -- poolkeeper.lane_key(queue, tenant)
    type_key      bigint NOT NULL,
    seq           bigint NOT NULL DEFAULT nextval('poolkeeper.ready_seq'),
    ready_at      timestamptz NOT NULL,
    expires_at    timestamptz,
    delivery      integer NOT NULL DEFAULT 0,
    state_version integer NOT NULL DEFAULT 1,
    spent         smallint NOT NULL DEFAULT 0,
    failures      smallint NOT NULL DEFAULT 0,
    expiries      smallint NOT NULL DEFAULT 0,
    hand_backs    smallint NOT NULL DEFAULT 0,
    snoozes       smallint NOT NULL DEFAULT 0,
    waits         smallint NOT NULL DEFAULT 0,
    gate          bigint                   -- poolkeeper.gate_key(queue, tenant, ordering key); NULL: none (Q9)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_expires ON poolkeeper.ready (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX ready_gate ON poolkeeper.ready (gate) WHERE gate IS NOT NULL;  -- whether its key is taken

CREATE TABLE poolkeeper.suspect (
    LIKE poolkeeper.ready INCLUDING DEFAULTS,
    misses        smallint NOT NULL        -- runs beside others that proved nothing: each divides their number by four (Q27)
);
ALTER TABLE poolkeeper.suspect ADD PRIMARY KEY (task_id);
CREATE INDEX suspect_claim ON poolkeeper.suspect (queue_id, misses, seq);  -- claim order
CREATE INDEX suspect_gate ON poolkeeper.suspect (gate) WHERE gate IS NOT NULL;

CREATE TABLE poolkeeper.later (
    LIKE poolkeeper.ready INCLUDING DEFAULTS,
    due_at        timestamptz NOT NULL,
    wait_reason   text                     -- NULL: scheduled; else waiting for this
);
ALTER TABLE poolkeeper.later ADD PRIMARY KEY (task_id), ALTER COLUMN seq DROP DEFAULT, ALTER COLUMN seq DROP NOT NULL;
CREATE INDEX later_due ON poolkeeper.later (due_at);
CREATE INDEX later_queue ON poolkeeper.later (queue_id, due_at);
CREATE INDEX later_expires ON poolkeeper.later (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX later_gate ON poolkeeper.later (gate) WHERE gate IS NOT NULL;

CREATE TABLE poolkeeper.lease (
    LIKE poolkeeper.ready,
    session_id    uuid NOT NULL,
    pool_id       integer NOT NULL,
    turn          bigint NOT NULL,
    token_hash    bytea NOT NULL,
    claimed_at    timestamptz NOT NULL,
    started_at    timestamptz,             -- NULL: leased; else running
    extended_until timestamptz,
    suspect       boolean NOT NULL DEFAULT false,
    misses        smallint NOT NULL DEFAULT 0,     -- of a suspect; the same for all of a session
    alone         boolean NOT NULL DEFAULT false,  -- a suspect with nothing beside it
    checkpointed  boolean NOT NULL DEFAULT false,  -- there is a checkpoint to remove at the end
    counted       boolean NOT NULL DEFAULT false,  -- its end opens its lane
    held          boolean NOT NULL DEFAULT false,  -- it has rows in provider_hold
    cancel_by     text,
    cancel_why    text,
    run_by        timestamptz,             -- the end of its run time, where its queue limits that (Q21)
    run_why       text,                    -- max_run_time or max_tenure
    progress_by   timestamptz              -- the end of the time without progress
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- fillfactor: a start is a HOT update, since half of a page is free for it
ALTER TABLE poolkeeper.lease ADD PRIMARY KEY (task_id);   -- one owner (P2)
CREATE INDEX lease_session ON poolkeeper.lease (session_id);
CREATE INDEX lease_suspect ON poolkeeper.lease (session_id) WHERE suspect;  -- whether a session runs suspects
CREATE INDEX lease_queue ON poolkeeper.lease (queue_id, lane);  -- counting against concurrency.max and a tenant's
CREATE INDEX lease_limit ON poolkeeper.lease (least(run_by, progress_by)) WHERE run_by IS NOT NULL OR progress_by IS NOT NULL;  -- none without a limit
CREATE INDEX lease_pool ON poolkeeper.lease (pool_id);    -- counting against maxRunning
CREATE UNIQUE INDEX lease_gate ON poolkeeper.lease (gate) WHERE gate IS NOT NULL;  -- two of a key never run at once (Q9)

CREATE TABLE poolkeeper.provider_hold (  -- what a delivery was granted of a provider's windows and has not spent yet
    task_id       uuid NOT NULL,
    delivery      integer NOT NULL,
    provider_id   integer NOT NULL,
    requests      bigint NOT NULL CHECK (requests >= 0),
    tokens        bigint NOT NULL CHECK (tokens >= 0),
    told_requests boolean NOT NULL DEFAULT false,  -- its worker tells how many it used: what is left at the end was not
    told_tokens   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task_id, delivery, provider_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX provider_hold_sum ON poolkeeper.provider_hold (provider_id);

CREATE TABLE poolkeeper.dead (
    LIKE poolkeeper.ready,
    died_at       timestamptz NOT NULL,
    reason        text NOT NULL REFERENCES poolkeeper.reason,
    error_class   text,
    error         text,
    build         text,
    batch         integer,                 -- number of the announcement (O24); NULL: not yet in one, negative: in one not confirmed
    checkpoint_erased boolean              -- by retention; NULL: not yet its turn, false: there was none
);
ALTER TABLE poolkeeper.dead ADD PRIMARY KEY (task_id), ALTER COLUMN seq DROP NOT NULL;
CREATE INDEX dead_queue ON poolkeeper.dead (queue_id, died_at, task_id);
CREATE INDEX dead_checkpoint ON poolkeeper.dead (queue_id, died_at) WHERE checkpoint_erased IS NULL;
CREATE INDEX dead_unannounced ON poolkeeper.dead (queue_id, batch) WHERE batch IS NULL OR batch < 0;
CREATE INDEX dead_gate ON poolkeeper.dead (gate) WHERE gate IS NOT NULL;  -- what blocks its key

-- A retry has failed or expired in its present budget; a hand-back, a snooze or what an outage ended is none (Q13). Of ready
-- alone, thus behind the copies of it. Retries and first deliveries lie apart in the claim index: neither is in the other's way.
ALTER TABLE poolkeeper.ready ADD COLUMN again boolean NOT NULL GENERATED ALWAYS AS (spent > 0 AND (failures > 0 OR expiries > 0)) STORED;
CREATE UNIQUE INDEX ready_claim ON poolkeeper.ready (queue_id, again, lane, type_key, priority, seq);  -- claim order

-- Ordering keys (Q9, ADR 0023). A task with a key waits in ordered until the key is free; a row of gate_due says that it may be.
CREATE SEQUENCE poolkeeper.ordering_no;
CREATE TABLE poolkeeper.ordered (
    task_id       uuid PRIMARY KEY,
    queue_id      integer NOT NULL,
    gate          bigint NOT NULL,
    place         bigint NOT NULL,         -- task.ordering_no: the lowest is next
    priority      smallint NOT NULL,
    lane          bigint NOT NULL,
    type_key      bigint NOT NULL,
    ready_at      timestamptz NOT NULL,
    expires_at    timestamptz,
    due_at        timestamptz,             -- NULL: ready; else scheduled
    delivery      integer NOT NULL DEFAULT 0,
    state_version integer NOT NULL DEFAULT 1
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX ordered_next ON poolkeeper.ordered (queue_id, gate, place) INCLUDE (due_at, lane);
CREATE INDEX ordered_expires ON poolkeeper.ordered (expires_at) WHERE expires_at IS NOT NULL;
