-- Ordering keys (Q9, Q12, contract 22): of the tasks of one (tenant, queue, ordering key) one after the other, in the order of
-- their submits. The head has its key to itself while it is ready, scheduled, suspect, leased, running or waiting; after its
-- death the policy says Block (what came later waits until the dead letter is requeued or discarded) or Skip.
--
-- A task with a key is accepted into ordered, together with a row of gate_due. Everything that may free a key inserts
-- such a row, in its own transaction: submit, the end of a delivery, a death, a cancel, a requeue, a discard. Nothing of
-- that waits for anybody. open_gates alone moves tasks on. It holds the queue's row of gate, then looks in a later statement,
-- so of one key never two are moved, and it removes only rows of gate_due that this statement saw: where it saw the key
-- taken, whoever frees it inserts a row that nobody has seen yet, so no task is forgotten (ADR 0023).
--
-- The key of a task travels with it as gate, from table to table; NULL for a task without one, which costs nothing.

CREATE OR REPLACE FUNCTION poolkeeper.gate_key(_queue_id integer, _tenant text, _ordering_key text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hashtextextended(_ordering_key, hashtextextended(_tenant, _queue_id)) $$;

-- A key may be free: whoever holds the gate next has a look. NULL: there was no key.
CREATE OR REPLACE FUNCTION poolkeeper.free_key(_queue_id integer, _gate bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF _gate IS NOT NULL THEN
        INSERT INTO poolkeeper.gate_due (queue_id, gate) VALUES (_queue_id, _gate);
    END IF;
END $$;

-- The first tasks of the keys that the first _most rows of gate_due of a queue name, and whether each may go on: nothing
-- of its key is under way, and under Block nothing that came before it is dead. due: these rows, by their places; no
-- task: none waits. Indexes: gate_due_pkey, ordered_next, and the partial ones on gate; a probe of each for each key.
CREATE OR REPLACE FUNCTION poolkeeper.key_heads(_queue_id integer, _most integer)
RETURNS TABLE (gate bigint, due tid[], place tid, task_id uuid, lane bigint, type_key bigint, ready_at timestamptz, due_at timestamptz, free boolean)
LANGUAGE plpgsql STABLE  -- looks with the snapshot of the statement that asks
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
    SELECT k.gate, k.due, o.place, o.task_id, o.lane, o.type_key, o.ready_at, o.due_at,
           (SELECT r.task_id FROM poolkeeper.ready AS r WHERE r.gate = k.gate LIMIT 1) IS NULL
           AND (SELECT r.task_id FROM poolkeeper.lease AS r WHERE r.gate = k.gate LIMIT 1) IS NULL
           AND (SELECT r.task_id FROM poolkeeper.later AS r WHERE r.gate = k.gate LIMIT 1) IS NULL
           AND (SELECT r.task_id FROM poolkeeper.suspect AS r WHERE r.gate = k.gate LIMIT 1) IS NULL
           AND (q.ordering = 'skip' OR (
               SELECT r.task_id FROM poolkeeper.dead AS r
               WHERE r.gate = k.gate AND (SELECT t.ordering_no FROM poolkeeper.task AS t WHERE t.id = r.task_id) < o.no LIMIT 1) IS NULL)
    FROM (SELECT x.gate, array_agg(x.place) AS due
          FROM (SELECT d.ctid AS place, d.gate FROM poolkeeper.gate_due AS d WHERE d.queue_id = _queue_id ORDER BY d.no LIMIT _most) AS x
          GROUP BY x.gate) AS k
    CROSS JOIN LATERAL (SELECT u.ordering FROM poolkeeper.queue AS u WHERE u.id = _queue_id OFFSET 0) AS q
    LEFT JOIN LATERAL (SELECT w.ctid AS place, w.place AS no, w.task_id, w.lane, w.type_key, w.ready_at, w.due_at
                       FROM poolkeeper.ordered AS w WHERE w.queue_id = _queue_id AND w.gate = k.gate ORDER BY w.place LIMIT 1) AS o ON true;
END $$;

-- Arrows: none for a ready task, which is merely held back no more; scheduled -> ready where the time has come meanwhile.
-- Moves the first task of each key that is due and free to where it would have gone without a key. n: how many; busy: a
-- gate was held by somebody else; more: a page was full. Locks: gates, ascending, SKIP LOCKED; then ordered rows, SKIP
-- LOCKED. One that is locked (somebody cancels it) stays due, behind the others.
CREATE OR REPLACE FUNCTION poolkeeper.open_gates(_queues integer[], _most integer, OUT n integer, OUT busy boolean, OUT more boolean)
LANGUAGE plpgsql
AS $$
DECLARE
    _due   integer[];
    _gates integer[];
    _id    integer;
    _now   timestamptz;
    _seen  integer;
    _moved integer;
BEGIN
    n := 0; busy := false; more := false;
    IF NOT EXISTS (SELECT FROM poolkeeper.gate_due AS d WHERE d.queue_id = ANY (_queues))
        OR current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN  -- looks would be old
        RETURN;
    END IF;
    _due := ARRAY(SELECT u.id FROM unnest(_queues) AS u (id)
                  WHERE (SELECT d.no FROM poolkeeper.gate_due AS d WHERE d.queue_id = u.id LIMIT 1) IS NOT NULL);
    _gates := ARRAY(SELECT g.queue_id FROM poolkeeper.gate AS g WHERE g.queue_id = ANY (_due) ORDER BY g.queue_id FOR NO KEY UPDATE SKIP LOCKED);
    busy := cardinality(_gates) < cardinality(_due);
    FOREACH _id IN ARRAY _gates LOOP
        _now := poolkeeper.clock();
        WITH heads AS MATERIALIZED (
            SELECT h.* FROM poolkeeper.key_heads(_id, _most) AS h
        ), gone AS (
            DELETE FROM poolkeeper.ordered AS o WHERE o.ctid = ANY (ARRAY(
                SELECT x.ctid FROM poolkeeper.ordered AS x
                WHERE x.ctid = ANY (ARRAY(SELECT h.place FROM heads AS h WHERE h.free)) FOR UPDATE SKIP LOCKED))
            RETURNING o.*
        ), woke AS (
            INSERT INTO poolkeeper.event (task_id, queue_id, at, kind, state_version)
            SELECT g.task_id, g.queue_id, _now, 'woke', g.state_version + 1 FROM gone AS g WHERE g.due_at <= _now
        ), to_later AS (
            INSERT INTO poolkeeper.later (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, delivery, state_version, due_at, gate)
            SELECT g.task_id, g.queue_id, g.priority, g.lane, g.type_key, g.ready_at, g.expires_at, g.delivery, g.state_version, g.due_at, g.gate
            FROM gone AS g WHERE g.due_at > _now
        ), to_ready AS (
            INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at, expires_at, delivery, state_version, gate)
            SELECT g.task_id, g.queue_id, g.priority, g.lane, g.type_key, g.ready_at, g.expires_at, g.delivery,
                   g.state_version + (g.due_at IS NOT NULL)::integer, g.gate
            FROM gone AS g WHERE g.due_at IS NULL OR g.due_at <= _now ORDER BY g.place
        ), opened AS (  -- where tenants are bounded
            INSERT INTO poolkeeper.opening (queue_id, lane)
            SELECT DISTINCT g.queue_id, g.lane FROM gone AS g
            WHERE (g.due_at IS NULL OR g.due_at <= _now) AND (SELECT q.lanes_kept FROM poolkeeper.queue AS q WHERE q.id = _id)
        ), looked AS (
            DELETE FROM poolkeeper.gate_due AS d WHERE d.ctid = ANY (ARRAY(
                SELECT x.ctid FROM poolkeeper.gate_due AS x
                WHERE x.ctid = ANY (ARRAY(SELECT u.at FROM heads AS h CROSS JOIN LATERAL unnest(h.due) AS u (at))) FOR UPDATE SKIP LOCKED))
            RETURNING 1
        ), again AS (
            INSERT INTO poolkeeper.gate_due (queue_id, gate)
            SELECT _id, h.gate FROM heads AS h WHERE h.task_id IS NOT NULL AND h.free AND h.task_id NOT IN (SELECT g.task_id FROM gone AS g)
        )
        SELECT (SELECT count(*) FROM looked), (SELECT count(*) FROM gone) INTO _seen, _moved;
        n := n + _moved;
        more := more OR _seen = _most;
    END LOOP;
END $$;

-- The queues with keys to look at that a caller may see, each at the cost of one probe. Index: gate_due_pkey.
CREATE OR REPLACE FUNCTION poolkeeper.due_queues(_caller poolkeeper.access) RETURNS integer[]
LANGUAGE sql STABLE
AS $$
    WITH RECURSIVE due AS (
        (SELECT d.queue_id FROM poolkeeper.gate_due AS d ORDER BY d.queue_id LIMIT 1)
        UNION ALL
        SELECT n.queue_id FROM due AS u CROSS JOIN LATERAL (
            SELECT d.queue_id FROM poolkeeper.gate_due AS d WHERE d.queue_id > u.queue_id ORDER BY d.queue_id LIMIT 1) AS n
    )
    SELECT ARRAY(SELECT u.queue_id FROM due AS u
                 CROSS JOIN LATERAL (SELECT k.namespace || '/' || k.name AS path FROM poolkeeper.queue AS k WHERE k.id = u.queue_id OFFSET 0) AS q
                 WHERE poolkeeper.may_see(_caller, q.path, NULL))
$$;

-- Requeued dead letters, their versions one higher: ready with a fresh budget; one with an ordering key goes through the gate
-- again, at the place of its submit (Q9).
CREATE OR REPLACE FUNCTION poolkeeper.put_back(_letters poolkeeper.dead[], _now timestamptz) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO poolkeeper.ready (task_id, queue_id, priority, lane, type_key, ready_at, delivery, state_version)
    SELECT d.task_id, d.queue_id, d.priority, d.lane, d.type_key, _now, d.delivery, d.state_version + 1
    FROM unnest(_letters) AS d WHERE d.gate IS NULL;
    INSERT INTO poolkeeper.opening (queue_id, lane)
    SELECT DISTINCT d.queue_id, d.lane FROM unnest(_letters) AS d
    WHERE d.gate IS NULL AND (SELECT q.lanes_kept FROM poolkeeper.queue AS q WHERE q.id = d.queue_id);
    WITH behind_keys AS (
        INSERT INTO poolkeeper.ordered (task_id, queue_id, gate, place, priority, lane, type_key, ready_at, delivery, state_version)
        SELECT d.task_id, d.queue_id, d.gate, t.ordering_no, d.priority, d.lane, d.type_key, _now, d.delivery, d.state_version + 1
        FROM unnest(_letters) AS d
        CROSS JOIN LATERAL (SELECT k.ordering_no FROM poolkeeper.task AS k WHERE k.id = d.task_id OFFSET 0) AS t WHERE d.gate IS NOT NULL
        RETURNING queue_id, gate
    )
    INSERT INTO poolkeeper.gate_due (queue_id, gate) SELECT DISTINCT b.queue_id, b.gate FROM behind_keys AS b;
END $$;

-- The policy of a queue has changed what a dead letter does to its key: their keys are looked at anew. Holds the gate until
-- the policy is in force: whoever looks later goes by the new one, and a death that nobody sees yet brings a row of its own.
CREATE OR REPLACE FUNCTION poolkeeper.reorder(_queue_id integer) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM FROM poolkeeper.gate AS g WHERE g.queue_id = _queue_id FOR NO KEY UPDATE;
    INSERT INTO poolkeeper.gate_due (queue_id, gate)
    SELECT DISTINCT d.queue_id, d.gate FROM poolkeeper.dead AS d WHERE d.queue_id = _queue_id AND d.gate IS NOT NULL;
END $$;
