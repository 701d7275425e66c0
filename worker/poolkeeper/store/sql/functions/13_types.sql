-- What a turn answers: rows of three kinds.
--   settled  verdict on one settle: code (NULL: accepted), state; no row for one that succeeded as asked
--   claimed  one delivery; state running, or leased where it was claimed ahead of a free slot; of a suspect extra = {beside}
--   refused  a start that was refused: code, state; no row for one that started
--   note     extra = {cursor: where the walk over a queue's lanes stopped} or, in the last row, {draining, isolate, come_again (s),
--            slot_in: of a turn that sweeps, seconds until a schedule of its queues is due (s)}
DO $$ BEGIN
    CREATE TYPE poolkeeper.answer AS (
        kind text, code text, state text, task_id uuid, token text, delivery integer, queue text, type text, tenant text,
        payload jsonb, checkpoint jsonb, checkpoint_version integer, labels jsonb, traceparent text, submitted_at timestamptz,
        failures integer, spent integer, max_deliveries integer, suspect boolean, extra jsonb);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- Types that somebody can run of some tenants, as lanes of one queue (NULL: of all), but for not_of.
DO $$ BEGIN
    CREATE TYPE poolkeeper.reach AS (keys bigint[], lanes bigint[], not_of bigint[], live boolean);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- A share of a claim: up to n tasks of one kind; weight: how many of its lane in a round; floor: all of them lie above this seq.
DO $$ BEGIN
    CREATE TYPE poolkeeper.share AS (lane bigint, type_key bigint, priority smallint, n integer, weight integer, again boolean, floor bigint);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

-- What a session knows of a queue for a moment (31_marks.sql): until when, whether there are retries, and above which seq what is ready lies.
DO $$ BEGIN
    CREATE TYPE poolkeeper.marks AS (until timestamptz, retries boolean, floors poolkeeper.share[]);
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
