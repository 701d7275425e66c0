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
-- LOCK ORDER, for every function: installation -> leader -> queue -> pool -> provider -> lane -> ordering key (gate) -> task,
-- ordered, ready (later, suspect, dead) -> lease -> delivery -> key -> ledger. A session row is locked alone, those of others and the
-- contact only with SKIP LOCKED (38_contact).
-- Within a set: ascending ids. Rows shared between callers are only ever locked with SKIP LOCKED. A turn locks lanes and gates
-- when it claims, after the leases of its settles: with SKIP LOCKED, so that it waits for none.

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

CREATE TABLE poolkeeper.queue (
    id                        integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster                   text NOT NULL,   -- UID of the kube-system namespace, or 'local'
    namespace_uid             text NOT NULL,
    namespace                 text NOT NULL,
    name                      text NOT NULL,
    policy_version            integer NOT NULL DEFAULT 0,
    paused                    boolean NOT NULL DEFAULT false,
    visibility_timeout        interval NOT NULL,
    max_age                   interval,
    max_run_time              interval CHECK (max_run_time > interval '0'),      -- of one delivery (Q21); NULL: none
    max_tenure                interval CHECK (max_tenure > interval '0'),        -- of all deliveries together
    progress_timeout          interval CHECK (progress_timeout > interval '0'),  -- without a sign of progress
    max_deliveries            integer NOT NULL CHECK (max_deliveries >= 1),
    max_hand_backs            integer NOT NULL CHECK (max_hand_backs >= 0),
    max_snoozes               integer NOT NULL CHECK (max_snoozes BETWEEN 0 AND 32766),  -- what its counter holds
    task_types                text[] NOT NULL DEFAULT '{}',
    wake_up                   text NOT NULL DEFAULT 'notify' CHECK (wake_up IN ('notify', 'poll')),
    ordering                  text NOT NULL DEFAULT 'block' CHECK (ordering IN ('block', 'skip')),  -- what a dead letter does to its key
    backoff_initial           interval NOT NULL,
    backoff_max               interval NOT NULL,
    backoff_factor            double precision NOT NULL CHECK (backoff_factor >= 1),
    backoff_max_elapsed       interval,
    priority_min              smallint NOT NULL,
    priority_max              smallint NOT NULL,
    priority_default          smallint NOT NULL,
    priority_age              interval NOT NULL,
    max_payload_bytes         integer NOT NULL,
    max_waiting               bigint CHECK (max_waiting >= 0),
    max_waiting_per_tenant    bigint CHECK (max_waiting_per_tenant >= 0),
    tenant_max_waiting        jsonb NOT NULL DEFAULT '{}',     -- lane -> the same, of tenants with a bound of their own
    concurrency_max           integer CHECK (concurrency_max >= 0),
    per_tenant_max            integer CHECK (per_tenant_max >= 0),
    lanes_kept                boolean NOT NULL DEFAULT false,  -- tenants are bounded: open lanes are listed (29_lanes.sql)
    weighted                  boolean NOT NULL DEFAULT false,  -- some tenants weigh more than others
    paused_type_keys          bigint[] NOT NULL DEFAULT '{}',
    part_paused               boolean NOT NULL DEFAULT false,  -- a type of task is paused, or a tenant suspended
    checkpoint_max_bytes      integer NOT NULL,
    checkpoint_max_per_second double precision NOT NULL,
    retention_payload         interval NOT NULL DEFAULT '168 hours',  -- from the end of a task (Q52)
    retention_result          interval NOT NULL DEFAULT '168 hours',
    retention_events          interval NOT NULL DEFAULT '720 hours',
    retention_checkpoint      interval NOT NULL DEFAULT '24 hours',   -- from the death of a dead letter
    retention_dead_letters    interval NOT NULL DEFAULT '2160 hours',
    retention_keys            interval NOT NULL DEFAULT '2160 hours', -- from the end of a task, never shorter than what it guards
    dead_letter_owner         text,
    dead_letter_runbook       text,
    UNIQUE (namespace, name),
    CHECK (least(retention_payload, retention_result, retention_events, retention_checkpoint, retention_dead_letters) > interval '0'),
    CHECK (retention_keys >= greatest(retention_payload, retention_result, retention_events, retention_checkpoint, retention_dead_letters)),
    CHECK (visibility_timeout >= interval '500 milliseconds'),
    CHECK (priority_min <= priority_default AND priority_default <= priority_max),
    CHECK (namespace ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$' AND name ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')
);

CREATE TABLE poolkeeper.leader (   -- the operator that keeps a namespace's queues and pools here (O29)
    cluster   text NOT NULL,           -- UID of the kube-system namespace
    namespace text NOT NULL,
    lease     text NOT NULL,           -- 'namespace/name' of the Lease by which it leads
    epoch     bigint NOT NULL,         -- rises with each holder of that Lease
    holder    text NOT NULL,
    term      uuid NOT NULL,           -- of this epoch; the leader's writes carry it
    seen_at   timestamptz NOT NULL,
    PRIMARY KEY (cluster, namespace)
);

CREATE TABLE poolkeeper.queue_count (  -- apart from queue: a counter must not touch the row that limits lock
    queue_id       integer PRIMARY KEY REFERENCES poolkeeper.queue,
    lease_expiries bigint NOT NULL DEFAULT 0,
    dead_batch     integer NOT NULL DEFAULT 0  -- the last number given to a batch of dead letters
);

CREATE TABLE poolkeeper.backlog (       -- what waits, as last counted where the policy bounds it (21_admission.sql)
    queue_id   integer PRIMARY KEY REFERENCES poolkeeper.queue,
    waiting    bigint NOT NULL,         -- no further than max_waiting
    counted_at timestamptz NOT NULL,
    took       interval NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE poolkeeper.backlog_lane (  -- the same of lanes that have at least half of what they may
    queue_id integer NOT NULL,
    lane     bigint NOT NULL,
    waiting  bigint NOT NULL,
    PRIMARY KEY (queue_id, lane)
) WITH (fillfactor = 50);

CREATE TABLE poolkeeper.policy (  -- every version ever applied (O1)
    queue_id   integer NOT NULL REFERENCES poolkeeper.queue,
    version    integer NOT NULL,
    spec       jsonb NOT NULL,
    applied_by text NOT NULL,
    applied_at timestamptz NOT NULL,
    PRIMARY KEY (queue_id, version)
);

CREATE TABLE poolkeeper.pool (
    id                integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),  -- 'namespace/name'
    max_running       integer CHECK (max_running >= 0),
    isolating_session uuid,                        -- the one worker that makes room for suspects, holding other tasks (Q27)
    known_build       text,                        -- of its last session, remembered after it has gone (Q11)
    known_types       text[],                      -- and what that could run
    known_keys        bigint[],                    -- the same as in ready.type_key
    known_queues      text[],                      -- where, as 'namespace/name'
    known_tenants     text[],                      -- of whom; NULL: of all
    known_except      text[]                       -- taken out of the above
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

CREATE TABLE poolkeeper.session (
    id            uuid PRIMARY KEY,
    secret_hash   bytea NOT NULL,
    pool_id       integer NOT NULL REFERENCES poolkeeper.pool,
    role          name NOT NULL,
    queues        text[] NOT NULL,
    queue_ids     integer[] NOT NULL,
    types         text[] NOT NULL,
    type_keys     bigint[] NOT NULL,
    tenants        text[],                         -- whose tasks it takes; NULL: everybody's
    tenants_except text[],                         -- taken out of the above
    concurrency   integer NOT NULL CHECK (concurrency >= 1),
    info          jsonb NOT NULL,
    registered_at timestamptz NOT NULL,
    renewed_at    timestamptz NOT NULL,            -- by itself, or by the end of a gap in which it could not
    renewals      bigint NOT NULL DEFAULT 0,       -- answered ones are remembered by the process (Q24)
    graces        smallint NOT NULL DEFAULT 0,     -- gaps since it last renewed by itself
    draining      boolean NOT NULL DEFAULT false,  -- the operator's mark: no new claims
    grace         interval,                        -- the real grace of a terminating pod, once known
    finished      bigint NOT NULL DEFAULT 0,
    busy_seconds  double precision NOT NULL DEFAULT 0,
    idle_since    timestamptz,
    ended_at      timestamptz
) WITH (fillfactor = 50);                          -- renewals are HOT: no index on a column that they write
CREATE INDEX session_live ON poolkeeper.session (pool_id) WHERE ended_at IS NULL;
CREATE INDEX session_ended ON poolkeeper.session (ended_at) WHERE ended_at IS NOT NULL;

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
CREATE UNIQUE INDEX ready_claim ON poolkeeper.ready (queue_id, lane, type_key, priority, seq);  -- claim order
CREATE INDEX ready_expires ON poolkeeper.ready (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX ready_gate ON poolkeeper.ready (gate) WHERE gate IS NOT NULL;  -- whether its key is taken

CREATE TABLE poolkeeper.tenant_rule (  -- what a queue's policy says of single tenants
    queue_id    integer NOT NULL REFERENCES poolkeeper.queue,
    tenant      text NOT NULL,
    lane        bigint NOT NULL,
    max_running integer CHECK (max_running >= 0),
    suspended   boolean NOT NULL DEFAULT false,
    weight      integer NOT NULL DEFAULT 1 CHECK (weight >= 1),
    PRIMARY KEY (queue_id, tenant)
);
CREATE INDEX tenant_rule_lane ON poolkeeper.tenant_rule (queue_id, lane);

CREATE TABLE poolkeeper.lane (          -- limiter of a lane; made by claimers, only where tenants are bounded
    queue_id integer NOT NULL,
    lane     bigint NOT NULL,
    PRIMARY KEY (queue_id, lane)
);

CREATE SEQUENCE poolkeeper.opening_no;
CREATE TABLE poolkeeper.opening (       -- a reason to look at a lane, only where tenants are bounded (29_lanes.sql)
    queue_id integer NOT NULL,
    lane     bigint NOT NULL,
    no       bigint NOT NULL DEFAULT nextval('poolkeeper.opening_no'),
    PRIMARY KEY (queue_id, lane, no)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

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

CREATE TABLE poolkeeper.gate (   -- one for each queue: who holds it lets tasks of its keys through, nobody else does
    queue_id integer PRIMARY KEY REFERENCES poolkeeper.queue
);

CREATE TABLE poolkeeper.gate_due (  -- only ever inserted, by whoever may have freed a key; removed by who holds the gate
    queue_id integer NOT NULL,
    no       bigint GENERATED ALWAYS AS IDENTITY,
    gate     bigint NOT NULL,
    PRIMARY KEY (queue_id, no)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- What has ended. Partitioned by retention class, then by the time in the task's own id (UUID version 7), so that
-- "already done" finds a delivery by (task, number or token) in one partition, without an index on anything else.
CREATE SEQUENCE poolkeeper.history_no;
CREATE TABLE poolkeeper.delivery (
    retention     smallint NOT NULL DEFAULT 0,
    task_id       uuid NOT NULL,
    delivery      integer NOT NULL,
    queue_id      integer NOT NULL,
    pool_id       integer NOT NULL,
    session_id    uuid NOT NULL,
    ready_at      timestamptz NOT NULL,
    claimed_at    timestamptz NOT NULL,
    started_at    timestamptz,
    ended_at      timestamptz NOT NULL,
    outcome       text NOT NULL CHECK (outcome IN ('succeeded', 'failed', 'rejected', 'dead', 'snoozed', 'handed_back',
                                                   'returned', 'canceled', 'expired')),
    next_state    text NOT NULL,
    reason        text,
    error_class   text,
    error         text,
    build         text,
    suspect       boolean NOT NULL DEFAULT false,
    token_hash    bytea NOT NULL,
    state_version integer NOT NULL,
    result        jsonb,
    no            bigint NOT NULL DEFAULT nextval('poolkeeper.history_no'),
    tx            xid8 NOT NULL DEFAULT pg_current_xact_id(),   -- for exporters: commit-safe order
    PRIMARY KEY (retention, task_id, delivery)
) PARTITION BY LIST (retention);
CREATE TABLE poolkeeper.delivery_standard PARTITION OF poolkeeper.delivery FOR VALUES IN (0) PARTITION BY RANGE (task_id);
CREATE TABLE poolkeeper.delivery_standard_rest PARTITION OF poolkeeper.delivery_standard DEFAULT;

CREATE TABLE poolkeeper.event (
    retention     smallint NOT NULL DEFAULT 0,
    task_id       uuid NOT NULL,
    no            bigint NOT NULL DEFAULT nextval('poolkeeper.history_no'),
    queue_id      integer NOT NULL,
    at            timestamptz NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('woke', 'canceled', 'cancel_requested', 'requeued', 'discarded', 'died')),
    actor         text,
    reason        text,
    state_version integer NOT NULL,
    tx            xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (retention, task_id, no)
) PARTITION BY LIST (retention);
CREATE TABLE poolkeeper.event_standard PARTITION OF poolkeeper.event FOR VALUES IN (0) PARTITION BY RANGE (task_id);
CREATE TABLE poolkeeper.event_standard_rest PARTITION OF poolkeeper.event_standard DEFAULT;

CREATE TABLE poolkeeper.checkpoint (
    task_id    uuid PRIMARY KEY,
    delivery   integer NOT NULL,
    sequence   integer NOT NULL,
    version    integer NOT NULL,
    value      jsonb NOT NULL,
    saved_at   timestamptz NOT NULL
);

CREATE TABLE poolkeeper.task_key (  -- idempotency (Q6); outlives the task
    tenant     text NOT NULL,
    queue_id   integer NOT NULL,
    key        text NOT NULL CHECK (length(key) BETWEEN 1 AND 200),
    task_id    uuid NOT NULL,
    digest     bytea NOT NULL,
    created_at timestamptz NOT NULL,
    ended_at   timestamptz,  -- of the task, once that is gone; until then the key stays
    last_state text,
    PRIMARY KEY (tenant, queue_id, key)
);
CREATE INDEX task_key_ended ON poolkeeper.task_key (queue_id, ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE poolkeeper.drain_report (
    no         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pool_id    integer NOT NULL REFERENCES poolkeeper.pool,
    session_id uuid NOT NULL,
    at         timestamptz NOT NULL,
    seconds    double precision NOT NULL,
    truncated  boolean NOT NULL,
    report     jsonb NOT NULL
);
CREATE INDEX drain_report_pool ON poolkeeper.drain_report (pool_id, at);

CREATE TABLE poolkeeper.decision (
    no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pool_id  integer NOT NULL REFERENCES poolkeeper.pool,
    at       timestamptz NOT NULL,
    decision jsonb NOT NULL
);
CREATE INDEX decision_pool ON poolkeeper.decision (pool_id, no);
CREATE INDEX decision_age ON poolkeeper.decision (pool_id, at);

CREATE TABLE poolkeeper.retention_walk (  -- how far each walk of the upkeep has come (Q52)
    kind      text PRIMARY KEY,           -- payload, result, events: over the tasks; pools; maintain: the last upkeep
    task_id   uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    pool_id   integer NOT NULL DEFAULT 0,
    began_at  timestamptz NOT NULL
);

CREATE TABLE poolkeeper.retention_note (  -- what a walk passed by and had to leave: no walk looks at it twice
    task_id  uuid NOT NULL,
    kind     text NOT NULL,
    queue_id integer NOT NULL,
    since    timestamptz NOT NULL,        -- its end, or when it had not ended yet: it cannot go before this plus its retention
    PRIMARY KEY (task_id, kind)
);
CREATE INDEX retention_note_due ON poolkeeper.retention_note (queue_id, kind, since);
