-- Queues with their policies and limiters, operators that keep them, pools and their sessions.

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
    retry_share               integer NOT NULL DEFAULT 20 CHECK (retry_share BETWEEN 1 AND 100),  -- percent of the claims (Q13)
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

CREATE TABLE poolkeeper.policy (  -- every version ever applied (O1)
    queue_id   integer NOT NULL REFERENCES poolkeeper.queue,
    version    integer NOT NULL,
    spec       jsonb NOT NULL,
    applied_by text NOT NULL,
    applied_at timestamptz NOT NULL,
    PRIMARY KEY (queue_id, version)
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

CREATE TABLE poolkeeper.gate (   -- one for each queue: who holds it lets tasks of its keys through, nobody else does
    queue_id integer PRIMARY KEY REFERENCES poolkeeper.queue
);

CREATE TABLE poolkeeper.gate_due (  -- only ever inserted, by whoever may have freed a key; removed by who holds the gate
    queue_id integer NOT NULL,
    no       bigint GENERATED ALWAYS AS IDENTITY,
    gate     bigint NOT NULL,
    PRIMARY KEY (queue_id, no)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE poolkeeper.schedule (      -- recurring tasks (Q34, ADR 0026)
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id       integer NOT NULL REFERENCES poolkeeper.queue,
    tenant         text NOT NULL,
    name           text NOT NULL CHECK (name ~ '^[A-Za-z0-9][-A-Za-z0-9._]{0,99}$'),
    cron           text NOT NULL,
    zone           text NOT NULL,
    catch_up       text NOT NULL CHECK (catch_up IN ('skip', 'latest', 'all')),  -- what becomes of slots that nobody fired in time
    catch_up_limit integer NOT NULL CHECK (catch_up_limit BETWEEN 1 AND 1000),   -- of all: at most so many, the latest
    task           jsonb NOT NULL,         -- as submit takes it, without what the slot gives
    paused         boolean NOT NULL DEFAULT false,
    set_by         text NOT NULL,
    set_at         timestamptz NOT NULL,
    version        bigint NOT NULL DEFAULT 1,  -- rises with every change; who fires names the one that was looked at
    counted_to     timestamptz NOT NULL,   -- slots up to here were fired or left out, those after it are open
    due_at         timestamptz CHECK (due_at > counted_to),  -- the first open slot; NULL: not counted yet
    look_at        timestamptz,            -- when somebody looks next; NULL: paused
    fired_at       timestamptz,            -- the last slot that was fired
    fired_task     uuid,
    missed_at      timestamptz,            -- the last slot that was left out
    refused        text,                   -- why nothing could be fired when somebody looked last
    refusals       integer NOT NULL DEFAULT 0,
    UNIQUE (queue_id, tenant, name),
    CHECK ((look_at IS NULL) = paused)
) WITH (fillfactor = 70);
CREATE INDEX schedule_look ON poolkeeper.schedule (queue_id, look_at) WHERE look_at IS NOT NULL;
CREATE INDEX schedule_refused ON poolkeeper.schedule (queue_id, name) WHERE refused IS NOT NULL AND NOT paused;

CREATE TABLE poolkeeper.provider (      -- a provider's quota as workers here found it (Q40, 39_providers.sql); one for each that pools ever used
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    quota       text NOT NULL UNIQUE CHECK (length(quota) BETWEEN 1 AND 200),  -- 'namespace/name'
    cut         smallint NOT NULL CHECK (cut BETWEEN 1 AND 99),        -- percent taken away by a refusal
    floor       smallint NOT NULL CHECK (floor BETWEEN 1 AND 100),     -- never below
    recover     smallint NOT NULL CHECK (recover BETWEEN 1 AND 100),   -- percent of the whole that come back in a minute
    percent     double precision NOT NULL DEFAULT 100 CHECK (percent BETWEEN 0 AND 100),  -- right after the last cut
    cut_at      timestamptz,
    retry_at    timestamptz,                       -- until then nothing that uses it starts
    ok          bigint NOT NULL DEFAULT 0,         -- reports, by what they said
    failed      bigint NOT NULL DEFAULT 0,
    throttled   bigint NOT NULL DEFAULT 0,
    requests    bigint NOT NULL DEFAULT 0,         -- what they said was used
    tokens      bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);                          -- written with each report: HOT

CREATE TABLE poolkeeper.provider_window (  -- what a quota grants in any interval of one length; the limiter of its claims (39_windows.sql)
    provider_id integer NOT NULL REFERENCES poolkeeper.provider,
    measure     text NOT NULL CHECK (measure IN ('requests', 'tokens')),
    most        bigint NOT NULL CHECK (most >= 1),
    width       interval NOT NULL CHECK (width BETWEEN interval '1 second' AND interval '24 hours'),
    PRIMARY KEY (provider_id, measure)
);

CREATE TABLE poolkeeper.provider_slice (   -- what was spent, by the twentieth of a window in which it was
    provider_id integer NOT NULL,
    measure     text NOT NULL,
    ends_at     timestamptz NOT NULL,
    amount      bigint NOT NULL CHECK (amount >= 0),
    PRIMARY KEY (provider_id, measure, ends_at)
) WITH (fillfactor = 50);

CREATE TABLE poolkeeper.provider_spent (   -- the same before a claim has added it up: only ever inserted, removed by who holds the limiter
    provider_id integer NOT NULL,
    no          bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL,
    requests    bigint NOT NULL CHECK (requests >= 0),
    tokens      bigint NOT NULL CHECK (tokens >= 0),
    PRIMARY KEY (provider_id, no)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

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
    known_except      text[],                      -- taken out of the above
    provider_names    text[],                      -- the providers that its tasks use; NULL: none
    provider_ids      integer[],                   -- and whose they are, in the same order
    provider_requests integer[],                   -- what one task needs of each for its whole run; NULL: not said
    provider_tokens   integer[]
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
    crash         text,                            -- how its process ended, as the cluster tells it (O26)
    ended_at      timestamptz
) WITH (fillfactor = 50);                          -- renewals are HOT: no index on a column that they write
CREATE INDEX session_live ON poolkeeper.session (pool_id) WHERE ended_at IS NULL;
CREATE INDEX session_ended ON poolkeeper.session (ended_at) WHERE ended_at IS NOT NULL;
