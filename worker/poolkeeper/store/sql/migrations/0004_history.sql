-- What has been: deliveries, events, checkpoints, idempotency keys, reports; and how far the upkeep has come.

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
    kind          text NOT NULL CHECK (kind IN ('woke', 'canceled', 'cancel_requested', 'requeued', 'discarded', 'died', 'explained')),
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

CREATE TABLE poolkeeper.dead_post (  -- what of batches of dead letters a webhook has not taken yet (O24)
    queue_id integer NOT NULL REFERENCES poolkeeper.queue,
    number   integer NOT NULL,         -- of the batch
    news     jsonb NOT NULL,
    made_at  timestamptz NOT NULL,
    PRIMARY KEY (queue_id, number)
);
CREATE INDEX dead_post_age ON poolkeeper.dead_post (made_at);

CREATE TABLE poolkeeper.expiry (  -- deliveries that ended because their session was silent, of the last hour (O25)
    task_id    uuid NOT NULL,
    delivery   integer NOT NULL,
    queue_id   integer NOT NULL,
    session_id uuid NOT NULL,
    at         timestamptz NOT NULL,
    explained  boolean NOT NULL,               -- history has how its process ended (O26)
    PRIMARY KEY (task_id, delivery)
);
CREATE INDEX expiry_session ON poolkeeper.expiry (session_id);
CREATE INDEX expiry_queue ON poolkeeper.expiry (queue_id, at);
CREATE INDEX expiry_age ON poolkeeper.expiry (at);

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
